"""deit3-jax: DeiT and DeiT III trained on TPUs, saved as Flax MessagePack (`NAME-best.msgpack`).

model/embed/wte, model/layer_0/attn/wq, model/norm, model/head

Attention has an axis of heads and MLPs the tanh GELU, unlike the PyTorch models that these
reproduce. Positions are a grid (rows, columns, D) without the class token. Source:
affjljoo3581/deit3-jax (Apache-2.0), `src/modeling.py` and `src/dataset.py`.
"""

import math
from collections.abc import Iterator
from typing import Any

from vit_jax import config
from vit_jax.weights.arrays import WeightsError
from vit_jax.weights.families.google import rules
from vit_jax.weights.family import (
    FILTERS,
    IMAGENET,
    NO_HEAD,
    NO_SIZE,
    Family,
    Files,
    Hints,
    share_of_crop,
)
from vit_jax.weights.mapping import (
    ArraySpecs,
    ModelSpec,
    Rule,
    Shape,
    Shapes,
    array_shape,
    reshaped,
)


def _grid(shape: Shape) -> Shape:
    side = math.isqrt(shape[1])
    return side, side, shape[2]


POSITIONS = reshaped(_grid)
BLOCK = "layer_{layer}"
NAMES = (
    ("embed/wte", "embedding"),
    ("embed/cls_token", "cls"),
    *((f"{BLOCK}/attn/w{short}", f"encoder/attention/{name}")
      for short, name in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "out"))),
    *((f"{BLOCK}/ff/w{n}", f"encoder/mlp/fc{n}") for n in (1, 2)),
    *((f"{BLOCK}/norm{n}", f"encoder/norm{n}") for n in (1, 2)),
    *((f"{BLOCK}/scale{n}", f"encoder/scale{n}/scale") for n in (1, 2)),
    ("norm", "encoder_norm"),
    ("head", "head"),
)  # fmt: skip
RECIPE = "as in the recipe of {}; the file does not say"


class DeiT3Jax(Family):
    """The files of deit3-jax."""

    project = "deit3-jax"
    anchors = ("embed/wte/kernel",)

    def recognizes(self, arrays: ArraySpecs, files: Files) -> bool:
        return "embed/wte/kernel" in arrays and "layer_0/attn/wq/kernel" in arrays

    def read_spec(self, arrays: ArraySpecs, hints: Hints) -> ModelSpec:
        shapes = Shapes(arrays, self.rules(arrays, None))
        options: dict[str, Any] = shapes.encoder()
        scaled = "encoder/scale1/scale" in shapes.has
        learned = "position/table" in shapes.has
        size = hints.image_size
        if learned:
            rows, columns, _ = array_shape(arrays, "embed/wpe", 3)
            if rows != columns:
                raise WeightsError(f"embed/wpe is {rows} x {columns}: deit3-jax has squares only")
            height, width = options["patch_size"]
            size = rows * height, columns * width
        if size is None:
            raise WeightsError(NO_SIZE)
        token = "cls" in shapes.has
        model = shapes.model(
            **options
            | {
                "pooling": "token" if token else "gap",
                "position": "learned_1d" if learned else "sincos_2d",
                # The grid has no row for the token; without a token the option does nothing and
                # keeps its default.
                "class_position": not token,
                "position_resize": "antialiased_bicubic",
                "layer_scale": 1e-4 if scaled else None,
                "gelu": "tanh",
                "norm_epsilon": 1e-6,
            }
        )
        mean, std = IMAGENET
        recipe = RECIPE.format("DeiT III" if scaled else "DeiT")
        # DeiT III trains on binary cross-entropies.
        loss = "sigmoid" if scaled else "softmax"
        assumed = {"data.crop_pct": recipe}
        if not shapes.headless:
            assumed[f"loss.name={loss}"] = recipe
        return ModelSpec(
            model=model,
            data=config.Data(
                image_size=size,
                channels=shapes.channels,
                mean=mean,
                std=std,
                resampling=FILTERS["bicubic"],
                **share_of_crop("central", 1.0 if scaled else 0.875),
            ),
            loss=loss,
            assumed=assumed,
            fresh=NO_HEAD if shapes.headless else {},
        )

    def rules(self, arrays: ArraySpecs | None, spec: ModelSpec | None) -> Iterator[Rule]:
        yield Rule("embed/wpe", "position/table", POSITIONS)
        yield from rules(NAMES)
