"""Images cut into patches, and put together again."""

import jax.numpy as jnp
import numpy as np

from vit_jax.models import patches

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 8, 12, 3), np.uint8)


def test_patches_are_cut_in_raster_order():
    found = np.asarray(patches.patchify(jnp.asarray(IMAGES), (4, 2)))
    assert found.shape == (3, 2 * 6, 4, 2, 3)
    for number in range(12):
        row, column = divmod(number, 6)
        expected = IMAGES[:, 4 * row : 4 * row + 4, 2 * column : 2 * column + 2]
        np.testing.assert_array_equal(found[:, number], expected)


def test_join_undoes_cut():
    again = patches.unpatchify(patches.patchify(jnp.asarray(IMAGES), (4, 2)), (8, 12))
    np.testing.assert_array_equal(again, IMAGES)


def test_what_fills_no_patch_is_left_out():
    found = patches.patchify(jnp.asarray(IMAGES), (3, 5))
    np.testing.assert_array_equal(found, patches.patchify(jnp.asarray(IMAGES[:, :6, :10]), (3, 5)))
