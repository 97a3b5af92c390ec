"""Pixels as networks see them."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config, models


def normalize_pixels(images: jax.Array, data: config.Data) -> jax.Array:
    """Normalizes uint8 or uint16 pixels (..., C) to float32 by `data.mean` and `data.std`.

    These are shares of the largest value, 255 or 65535. The defaults give [-1, 1].
    """
    mean, std = np.asarray(data.mean), np.asarray(data.std)
    # In float64 and rounded once, which leaves a division and a subtraction for each pixel.
    scale, offset = np.float32(np.iinfo(images.dtype).max * std), np.float32(mean / std)
    scale, offset = (x.reshape((1,) * (images.ndim - 1) + (-1,)) for x in (scale, offset))
    return images.astype(jnp.float32) / scale - offset


def apply_to_pixels(
    model: models.Classifier,
    data: config.Data,
    params: models.Params,
    batch: Mapping[str, jax.Array | np.ndarray],
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """`Classifier.apply` on the `image` of a batch; with `grids`, `Classifier.apply_sequences`."""
    images = normalize_pixels(jnp.asarray(batch["image"]), data)
    if "grids" in batch:
        return model.apply_sequences(params, images, jnp.asarray(batch["grids"]))
    return model.apply(params, images)
