"""Labels of one class, or of any number of them, as arrays and as text."""

from collections.abc import Sequence

import numpy as np

Label = int | tuple[int, ...]  # a tuple with data.multilabel
UNKNOWN = -1  # of an image without a class


def empty(count: int, classes: int, *, several: bool) -> np.ndarray:
    """Returns the labels of `count` rows of padding: (count,) int32, or (count, K) float32."""
    return np.zeros((count, classes), np.float32) if several else np.zeros(count, np.int32)


def encoded(label: Label, classes: int) -> np.ndarray | int:
    """Returns a label as a row of such an array: a number, or 1 for each of its classes."""
    if not isinstance(label, tuple):
        return label
    return np.bincount(np.asarray(label, np.int64), minlength=classes)


def names(label: Label, classes: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of a label's classes."""
    several = label if isinstance(label, tuple) else (label,)
    return tuple(classes[one] for one in several if one != UNKNOWN)


def text(label: Label, classes: Sequence[str]) -> str:
    """Returns the name of the class, or the names of several, separated by `; `."""
    return "; ".join(names(label, classes)) or "no class"
