"""Multiply-accumulates of a forward pass, counted from the config alone, without jax.

What counts is what the accelerator's matrix units do: matrix products and convolutions. Of a
convolution only the products with pixels of the image count, not those with its padding; that is
how the compiler counts, and the compute that ViT's table 6 prints.
"""

import functools

from vit_jax import config
from vit_jax.models import masking, variants
from vit_jax.models.variants import required

Map = tuple[int, int]  # rows and columns of positions


@functools.cache
def count(
    model: config.Model,
    image_size: tuple[int, int],
    channels: int,
    masked: config.Masked = masking.OFF,
) -> int:
    """Returns the multiply-accumulates of one image in matrix products and convolutions."""
    total, features = 0, channels
    if model.resnet_units is not None:
        total, features = _backbone(model, image_size, channels)
    if model.architecture not in ("resnet", "axial_resnet"):
        total += _transformer(model, variants.grid(model, image_size), features)
        features = required(model.width)
    if masked.target is not None:
        return total + _prediction(model, image_size, channels, masked)
    r, k = model.representation_size, required(model.num_classes)
    return total + (features * k if r is None else features * r + r * k)


def _transformer(model: config.Model, grid: Map, channels: int) -> int:
    """Returns those from the map of `channels` that is cut into patches to what the head sees."""
    d, m, patch = required(model.width), required(model.mlp_dim), required(model.patch_size)
    (rows, columns), n = grid, grid[0] * grid[1] + variants.has_class_token(model)
    embedding = rows * columns * patch[0] * patch[1] * channels * d
    dense = 4 * n * d * d + 2 * n * d * m  # the four projections of attention, and an MLP
    if model.architecture == "axial_vit":
        # Twice a whole block: every token attends to its row, then to its column.
        layer = 2 * dense + 2 * n * (rows + columns) * d
    else:
        products = 3 if model.position == "relative" else 2  # with keys, values and offsets
        layer = dense + products * n * n * d
    pooling = 0
    if model.pooling == "map":  # keys and values of all patches, a query of one
        p = rows * columns  # a class token is left out
        pooling = 2 * p * d * d + 2 * d * d + 2 * p * d + 2 * d * m
    return embedding + required(model.depth) * layer + pooling


def _prediction(
    model: config.Model, image_size: tuple[int, int], channels: int, masked: config.Masked
) -> int:
    """Returns those that corrupt the patches of an image and predict them."""
    rows, columns = variants.grid(model, image_size)
    d, p, patch = required(model.width), rows * columns, required(model.patch_size)
    chosen = masking.corrupted(masked, p)
    products = p * (p + 1) * d + chosen * p * d
    return products + chosen * d * masking.outputs(masked, patch, channels)


def _backbone(model: config.Model, image_size: tuple[int, int], channels: int) -> tuple[int, int]:
    """Returns those of a ResNet up to its last map, and the channels of that map."""
    width = round(64 * required(model.resnet_width))
    total = channels * width * _taps(image_size, size=7, stride=2)
    place, inputs = _strided(_strided(image_size, 2), 2), width
    for stage, units in enumerate(required(model.resnet_units)):
        features = width * 2**stage
        for unit in range(units):
            stride = 2 if stage and not unit else 1
            after = _strided(place, stride)
            total += place[0] * place[1] * inputs * features
            total += _middle(model, place, features, stride)
            total += after[0] * after[1] * features * 4 * features
            if not unit:
                total += after[0] * after[1] * inputs * 4 * features  # the shortcut
            place, inputs = after, 4 * features
    return total, inputs


def _middle(model: config.Model, place: Map, features: int, stride: int) -> int:
    """Returns those of the layer in the middle of a unit that reads a map of `place`."""
    if model.architecture != "axial_resnet":
        return features * features * _taps(place, size=3, stride=stride)
    return _axial_middle(place, features)


def _axial_middle(place: Map, features: int) -> int:
    """Returns those of attention along columns, then rows, both before any pooling.

    Queries and keys have half the features of the values. Relative positions add a product with
    the queries, one with the keys and one with the weights.
    """
    n, half = place[0] * place[1], features // 2
    projections = n * features * (half + half + features)
    return 2 * projections + n * (place[0] + place[1]) * (3 * half + 2 * features)


def _strided(place: Map, stride: int) -> Map:
    return -(-place[0] // stride), -(-place[1] // stride)


@functools.cache
def _taps(place: Map, *, size: int, stride: int) -> int:
    """Returns how often a square kernel's elements meet a position of the map, over all outputs."""
    # Where v1 and v2 pad differently, one is the mirror image of the other.
    starts = [range(-(size // 2), length - size // 2, stride) for length in place]
    rows, columns = (
        sum(min(start + size, length) - max(start, 0) for start in along)
        for along, length in zip(starts, place, strict=True)
    )
    return rows * columns
