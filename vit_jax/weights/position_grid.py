"""Infers the grid of learned positions, which names and shapes of arrays leave open."""

import math

from vit_jax import config, models
from vit_jax.weights.readers import WeightsError


def square(patches: int) -> tuple[int, int]:
    """Returns rows and columns of a square grid; raises WeightsError if it is not square."""
    side = math.isqrt(max(patches, 0))
    if side * side != patches or not patches:
        raise WeightsError(
            f"contains positions of {patches} patches, which is not a square; "
            "give the image size: --config.data.image_size=HEIGHT,WIDTH"
        )
    return side, side


def size_of_positions(
    model: config.Model, patches: int, given: tuple[int, int] | None
) -> tuple[tuple[int, int], dict[str, str]]:
    """Returns the image size of learned positions, and the assumptions made.

    Args:
      model: complete, with its patch size.
      patches: number of positions.
      given: image size from another source, used if it has equally many patches; otherwise the grid
        is assumed to be square.

    Raises WeightsError for a non-square number of patches without an image size.
    """
    fits = given is not None and math.prod(models.grid(model, given)) == patches
    if given is not None and (fits or math.isqrt(patches) ** 2 != patches):
        return given, {}  # the shape check reports one that does not fit
    (rows, columns), patch = square(patches), model.patch_size or (1, 1)
    factor = models.reduction(model)
    why = f"{patches} positions as a square of {rows} x {columns}; the file does not say"
    size = rows * patch[0] * factor, columns * patch[1] * factor
    return size, {"data.image_size": why}
