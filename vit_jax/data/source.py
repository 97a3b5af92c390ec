"""The protocol of a source of labeled images, its records, labels and errors."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from vit_jax.config import UserError

# A tuple of classes with data.multilabel, of numbers with data.targets.
Label = int | tuple[int, ...] | tuple[float, ...]
UNKNOWN = -1  # label of an image without a class
WITHOUT_LABELS = "; to train without labels, set objective.name=mae or dino"  # ends a message


class DataError(UserError):
    """Data that is missing, unreadable, or inconsistent with the config."""


class BadImage(UserError):
    """Bytes that cannot be turned into pixels; the message is the reason, without a file name."""


class Record(NamedTuple):
    """One example: an encoded file, or uint8 or uint16 pixels `H W C`, and its class.

    With `data.multilabel` the label is a tuple of any number of classes, with `data.targets` one of
    numbers.
    """

    image: bytes | np.ndarray
    label: Label


class Source(Protocol):
    """Random access to labeled images; must be picklable for the loader processes."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, indexed by labels, or the columns of `data.targets`."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Record:
        """An example; raises BadImage or OSError if unreadable."""
        ...

    def name(self, index: int) -> str:
        """The file name or the id of an example, for messages."""
        ...

    def fingerprint(self) -> str:
        """16 hex digits that are equal for equal data, on any machine, under any root."""
        ...


def read_names(source: Source) -> set[str]:
    """The names of all examples."""
    return {source.name(at) for at in range(len(source))}


def read_labels(source: Source) -> np.ndarray:
    """The labels (N,) int64 of a source with one class per image.

    A source that has them as `labels` need not read its images.
    """
    known = getattr(source, "labels", None)
    if known is None:
        known = [source[index].label for index in range(len(source))]
    return np.asarray(known, np.int64)


def read_targets(source: Source) -> np.ndarray:
    """The numbers (N, K) float64 of a source opened with `data.targets`.

    A source that has them as `targets` need not read its images.
    """
    known = getattr(source, "targets", None)
    if known is None:
        known = [source[index].label for index in range(len(source))]
    # A source without examples would have no second axis.
    return np.asarray(known, np.float64).reshape(len(source), len(source.classes))


class Selection:
    """Some examples of a source, in the order of their positions (N,)."""

    def __init__(self, source: Source, positions: Sequence[int] | np.ndarray) -> None:
        self.source, self.classes = source, source.classes
        self._positions = np.asarray(positions, np.int64)

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: int) -> Record:
        return self.source[int(self._positions[index])]

    def name(self, index: int) -> str:
        """The source's name of the example."""
        return self.source.name(int(self._positions[index]))


def label_names(label: Label, classes: Sequence[str]) -> tuple[str, ...]:
    """The names of a label's classes."""
    several = label if isinstance(label, tuple) else (label,)
    return tuple(classes[int(one)] for one in several if one != UNKNOWN)


def label_text(label: Label, classes: Sequence[str]) -> str:
    """The name of the class, the names of several, or numbers, separated by `; `."""
    if isinstance(label, tuple) and any(isinstance(one, float) for one in label):
        return "; ".join(f"{one:.15g}" for one in label)  # as files have them
    return "; ".join(label_names(label, classes)) or "no class"
