"""Evaluation preprocessing of images of any size, traceable with symbolic sizes.

`vit_jax.data.transforms` resizes one image with OpenCV or Pillow; here a resize is one matrix
product per axis, where each row contains the weights of one output pixel. The matrices are computed
in integers up to the last division, so that they are exact for every size.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from vit_jax import config
from vit_jax.data import transforms
from vit_jax.models import positions

TENSORFLOW = ("bilinear", "area")


@dataclasses.dataclass(frozen=True)
class _Axis:
    """Parameters of the resize along one axis; int32 scalars, except for `view`."""

    kept: jax.Array  # pixels of the central crop before the resize
    resized: jax.Array  # pixels they become
    first: jax.Array  # of these, the first one seen; negative: as many pixels of border before it
    view: int  # pixels seen


def view(images: jax.Array, data: config.Data) -> jax.Array:
    """Images preprocessed as in evaluation, (B, *image_size, C) of their type.

    Results are within one gray level of evaluation and prediction, with two exceptions: if the
    longer side of a resize falls exactly between two integers, it may be rounded the other way, and
    `nearest` and `box` may decide otherwise about a pixel that lies exactly on their border. Images
    that already have the right size are exact.

    Args:
      images: uint8 or uint16 (B, h, w, C); B, h and w may be symbolic.
      data: the options of the pixels.
    """
    resampling, steps = transforms.eval_resampling(data), transforms.eval_transforms(data)
    # As arrays: comparisons of symbolic sizes cannot be decided while tracing.
    vertical, horizontal = _axes(jnp.array(images.shape[1]), jnp.array(images.shape[2]), data)
    pixels = images.astype(jnp.float32)
    weights = _weights(horizontal, images.shape[2], resampling)
    # By default a TPU rounds both factors to bfloat16.
    pixels = jnp.einsum("xw,bhwc->bhxc", weights, pixels, precision="highest")
    most = float(jnp.iinfo(images.dtype).max)
    if resampling not in TENSORFLOW and data.depth == 8:
        pixels = _round(pixels, most)  # Pillow resizes one axis, then the other
    weights = _weights(vertical, images.shape[1], resampling)
    pixels = jnp.einsum("yh,bhxc->byxc", weights, pixels, precision="highest")
    if resampling == "area":  # rounded down; the sum of weights may be a little less than 1
        pixels = pixels - (0.5 - 2**-10)
    pixels = _round(pixels, most).astype(images.dtype)
    fill = steps[-1].fill if isinstance(steps[-1], transforms.CentralCrop) else None
    if fill is None:
        return pixels
    shown = _shown(vertical)[:, None, None] & _shown(horizontal)[None, :, None]
    return jnp.where(shown, pixels, jnp.asarray(fill, images.dtype))


def _shown(axis: _Axis) -> jax.Array:
    """Which pixels of the view are of the image, not of its border: bool (view,)."""
    seen = axis.first + jax.lax.iota(jnp.int32, axis.view)
    return (seen >= 0) & (seen < axis.resized)


def _axes(height: jax.Array, width: jax.Array, data: config.Data) -> tuple[_Axis, _Axis]:
    resize, *crop = transforms.eval_transforms(data)
    kept, resized = _resized(resize, height, width)
    even = any(isinstance(one, transforms.CentralCrop) and one.rounding == "even" for one in crop)
    vertical, horizontal = (
        _Axis(before, after, _first(after - length, even=even), length)
        for before, after, length in zip(kept, resized, data.image_size, strict=True)
    )
    return vertical, horizontal


def _resized(
    resize: transforms.Transform, height: jax.Array, width: jax.Array
) -> tuple[list[jax.Array], list[jax.Array]]:
    """The sides of the resized part of an image, before and after."""
    sides = [height, width]
    if isinstance(resize, transforms.Resize):
        lengths = (resize.height, resize.width)
        return sides, [jnp.full_like(s, n) for s, n in zip(sides, lengths, strict=True)]
    inside = isinstance(resize, transforms.ResizeKeepRatio) and resize.inside
    if not inside:
        longest = transforms.ResizeShortSide.LONGEST * jnp.minimum(height, width)
        sides = [jnp.minimum(side, longest) for side in sides]
    if isinstance(resize, transforms.ResizeShortSide):
        # Pillow's side is rounded down, as in `ResizeShortSide`.
        ratio = rounded_ratio if resize.resampling in TENSORFLOW else jnp.floor_divide
        return sides, [ratio(side * resize.size, jnp.minimum(*sides)) for side in sides]
    assert isinstance(resize, transforms.ResizeKeepRatio)
    # The axis whose ratio decides; sides fit int32 for any image within data.max_pixels.
    tall = (sides[0] * resize.width >= sides[1] * resize.height) == inside
    per = [jnp.where(tall, resize.height, resize.width), jnp.where(tall, *sides)]
    return sides, [jnp.maximum(1, rounded_ratio(side * per[0], per[1])) for side in sides]


def _first(margin: jax.Array, *, even: bool) -> jax.Array:
    """The first pixel seen of an axis that has `margin` more of them than the view."""
    half = margin // 2
    if not even:
        return half
    # Half to even in integers; of a border, which is a negative margin, the larger half is below.
    return jnp.where(margin < 0, -(-margin // 2), half + (margin % 2) * (half % 2))


def rounded_ratio(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
    """The ratio of two integers, rounded half to even like Python's `round`."""
    upper, rest = jnp.divmod(2 * numerator + denominator, 2 * denominator)
    return jnp.where((rest == 0) & (upper % 2 == 1), upper - 1, upper)


def _weights(axis: _Axis, length: int, resampling: str) -> jax.Array:
    """The weight of each input pixel in each output pixel, (view, length) float32.

    Positions are integers, `2 * resized` per pixel of the original image; int32 holds them for any
    image within `data.max_pixels`.
    """
    kept, resized = axis.kept, axis.resized
    rows = (axis.first + jax.lax.iota(jnp.int32, axis.view))[:, None]
    # Counted from the central crop: outside of it they are below 0, or `kept` and above.
    columns = (jax.lax.iota(jnp.int32, length) - (length - kept) // 2)[None, :]
    inside = (columns >= 0) & (columns < kept)
    if resampling == "area":
        # In units of 1 / resized of an input pixel, all bounds of pixels are integers.
        low = jnp.maximum(rows * kept, columns * resized)
        shares = jnp.minimum((rows + 1) * kept, (columns + 1) * resized) - low
        weights = jnp.where(inside, jnp.maximum(shares, 0), 0).astype(jnp.float32)
        return weights / kept.astype(jnp.float32)
    places, unit = (2 * rows + 1) * kept - resized, 2 * resized
    if resampling == "nearest":
        nearest = ((2 * rows + 1) * kept) // unit
        return (columns == nearest).astype(jnp.float32)
    if resampling == "bilinear":
        places = jnp.clip(places, 0, unit * (kept - 1))  # edge pixels repeat beyond the edge
    else:
        unit = 2 * jnp.maximum(kept, resized)  # antialiased: of the coarser image
    away = (2 * resized * columns - places).astype(jnp.float32) / unit.astype(jnp.float32)
    reach, kernel = KERNELS[resampling]
    # Pillow's box takes a pixel on its border on the right, not on the left; in float64.
    near = (away > -reach) & (away <= reach) & inside
    weights = jnp.where(near, kernel(jnp.abs(away)), 0.0)
    total = weights.sum(axis=1, keepdims=True)
    return weights / jnp.where(total == 0, 1, total)  # rows of a border have no pixels


def _triangle(x: jax.Array) -> jax.Array:
    return jnp.maximum(1.0 - x, 0.0)


def _hamming(x: jax.Array) -> jax.Array:
    return jnp.sinc(x) * (0.54 + 0.46 * jnp.cos(jnp.pi * x))


def _lanczos(x: jax.Array) -> jax.Array:
    return jnp.sinc(x) * jnp.sinc(x / 3)


# Kernels of Pillow's filters and OpenCV's bilinear one, and their radius in pixels of the coarser
# image.
KERNELS = {
    "bilinear": (1, _triangle),
    "antialiased_bilinear": (1, _triangle),
    "antialiased_bicubic": (2, functools.partial(positions.cubic, a=-0.5, xp=jnp)),
    "box": (0.5, jnp.ones_like),
    "hamming": (1, _hamming),
    "lanczos": (3, _lanczos),
}


def _round(pixels: jax.Array, most: float) -> jax.Array:
    return jnp.clip(jnp.floor(pixels + 0.5), 0.0, most)
