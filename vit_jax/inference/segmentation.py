"""`vit_jax segment`: a linear classifier of frozen patch features segments test images.

Each patch of a training image has the class of most of its pixels. The classifier is that of the
linear probe: softmax regression by L-BFGS, with the l2 that is best on a fifth of the patches. Its
scores are interpolated to the pixels of the test images, and their classes compared at full size.

Images have a mask of classes for their pixels, in three layouts of folders.

- `ROOT/SPLIT/images/NAME.jpg` and `ROOT/SPLIT/masks/NAME.png`, with other suffixes too.
- Pascal VOC: `ROOT/JPEGImages`, `ROOT/SegmentationClass`, and the names in
  `ROOT/ImageSets/Segmentation/SPLIT.txt`.
- ADE20K as in its scene parsing challenge: `ROOT/images/SPLIT` and `ROOT/annotations/SPLIT`, where
  0 is no class.

A mask is a PNG of indices or of gray levels, at most 8 bits; 255 is no class.
"""

import dataclasses
import io
import math
import os
import pathlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from vit_jax.config import ConfigError, checks
from vit_jax.data import bucket, decoding, image_headers, tiff
from vit_jax.evaluation import metrics, probe
from vit_jax.evaluation.fewshot import Linear
from vit_jax.inference import loaded_model, loading, prediction
from vit_jax.inference.inspect import figures, measures
from vit_jax.models import variants
from vit_jax.runtime import logs
from vit_jax.training import sharding
from vit_jax.utils import limits, storage

MOST = 2**19  # patches to learn from; of more, the same share of every image is drawn
BATCH = 32  # images at a time
SHOWN = 8  # test images in the figure
CHANNELS = 128  # that OpenCV 5 resizes at once
NO_CLASS = 255
# Pillow multiplies gray levels of 2 and 4 bits by these, so that the largest becomes 255.
STRETCHED = {2: 85, 4: 17}


class LabeledImage(NamedTuple):
    """The files of an image, and the number in its mask that is class 0."""

    image: pathlib.Path
    mask: pathlib.Path
    offset: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Segmentation:
    """The results of a segmentation.

    Attributes:
      train, test: numbers of images.
      patches: patches learned from.
      l2: strength with the best validation accuracy.
      pixels: confusion matrix (K, K): pixels of each class (rows) predicted as each (columns).
      figure: of the first test images: the truth and the prediction.
      step: of the checkpoint, where it is a run's.
    """

    train: int
    test: int
    patches: int
    l2: float
    pixels: np.ndarray
    figure: Figure
    step: int | None = None

    @property
    def by_class(self) -> np.ndarray:
        """The IoU of every class, NaN for one that does not occur."""
        return intersection_over_union(self.pixels)

    def as_dict(self) -> dict[str, Any]:
        """The numbers for JSON."""
        each = self.by_class
        return {
            **({} if self.step is None else {"step": self.step}),
            "miou": float(np.nanmean(each)),
            "pixel_accuracy": float(self.pixels.trace() / self.pixels.sum()),
            "iou": [None if math.isnan(value) else value for value in each.tolist()],
            "pixels": self.pixels.sum(axis=1).tolist(),
            "l2": self.l2,
            "patches": self.patches,
            "train_images": self.train,
            "test_images": self.test,
        }


def measure(
    checkpoint: str,
    root: str | os.PathLike[str],
    overrides: Mapping[str, str],
    *,
    splits: tuple[str, str] = ("train", "val"),
    step: int | str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Segmentation:
    """Trains a linear classifier on patches of one split, and measures it on another.

    `root` is a folder as above, on a disk or in a bucket; `say` is called with a line about
    what is done.

    Raises a UserError.
    """
    loading.check_given(overrides)
    folder = bucket.given_path("--data", root)
    if not folder.is_dir():
        raise ConfigError(f"--data={root}: no such folder")
    train, test = (find_images(folder, split) for split in splits)
    if learned := {one.image for one in train} & {one.image for one in test}:
        line = f"{len(learned):,} of its {len(test):,} images are learned from, as images of "
        logs.warn_of_assumptions(f"--test={splits[1]}", [f"{line}--train={splits[0]}"])
    opened = loading.load(checkpoint, overrides, step=step)
    model, data = opened.config.model, opened.config.data
    size = data.image_size
    # Whole images are its input, so that patches cover all pixels.
    whole: dict[str, Any] = {"eval_crop": "resize", "resize_to": None, "crop_pct": None}
    for key, value in whole.items():
        if f"data.{key}" in overrides and (given := getattr(data, key)) != value:
            raise ConfigError(f"data.{key}={given}: segment resizes whole images; leave it out")
    data = dataclasses.replace(data, **whole)
    opened = dataclasses.replace(opened, config=dataclasses.replace(opened.config, data=data))
    checks.check_fixed(opened.config, "segment")
    say(f"{len(train):,} images to learn from, {len(test):,} to measure")
    if variants.covered(model, size) != tuple(size):
        raise ConfigError(
            f"data.image_size={size[0]}x{size[1]}: patches leave out pixels at the edge; set "
            "multiples of the patch size"
        )
    grid = variants.grid(model, size)
    share = min(1.0, MOST / (len(train) * math.prod(grid)))
    features, labels, rng = [], [], np.random.default_rng(0)
    for _, mask, found in _examples(opened, train):
        truth = patch_classes(mask, grid).ravel()
        kept = (truth != NO_CLASS) & (rng.random(len(truth)) < share)
        features.append(found.reshape(-1, found.shape[-1])[kept])
        labels.append(truth[kept])
    x, y = np.concatenate(features), np.concatenate(labels)
    if not len(y):
        raise ConfigError(f"--data={root}: no patch of {splits[0]} has a class")
    classes = int(y.max()) + 1
    say(f"learning from {len(y):,} patches of {classes} classes")
    learned = probe.learn(x, y, classes, sharding.create_mesh(1), stop=lambda: False)
    assert learned is not None
    say("measuring")
    return _measured(opened, test, learned, classes, len(train), len(y))


def _measured(
    opened: loaded_model.LoadedModel,
    test: Sequence[LabeledImage],
    learned: tuple[Linear, float],
    classes: int,
    train: int,
    patches: int,
) -> Segmentation:
    linear, l2 = learned
    pixels, shown = np.zeros((0, 0), np.int64), []
    for view, truth, found in _examples(opened, test):
        scored = (found - linear.mean) / linear.scale @ linear.weights + linear.bias
        predicted = pixel_classes(scored, truth.shape)
        one = confusion(truth, predicted, classes)
        # An image may have classes that no training image had; the matrix grows with them.
        size = max(len(one), len(pixels))
        pixels = np.pad(pixels, (0, size - len(pixels))) + np.pad(one, (0, size - len(one)))
        if len(shown) < SHOWN:
            shown.append((view, truth, predicted))
    if not pixels.sum():
        raise ConfigError("no pixel of the test images has a class")
    views, truths, predictions = zip(*shown, strict=True)
    return Segmentation(
        step=opened.step,
        train=train,
        test=len(test),
        patches=patches,
        l2=l2,
        pixels=pixels,
        figure=figures.segments(views, truths, predictions, NO_CLASS),
    )


def _examples(
    opened: loaded_model.LoadedModel, labeled: Sequence[LabeledImage]
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields each image's view (H, W, C) uint8, mask (h, w) and features (rows, columns, D)."""
    said = False
    for start in range(0, len(labeled), BATCH):
        views, truths = [], []
        for one in labeled[start : start + BATCH]:
            try:
                encoded = decoding.read_file(one.image)
                views.append(opened.view(encoded))
                height, width = decoding.size(encoded)
            except (decoding.BadImage, OSError) as error:
                raise ConfigError(f"{one.image}: {error}") from error
            mask = read_mask(one, max_pixels=opened.config.data.max_pixels)
            turned = image_headers.orientation(encoded) != 1
            if turned and image_headers.orientation(decoding.read_file(one.mask)) == 1 and not said:
                said = True
                line = "is turned as its EXIF says; its mask, without EXIF, is taken to be so"
                logs.warn_of_assumptions(one.image, [line])
            # A smaller mask may be a pixel off; one of a turned image is another picture.
            if abs(mask.shape[0] * width - mask.shape[1] * height) > max(height, width):
                raise ConfigError(
                    f"{one.mask}: is {mask.shape[1]} x {mask.shape[0]}, and its image {width} x "
                    f"{height}, turned as its EXIF says; save both alike"
                )
            truths.append(mask)
        found = measures.patch_features(opened, np.stack(views))
        yield from zip(views, truths, found, strict=True)


def find_images(root: pathlib.Path, split: str) -> list[LabeledImage]:
    """The images of a split in order of their names.

    Raises ConfigError if there are none, or an image without a mask.
    """
    if (root / "ImageSets" / "Segmentation").is_dir():
        found = _voc(root, split)
    elif (root / "annotations").is_dir():
        found = _beside(root / "images" / split, root / "annotations" / split, offset=1)
    else:
        found = _beside(root / split / "images", root / split / "masks", offset=0)
    for one in found:
        for path in (one.image, one.mask):
            with storage.errors_as(ConfigError, f"--data={root}"):
                there = path.is_file()
            if not there:
                raise ConfigError(f"--data={root}: {path.relative_to(root)} is missing")
    return found


def _voc(root: pathlib.Path, split: str) -> list[LabeledImage]:
    names = root / "ImageSets" / "Segmentation" / f"{split}.txt"
    if not names.is_file():
        there = ", ".join(sorted(path.stem for path in names.parent.glob("*.txt")))
        raise ConfigError(f"--data={root}: has no split {split}; there are {there or 'none'}")
    try:
        listed = limits.read_file(names, limits.TABLE).decode("utf-8")
    except (OSError, limits.LimitError, UnicodeDecodeError) as error:
        raise ConfigError(f"{names}: is not a list of names: {error}") from None
    return [
        LabeledImage(
            root / "JPEGImages" / f"{name}.jpg", root / "SegmentationClass" / f"{name}.png", 0
        )
        for name in map(pathlib.PurePath, listed.split())
        if name.name == str(name)  # never a path
    ]


def _beside(images: pathlib.Path, masks: pathlib.Path, *, offset: int) -> list[LabeledImage]:
    if not images.is_dir():
        raise ConfigError(f"{images}: no such folder; see `vit_jax segment --help` for layouts")
    return [
        LabeledImage(path, masks / path.relative_to(images).with_suffix(".png"), offset)
        for path in prediction.list_files(images)
    ]


def read_mask(one: LabeledImage, *, max_pixels: int) -> np.ndarray:
    """The class of every pixel, (H, W) uint8, NO_CLASS where there is none.

    Raises ConfigError for a file that is no such mask.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images, which are refused below
            encoded = decoding.read_file(one.mask)
            opened = Image.open(io.BytesIO(encoded), formats=("PNG",))
        # P: the index itself is the class, whatever its color.
        if opened.mode not in ("P", "L", "1"):
            raise ConfigError(
                f"{one.mask}: is a PNG of mode {opened.mode}; a mask has one 8-bit class per pixel"
            )
        if opened.width * opened.height > max_pixels:
            raise ConfigError(
                f"{one.mask}: has {opened.width} x {opened.height} pixels, more than "
                f"data.max_pixels={max_pixels}"
            )
        values = np.asarray(opened)
        if opened.mode == "L":
            # Byte 24 of a PNG is its bit depth.
            values = values // STRETCHED.get(encoded[24], 1)
    # Pillow raises SyntaxError for a broken chunk.
    except (
        decoding.BadImage, OSError, SyntaxError, ValueError, Image.DecompressionBombError,
    ) as error:  # fmt: skip
        raise ConfigError(f"{one.mask}: is not a readable PNG ({error})") from error
    # As its image is; Pillow leaves that to whoever reads it.
    values = tiff.upright(values.astype(np.uint8), image_headers.orientation(encoded))
    if not one.offset:
        return values
    outside = (values < one.offset) | (values == NO_CLASS)
    return np.where(outside, NO_CLASS, values - one.offset).astype(np.uint8)


def patch_classes(mask: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """The class that most pixels of each patch have, (rows, columns) int64.

    A patch is NO_CLASS where fewer than half of its pixels have one; of equals the lower counts.
    The mask is (H, W) uint8; the grid of patches covers the image.
    """
    rows, columns = (
        (2 * np.arange(length) + 1) * parts // (2 * length)  # of the centers of pixels
        for length, parts in zip(mask.shape, grid, strict=True)
    )
    place = rows[:, None] * grid[1] + columns[None]
    # The last column counts pixels without a class.
    counts = np.zeros((grid[0] * grid[1], NO_CLASS + 1), np.int64)
    np.add.at(counts, (place.ravel(), mask.ravel()), 1)
    labeled = counts[:, :NO_CLASS]
    enough = 2 * labeled.sum(axis=1) >= counts.sum(axis=1)
    # Where the mask has fewer pixels than the grid, a patch may have none.
    enough &= labeled.any(axis=1)
    return np.where(enough, labeled.argmax(axis=1), NO_CLASS).reshape(grid)


def pixel_classes(scores: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The best class of every pixel (H, W), for scores of patches (rows, columns, K).

    Scores are interpolated bilinearly.
    """
    height, width = size
    resized = []
    # In parts: ADE20K has 150 classes.
    for first in range(0, scores.shape[2], CHANNELS):
        part = scores[:, :, first : first + CHANNELS].astype(np.float32)
        large = cv2.resize(part, (width, height), interpolation=cv2.INTER_LINEAR)
        # OpenCV drops the last axis of a single channel.
        resized.append(large.reshape(height, width, -1))
    return np.concatenate(resized, axis=2).argmax(axis=2)


def confusion(truth: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """The confusion matrix: pixels of each class (rows) predicted as each (columns), (K, K) int64.

    K is `classes`, or more where `truth` has a class that was never learned.
    """
    labeled = truth != NO_CLASS
    classes = max(classes, int(truth[labeled].max(initial=0)) + 1)
    return metrics.confusion(truth[labeled].astype(np.int64), predicted[labeled], classes)


def intersection_over_union(pixels: np.ndarray) -> np.ndarray:
    """IoU of every class, (K,), for a confusion matrix; NaN for one that does not occur."""
    both = pixels.diagonal()
    either = pixels.sum(axis=0) + pixels.sum(axis=1) - both
    return np.where(either > 0, both / np.maximum(either, 1), np.nan)
