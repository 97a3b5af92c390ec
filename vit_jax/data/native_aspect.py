"""Images at their own aspect ratio: `data.aspect=native`.

In training, the images of a batch have grids of their own, with at most as many patches as the step
draws; sequences are padded to that length. So they are in evaluation, and for features, if there
are `data.lengths`: with at most as many patches as the longest.

Without them, an image is then resized to about as many patches as `data.image_size` has, in a shape
near its own; what does not fit is cut off equally on both sides. There are few shapes, so few
programs are compiled, and the images of a batch have the same one.
"""

import bisect
import concurrent.futures
import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from vit_jax import config
from vit_jax.data import decoding
from vit_jax.data.source import Source
from vit_jax.data.transforms import InceptionCrop, eval_resampling, resize

LONGEST = 4  # sides of a shape differ by this factor at most

CHUNK = 256  # images whose headers a thread reads at a time
PADDING = -1  # the image of a row that pads a batch

Shape = tuple[int, int]  # height and width


def shapes(grid: tuple[int, int], patch: tuple[int, int]) -> tuple[Shape, ...]:
    """The heights and widths of views in pixels, tall ones first.

    With P patches in the `grid` of the model's own image size, s of them on the shorter side and as
    many on the other as P allows, for every s of which the longer side is at most LONGEST times the
    shorter one.
    """
    most = grid[0] * grid[1]
    shorts = range(math.ceil(math.sqrt(most / LONGEST)), math.isqrt(most) + 1)
    tall = [(most // short, short) for short in shorts] or [(1, 1)]
    grids = [*tall, *((rows, columns) for columns, rows in reversed(tall) if rows != columns)]
    return tuple((rows * patch[0], columns * patch[1]) for rows, columns in grids)


def nearest(known: Sequence[Shape], height: int, width: int) -> int:
    """Which shape has the aspect ratio nearest to an image's, in logarithms."""
    # In logarithms, twice and half the aspect ratio are equally far away.
    away = [abs(math.log(rows * width / (columns * height))) for rows, columns in known]
    return int(np.argmin(away))


@dataclasses.dataclass(frozen=True)
class Fit:
    """Crops to the aspect ratio of a shape, then resizes to it."""

    height: int
    width: int
    resampling: str = "bilinear"

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The view."""
        rows, columns = image.shape[:2]
        kept = max(1, round(columns * self.height / self.width)), columns
        if kept[0] > rows:
            kept = rows, max(1, round(rows * self.width / self.height))
        top, left = (rows - kept[0]) // 2, (columns - kept[1]) // 2
        part = image[top : top + kept[0], left : left + kept[1]]
        return resize(part, self.height, self.width, self.resampling)


@dataclasses.dataclass(frozen=True)
class FitNearest:
    """Fits an image to the nearest of some shapes."""

    known: tuple[Shape, ...]
    resampling: str = "bilinear"

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The view."""
        shape = self.known[nearest(self.known, *image.shape[:2])]
        return Fit(*shape, self.resampling)(image, rng)


def largest_grid(height: int, width: int, patch: tuple[int, int], most: int) -> tuple[int, int]:
    """Rows and columns of the largest image of an aspect ratio that takes `most` patches.

    The sides are scaled alike and rounded up to whole patches, as in SigLIP 2 and timm's NaFlex.
    """
    rows, columns = height * patch[1], width * patch[0]  # in proportion to sides in patches

    def longest(own: int, other: int) -> int:
        """The most whole patches along one side that leave room for the other."""
        sides = range(1, most + 1)
        # The number of patches grows with the side, so the largest that fits is found by bisection.
        return bisect.bisect_right(sides, most, key=lambda n: n * -(-other * n // own))

    # One side is whole patches, and at the larger scale.
    tall, wide = longest(rows, columns), longest(columns, rows)
    if tall * columns >= wide * rows:
        return tall, -(-columns * tall // rows)
    return -(-rows * wide // columns), wide


@dataclasses.dataclass(frozen=True)
class FitPatches:
    """Resizes an image, or a random crop of it, to the largest grid within a number of patches."""

    patch: tuple[int, int]  # height and width in pixels
    patches: int  # at most
    # Whose `aspect` is a factor of the image's own; None: the whole image.
    crop: InceptionCrop | None = None
    resampling: str = "bilinear"  # as of `Resize`

    @classmethod
    def for_evaluation(cls, data: config.Data, patch: tuple[int, int]) -> "FitPatches":
        """The whole image, with at most as many patches as the longest of `data.lengths`."""
        return cls(patch, max(data.lengths), None, eval_resampling(data))

    @classmethod
    def from_data(cls, data: config.Data, patch: tuple[int, int], patches: int) -> "FitPatches":
        """The training view that the options of `data` describe."""
        crop = None
        if data.train_crop == "inception":
            crop = InceptionCrop(*data.image_size, data.crop_area, data.crop_aspect)
        return cls(patch, patches, crop, data.resampling)

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The view."""
        top, left, height, width = self.rectangle(image.shape[0], image.shape[1], rng)
        return self.stretch(image[top : top + height, left : left + width])

    def rectangle(
        self, height: int, width: int, rng: np.random.Generator
    ) -> tuple[int, int, int, int]:
        """The `(top, left, height, width)` drawn for an image of `height x width`."""
        if self.crop is None:
            return 0, 0, height, width
        # `InceptionCrop` takes an absolute aspect ratio.
        low, high = (factor * width / height for factor in self.crop.aspect)
        return dataclasses.replace(self.crop, aspect=(low, high)).rectangle(height, width, rng)

    def stretch(self, part: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Resizes the crop; `out` is not used, as the size depends on the crop."""
        rows, columns = largest_grid(part.shape[0], part.shape[1], self.patch, self.patches)
        return resize(part, rows * self.patch[0], columns * self.patch[1], self.resampling)


def write_patches(image: np.ndarray, out: np.ndarray) -> tuple[int, int]:
    """Writes an image of whole patches into `out` (P, h, w, C) in raster order: its grid."""
    _, height, width, channels = out.shape
    rows, columns = image.shape[0] // height, image.shape[1] // width
    grid = image.reshape(rows, height, columns, width, channels)
    # As (rows, columns, h, w, C): the pixels of a patch follow one another.
    out[: rows * columns].reshape(rows, columns, *out.shape[1:])[:] = grid.swapaxes(1, 2)
    return rows, columns


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """Which images are in each batch of a pass, and their shape."""

    shapes: tuple[Shape, ...]  # the height and width of each step's views
    rows: np.ndarray  # the image in each row of each step, (steps, B) int64, or PADDING

    @property
    def steps(self) -> int:
        """The number of batches."""
        return len(self.shapes)


def plan(
    source: Source, data: config.Data, known: Sequence[Shape], rows: int, window: int | None = None
) -> BatchPlan:
    """The batches of `rows` images of one shape each that cover a source once.

    Reads every image's header. An unreadable one gets the first shape: loading it will say why.
    Images are grouped with the others of `window` batches, or with all.
    """

    def shape_of(index: int) -> int:
        try:
            return nearest(known, *decoding.size(source[index].image))
        except (decoding.BadImage, OSError):
            return 0

    def shapes_of(first: int) -> list[int]:
        return [shape_of(index) for index in range(first, min(first + CHUNK, len(source)))]

    with concurrent.futures.ThreadPoolExecutor(data.threads) as pool:
        parts = pool.map(shapes_of, range(0, len(source), CHUNK))
        found = np.array([number for part in parts for number in part], np.int64)
    part = len(source) if window is None else window * rows
    made: list[Shape] = []
    batches: list[np.ndarray] = []
    for first in range(0, len(source), max(part, 1)):
        inside = found[first : first + part]
        for number in np.unique(inside).tolist():
            images = first + np.flatnonzero(inside == number)
            # The last batch of a shape is padded, as a smaller one would compile another program.
            padded = np.full(-(-len(images) // rows) * rows, PADDING)
            padded[: len(images)] = images
            batches += list(padded.reshape(-1, rows))
            made += [known[number]] * (len(padded) // rows)
    return BatchPlan(tuple(made), np.array(batches, np.int64).reshape(-1, rows))
