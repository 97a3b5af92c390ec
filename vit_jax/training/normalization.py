"""Pixels as networks see them."""

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config


def normalize_pixels(images: jax.Array, data: config.Data) -> jax.Array:
    """Normalizes uint8 or uint16 pixels (..., C) to float32 by `data.mean` and `data.std`.

    These are shares of the largest value, 255 or 65535. The defaults give [-1, 1].
    """
    mean, std = np.asarray(data.mean), np.asarray(data.std)
    scale, offset = np.float32(np.iinfo(images.dtype).max * std), np.float32(mean / std)
    scale, offset = (x.reshape((1,) * (images.ndim - 1) + (-1,)) for x in (scale, offset))
    return images.astype(jnp.float32) / scale - offset
