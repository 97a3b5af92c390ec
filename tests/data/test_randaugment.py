"""RandAugment against what the reference itself gave, to the bit; what that leaves open by hand.

`fixtures/randaugment.json` has the CRC-32 of the pixels that big_vision's pp/archive/autoaugment.py
(at 0127fb6) returned in a tf.data pipeline of TensorFlow 2.15.1 and TensorFlow Addons 0.23.0, by
operation, magnitude, `-` for a negated argument, and the size of `image`. NumPy was 1.26: what
TensorFlow makes of an argument that is no byte is NumPy's wrapping of that version.
"""

import functools
import json
import re
import zlib

import numpy as np
import pytest
import scipy.ndimage

import runs
from draws import Fixed
from vit_jax.data import randaugment

each_image = pytest.mark.parametrize("channels", [1, 3])


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


PLUS, MINUS = 0.5, 0.499


def photo(channels: int, height: int = 40, width: int = 56) -> np.ndarray:
    """Something with edges and soft slopes, no value below 20 or above 225, unequal channels."""
    noise = rng(3).normal(size=(height, width, channels))
    image = 900 * scipy.ndimage.gaussian_filter(noise, (4, 4, 0)) + 12 * noise + 128
    image[:, :, 0] -= 20
    return image.clip(20, 225).astype(np.uint8)


def run(operation, image: np.ndarray, magnitude: int, *draws) -> np.ndarray:
    """The result, checked for what holds of all of them."""
    before, source = image.copy(), Fixed(*draws)
    result = operation(image, magnitude / 10, source)
    assert not source.numbers
    assert result.dtype == np.uint8
    assert result.shape == image.shape
    np.testing.assert_array_equal(image, before)
    return result


@pytest.mark.parametrize(
    "operation", randaugment.OPERATIONS, ids=lambda operation: operation.__name__
)
def test_one_channel_is_changed_as_three_equal_ones(operation):
    image = photo(1)
    for level in (0.0, 0.5, 1.0, 1.5, 3.0):
        one = operation(image, level, rng(1))
        three = operation(np.repeat(image, 3, axis=2), level, rng(1))
        np.testing.assert_array_equal(np.repeat(one, 3, axis=2), three)


@each_image
def test_translate(channels):
    image = photo(channels)  # 40 x 56; at magnitude 10: 17.9 rows, 25 columns
    expected = np.full_like(image, 128)
    expected[18:] = image[:-18]
    np.testing.assert_array_equal(run(randaugment.translate_y, image, 10, PLUS), expected)
    expected = np.full_like(image, 128)
    expected[:, :-25] = image[:, 25:]
    np.testing.assert_array_equal(run(randaugment.translate_x, image, 10, MINUS), expected)
    expected = np.full_like(image, 128)
    expected[:, 38:] = image[:, :-38]  # 37.5, to even
    np.testing.assert_array_equal(run(randaugment.translate_x, image, 15, PLUS), expected)
    for operation in (randaugment.translate_x, randaugment.translate_y):
        for draw in (PLUS, MINUS):
            assert (run(operation, image, 30, draw) == 128).all()


@each_image
def test_cutout(channels):
    image = photo(channels)  # at magnitude 15: int(10.7) = 10 rows, 15 columns each way
    expected = image.copy()
    expected[20:40, 5:35] = 128
    np.testing.assert_array_equal(run(randaugment.cutout, image, 15, 30, 20), expected)
    expected = image.copy()
    expected[:13, 35:] = 128
    np.testing.assert_array_equal(run(randaugment.cutout, image, 15, 3, 50), expected)


@each_image
def test_nothing_to_stretch(channels):
    flat = np.full((40, 40, channels), 77, np.uint8)
    few = photo(channels, 8, 8)  # fewer than 255 pixels: no step, as in Pillow
    for operation, image in [
        (randaugment.auto_contrast, flat),
        (randaugment.equalize, flat),
        (randaugment.equalize, few),
    ]:
        np.testing.assert_array_equal(run(operation, image, 10), image)


def test_draws_stand_in_their_order():
    image = photo(3)
    place = randaugment.OPERATIONS.index
    source = Fixed(
        place(randaugment.translate_x),
        MINUS,
        place(randaugment.cutout),
        11,
        7,
        place(randaugment.invert),
    )
    ours = randaugment.RandAugment(3, 10)(image, source)
    assert not source.numbers
    moved = randaugment.translate_x(image, 1.0, Fixed(MINUS))
    np.testing.assert_array_equal(ours, 255 - randaugment.cutout(moved, 1.0, Fixed(11, 7)))


def test_operations_are_drawn_uniformly_and_independently(monkeypatch):
    """The sixteen of the reference, in its order; here each adds its digit to the pixel."""
    assert [operation.__name__ for operation in randaugment.OPERATIONS] == [
        "auto_contrast", "equalize", "invert", "rotate", "posterize", "solarize", "color",
        "contrast", "brightness", "sharpness", "shear_x", "shear_y", "translate_x", "translate_y",
        "cutout", "solarize_add",
    ]  # fmt: skip
    levels = set()

    def digit(k):
        def operation(image, level, source):
            levels.add(level)
            return 16 * image + np.uint8(k)

        return operation

    monkeypatch.setattr(randaugment, "OPERATIONS", tuple(digit(k) for k in range(16)))
    transform, source = randaugment.RandAugment(2, 9), rng()
    blank = np.zeros((1, 1, 1), np.uint8)
    pairs = [int(transform(blank, source)[0, 0, 0]) for _ in range(25600)]
    counts = np.bincount(pairs, minlength=256)
    assert np.abs(counts - 100).max() < 5 * 10
    assert np.abs(counts.reshape(16, 16).sum(0) - 1600).max() < 4 * 40
    assert np.abs(counts.reshape(16, 16).sum(1) - 1600).max() < 4 * 40
    assert levels == {0.9}


REFERENCE = json.loads((runs.ROOT / "tests" / "fixtures" / "randaugment.json").read_text())
SHARPNESS = {key: crc for key, crc in REFERENCE.items() if key.startswith("Sharpness")}


@functools.cache
def image(height: int, width: int) -> np.ndarray:
    """Slopes with a pattern on them; whole numbers alone, so the same everywhere."""
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    pattern = (x * 37 + y * 91 + c * 17) % 23
    return (20 + (3 * x + 5 * y + 40 * c + (x * y >> 5) + pattern) % 200).astype(np.uint8)


def parts(key):
    """The operation, the magnitude, whether its argument is negated, and the image."""
    name, magnitude, minus, height, width = re.fullmatch(
        r"(\w+) (\d+)( -)? (\d+)x(\d+)", key
    ).groups()
    ours = {"AutoContrast": "auto_contrast"}.get(name) or re.sub(r"(?<=[a-z])([AXY])", r"_\1", name)
    operation = getattr(randaugment, ours.lower())
    return operation, int(magnitude), minus is not None, image(int(height), int(width))


@pytest.mark.parametrize("key", sorted(REFERENCE.keys() - SHARPNESS.keys()))
def test_equal_to_the_bit(key):
    operation, magnitude, negated, pixels = parts(key)
    if key.startswith("Translate"):  # the reference moves to the left by a positive argument
        negated = not negated
    ours = operation(pixels, magnitude / 10, Fixed(0.1 if negated else 0.9))
    assert zlib.crc32(ours.tobytes()) == REFERENCE[key]


@pytest.mark.parametrize("key", SHARPNESS)
def test_sharpness_but_for_sums_that_are_multiples_of_13(key):
    """The reference adds nine products in float32, fused, so that 13 n / 13 may fall short of n."""
    operation, magnitude, _, pixels = parts(key)
    height, width = pixels.shape[0] - 2, pixels.shape[1] - 2
    weights = np.array(((1, 1, 1), (1, 5, 1), (1, 1, 1)), np.float32) / np.float32(13)
    total, whole = np.zeros((height, width, 3), np.float32), np.zeros((height, width, 3), int)
    for y in range(3):
        for x in range(3):
            part = pixels[y : y + height, x : x + width]
            total = (total + part.astype(np.float64) * np.float64(weights[y, x])).astype(np.float32)
            whole += part.astype(int) * (5 if (y, x) == (1, 1) else 1)
    plain = pixels.copy()
    plain[1:-1, 1:-1] = total.clip(0, 255).astype(np.uint8)
    factor = magnitude / 10 * 1.8 + 0.1
    low = plain.astype(np.float32)
    blend = low + np.float32(factor) * (pixels.astype(np.float32) - low)
    reference = blend.clip(0, 255).astype(np.uint8)
    assert zlib.crc32(reference.tobytes()) == SHARPNESS[key]
    off = operation(pixels, magnitude / 10, Fixed(0.5)).astype(int) - reference
    assert 0 < (off != 0).any(axis=2).mean() < 0.02
    assert np.abs(off).max() <= np.ceil(abs(1 - factor))
    assert not off[[0, -1]].any()
    assert not off[1:-1, 1:-1][whole % 13 != 0].any()


def test_contrast_of_a_large_image():
    # Of an image of more than 256 x 256 pixels the mean count would be no gray value: it is 255.
    larger = np.full((300, 300, 3), 105, np.uint8)
    assert (randaugment.contrast(larger, 0.0, Fixed(0.5)) == 240).all()  # 255 + 0.1 (105 - 255)
