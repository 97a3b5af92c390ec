"""Random erasing: what is erased, how often, where, and that nothing else changes."""

import math

import numpy as np
import pytest

from vit_jax import config
from vit_jax.data import transforms


class Fixed:
    """A generator whose numbers in [0, 1) are what it is told; noise is a constant."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def random(self, size=None):
        if size is None:
            return self.numbers.pop(0)
        return np.array([self.numbers.pop(0) for _ in range(size)])

    def integers(self, low, high, shape, dtype, endpoint):
        return np.full(shape, 7, dtype)


def test_a_rectangle_by_hand():
    image = np.full((20, 40, 3), 200, np.uint8)
    # Half of 2 to 33 % of 800 pixels is 140; height / width 1.8: 15.87 and 8.82 pixels.
    erase = transforms.RandomErasing(0.5)
    result = erase(image, Fixed(0.49, 0.5, 0.5, 0.9, 0.1, 0.5, 0.5, 0.2, 0.75))
    expected = image.copy()
    expected[4:20, 30:39] = 7  # of the first attempt row 18 was too low
    np.testing.assert_array_equal(result, expected)
    assert (image == 200).all()
    assert erase(image, Fixed(0.5)) is image


@pytest.mark.parametrize("shape", [(224, 224, 3), (60, 200, 1)])
def test_statistics(shape):
    erase, rng = transforms.RandomErasing(0.3), np.random.default_rng(0)
    image = np.full(shape, 0, np.uint8)
    areas, aspects, erased = [], [], 0
    noise = np.zeros(256, np.int64)
    for _ in range(3000):
        result = erase(image, rng)
        if result is image:
            continue
        erased += 1
        rows, columns = np.flatnonzero(result.any((1, 2))), np.flatnonzero(result.any((0, 2)))
        # A rectangle of noise: all within, none outside.
        height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
        part = result[rows[0] : rows[0] + height, columns[0] : columns[0] + width]
        assert np.count_nonzero(result) == np.count_nonzero(part) > 0.98 * part.size
        noise += np.bincount(part.ravel(), minlength=256)
        areas.append(height * width / (shape[0] * shape[1]))
        aspects.append(height / width)
    assert abs(erased - 900) < 5 * math.sqrt(3000 * 0.3 * 0.7)
    assert 0.015 < min(areas) < 0.03
    assert 0.25 < max(areas) < 0.34
    assert 0.25 < min(aspects) < 0.5
    assert max(aspects) < 3.8
    share = noise / noise.sum()
    assert np.abs(share[1:] * 256 - 1).max() < 5 / math.sqrt(noise.min())


def test_erased_areas_and_places_are_those_of_rejection():
    """The density that algorithm 1 gives: uniform draws, less those that stick out."""
    height = width = 300
    erase, rng = transforms.RandomErasing(1.0), np.random.default_rng(1)
    marked = np.zeros((height, width, 1), np.uint8)
    covered, areas = np.zeros((height, width)), []
    for _ in range(1500):
        hit = erase(marked, rng)[:, :, 0] > 0
        covered += hit
        areas.append(hit.mean() * 256 / 255)
    other = np.random.default_rng(2)
    share, aspect = other.uniform(0.02, 0.33, 200_000), other.uniform(0.3, 3.3, 200_000)
    tall, wide = np.sqrt(share * aspect), np.sqrt(share / aspect)
    fits = (other.random(200_000) + tall <= 1) & (other.random(200_000) + wide <= 1)
    exact = share[fits]
    assert abs(np.mean(areas) - exact.mean()) < 5 * exact.std() / math.sqrt(1500)
    quantiles = (0.1, 0.25, 0.5, 0.75, 0.9)
    assert np.abs(np.quantile(areas, quantiles) - np.quantile(exact, quantiles)).max() < 0.02
    # Symmetric: the same up and down, left and right.
    for one, mirrored in ((covered, covered[::-1]), (covered, covered[:, ::-1])):
        quarter = (
            one[: height // 2, : width // 2].sum() / mirrored[: height // 2, : width // 2].sum()
        )
        assert abs(quarter - 1) < 0.25


def test_an_image_where_nothing_fits_stays():
    image = np.zeros((1, 1000, 3), np.uint8)
    assert transforms.RandomErasing(1.0)(image, np.random.default_rng(0)) is image


def test_a_view_erases_last_and_only_if_asked():
    data = config.Data(image_size=(8, 8), train_crop="resize", randaugment=(2, 15), erase=0.25)
    assert transforms.train_transforms(data)[-1] == transforms.RandomErasing(0.25)
    assert transforms.RandomErasing not in map(type, transforms.train_transforms(config.Data()))
    assert transforms.RandomErasing not in map(type, transforms.eval_transforms(data))
