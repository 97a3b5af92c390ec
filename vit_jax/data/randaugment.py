"""RandAugment: a few operations per image, drawn from sixteen, all at one magnitude.

The operations, their ranges and their arithmetic are those of the code behind "How to train your
ViT" (section 3.3), which big_vision took over from EfficientNet's (pp/archive/autoaugment.py): 10
is the full range of AutoAugment, and a larger magnitude goes on beyond it. Its settings there,
(operations, magnitude), run from (2, 0) for light to (2, 20) for strong augmentation; magnitude 0
is not the identity. What looks like a slip there was trained with, so it is here too:

- Contrast blends with a constant, `min(255, height * width / 256)`, 196 at 224 pixels: the mean of
  its histogram's counts, not of the image.
- Solarize's threshold is 256 x level modulo 256, as it becomes a byte: magnitudes 10 and 20 invert
  all of an image, 15 what is 128 and above. Posterize's shift wraps alike: up to 22 it keeps more
  bits the larger the magnitude, 20 to 22 all eight, from 23 on a single one.
- Gray values, Sharpness's smoothed image and blends are rounded down, not to the nearest.

What differs: Translate and Cutout are shares of a side, the reference's pixels for sides of 224,
so that images of other sizes change alike. Where nine neighbors add up to a multiple of 13, the
reference's smoothed value may be 1 too low, depending on its processor: that is in 1 of 100 pixels
of Sharpness, and its blend is off by 1, at magnitude 20 by 3. Color may be off by 1 where a gray
value or a blend is within float32's rounding of a whole number: in a few of 100,000 pixels, more at
magnitudes 6, 23 and 26. Images of one channel, which the reference does not take, are changed as
three equal channels would be, but Color leaves them as they are. The draws are ours.

An operation takes uint8 `H W C` (C = 1 or 3), the level (magnitude / 10) and a generator, from
which it draws only what its docstring says. It returns uint8 of the same shape and never writes
into its argument, which it may return. Pixels that come in from outside are gray, 128.
"""

import dataclasses
import math
from collections.abc import Callable

import cv2
import numpy as np

FULL = 10  # magnitude of level 1
FILL = 128
SIDE = 224  # the images for which the reference's pixel counts were chosen

Operation = Callable[[np.ndarray, float, np.random.Generator], np.ndarray]

LEVELS = np.arange(256, dtype=np.uint8)
SMOOTH = np.array(((1, 1, 1), (1, 5, 1), (1, 1, 1)), np.float32)  # of 13
# As TensorFlow's rgb_to_grayscale: luma of shares of 255, times 255.5, rounded down. OpenCV rounds
# to the nearest, so 1/2 is taken off.
LUMA = np.array(((0.2989, 0.5870, 0.1140, 0),)) * 255.5 / 255 - ((0, 0, 0, 0.5),)
HALF = np.nextafter(np.float32(0.5), np.float32(0))


@dataclasses.dataclass(frozen=True)
class RandAugment:
    """Applies `operations` of OPERATIONS, one after another, each drawn uniformly.

    For each it draws the place in OPERATIONS, and then what that operation draws.
    """

    operations: int
    magnitude: int

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The augmented image, of the same shape."""
        image = np.ascontiguousarray(image)  # OpenCV would copy a mirrored view in every call
        for _ in range(self.operations):
            operation = OPERATIONS[rng.integers(len(OPERATIONS))]
            image = operation(image, self.magnitude / FULL, rng)
        return image


def auto_contrast(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """Every channel stretched to 0 to 255, rounded down; one of a single value stays."""

    def table(counts: np.ndarray) -> np.ndarray:
        present = np.flatnonzero(counts).astype(np.float32)
        low, high = present[0], present[-1]
        if low == high:
            return LEVELS
        scale = np.float32(255) / (high - low)
        return (LEVELS * scale - low * scale).clip(0, 255)

    return _by_histogram(image, table)


def equalize(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """Every channel with its histogram flattened, as Pillow does it.

    A channel stays if fewer than 255 of its pixels are darker than its brightest value.
    """

    def table(counts: np.ndarray) -> np.ndarray:
        # Pillow leaves the brightest value out, so that it maps to 255.
        step = (counts.sum() - counts[counts > 0][-1]) // 255
        if step == 0:
            return LEVELS
        darker = np.cumsum(counts) - counts
        return ((darker + step // 2) // step).clip(0, 255)

    return _by_histogram(image, table)


def invert(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """255 minus the image."""
    return 255 - image


def rotate(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """Rotates the image about its center by 30 degrees x level, in a random direction."""
    angle = np.float32(_either(30 * level, rng)) * np.float32(math.pi / 180)
    cos, sin = np.cos(angle), np.sin(angle)
    height, width = (np.float32(side - 1) for side in image.shape[:2])
    x = (width - (cos * width - sin * height)) / 2
    y = (height - (sin * width + cos * height)) / 2
    return _warp(image, ((cos, -sin, x), (sin, cos, y)))


def posterize(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """Only the 4 x level highest bits of every value, at least 1; but 1 of more than 8."""
    # Modulo 256, as the reference casts to uint8.
    shift = min((8 - int(4 * level)) % 256, 7)
    return image & np.uint8(256 - 2**shift)


def solarize(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """The image with values of 256 x level, modulo 256, and above inverted."""
    # Modulo 256 as in the reference: at magnitude 10 all values are inverted.
    return _look_up(image, np.where(int(256 * level) % 256 <= LEVELS, 255 - LEVELS, LEVELS))


def color(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """The difference from the gray image enhanced; an image of one channel stays."""
    if image.shape[2] == 1:
        return image
    return _enhance(image, cv2.cvtColor(cv2.transform(image, LUMA), cv2.COLOR_GRAY2RGB), level)


def contrast(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """The difference from min(255, height x width / 256) enhanced."""
    # The reference means the mean level, but divides the number of pixels by 256.
    plain = min(255, image.shape[0] * image.shape[1] // 256)
    return _look_up(image, _enhance_levels(plain, level))


def brightness(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """The difference from black enhanced."""
    return _look_up(image, _enhance_levels(0, level))


def sharpness(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """The difference from the smoothed image enhanced; the outermost pixels stay."""
    inside = slice(1, -1), slice(1, -1)
    plain = image.copy()
    # Rounded down: the nearest of (sum - 6) / 13 is no tie.
    smooth = cv2.filter2D(image, -1, SMOOTH / 13, delta=-6 / 13)
    plain[inside] = smooth.reshape(image.shape)[inside]
    return _enhance(image, plain, level)


def shear_x(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """Every row moved by 0.3 x level of its distance from the top; draws the sense."""
    return _warp(image, ((1, _either(0.3 * level, rng), 0), (0, 1, 0)))


def shear_y(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """Every column moved by 0.3 x level of its distance from the left; draws the sense."""
    return _warp(image, ((1, 0, 0), (_either(0.3 * level, rng), 1, 0)))


def translate_x(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """The image moved by 100/224 x level of its width, rounded; draws the sense."""
    return _move(image, 1, round(_either(100 * level * image.shape[1] / SIDE, rng)))


def translate_y(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """The image moved by 100/224 x level of its height, rounded; draws the sense."""
    return _move(image, 0, round(_either(100 * level * image.shape[0] / SIDE, rng)))


def cutout(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """The image with a gray rectangle: 40/224 x level of the sides each way from a pixel.

    Draws the row of that pixel, then its column; what sticks out of the image is lost.
    """
    part = []
    for side in image.shape[:2]:
        center, reach = int(rng.integers(side)), int(40 * level * side / SIDE)
        part.append(slice(max(center - reach, 0), center + reach))
    image = image.copy()
    image[tuple(part)] = FILL
    return image


def solarize_add(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """The image with 110 x level added to values below 128, up to 255."""
    added = np.minimum(LEVELS.astype(np.int64) + int(110 * level), 255)
    return _look_up(image, np.where(LEVELS < 128, added, LEVELS))


OPERATIONS: tuple[Operation, ...] = (
    auto_contrast,
    equalize,
    invert,
    rotate,
    posterize,
    solarize,
    color,
    contrast,
    brightness,
    sharpness,
    shear_x,
    shear_y,
    translate_x,
    translate_y,
    cutout,
    solarize_add,
)


def _either(value: float, rng: np.random.Generator) -> float:
    """Draws one number and negates the value if it is below 1/2."""
    return -value if rng.random() < 0.5 else value


def _enhance(image: np.ndarray, plain: np.ndarray, level: float) -> np.ndarray:
    """`plain + (0.1 + 1.8 x level) x (image - plain)`, clipped and rounded down.

    OpenCV rounds to the nearest. Of a whole magnitude the values are multiples of 0.02, so that
    those less 0.49 are rounded to what these are rounded down to.
    """
    factor = 0.1 + 1.8 * level
    return cv2.addWeighted(image, factor, plain, 1 - factor, -0.49).reshape(image.shape)


def _enhance_levels(plain: float, level: float) -> np.ndarray:
    """The same of every level of 0 to 255, with one `plain`, in float32 to the bit."""
    factor = level * 1.8 + 0.1
    difference = LEVELS.astype(np.float32) - np.float32(plain)
    blend = np.float32(plain) + np.float32(factor) * difference
    return LEVELS if factor == 1 else blend.clip(0, 255)


def _look_up(image: np.ndarray, table: np.ndarray) -> np.ndarray:
    """`table` (256) or `table` (256, C) at every value of the image."""
    return cv2.LUT(image, table.astype(np.uint8)[None]).reshape(image.shape)


def _by_histogram(image: np.ndarray, table: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Maps every channel through a table (256) computed from its histogram (256)."""
    counts = (cv2.calcHist([image], [c], None, [256], [0, 256]) for c in range(image.shape[2]))
    # calcHist counts in float32.
    tables = [table(each.ravel().astype(np.int64)) for each in counts]
    return _look_up(image, np.stack(tables, axis=-1))


def _warp(image: np.ndarray, matrix: tuple[tuple[float, ...], ...]) -> np.ndarray:
    """Warps by a matrix: at each (column, row), the pixel nearest to where it maps that place.

    In float32, as in TensorFlow; halves are rounded away from 0. OpenCV's own maps of a matrix are
    rounded to 1/1024 pixel, which takes other pixels in every row that a shear moves by a half.
    """
    height, width = image.shape[:2]
    x, y = np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32)[:, None]
    places = np.empty((height, width, 2), np.int16)
    for axis, (of_x, of_y, shift) in enumerate(np.array(matrix, np.float32)):
        # What does not depend on x or on y is worked out for one column or row.
        place = (of_x * x if of_x else 0) + (of_y * y if of_y else 0) + shift
        # HALF is the float32 just below 1/2: halves round up, smaller fractions do not.
        # Below 0 all that counts is what is outside: -1/2 is.
        np.floor(place + HALF, out=place)
        places[:, :, axis] = np.clip(place, -1, np.iinfo(np.int16).max, out=place)
    warped = cv2.remap(
        image,
        places,
        np.empty((0, 0), np.uint16),  # no places between pixels
        interpolation=cv2.INTER_NEAREST,
        borderMode=cv2.BORDER_CONSTANT,
        borderValue=(FILL,) * 3,
    )
    return warped.reshape(image.shape)


def _move(image: np.ndarray, axis: int, by: int) -> np.ndarray:
    """The image moved along an axis, towards its end if `by` is positive."""
    side = image.shape[axis]
    by = min(max(by, -side), side)
    kept = slice(max(-by, 0), side - max(by, 0))
    place = slice(max(by, 0), side - max(-by, 0))
    moved = np.full_like(image, FILL)
    moved[(slice(None),) * axis + (place,)] = image[(slice(None),) * axis + (kept,)]
    return moved
