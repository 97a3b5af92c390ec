"""Multiply-accumulates of parts of a forward pass, from the config alone, without jax.

What counts is what the accelerator's matrix units do: matrix products and convolutions. Of a
convolution only the products with pixels of the image count, not those with its padding; that is
how the compiler counts, and the compute that ViT's table 6 prints.
"""

import functools
from collections.abc import Callable

from vit_jax import config
from vit_jax.models import variants
from vit_jax.models.variants import required

Map = tuple[int, int]  # rows and columns of positions


def head(model: config.Model, features: int) -> int:
    """From pooled features to logits."""
    r, k = model.representation_size, required(model.num_classes)
    return features * k if r is None else features * r + r * k


def patch_embedding(model: config.Model, grid: Map, channels: int) -> int:
    """Of the patch embedding, on a map of `channels`."""
    patch = required(model.patch_size)
    return grid[0] * grid[1] * patch[0] * patch[1] * channels * required(model.width)


def dense(model: config.Model, tokens: int) -> int:
    """Of the four projections of attention and an MLP."""
    d, m = required(model.width), required(model.mlp_dim)
    products = 3 if model.mlp == "swiglu" else 2
    return 4 * tokens * d * d + products * tokens * d * m


def pooling(model: config.Model, grid: Map) -> int:
    """Of attention pooling: keys and values of all patches, one query."""
    if model.pooling != "map":
        return 0
    d, m = required(model.width), required(model.mlp_dim)
    p = grid[0] * grid[1]  # the patches only
    return 2 * p * d * d + 2 * d * d + 2 * p * d + 2 * d * m


def prediction(model: config.Model, grid: Map, channels: int, masked: config.Masked) -> int:
    """Of corrupting the patches of an image and predicting them."""
    d, p, patch = required(model.width), grid[0] * grid[1], required(model.patch_size)
    predicted = variants.masked_patches(masked, p)
    products = p * (p + 1) * d + predicted * p * d  # `take_rows` is a product with one-hot rows
    return products + predicted * d * variants.masked_outputs(masked, patch, channels)


def convolution_3x3(size: Map, features: int, stride: int) -> int:
    """Of a 3 x 3 convolution that keeps the number of features."""
    return features * features * _taps(size, size=3, stride=stride)


def backbone(
    model: config.Model,
    image_size: tuple[int, int],
    channels: int,
    middle: Callable[[Map, int, int], int] = convolution_3x3,
) -> tuple[int, int]:
    """Of a ResNet up to its last map; and the channels of that map.

    Args:
      model: with units and width.
      image_size: height and width in pixels.
      channels: of the image.
      middle: counts the middle layer of a unit, from map size, features and stride.
    """
    width = round(64 * required(model.resnet_width))
    total = channels * width * _taps(image_size, size=7, stride=2)
    place, inputs = _strided(_strided(image_size, 2), 2), width
    for stage, units in enumerate(required(model.resnet_units)):
        features = width * 2**stage
        for unit in range(units):
            stride = 2 if stage and not unit else 1
            after = _strided(place, stride)
            total += place[0] * place[1] * inputs * features
            total += middle(place, features, stride)
            total += after[0] * after[1] * features * 4 * features
            if not unit:
                total += after[0] * after[1] * inputs * 4 * features  # the shortcut
            place, inputs = after, 4 * features
    return total, inputs


def _strided(place: Map, stride: int) -> Map:
    return -(-place[0] // stride), -(-place[1] // stride)


@functools.cache
def _taps(place: Map, *, size: int, stride: int) -> int:
    """How often a square kernel's elements meet a position of the map, over all outputs."""
    # Where v1 and v2 pad differently, one is the mirror image of the other.
    starts = [range(-(size // 2), length - size // 2, stride) for length in place]
    rows, columns = (
        sum(min(start + size, length) - max(start, 0) for start in along)
        for along, length in zip(starts, place, strict=True)
    )
    return rows * columns
