"""Evaluation preprocessing of images of any size, traceable with symbolic sizes.

`vit_jax.data.transforms` resizes one image with OpenCV or Pillow; here a resize is one matrix
product per axis, where each row contains the weights of one output pixel. The matrices are computed
in integers up to the last division, so that they are exact for every size.
"""

import dataclasses

import jax
import jax.numpy as jnp

from vit_jax import config
from vit_jax.data import transforms

# Kernel radius of Pillow's filters and OpenCV's bilinear one, in pixels of the coarser image.
REACH = {"bilinear": 1, "antialiased_bilinear": 1, "antialiased_bicubic": 2}


@dataclasses.dataclass(frozen=True)
class _Axis:
    """Parameters of the resize along one axis; int32 scalars, except for `view`."""

    kept: jax.Array  # pixels of the central crop before the resize
    resized: jax.Array  # pixels they become
    view: int  # pixels of the central crop after the resize


def view(images: jax.Array, data: config.Data) -> jax.Array:
    """Returns images preprocessed as in evaluation, (B, *image_size, C) of their type.

    Results are within one gray level of evaluation and prediction, with one exception: if the
    longer side of a central crop's resize falls exactly between two integers, it may be rounded the
    other way. Images that already have the right size are exact.

    Args:
      images: uint8 or uint16 (B, h, w, C); B, h and w may be symbolic.
      data: the options of the pixels.
    """
    vertical, horizontal = _axes(jnp.array(images.shape[1]), jnp.array(images.shape[2]), data)
    pixels = images.astype(jnp.float32)
    weights = _weights(horizontal, images.shape[2], data.resampling)
    pixels = jnp.einsum("xw,bhwc->bhxc", weights, pixels, precision="highest")
    most = float(jnp.iinfo(images.dtype).max)
    if data.resampling != "bilinear" and data.depth == 8:
        pixels = _round(
            pixels, most
        )  # Pillow resizes one axis, then the other; OpenCV both at once
    weights = _weights(vertical, images.shape[1], data.resampling)
    pixels = jnp.einsum("yh,bhxc->byxc", weights, pixels, precision="highest")
    return _round(pixels, most).astype(images.dtype)


def _axes(height: jax.Array, width: jax.Array, data: config.Data) -> tuple[_Axis, _Axis]:
    """Returns the resize of both axes for images of this size."""
    sizes, resize = (height, width), transforms.eval_transforms(data)[0]
    if isinstance(resize, transforms.Resize):
        lengths = (resize.height, resize.width)
        vertical, horizontal = (
            _Axis(size, jnp.full_like(size, length), length)
            for size, length in zip(sizes, lengths, strict=True)
        )
        return vertical, horizontal
    assert isinstance(resize, transforms.ResizeShortSide)
    longest = resize.LONGEST * jnp.minimum(height, width)
    kept = [jnp.minimum(size, longest) for size in sizes]
    short = jnp.minimum(*kept)
    ratio = _rounded_ratio if data.resampling == "bilinear" else jnp.floor_divide
    vertical, horizontal = (
        _Axis(size, ratio(size * resize.size, short), length)
        for size, length in zip(kept, data.image_size, strict=True)
    )
    return vertical, horizontal


def _rounded_ratio(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
    """Returns the ratio of two integers, rounded half to even like Python's `round`."""
    upper, rest = jnp.divmod(2 * numerator + denominator, 2 * denominator)
    return jnp.where((rest == 0) & (upper % 2 == 1), upper - 1, upper)


def _weights(axis: _Axis, length: int, resampling: str) -> jax.Array:
    """Returns the weight of each input pixel in each output pixel, (view, length) float32.

    Positions are integers, `2 * resized` per pixel of the original image; int32 holds them for any
    image within `data.max_pixels`.
    """
    kept, resized = axis.kept, axis.resized
    first = (resized - axis.view) // 2  # of the pixels of the resized image, the first one seen
    rows = first + jax.lax.iota(jnp.int32, axis.view)
    columns = jax.lax.iota(jnp.int32, length) - (length - kept) // 2
    places, unit = (2 * rows + 1) * kept - resized, 2 * resized
    if resampling == "bilinear":
        places = jnp.clip(places, 0, unit * (kept - 1))  # edge pixels repeat beyond the edge
    else:
        unit = 2 * jnp.maximum(kept, resized)  # antialiased: of the coarser image
    away = (2 * resized * columns[None, :] - places[:, None]).astype(jnp.float32)
    distance = jnp.abs(away / unit.astype(jnp.float32))
    near = (distance < REACH[resampling]) & (columns >= 0)[None, :] & (columns < kept)[None, :]
    kernel = _cubic if resampling == "antialiased_bicubic" else _triangle
    weights = jnp.where(near, kernel(distance), 0.0)
    return weights / weights.sum(axis=1, keepdims=True)


def _triangle(distance: jax.Array) -> jax.Array:
    return 1.0 - distance


def _cubic(x: jax.Array) -> jax.Array:
    """Returns Keys' cubic kernel with a = -1/2 at distances from 0 to 2."""
    inner = (1.5 * x - 2.5) * x * x + 1.0
    outer = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    return jnp.where(x < 1.0, inner, outer)


def _round(pixels: jax.Array, most: float) -> jax.Array:
    return jnp.clip(jnp.floor(pixels + 0.5), 0.0, most)
