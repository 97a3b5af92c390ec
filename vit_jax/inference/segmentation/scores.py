"""From masks to labels of patches, and from scores of patches to intersection over union."""

import cv2
import numpy as np

from vit_jax.inference.segmentation.masks import NO_CLASS


def of_patches(mask: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Returns the class that most pixels of each patch have, (rows, columns) int64.

    A patch is NO_CLASS where fewer than half of its pixels have one; of equals the lower counts.

    Args:
      mask: (H, W) uint8.
      grid: rows and columns of patches that together cover the image.
    """
    rows, columns = (
        (2 * np.arange(length) + 1) * parts // (2 * length)  # of the centers of pixels
        for length, parts in zip(mask.shape, grid, strict=True)
    )
    place = rows[:, None] * grid[1] + columns[None]
    counts = np.zeros((grid[0] * grid[1], NO_CLASS + 1), np.int64)
    np.add.at(counts, (place.ravel(), mask.ravel()), 1)
    labeled = counts[:, :NO_CLASS]
    enough = 2 * labeled.sum(axis=1) >= counts.sum(axis=1)
    enough &= labeled.any(axis=1)
    return np.where(enough, labeled.argmax(axis=1), NO_CLASS).reshape(grid)


def predict(scores: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Returns the best class of every pixel (H, W), of scores of patches (rows, columns, K).

    Scores are interpolated bilinearly.
    """
    height, width = size
    large = cv2.resize(scores.astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR)
    return large.reshape(height, width, -1).argmax(axis=2)


def confusion(truth: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """Returns how many pixels of each class (rows) were taken for each (columns), (K, K) int64."""
    labeled = truth < classes
    pairs = truth[labeled].astype(np.int64) * classes + predicted[labeled]
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def intersection_over_union(pixels: np.ndarray) -> np.ndarray:
    """Returns the IoU of every class, (K,), of a confusion matrix; NaN for one that is nowhere."""
    both = pixels.diagonal()
    either = pixels.sum(axis=0) + pixels.sum(axis=1) - both
    return np.where(either > 0, both / np.maximum(either, 1), np.nan)
