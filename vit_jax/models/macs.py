"""Multiply-accumulates of a forward pass, counted from the config alone, without jax."""

from vit_jax import config
from vit_jax.models import variants
from vit_jax.models.variants import known


def count(model: config.Model, image_size: tuple[int, int], channels: int) -> int:
    """Returns the multiply-accumulates of one image in matrix products and convolutions."""
    rows, columns = variants.grid(model, image_size)
    d, m, k = known(model.width), known(model.mlp_dim), known(model.num_classes)
    patch = known(model.patch_size)
    n = rows * columns + (model.pooling == "token")
    embedding = rows * columns * patch[0] * patch[1] * channels * d
    block = 4 * n * d * d + 2 * n * n * d + 2 * n * d * m
    r = model.representation_size
    head = d * k if r is None else d * r + r * k
    return embedding + known(model.depth) * block + head
