"""RandAugment's operations against what the reference itself gave, to the bit.

`fixtures/randaugment.json` has the CRC-32 of the pixels that big_vision's pp/archive/autoaugment.py
(at 0127fb6) returned in a tf.data pipeline of TensorFlow 2.15.1 and TensorFlow Addons 0.23.0, by
operation, magnitude, `-` for a negated argument, and the size of `image`. NumPy was 1.26: what
TensorFlow makes of an argument that is no byte is NumPy's wrapping of that version.
"""

import json
import re
import zlib

import numpy as np
import pytest

import runs
from vit_jax.data import randaugment

REFERENCE = json.loads((runs.ROOT / "tests" / "fixtures" / "randaugment.json").read_text())
SHARPNESS = {key: crc for key, crc in REFERENCE.items() if key.startswith("Sharpness")}


class Draw:
    """A generator that draws one number for ever."""

    def __init__(self, number):
        self.number = number

    def random(self):
        """Returns the number."""
        return self.number


def image(height: int, width: int) -> np.ndarray:
    """Slopes with a pattern on them; whole numbers alone, so the same everywhere."""
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    pattern = (x * 37 + y * 91 + c * 17) % 23
    return (20 + (3 * x + 5 * y + 40 * c + (x * y >> 5) + pattern) % 200).astype(np.uint8)


def parts(key):
    """Returns the operation, the magnitude, whether its argument is negated, and the image."""
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
    ours = operation(pixels, magnitude / 10, Draw(0.1 if negated else 0.9))
    assert zlib.crc32(ours.tobytes()) == REFERENCE[key]


def test_every_operation_and_the_magnitudes_of_augreg_are_compared():
    compared = {parts(key)[0] for key in REFERENCE}
    assert compared == set(randaugment.OPERATIONS) - {
        randaugment.cutout
    }  # it draws its place itself
    magnitudes = {parts(key)[1] for key in REFERENCE if key.startswith("Solarize ")}
    assert magnitudes == {0, 3, 10, 15, 20, 25}


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
    off = operation(pixels, magnitude / 10, Draw(0.5)).astype(int) - reference
    assert 0 < (off != 0).any(axis=2).mean() < 0.02
    assert np.abs(off).max() <= np.ceil(abs(1 - factor))
    assert not off[[0, -1]].any()
    assert not off[1:-1, 1:-1][whole % 13 != 0].any()


def test_solarize_and_contrast_by_hand():
    """What a magnitude of 10 and of 15 do to 0, 100, 127, 128, 200 and 255."""
    levels = np.array([[0, 100, 127, 128, 200, 255]], np.uint8)
    levels = np.repeat(levels[:, :, None], 3, axis=2)
    inverted = randaugment.solarize(levels, 1.0, Draw(0.5))[0, :, 0]
    np.testing.assert_array_equal(inverted, [255, 155, 128, 127, 55, 0])  # 256 is 0: everything
    inverted = randaugment.solarize(levels, 1.5, Draw(0.5))[0, :, 0]
    np.testing.assert_array_equal(inverted, [0, 100, 127, 127, 55, 0])  # 384 is 128
    large = np.zeros((224, 224, 3), np.uint8)
    large[0, :6] = levels[0]
    # 196 + 1.9 (v - 196) at magnitude 10, although the image is nearly black.
    changed = randaugment.contrast(large, 1.0, Draw(0.5))
    np.testing.assert_array_equal(changed[0, :6, 0], [0, 13, 64, 66, 203, 255])
    # 196 + 0.1 (v - 196) at magnitude 0: nearly all of it is gray.
    changed = randaugment.contrast(large, 0.0, Draw(0.5))
    np.testing.assert_array_equal(changed[0, :6, 0], [176, 186, 189, 189, 196, 201])
