"""Images as patches in raster order, and back."""

import chex
import jax
import jax.numpy as jnp


def patchify(images: jax.Array, patch: tuple[int, int]) -> jax.Array:
    """Returns images (B, H, W, C) as patches (B, P, h, w, C), `patch` being h, w.

    Rows at the bottom and columns at the right that fill no whole patch are left out.
    """
    chex.assert_rank(images, 4)
    batch, height, width, channels = images.shape
    h, w = patch
    rows, columns = height // h, width // w
    if (rows * h, columns * w) != (height, width):
        images = images[:, : rows * h, : columns * w]
    grid = images.reshape(batch, rows, h, columns, w, channels)
    return jnp.swapaxes(grid, 2, 3).reshape(batch, -1, h, w, channels)


def unpatchify(patches: jax.Array, size: tuple[int, int]) -> jax.Array:
    """Returns patches (B, P, h, w, C) as images (B, H, W, C), `size` being H, W; undoes `patchify`.

    Both must be multiples of the patch's.
    """
    chex.assert_rank(patches, 5)
    batch, _, h, w, channels = patches.shape
    grid = patches.reshape(batch, size[0] // h, size[1] // w, h, w, channels)
    return jnp.swapaxes(grid, 2, 3).reshape(batch, *size, channels)
