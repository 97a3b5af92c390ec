"""RandAugment: a few operations per image, drawn from sixteen, all at one magnitude.

The operations and their ranges are those of the code behind "How to train your ViT" (section 3.3),
which big_vision took over from EfficientNet's: 10 is the full range of AutoAugment, and a larger
magnitude goes on beyond it. Its settings there, (operations, magnitude), run from (2, 0) for light
to (2, 20) for strong augmentation; magnitude 0 is not the identity.

Two things differ, so that images of any size change alike. Translate and Cutout are shares of a
side, which in pixels are the reference's for sides of 224; and one bit is the least that Posterize
keeps. As in the reference, Solarize and Posterize get weaker with magnitude, and from 10 and 20 on
leave the image as it is.

An operation takes uint8 `H W C` (C = 1 or 3), the level (magnitude / 10) and a generator, from
which it draws only what its docstring says. It returns uint8 of the same shape and never writes
into its argument, which it may return. Pixels that come in from outside are grey, 128.
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
SMOOTH = np.array(((1, 1, 1), (1, 5, 1), (1, 1, 1)), np.float32) / 13


@dataclasses.dataclass(frozen=True)
class RandAugment:
    """Applies `operations` of OPERATIONS, one after another, each drawn uniformly.

    For each it draws the place in OPERATIONS, and then what that operation draws.
    """

    operations: int
    magnitude: int

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Returns the augmented image, of the same shape."""
        image = np.ascontiguousarray(image)  # OpenCV would copy a mirrored view in every call
        for _ in range(self.operations):
            operation = OPERATIONS[rng.integers(len(OPERATIONS))]
            image = operation(image, self.magnitude / FULL, rng)
        return image


def auto_contrast(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """Returns every channel stretched to 0 to 255, rounded down; one of a single value stays."""

    def table(counts: np.ndarray) -> np.ndarray:
        present = np.flatnonzero(counts)
        low, high = present[0], present[-1]
        if low == high:
            return LEVELS
        return ((LEVELS.astype(np.int64) - low) * 255 // (high - low)).clip(0, 255)

    return _by_histogram(image, table)


def equalize(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """Returns every channel with its histogram flattened, as Pillow does it.

    A channel stays if fewer than 255 of its pixels are darker than its brightest value.
    """

    def table(counts: np.ndarray) -> np.ndarray:
        step = (counts.sum() - counts[counts > 0][-1]) // 255
        if step == 0:
            return LEVELS
        darker = np.cumsum(counts) - counts
        return ((darker + step // 2) // step).clip(0, 255)

    return _by_histogram(image, table)


def invert(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """Returns 255 minus the image."""
    return 255 - image


def rotate(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """Returns the image turned about its centre by 30 degrees x level; draws the sense."""
    angle = math.radians(_either(30 * level, rng))
    cos, sin = math.cos(angle), math.sin(angle)
    y, x = (image.shape[0] - 1) / 2, (image.shape[1] - 1) / 2
    return _warp(image, ((cos, -sin, x - cos * x + sin * y), (sin, cos, y - sin * x - cos * y)))


def posterize(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """Returns only the 4 x level highest bits of every value, between 1 and all 8."""
    bits = min(max(int(4 * level), 1), 8)
    return image & np.uint8(256 - 2 ** (8 - bits))


def solarize(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """Returns the image with values of 256 x level and above inverted."""
    return _look_up(image, np.where(int(256 * level) <= LEVELS, 255 - LEVELS, LEVELS))


def color(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """Returns the difference from the grey image enhanced; a grey image stays."""
    if image.shape[2] == 1:
        return image
    return _enhance(image, cv2.cvtColor(_grey(image), cv2.COLOR_GRAY2RGB), level)


def contrast(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """Returns the difference from the mean of the grey image, rounded, enhanced."""
    mean = np.full_like(LEVELS, _grey(image).mean() + 0.5)
    return _look_up(image, _enhance(LEVELS, mean, level))


def brightness(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """Returns the difference from black enhanced."""
    return _look_up(image, _enhance(LEVELS, np.zeros_like(LEVELS), level))


def sharpness(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """Returns the difference from the smoothed image enhanced; the outermost pixels stay."""
    inside = slice(1, -1), slice(1, -1)
    plain = image.copy()
    plain[inside] = cv2.filter2D(image, -1, SMOOTH).reshape(image.shape)[inside]
    return _enhance(image, plain, level)


def shear_x(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """Returns every row moved by 0.3 x level of its distance from the top; draws the sense."""
    return _warp(image, ((1, _either(0.3 * level, rng), 0), (0, 1, 0)))


def shear_y(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """Returns every column moved by 0.3 x level of its distance from the left; draws the sense."""
    return _warp(image, ((1, 0, 0), (_either(0.3 * level, rng), 1, 0)))


def translate_x(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """Returns the image moved by 100/224 x level of its width, rounded; draws the sense."""
    return _move(image, 1, round(_either(100 * level * image.shape[1] / SIDE, rng)))


def translate_y(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """Returns the image moved by 100/224 x level of its height, rounded; draws the sense."""
    return _move(image, 0, round(_either(100 * level * image.shape[0] / SIDE, rng)))


def cutout(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """Returns the image with a grey rectangle: 40/224 x level of the sides each way from a pixel.

    Draws the row of that pixel, then its column; what sticks out of the image is lost.
    """
    part = []
    for side in image.shape[:2]:
        centre, reach = int(rng.integers(side)), int(40 * level * side / SIDE)
        part.append(slice(max(centre - reach, 0), centre + reach))
    image = image.copy()
    image[tuple(part)] = FILL
    return image


def solarize_add(image: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    """Returns the image with 110 x level added to values below 128, up to 255."""
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


def _grey(image: np.ndarray) -> np.ndarray:
    """Returns luma, uint8 `H W 1`."""
    if image.shape[2] == 1:
        return image
    return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[:, :, None]


def _enhance(image: np.ndarray, plain: np.ndarray, level: float) -> np.ndarray:
    """Returns `plain + (0.1 + 1.8 x level) x (image - plain)`, clipped and rounded down.

    OpenCV rounds to the nearest. Of a whole magnitude the values are multiples of 0.02, so that
    those less 0.49 are rounded to what these are rounded down to.
    """
    factor = 0.1 + 1.8 * level
    return cv2.addWeighted(image, factor, plain, 1 - factor, -0.49).reshape(image.shape)


def _look_up(image: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Returns `table` (256) or `table` (256, C) at every value of the image."""
    return cv2.LUT(image, table.astype(np.uint8)[None]).reshape(image.shape)


def _by_histogram(image: np.ndarray, table: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Looks every channel up in the table (256) that is made of its counts (256) of values."""
    counts = (cv2.calcHist([image], [c], None, [256], [0, 256]) for c in range(image.shape[2]))
    tables = [table(each.ravel().astype(np.int64)) for each in counts]
    return _look_up(image, np.stack(tables, axis=-1))


def _warp(image: np.ndarray, matrix: tuple[tuple[float, ...], ...]) -> np.ndarray:
    """Returns, at each (column, row), the pixel nearest to where the matrix maps that place."""
    warped = cv2.warpAffine(
        image,
        np.array(matrix, np.float64),
        (image.shape[1], image.shape[0]),
        flags=cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_CONSTANT,
        borderValue=(FILL,) * 3,
    )
    return warped.reshape(image.shape)


def _move(image: np.ndarray, axis: int, by: int) -> np.ndarray:
    """Returns the image moved along an axis, towards its end if `by` is positive."""
    side = image.shape[axis]
    by = min(max(by, -side), side)
    kept = slice(max(-by, 0), side - max(by, 0))
    place = slice(max(by, 0), side - max(-by, 0))
    moved = np.full_like(image, FILL)
    moved[(slice(None),) * axis + (place,)] = image[(slice(None),) * axis + (kept,)]
    return moved
