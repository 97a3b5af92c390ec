"""Views against what TensorFlow 2.21 made of the same pixels; fixtures/data/README.md says how."""

import pathlib

import numpy as np
import pytest

from vit_jax import config
from vit_jax.data import transforms
from vit_jax.training import normalization

with np.load(pathlib.Path(__file__).parents[1] / "fixtures/data/tf_views.npz") as file:
    STORED = dict(file)

SHAPES = ("wide", "tall", "square")


def apply(steps, image):
    rng = np.random.default_rng(0)
    for one in steps:
        image = one(image, rng)
    return image


def assert_within_one_level(found, expected):
    assert found.shape == expected.shape
    difference = found - expected.astype(np.float64)
    assert np.abs(difference).max() < 0.8
    assert abs(difference.mean()) < 0.15  # fixed-point weights round down a little


@pytest.mark.parametrize("number", range(5))
def test_bilinear_resizing_is_within_a_level_of_255(number):
    expected = STORED[f"resized{number}"]
    resize = transforms.Resize(*expected.shape[:2])
    assert_within_one_level(apply([resize], STORED[f"image{number}"]), expected)


def test_a_resized_square_and_a_crop_of_it():
    data = config.Data(image_size=(16, 16), train_crop="random", resize_to=20, flip=False)
    resize, crop = transforms.train_transforms(data)
    square = apply([resize], STORED["image2"])
    assert_within_one_level(square, STORED["square20"])
    cut = crop(square, np.random.default_rng(3))
    windows = np.lib.stride_tricks.sliding_window_view(square, (16, 16, 3))
    assert (windows == cut).all((-1, -2, -3)).sum() == 1


def test_a_central_crop_after_resizing_the_short_side():
    data = config.Data(image_size=(16, 16), eval_crop="central", resize_to=20)
    found = apply(transforms.eval_transforms(data), STORED["image2"])
    assert_within_one_level(found, STORED["central16of20"])


def test_the_value_range_on_the_device_is_minus_one_to_one():
    images = np.tile(np.arange(256, dtype=np.uint8)[:, None, None, None], (1, 1, 1, 3))
    found = np.asarray(normalization.normalize_pixels(images, config.Data()))
    np.testing.assert_allclose(found[:, 0, 0, 0], STORED["normalised"], atol=2e-7)


@pytest.mark.parametrize("shape", SHAPES)
def test_inception_crops_are_distributed_as_distorted_bounding_boxes(shape):
    """Quantiles of 6,000 rectangles against those of TensorFlow's 40,000."""
    H, W = STORED[f"boxes_{shape}_size"].tolist()
    crop, rng = transforms.InceptionCrop(8, 8), np.random.default_rng(0)
    top, left, h, w = np.array([crop.rectangle(H, W, rng) for _ in range(6000)]).T
    below, beside = h < H - 10, w < W - 10
    found = {
        "area": h * w / (H * W),
        "aspect": w / h,
        "height": h / H,
        "width": w / W,
        "top": top[below] / (H - h[below]),
        "left": left[beside] / (W - w[beside]),
    }
    levels = np.arange(0.02, 0.99, 0.02)
    for name, values in found.items():
        expected = STORED[f"boxes_{shape}_{name}"]
        # Shares of our values below their quantiles: five standard deviations at 6,000 draws,
        # which a place of a whole pixel widens.
        shares = np.searchsorted(np.sort(values), expected, side="right") / len(values)
        assert np.abs(shares - levels).max() < 0.033, (name, np.abs(shares - levels).max())
    assert abs(((h == H) & (w == W)).mean() - STORED[f"boxes_{shape}_whole"]) < 0.01
