"""Google's TIPS and TIPSv2 (google-deepmind/tips): .npz files of its image encoder in Scenic.

encoder/ToTokenSequence_0/embedding, .../cls, .../posembed_input
encoder/transformer/encoderblock_0/MultiHeadDotProductAttention_0, .../FFNSwiGluFused_0
encoder/encoder_norm

Layers and activations are those of big_vision's ViT; the largest has SwiGLU. Two class tokens
without positions stand before the patches: the first, of an image as a whole, is ours, the second a
register. Its files for PyTorch have the names of Meta's DINOv2, and `timm` reads them.
"""

from collections.abc import Iterator, Mapping

from vit_jax import config, models
from vit_jax.weights.mapping import (
    HEADLESS,
    Facts,
    Form,
    Hints,
    Layout,
    Rule,
    array_shape,
    depth,
)
from vit_jax.weights.readers import Arrays, Spec, WeightsError

Size = tuple[int, int]

TOKENS = "encoder/ToTokenSequence_0"
BLOCK = "encoder/transformer/encoderblock_{layer}"
ATTENTION, GATED = "MultiHeadDotProductAttention_0", "FFNSwiGluFused_0"
CODE = "as in TIPS's code; the file does not say"
UNSAID = ("model.gelu", "model.norm_epsilon", "data.mean", "data.std", "data.resampling")
UNSAID += ("data.eval_crop",)
PATCHES = f"{TOKENS}/posembed_input"


def recognizes(arrays: Arrays) -> bool:
    """Returns whether the arrays are such an encoder."""
    return f"{TOKENS}/embedding/kernel" in arrays.specs


def facts(arrays: Arrays, hints: Hints) -> Facts:
    """Infers the model from names and shapes; raises WeightsError."""
    del hints  # positions of another image size are resized as in any file
    specs = arrays.specs
    height, width, channels, features = array_shape(specs, f"{TOKENS}/embedding/kernel", 4)
    block = BLOCK.format(layer=0)
    gated = f"{block}/{GATED}/Dense_0/kernel" in specs
    mlp = GATED if gated else "MlpBlock_0"
    tokens = array_shape(specs, f"{TOKENS}/cls", 3)[1]
    if tokens != 2:
        raise WeightsError(f"contains {tokens} class tokens; TIPS has 2")
    _, rows, columns, _ = array_shape(specs, PATCHES, 4)
    model = models.complete(
        config.Model(
            patch_size=(height, width),
            width=features,
            depth=depth(specs, r"encoder/transformer/encoderblock_(\d{1,3})/"),
            mlp_dim=array_shape(specs, f"{block}/{mlp}/Dense_0/kernel", 2)[1],
            heads=array_shape(specs, f"{block}/{ATTENTION}/query/kernel", 3)[1],
            mlp="swiglu" if gated else "plain",
            registers=1,
            num_classes=1,
            class_position=False,
            position_resize="antialiased_bilinear",
        )
    )
    return Facts(
        model=model,
        data=config.Data(
            image_size=(rows * height, columns * width),
            channels=channels,
            mean=(0.0,),
            std=(1.0,),
            resampling="antialiased_bilinear",
            eval_crop="resize",
        ),
        assumed=dict.fromkeys(UNSAID[1:] if gated else UNSAID, CODE),
        fresh={"head/kernel": HEADLESS, "head/bias": HEADLESS},
    )


def rules(specs: Mapping[str, Spec] | None, facts: Facts) -> list[Rule]:
    """Returns the rules to read a file with these arrays, or to write one (None)."""
    del specs
    grid = models.grid(facts.model, facts.data.image_size)
    table = Form(
        lambda shape: (1, *grid, shape[-1]),
        lambda array, shape: array.reshape(shape),
        lambda array: array.reshape(1, *grid, array.shape[-1]),
    )
    return [
        Rule(f"{TOKENS}/embedding/kernel", "embedding/kernel"),
        Rule(f"{TOKENS}/embedding/bias", "embedding/bias"),
        Rule(f"{TOKENS}/cls", "cls", part=0, parts=2, axis=1),
        Rule(f"{TOKENS}/cls", "registers", part=1, parts=2, axis=1),
        Rule(PATCHES, "position/table", table),
        *_layers(facts.model),
        *_norm("encoder/encoder_norm", "encoder_norm"),
        Rule("head/kernel", "head/kernel"),  # which no file has
        Rule("head/bias", "head/bias"),
    ]


def _layers(model: config.Model) -> Iterator[Rule]:
    for number in (1, 2):
        yield from _norm(f"{BLOCK}/LayerNorm_{number - 1}", f"encoder/norm{number}")
    gated = model.mlp == "swiglu"
    mlp, names = (GATED, ("gate", "fc1", "fc2")) if gated else ("MlpBlock_0", ("fc1", "fc2"))
    for part in ("kernel", "bias"):
        for name in ("query", "key", "value", "out"):
            ours = f"encoder/attention/{name}/{part}"
            yield Rule(f"{BLOCK}/{ATTENTION}/{name}/{part}", ours)
        for number, name in enumerate(names):
            yield Rule(f"{BLOCK}/{mlp}/Dense_{number}/{part}", f"encoder/mlp/{name}/{part}")


def _norm(theirs: str, ours: str) -> Iterator[Rule]:
    for part in ("scale", "bias"):
        yield Rule(f"{theirs}/{part}", f"{ours}/{part}")


# Out


def expresses(facts: Facts) -> bool:
    """Returns whether a model is to be written as one of these rather than as Google's ViT."""
    model = facts.model
    return (
        model.registers == 1
        and "head/kernel" in facts.fresh
        and model.position == "learned_1d"
        and models.has_class_token(model)
        and not model.class_position
        and model.layer_scale is None
    )


LAYOUT = Layout("tips", recognizes, facts, rules)
