"""Evaluation views against those of timm, transformers and big_vision, to the last level.

fixtures/data/README.md says how they were made.
"""

import json
import pathlib

import numpy as np
import pytest

from vit_jax import config
from vit_jax.data import transforms
from vit_jax.weights import family
from vit_jax.weights.families import huggingface, timm

with np.load(pathlib.Path(__file__).parents[1] / "fixtures/data/authors_views.npz") as file:
    STORED = dict(file)
SPECS = json.loads(STORED["specs"].tobytes())


def seen(data, image):
    for step in transforms.eval_transforms(data):
        image = step(image, np.random.default_rng(0))
    return image


def options(kind, size, fields):
    """The options that the importer sets."""
    if kind == "timm":
        return timm.data({"pretrained_cfg": fields}, tuple(size), 3)
    hints = family.Hints(files={"preprocessor_config.json": fields})
    return huggingface.read_data(hints, huggingface.seen_size(hints), 3)


@pytest.mark.parametrize("number", range(len(SPECS)))
@pytest.mark.parametrize("image", [0, 1])
def test_imported_views_are_those_of_their_authors(number, image):
    data, assumed = options(*SPECS[number])
    assert assumed == {}
    view = seen(data, STORED[f"image{image}"])
    np.testing.assert_array_equal(view, STORED[f"view{number}_{image}"])


@pytest.mark.parametrize("short", [20, 40])
@pytest.mark.parametrize("image", [0, 1])
def test_area_is_resize_small(short, image):
    data = config.Data(
        image_size=(16, 16), eval_crop="central", eval_resampling="area", resize_to=short
    )
    view = seen(data, STORED[f"image{image}"])
    np.testing.assert_array_equal(view, STORED[f"area{short}_{image}"])


def test_area_of_sixteen_bits_and_four_channels():
    image = np.arange(6 * 4 * 4, dtype=np.uint16).reshape(6, 4, 4) * 300
    view = transforms.Resize(3, 2, "area")(image, np.random.default_rng(0))
    expected = image.reshape(3, 2, 2, 2, 4).mean(axis=(1, 3)).astype(np.uint16)
    np.testing.assert_array_equal(view, expected)


def test_area_of_a_larger_view_is_tensorflows():
    """A pixel that covers a result counts by the scale, one that ends in it by where it ends."""
    image = np.array([[200, 3], [77, 255]], np.uint8)
    for size in (3, 5, 7):
        scale = np.float32(2) / np.float32(size)
        shares = np.zeros((size, 2), np.float32)
        for result, pixel in np.ndindex(size, 2):
            first, last = np.float32(result) * scale, np.float32(result + 1) * scale
            if pixel < last and pixel + 1 > first:
                ends = scale if pixel < first else last - pixel
                shares[result, pixel] = ends if pixel + 1 > last else pixel + 1 - max(first, pixel)
        expected = np.empty((size, size), np.float32)
        for row, column in np.ndindex(size, size):
            sums = [sum(shares[column] * image[y], np.float32(0)) for y in (0, 1)]
            expected[row, column] = sums[0] * shares[row, 0] + sums[1] * shares[row, 1]
        expected *= np.float32(1) / (scale * scale)
        found = transforms.Resize(size, size, "area")(image[:, :, None], np.random.default_rng(0))
        np.testing.assert_array_equal(found[:, :, 0], expected.astype(np.uint8))
