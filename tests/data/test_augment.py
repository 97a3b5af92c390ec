"""Every operation against Pillow, exact integers or a float64 map; and how they are drawn.

Where the reference does not do what Pillow does, its definition is written out;
test_augment_reference.py has what the reference itself gave.

Pillow stands in no requirement, but matplotlib, which does, needs it.
"""

import dataclasses
import math
import pickle

import numpy as np
import pytest
import scipy.ndimage
from PIL import Image, ImageEnhance, ImageOps

from vit_jax.data import randaugment

MAGNITUDES = [0, 3, 5, 10, 15, 20, 30]

each_image = pytest.mark.parametrize("channels", [1, 3])
each_magnitude = pytest.mark.parametrize("magnitude", MAGNITUDES)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


class Fixed:
    """A generator that returns what it is told to, and nothing else."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def random(self):
        return self.numbers.pop(0)

    def integers(self, high):
        number = self.numbers.pop(0)
        assert 0 <= number < high
        return number


PLUS, MINUS = 0.5, 0.499


def photo(channels: int, height: int = 40, width: int = 56) -> np.ndarray:
    """Something with edges and soft slopes, no value below 20 or above 225, unequal channels."""
    noise = rng(3).normal(size=(height, width, channels))
    image = 900 * scipy.ndimage.gaussian_filter(noise, (4, 4, 0)) + 12 * noise + 128
    image[:, :, 0] -= 20
    return image.clip(20, 225).astype(np.uint8)


def pillow(image: np.ndarray) -> Image.Image:
    return Image.fromarray(image if image.shape[2] == 3 else image[:, :, 0])


def array(image: Image.Image) -> np.ndarray:
    pixels = np.asarray(image)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def run(operation, image: np.ndarray, magnitude: int, *draws) -> np.ndarray:
    """The result, checked for what holds of all of them."""
    before, source = image.copy(), Fixed(*draws)
    result = operation(image, magnitude / 10, source)
    assert not source.numbers
    assert result.dtype == np.uint8
    assert result.shape == image.shape
    np.testing.assert_array_equal(image, before)
    return result


def enhanced(image: np.ndarray, plain: np.ndarray, magnitude: int) -> np.ndarray:
    """plain + (0.1 + 0.18 magnitude) (image - plain) in whole hundredths, rounded down."""
    image, plain = image.astype(int), plain.astype(int)
    return ((100 * plain + (10 + 18 * magnitude) * (image - plain)) // 100).clip(0, 255)


def blended(image: np.ndarray, plain: int, magnitude: int) -> np.ndarray:
    """The reference's blend of a constant, operation by operation, in its float32."""
    factor = np.float32(magnitude / 10 * 1.8 + 0.1)
    blend = np.float32(plain) + factor * (image.astype(np.float32) - np.float32(plain))
    return np.clip(blend, 0, 255).astype(np.uint8)


def mapped(image: np.ndarray, matrix) -> tuple[np.ndarray, np.ndarray]:
    """The pixels nearest to where a matrix maps (column, row, 1); how far that is from a tie."""
    height, width, _ = image.shape
    rows, columns = np.mgrid[:height, :width]
    place = np.array(matrix, np.float64) @ np.stack([columns, rows, np.ones_like(rows)]).reshape(
        3, -1
    )
    x, y = np.floor(place + 0.5).astype(int).reshape(2, height, width)
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    result = np.full_like(image, 128)
    result[inside] = image[y[inside], x[inside]]
    tie = np.abs(place - np.floor(place) - 0.5).min(axis=0).reshape(height, width)
    return result, tie


def assert_warped(ours: np.ndarray, image: np.ndarray, matrix) -> None:
    expected, tie = mapped(image, matrix)
    clear = tie > 1e-4
    assert clear.mean() > 0.8
    np.testing.assert_array_equal(ours[clear], expected[clear])


@each_image
def test_auto_contrast(channels):
    image = photo(channels)
    ours = run(randaugment.auto_contrast, image, 10)
    low, high = image.min(axis=(0, 1)).astype(int), image.max(axis=(0, 1)).astype(int)
    np.testing.assert_array_equal(ours, (image - low) * 255 // (high - low))
    # Pillow's floats fall just short of some whole numbers.
    theirs = array(ImageOps.autocontrast(pillow(image)))
    assert np.abs(ours.astype(int) - theirs).max() <= 1
    assert ours.min() == 0
    assert ours.max() == 255


def test_auto_contrast_by_hand():
    image = np.array([[50, 100, 150], [50, 51, 150]], np.uint8)[:, :, None]
    expected = [[0, 127, 255], [0, 2, 255]]
    np.testing.assert_array_equal(run(randaugment.auto_contrast, image, 3)[:, :, 0], expected)


@each_image
def test_equalize(channels):
    for image in (photo(channels), photo(channels, 200, 100), photo(channels, 17, 23)):
        ours = run(randaugment.equalize, image, 10)
        np.testing.assert_array_equal(ours, array(ImageOps.equalize(pillow(image))))
        assert (ours != image).any()


@each_image
def test_invert(channels):
    image = photo(channels)
    ours = run(randaugment.invert, image, 10)
    np.testing.assert_array_equal(ours, array(ImageOps.invert(pillow(image))))


@each_image
@each_magnitude
@pytest.mark.parametrize("draw", [PLUS, MINUS])
def test_rotate(channels, magnitude, draw):
    image = photo(channels)
    angle = math.radians(3 * magnitude) * (1 if draw == PLUS else -1)
    cos, sin = math.cos(angle), math.sin(angle)
    center = np.array([27.5, 19.5])
    turn = np.array([[cos, -sin], [sin, cos]])
    matrix = np.column_stack([turn, center - turn @ center])
    assert_warped(run(randaugment.rotate, image, magnitude, draw), image, matrix)


def test_rotate_by_ninety_degrees():
    image = photo(3, 21, 21)
    np.testing.assert_array_equal(run(randaugment.rotate, image, 30, PLUS), np.rot90(image))
    np.testing.assert_array_equal(run(randaugment.rotate, image, 30, MINUS), np.rot90(image, -1))


@each_image
@pytest.mark.parametrize(
    ("magnitude", "bits"),
    [(0, 1), (2, 1), (3, 1), (5, 2), (10, 4), (15, 6), (20, 8), (22, 8), (23, 1), (30, 1)],
)
def test_posterize(channels, magnitude, bits):
    image = photo(channels)
    ours = run(randaugment.posterize, image, magnitude)
    np.testing.assert_array_equal(ours, array(ImageOps.posterize(pillow(image), bits)))


@each_image
@pytest.mark.parametrize(
    ("magnitude", "threshold"),
    # A byte: 256, 307, 384, 512 and 768 of magnitudes 10, 12, 15, 20 and 30 wrap.
    [(0, 0), (3, 76), (5, 128), (9, 230), (10, 0), (12, 51), (15, 128), (20, 0), (30, 0)],
)
def test_solarize(channels, magnitude, threshold):
    image = photo(channels)
    image[0, :2] = [[threshold - 1 if threshold else 0], [min(threshold, 255)]]
    ours = run(randaugment.solarize, image, magnitude)
    np.testing.assert_array_equal(ours, array(ImageOps.solarize(pillow(image), threshold)))


@each_image
@pytest.mark.parametrize(("magnitude", "added"), [(0, 0), (3, 33), (10, 110), (15, 165), (30, 330)])
def test_solarize_add(channels, magnitude, added):
    image = photo(channels)
    image[0, :2] = [[127], [128]]
    expected = [
        [min(v + added, 255) if v < 128 else v for v in row]
        for row in image.reshape(40, -1).tolist()
    ]
    ours = run(randaugment.solarize_add, image, magnitude)
    np.testing.assert_array_equal(ours.reshape(40, -1), expected)


@each_magnitude
def test_color(magnitude):
    image = photo(3, 200, 210)
    ours = run(randaugment.color, image, magnitude)
    # Luma of shares of 255, times 255.5, rounded down: TensorFlow's gray of bytes.
    shares = image @ np.array([0.2989, 0.5870, 0.1140]) / 255
    gray = np.floor(255.5 * shares)[:, :, None]
    off = ours != enhanced(image, gray, magnitude)
    assert off.any(axis=2).mean() < 1e-3
    whole = np.abs(255.5 * shares - np.round(255.5 * shares)) < 1e-4
    assert not off[~whole].any()


def test_color_by_hand():
    """Red is 76.3, green 149.8, blue 29.1: 76, 149, 29 rounded down, at a factor of 1.9."""
    image = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255]]], np.uint8)
    ours = run(randaugment.color, image, 10)
    np.testing.assert_array_equal(ours, [[[255, 0, 0], [0, 255, 0], [0, 0, 255]]])
    ours = run(randaugment.color, image, 0)  # a tenth of the color, nine of the gray
    expected = [[[93, 68, 68], [134, 159, 134], [26, 26, 51]]]
    np.testing.assert_array_equal(ours, expected)


@each_magnitude
def test_color_leaves_a_gray_image(magnitude):
    image = photo(1)
    np.testing.assert_array_equal(run(randaugment.color, image, magnitude), image)
    three = np.repeat(image, 3, axis=2)
    np.testing.assert_array_equal(run(randaugment.color, three, magnitude), three)


@each_image
@each_magnitude
@pytest.mark.parametrize(
    ("height", "width", "plain"),
    [(224, 224, 196), (40, 56, 8), (256, 256, 255), (512, 300, 255), (10, 12, 0), (16, 33, 2)],
)
def test_contrast(channels, magnitude, height, width, plain):
    """The mean of 256 counts of pixels, at most 255: nothing of what the image shows."""
    image = photo(channels, height, width)
    ours = run(randaugment.contrast, image, magnitude)
    np.testing.assert_array_equal(ours, blended(image, plain, magnitude))


@each_image
@each_magnitude
def test_brightness(channels, magnitude):
    image = photo(channels)
    ours = run(randaugment.brightness, image, magnitude)
    np.testing.assert_array_equal(ours, enhanced(image, np.array(0), magnitude))
    np.testing.assert_array_equal(ours, blended(image, 0, magnitude))
    theirs = array(ImageEnhance.Brightness(pillow(image)).enhance(0.1 + 0.18 * magnitude))
    assert np.abs(ours.astype(int) - theirs).max() <= 1


@each_image
@each_magnitude
def test_sharpness(channels, magnitude):
    image = photo(channels)
    ours = run(randaugment.sharpness, image, magnitude)
    kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]])[:, :, None]
    sums = scipy.ndimage.correlate(image.astype(int), kernel)
    smooth = image.copy()
    smooth[1:-1, 1:-1] = sums[1:-1, 1:-1] // 13  # rounded down
    np.testing.assert_array_equal(ours, enhanced(image, smooth, magnitude))
    np.testing.assert_array_equal(ours[[0, -1]], image[[0, -1]])
    np.testing.assert_array_equal(ours[:, [0, -1]], image[:, [0, -1]])


@each_image
@each_magnitude
@pytest.mark.parametrize("draw", [PLUS, MINUS])
def test_shear(channels, magnitude, draw):
    image = photo(channels)
    share = 0.03 * magnitude * (1 if draw == PLUS else -1)
    ours = run(randaugment.shear_x, image, magnitude, draw)
    assert_warped(ours, image, [[1, share, 0], [0, 1, 0]])
    np.testing.assert_array_equal(ours[0], image[0])
    ours = run(randaugment.shear_y, image, magnitude, draw)
    assert_warped(ours, image, [[1, 0, 0], [share, 1, 0]])
    np.testing.assert_array_equal(ours[:, 0], image[:, 0])


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


def test_translate_and_cutout_are_the_reference_pixels_at_224():
    image = photo(1, 224, 224)
    for magnitude in range(23):
        moved = run(randaugment.translate_x, image, magnitude, PLUS)
        np.testing.assert_array_equal(moved[:, 10 * magnitude :], image[:, : 224 - 10 * magnitude])
        cut = run(randaugment.cutout, image, magnitude, 112, 112)
        reach = 4 * magnitude
        assert (cut != image)[112 - reach : 112 + reach, 112 - reach : 112 + reach].sum() == (
            cut != image
        ).sum()
        assert (cut[112 - reach : 112 + reach, 112 - reach : 112 + reach] == 128).all()


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
@pytest.mark.parametrize(
    ("operation", "magnitude", "draws"),
    [
        (randaugment.rotate, 0, [MINUS]),
        (randaugment.shear_x, 0, [MINUS]),
        (randaugment.shear_y, 0, [PLUS]),
        (randaugment.translate_x, 0, [MINUS]),
        (randaugment.translate_y, 0, [MINUS]),
        (randaugment.cutout, 0, [3, 4]),
        (randaugment.solarize_add, 0, []),
        (randaugment.color, 5, []),
        (randaugment.contrast, 5, []),
        (randaugment.brightness, 5, []),
        (randaugment.sharpness, 5, []),
        (randaugment.posterize, 20, []),
    ],
)
def test_identities(operation, magnitude, draws, channels):
    image = photo(channels)
    np.testing.assert_array_equal(run(operation, image, magnitude, *draws), image)


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


@pytest.mark.parametrize(
    "operation", randaugment.OPERATIONS, ids=lambda operation: operation.__name__
)
@each_image
def test_views_and_the_smallest_images(operation, channels):
    image = photo(channels)
    for view in (image[:, ::-1], image[3:30, 5:20], image[::-1].transpose(1, 0, 2)):
        ours, plain = (operation(part, 1.5, rng(1)) for part in (view, view.copy()))
        np.testing.assert_array_equal(ours, plain)
    for shape in ((1, 1), (1, 7), (2, 2), (3, 1)):
        for level in (0.0, 1.0, 3.0):
            result = operation(photo(channels, *shape), level, rng(1))
            assert result.shape == (*shape, channels)
            assert result.dtype == np.uint8


def test_a_view_depends_on_image_and_generator_only():
    transform = randaugment.RandAugment(3, 15)
    again = pickle.loads(pickle.dumps(transform))
    for seed in range(40):
        image = photo(1 + 2 * (seed % 2))[:, ::-1]
        before = image.copy()
        first = transform(image, rng(seed))
        np.testing.assert_array_equal(first, again(image, rng(seed)))
        np.testing.assert_array_equal(image, before)
    with pytest.raises(dataclasses.FrozenInstanceError):
        transform.magnitude = 3


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


def test_either_sign_is_as_likely():
    image, source = photo(1), rng(5)
    moved_right = randaugment.translate_x(image, 0.5, Fixed(PLUS))
    right = sum(
        np.array_equal(randaugment.translate_x(image, 0.5, source), moved_right)
        for _ in range(4000)
    )
    assert abs(right - 2000) < 4 * math.sqrt(1000)
