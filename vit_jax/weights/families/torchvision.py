"""torchvision's Vision Transformers (`vit_b_16`, ...): the state dicts of its `.pth` files.

class_token, conv_proj, encoder.layers.encoder_layer_0.self_attention, encoder.ln, heads.head

Older files call the layers of an MLP `mlp.linear_1` and `mlp.linear_2`. Nothing beside the arrays
says which of torchvision's sets of weights they are, by which the view of evaluation differs.
Exports write timm's form.
"""

from collections.abc import Iterator

from vit_jax import config
from vit_jax.weights.arrays import WeightsError
from vit_jax.weights.families import timm_vit, torch_rules
from vit_jax.weights.family import (
    FILTERS,
    IMAGENET,
    NO_HEAD,
    Family,
    Files,
    Hints,
    share_of_crop,
)
from vit_jax.weights.mapping import (
    ArraySpecs,
    ModelSpec,
    Rule,
    Shapes,
    array_shape,
    size_of_positions,
)

BLOCK = "encoder.layers.encoder_layer_{layer}"
NAMES = (
    ("class_token", "cls"),
    ("conv_proj", "embedding"),
    ("encoder.pos_embedding", "position/table"),
    *((f"{BLOCK}.ln_{n}", f"encoder/norm{n}") for n in (1, 2)),
    (f"{BLOCK}.self_attention.in_proj_", "encoder/attention/query|key|value"),
    (f"{BLOCK}.self_attention.out_proj", "encoder/attention/out"),
    *((f"{BLOCK}.mlp.{name}", f"encoder/mlp/fc{n}")
      for n, names in ((1, ("0", "linear_1")), (2, ("3", "linear_2"))) for name in names),
    ("encoder.ln", "encoder_norm"),
    ("heads.head", "head"),
)  # fmt: skip
WHY = "as of most of torchvision's weights; the file does not say"


class Torchvision(Family):
    """The files of torchvision's ViTs."""

    project = "torchvision"
    anchors = ("conv_proj.weight",)
    head = "heads.head"

    def recognizes(self, arrays: ArraySpecs, files: Files) -> bool:
        return "conv_proj.weight" in arrays and f"{BLOCK.format(layer=0)}.ln_1.weight" in arrays

    def read_spec(self, arrays: ArraySpecs, hints: Hints) -> ModelSpec:
        shapes = Shapes(arrays, self.rules(arrays, None))
        if "cls" not in shapes.has:
            raise WeightsError("contains no class_token, which torchvision's models have")
        options = shapes.encoder()
        heads, assumed = timm_vit.read_heads({}, options["width"], hints.heads)
        options |= {
            "heads": heads,
            "pooling": "token",
            "gelu": "erf",
            "norm_epsilon": 1e-6,
            "position_resize": "bicubic",
        }
        model = shapes.model(**options)
        # The class token has a position too.
        patches = array_shape(arrays, "encoder.pos_embedding", 3)[1] - 1
        size, guessed = size_of_positions(model, patches, hints.image_size)
        small = size == (224, 224)  # which its ImageNet-1k recipe trained at, SWAG at more
        mean, std = IMAGENET
        return ModelSpec(
            model=model,
            data=config.Data(
                image_size=size,
                channels=shapes.channels,
                mean=mean,
                std=std,
                resampling=FILTERS["bilinear" if small else "bicubic"],
                **share_of_crop("central", 0.875 if small else 1.0),
            ),
            assumed={
                **assumed,
                **guessed,
                **dict.fromkeys(("data.resampling", "data.crop_pct"), WHY),
            },
            fresh=NO_HEAD if shapes.headless else {},
        )

    def rules(self, arrays: ArraySpecs | None, spec: ModelSpec | None) -> Iterator[Rule]:
        return torch_rules.rules(NAMES)
