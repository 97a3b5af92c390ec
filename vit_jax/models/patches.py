"""Images as patches in raster order, and back."""

import jax
import jax.numpy as jnp


def cut(images: jax.Array, patch: tuple[int, int]) -> jax.Array:
    """Returns images (B, H, W, C) as patches (B, P, h, w, C), `patch` being h, w."""
    batch, height, width, channels = images.shape
    h, w = patch
    grid = images.reshape(batch, height // h, h, width // w, w, channels)
    return jnp.swapaxes(grid, 2, 3).reshape(batch, -1, h, w, channels)


def join(patches: jax.Array, size: tuple[int, int]) -> jax.Array:
    """Returns patches (B, P, h, w, C) as images (B, H, W, C), `size` being H, W; undoes `cut`."""
    batch, _, h, w, channels = patches.shape
    grid = patches.reshape(batch, size[0] // h, size[1] // w, h, w, channels)
    return jnp.swapaxes(grid, 2, 3).reshape(batch, *size, channels)
