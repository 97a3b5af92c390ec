"""Hugging Face's CLIP and SigLIP (also SigLIP 2 of fixed size): the image tower of each.

vision_model.embeddings, ..., visual_projection      CLIPVisionModelWithProjection, CLIPModel
vision_model.embeddings, ..., vision_model.head      SiglipVisionModel, SiglipModel
vision_model.embeddings, ..., classifier             SiglipForImageClassification
embeddings, encoder.layers.0, post_layernorm         CLIPVisionModel, SiglipVisionModel

Files of both towers are read for that of images. The projection of CLIP is a head without a bias.
The pooling head of SigLIP is `model.pooling=map`; its classifiers read the mean of all patches
instead. Those of CLIP read tokens that nothing normalizes, which no model here does.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from vit_jax import config, models
from vit_jax.weights import huggingface_beit, huggingface_dinov2, json_fields
from vit_jax.weights.json_fields import Given
from vit_jax.weights.mapping import (
    CONVOLUTION,
    FLAT,
    ROWS,
    Facts,
    Rule,
    array_shape,
    depth,
    linear,
)
from vit_jax.weights.readers import Spec, WeightsError
from vit_jax.weights.torch_rules import dense, mlp, norm, parts

KINDS = ("clip", "clip_vision_model", "siglip", "siglip_vision_model")  # of config.json
PATCHES = "embeddings.patch_embedding.weight"
EPSILONS = {"clip": 1e-5, "siglip": 1e-6}  # of transformers, where config.json has none
ACTIVATIONS = {"clip": "quick_gelu", "siglip": "gelu_pytorch_tanh"}
DROPPED = (
    (r"text_model\..*|text_projection\..*|logit_scale|logit_bias", "of the text tower"),
    (r"(vision_model\.)?embeddings\.position_ids", "numbers of positions, no weights"),
    (r"vision_model\.head\..*", "a pooling that the classifier does not use"),
)


def kind_of(given: Given) -> str:
    """Returns clip or siglip, for the config.json of one."""
    return json_fields.text(given, "model_type", "").partition("_")[0]


def tower(given: Given) -> Given:
    """Returns the fields of the image tower, with those that transformers leaves out."""
    kind = kind_of(given)
    fields = json_fields.section(given, "vision_config") if "vision_config" in given else given
    epsilon, activation = EPSILONS[kind], ACTIVATIONS[kind]
    own = {"layer_norm_eps": epsilon, "hidden_act": activation, "image_size": 224}
    return {**own, **json_fields.present(fields)}


def options(specs: Mapping[str, Spec], given: Given, prefix: str) -> dict[str, Any]:
    """Returns the options that arrays reveal; raises WeightsError."""
    clip = kind_of(given) == "clip"
    if clip and "classifier.weight" in specs:
        raise WeightsError(
            "contains a CLIPForImageClassification, whose head reads tokens that nothing "
            "normalizes, which is not supported"
        )
    width, _, *patch = array_shape(specs, f"{prefix}{PATCHES}", 4)
    pooled = f"{prefix}head.probe" in specs and "classifier.weight" not in specs
    made = {
        "patch_size": (patch[0], patch[1]),
        "width": width,
        "depth": depth(specs, r"(?:vision_model\.)?encoder\.layers\.(\d{1,3})\."),
        "mlp_dim": array_shape(specs, f"{prefix}encoder.layers.0.mlp.fc1.weight", 2)[0],
        "pooling": "map" if pooled else "gap",
        "patch_remainder": "drop",
    }
    if not clip:
        return made
    projected = "visual_projection.weight" in specs
    biasless = ("patches", "head") if projected else ("patches",)
    return made | {"pooling": "token", "stem_norm": True, "biasless": biasless}


def rules(prefix: str, model: config.Model) -> Iterator[Rule]:
    """Yields the rules of a tower and its head."""
    yield Rule(f"{prefix}embeddings.class_embedding", "cls", FLAT)
    yield Rule(f"{prefix}embeddings.position_embedding.weight", "position/table", ROWS)
    yield from dense(f"{prefix}embeddings.patch_embedding", "embedding", CONVOLUTION)
    yield from norm(f"{prefix}pre_layrnorm", "stem_norm")  # as they spell it
    block = f"{prefix}encoder.layers.{{layer}}"
    for number in (1, 2):
        yield from norm(f"{block}.layer_norm{number}", f"encoder/norm{number}")
    for ours in ("query", "key", "value"):
        theirs = f"{block}.self_attn.{ours[0]}_proj"
        yield Rule(f"{theirs}.weight", f"encoder/attention/{ours}/kernel", linear())
        yield Rule(f"{theirs}.bias", f"encoder/attention/{ours}/bias", FLAT)
    yield from dense(f"{block}.self_attn.out_proj", "encoder/attention/out", linear(2))
    yield from mlp(f"{block}.mlp", "encoder/mlp")
    yield from norm(f"{prefix}post_layernorm", "encoder_norm")
    head = f"{prefix}head"
    yield Rule(f"{head}.probe", "pooling/probe")
    qkv = ("query", "key", "value")
    yield from parts(f"{head}.attention.in_proj", "pooling/attention", qkv, "_")
    yield from dense(f"{head}.attention.out_proj", "pooling/attention/out", linear(2))
    yield from norm(f"{head}.layernorm", "pooling/norm")
    yield from mlp(f"{head}.mlp", "pooling/mlp")
    yield from dense("visual_projection" if model.stem_norm else "classifier", "head")


# Out


def expresses(model: config.Model) -> bool:
    """Returns whether a model is to be written as one of these rather than as a ViT."""
    bare = not models.has_class_token(model) and model.pooling in ("map", "gap")
    other = huggingface_dinov2.expresses(model) or huggingface_beit.expresses(model)
    return model.stem_norm or (bare and not other)


def check(facts: Facts, *, headless: bool) -> None:
    """Raises WeightsError for a model that `expresses` but that they cannot be.

    What they lack altogether, as registers, has no rule; what they have otherwise reads back so.
    """
    model, (height, width) = facts.model, facts.data.image_size
    if model.pooling == "map" and not headless:
        raise WeightsError(
            "model.pooling=map: in Hugging Face's SigLIP no head follows this pooling; a "
            "classifier there reads the mean of all patches (gap)"
        )
    if height != width:
        raise WeightsError(
            f"data.image_size={height},{width}: Hugging Face's CLIP and SigLIP take squares only"
        )


def fields(
    model: config.Model, known: dict[str, Any], *, headless: bool
) -> tuple[str, str, dict[str, Any]]:
    """Returns the names of the class and of the kind, and the fields of config.json.

    Args:
      model: passes `check`.
      known: the fields of a ViT.
      headless: whether there is no head.
    """
    kept = {k: v for k, v in known.items() if k != "qkv_bias" and "dropout_prob" not in k}
    if model.stem_norm and headless:
        return "CLIPVisionModel", "clip_vision_model", kept
    if model.stem_norm:
        named = "CLIPVisionModelWithProjection", "clip_vision_model"
        return *named, kept | {"projection_dim": model.num_classes}
    pooled = {"vision_use_head": model.pooling == "map"}
    if headless:
        return "SiglipVisionModel", "siglip_vision_model", kept | pooled
    nested = {"model_type": "siglip_vision_model", **kept, **pooled}
    return "SiglipForImageClassification", "siglip", {"vision_config": nested}
