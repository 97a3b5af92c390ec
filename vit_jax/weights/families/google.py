"""Google's Vision Transformers and hybrids: .npz files of vision_transformer and big_vision.

Files written before Flax Linen count all submodules of a block together (LayerNorm_0,
MultiHeadDotProductAttention_1, LayerNorm_2, MlpBlock_3), later ones count each kind by itself.
With `scan=True`, big_vision stacks the layers: one array for all of them.
"""

from collections.abc import Iterable, Iterator

from vit_jax import config, models
from vit_jax.weights.arrays import WeightsError
from vit_jax.weights.families.torch_rules import ARRAYS
from vit_jax.weights.family import (
    NO_HEAD,
    NO_SIZE,
    Family,
    Files,
    Hints,
    refuse_options,
    set_otherwise,
)
from vit_jax.weights.mapping import (
    SAME,
    SPREAD,
    ArrayLayout,
    ArraySpecs,
    ModelSpec,
    Rule,
    Shapes,
    array_shape,
    size_of_positions,
)

BLOCK, STACKED = "Transformer/encoderblock_{layer}", "Transformer/encoderblock"
POSITIONS = "Transformer/posembed_input/pos_embedding"
DROPPED = (
    (r"opt/(?!target/).*|(?:.*/)?(?:step|rng)", "of the optimizer, not of the model"),
    (r"chrono/.*", "of big_vision's clock, not of the model"),
    # The temperature and the bias of SigLIP's loss are named t and b.
    (r"(?:params/)?(?:txt/.*|t|b)", "of the text tower and the loss"),
)
SOFTMAX = "loss.name=softmax"  # as an assumption
CODE = "as in Google's code; the file does not say"
PIXELS = ("data.mean", "data.std", "data.resampling", "data.eval_crop")
# Parts of an encoder that Google's has not.
FOREIGN = ("mlp", "layer_scale", "registers", "distillation", "stem_norm", "qk_norm", "rotary")
FOREIGN += ("sub_norm", "relative_bias", "pooling_heads", "pooling_mlp_dim", "pooling_prefix")


class Google(Family):
    """ViTs and hybrids."""

    project = "google"
    anchors = ("embedding/kernel",)
    dropped = DROPPED
    positions = ("learned_1d", "sincos_2d", "relative")

    def recognizes(self, arrays: ArraySpecs, files: Files) -> bool:
        return any(name.startswith("Transformer/") for name in arrays)

    def read_spec(self, arrays: ArraySpecs, hints: Hints) -> ModelSpec:
        shapes = Shapes(arrays, self.rules(arrays, None))
        table = shapes.has.get("position/table")
        pooling = "token" if "cls" in shapes.has else "gap"
        options = shapes.encoder() | {
            "pooling": "map" if "pooling/probe" in shapes.has else pooling,
            "position": "sincos_2d" if table is None else "learned_1d",
            # big_vision adds positions before it prepends the class token.
            "class_position": pooling == "gap" or table != "pos_embedding",
        }
        model = shapes.model(**options)
        size, assumed = hints.image_size, {}
        if table is not None:
            patches = array_shape(arrays, table, 3)[1] - models.has_class_position(model)
            size, assumed = size_of_positions(model, patches, hints.image_size)
        if size is None:
            raise WeightsError(NO_SIZE)
        assumed |= dict.fromkeys(_unsaid(model, headless=shapes.headless), CODE)
        return ModelSpec(
            model=model,
            data=config.Data(image_size=size, channels=shapes.channels, eval_crop="resize"),
            assumed=assumed,
            fresh=NO_HEAD if shapes.headless else {},
        )

    def rules(self, arrays: ArraySpecs | None, spec: ModelSpec | None) -> Iterator[Rule]:
        # Written are the names of the published files, those before Linen; big_vision's for what
        # only big_vision has.
        stacked = any(name.startswith(f"{STACKED}/") for name in arrays or ())
        block = STACKED if stacked else BLOCK
        if arrays is None:
            assert spec is not None
            model = spec.model
            later = model.pooling == "map" or model.position != "learned_1d"
            later = later or (models.has_class_token(model) and not model.class_position)
            spread = True
        else:
            later = f"{block.format(layer=0)}/MultiHeadDotProductAttention_0/query/kernel" in arrays
            spread = "gn_root/scale" in arrays and len(arrays["gn_root/scale"].shape) == 4
        positions = ("pos_embedding", POSITIONS) if later else (POSITIONS, "pos_embedding")
        yield from rules(
            (
                ("embedding", "embedding"),
                ("cls", "cls"),
                *((name, "position/table") for name in positions),
                (f"{block}/LayerNorm_0", "encoder/norm1"),
                (f"{block}/LayerNorm_{1 if later else 2}", "encoder/norm2"),
                *layers(block, "encoder", *((0, 0) if later else (1, 3))),
                ("Transformer/encoder_norm", "encoder_norm"),
                ("MAPHead_0/probe", "pooling/probe"),
                ("MAPHead_0/LayerNorm_0", "pooling/norm"),
                *layers("MAPHead_0", "pooling", 0, 0),
                ("pre_logits", "pre_logits"),
                ("head", "head"),
                ("conv_root", "resnet/conv_root"),
                ("gn_root", "resnet/gn_root"),
                *resnet_units("block{stage1}/unit{unit1}"),
            ),
            SPREAD if spread else SAME,
        )

    def expresses(self, spec: ModelSpec) -> bool:
        return True

    def validate_spec(self, spec: ModelSpec) -> None:
        refuse_options(spec.model, set_otherwise(spec.model, *FOREIGN), "Google")


def _unsaid(model: config.Model, *, headless: bool) -> tuple[str, ...]:
    """The options that names and shapes do not reveal."""
    keys = ["model.activation", "model.gelu", "model.norm_epsilon"]
    if model.pooling == "gap":
        keys.insert(0, "model.pooling")
    if model.position != "learned_1d":
        keys.append("model.position")
    if model.representation_size is not None:
        keys.append("model.representation_activation")
    if model.resnet_units is not None:
        keys.append("model.resnet_epsilons")
    return (*keys, *PIXELS, *([] if headless else [SOFTMAX]))


def rules(names: Iterable[tuple[str, str]], group_norms: ArrayLayout = SAME) -> Iterator[Rule]:
    """Yields the rules of layers and arrays named (in the file, here).

    `group_norms` is the layout of a ResNet's, its numbers stored as (C,) or as (1, 1, 1, C).
    """
    for source, target in names:
        last = target.rpartition("/")[2]
        if last in ARRAYS:
            yield Rule(source, target)
            continue
        norm = "norm" in last or last.startswith("gn")
        layout = group_norms if last.startswith("gn") else SAME
        for part in ("scale" if norm else "kernel", "bias"):
            yield Rule(f"{source}/{part}", f"{target}/{part}", layout)


def resnet_units(unit: str) -> Iterator[tuple[str, str]]:
    """Yields the names of a ResNet's units."""
    for part in ("conv1", "conv2", "conv3", "conv_proj", "gn1", "gn2", "gn3", "gn_proj"):
        yield f"{unit}/{part}", f"resnet/unit/{part}"


def layers(source: str, target: str, attention: int, mlp: int) -> Iterator[tuple[str, str]]:
    """Yields the names of attention and MLP, which Flax numbers."""
    for name in ("query", "key", "value", "out"):
        yield (
            f"{source}/MultiHeadDotProductAttention_{attention}/{name}",
            f"{target}/attention/{name}",
        )
    for number, name in ((0, "fc1"), (1, "fc2")):
        yield f"{source}/MlpBlock_{mlp}/Dense_{number}", f"{target}/mlp/{name}"
