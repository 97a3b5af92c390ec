"""`vit_jax segment`: a linear classifier of frozen patch features segments test images.

Each patch of a training image has the class of most of its pixels. The classifier is that of the
linear probe: softmax regression by L-BFGS, with the l2 that is best on a fifth of the patches. Its
scores are interpolated to the pixels of the test images, and their classes compared at full size.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import cv2
import numpy as np
from matplotlib.figure import Figure

from vit_jax.config import ConfigError, checks
from vit_jax.data import bucket, decoding, image_headers
from vit_jax.evaluation import metrics, probe
from vit_jax.evaluation.fewshot import Linear
from vit_jax.inference import loaded_model, loading
from vit_jax.inference import segmentation_masks as masks
from vit_jax.inference.inspect import figures, measures
from vit_jax.inference.segmentation_masks import NO_CLASS
from vit_jax.models import variants
from vit_jax.runtime import logs
from vit_jax.training import sharding

MOST = 2**19  # patches to learn from; of more, the same share of every image is drawn
BATCH = 32  # images at a time
SHOWN = 8  # test images in the figure
CHANNELS = 128  # that OpenCV 5 resizes at once


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

    `root` is a folder as in `masks`, on a disk or in a bucket; `say` is called with a line about
    what is done.

    Raises a UserError.
    """
    folder = bucket.given_path("--data", root)
    if not folder.is_dir():
        raise ConfigError(f"--data={root}: no such folder")
    train, test = (masks.find_images(folder, split) for split in splits)
    opened = _squashing(loading.load(checkpoint, overrides, step=step))
    checks.check_fixed(opened.config, "segment")
    say(f"{len(train):,} images to learn from, {len(test):,} to measure")
    grid = _grid(opened)
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
    test: Sequence[masks.LabeledImage],
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


def _squashing(opened: loaded_model.LoadedModel) -> loaded_model.LoadedModel:
    """The model with whole images as its input, so that patches cover all pixels."""
    data = dataclasses.replace(
        opened.config.data, eval_crop="resize", resize_to=None, crop_pct=None
    )
    return dataclasses.replace(opened, config=dataclasses.replace(opened.config, data=data))


def _grid(opened: loaded_model.LoadedModel) -> tuple[int, int]:
    model, size = opened.config.model, opened.config.data.image_size
    if variants.covered(model, size) != tuple(size):
        raise ConfigError(
            f"data.image_size={size[0]}x{size[1]}: patches leave out pixels at the edge; set "
            "multiples of the patch size"
        )
    return variants.grid(model, size)


def _examples(
    opened: loaded_model.LoadedModel, labeled: Sequence[masks.LabeledImage]
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
            mask = masks.read_mask(one, max_pixels=opened.config.data.max_pixels)
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
