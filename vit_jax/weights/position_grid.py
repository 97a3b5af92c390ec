"""What names and shapes of arrays leave open: the grid of positions, and how it is told."""

import math
from collections.abc import Container

from vit_jax import config, models
from vit_jax.weights.mapping import Facts
from vit_jax.weights.readers import WeightsError


def square(patches: int) -> tuple[int, int]:
    """Returns rows and columns of a square of patches; raises WeightsError where it is none."""
    side = math.isqrt(max(patches, 0))
    if side * side != patches or not patches:
        raise WeightsError(
            f"holds positions of {patches} patches, no square; "
            "give the image size: --config.data.image_size=HEIGHT,WIDTH"
        )
    return side, side


def size_of_positions(
    model: config.Model, patches: int, given: tuple[int, int] | None
) -> tuple[tuple[int, int], dict[str, str]]:
    """Returns the image size that learned positions are for, and what is assumed of it.

    Args:
      model: complete, with its patch size.
      patches: how many have a position.
      given: the image size that somebody says; it holds where it has as many patches. Where it has
        not, the grid is taken for a square.

    Raises WeightsError where it is no square and no image size is given.
    """
    fits = given is not None and math.prod(models.grid(model, given)) == patches
    if given is not None and (fits or math.isqrt(patches) ** 2 != patches):
        return given, {}  # one that does not fit is told with the shapes
    (rows, columns), patch = square(patches), model.patch_size or (1, 1)
    factor = models.reduction(model)
    why = f"{patches} positions as a square of {rows} x {columns}; the file does not say"
    size = rows * patch[0] * factor, columns * patch[1] * factor
    return size, {"data.image_size": why}


def assumptions(facts: Facts, settled: Container[str]) -> tuple[str, ...]:
    """Returns what is assumed of a source, a line for each reason, without what is settled."""
    reasons: dict[str, list[str]] = {}
    for key, why in facts.assumed.items():
        if key not in settled:
            value = getattr(getattr(facts, key.partition(".")[0]), key.partition(".")[2])
            reasons.setdefault(why, []).append(f"{key}={config.show(value)}")
    return tuple(f"assumed {', '.join(set_)}: {why}" for why, set_ in reasons.items())
