"""Evaluation views against those of timm, transformers and big_vision, to the last level.

Crops and views are also within a level of TensorFlow 2.21's; fixtures/data/README.md says how all
were made.
"""

import json
import pathlib

import numpy as np
import pytest

from vit_jax import config
from vit_jax.data import transforms
from vit_jax.weights import family
from vit_jax.weights.families import huggingface, timm

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures/data"
with np.load(FIXTURES / "authors_views.npz") as file:
    STORED = dict(file)
with np.load(FIXTURES / "tf_views.npz") as file:
    TENSORFLOW = dict(file)
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


SMALL = config.Data(image_size=(16, 16), resize_to=20, train_crop="random", eval_crop="central")


@pytest.mark.parametrize(
    ("name", "image", "steps"),
    [
        *((f"resized{n}", n, (transforms.Resize(*TENSORFLOW[f"resized{n}"].shape[:2]),))
          for n in range(5)),
        ("square20", 2, transforms.train_transforms(SMALL)[:1]),
        ("central16of20", 2, transforms.eval_transforms(SMALL)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_bilinear_views_are_within_a_level_of_tensorflows(name, image, steps):
    view = TENSORFLOW[f"image{image}"]
    for step in steps:
        view = step(view, np.random.default_rng(0))
    difference = view - TENSORFLOW[name].astype(np.float64)
    assert np.abs(difference).max() < 0.8
    assert abs(difference.mean()) < 0.15  # fixed-point weights round down a little


@pytest.mark.parametrize("shape", ["wide", "tall", "square"])
def test_inception_crops_are_distributed_as_distorted_bounding_boxes(shape):
    """Quantiles of 6,000 rectangles against those of TensorFlow's 40,000."""
    H, W = TENSORFLOW[f"boxes_{shape}_size"].tolist()
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
        expected = TENSORFLOW[f"boxes_{shape}_{name}"]
        # Shares of our values below their quantiles: five standard deviations at 6,000 draws,
        # which a place of a whole pixel widens.
        shares = np.searchsorted(np.sort(values), expected, side="right") / len(values)
        assert np.abs(shares - levels).max() < 0.033, (name, np.abs(shares - levels).max())
    assert abs(((h == H) & (w == W)).mean() - TENSORFLOW[f"boxes_{shape}_whole"]) < 0.01
