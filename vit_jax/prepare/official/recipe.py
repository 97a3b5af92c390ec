"""What there is to say of a data set's archives: which files, which examples, how each is made."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow_datasets as tfds

from vit_jax.data.datasets import Dataset
from vit_jax.prepare.image_listing import Found
from vit_jax.prepare.official.archives import Archives


class Span(NamedTuple):
    """`size` bytes of a file from `offset` on."""

    file: str
    offset: int
    size: int


Place = Found | Span


class Example(NamedTuple):
    """An example before it is read.

    Attributes:
      key: what TFDS orders examples by.
      name: of its file, or its number.
      places: where its bytes are, of an image and what goes with it.
      values: what else it is made of: labels, above all.
    """

    key: str | int
    name: str
    places: tuple[Place, ...]
    values: tuple[Any, ...]


class Examples(Protocol):
    """The examples of a split, in any order."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example: ...

    def keys(self) -> Iterator[str | int]:
        """Yields the key of every example."""
        ...

    def sizes(self) -> np.ndarray:
        """Returns the bytes of every example (N,), int64."""
        ...


class Few:
    """Examples in a list: of a data set of some 100,000."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> Example:
        return self._examples[index]

    def keys(self) -> Iterator[str | int]:
        """Yields the key of every example."""
        return (example.key for example in self._examples)

    def sizes(self) -> np.ndarray:
        """Returns the bytes of every example (N,), int64."""
        sizes = (sum(place.size for place in example.places) for example in self._examples)
        return np.fromiter(sizes, np.int64, len(self._examples))


class Contents(NamedTuple):
    """What archives hold: examples by split, and class names that TFDS takes from files."""

    splits: Mapping[str, Examples]
    names: Mapping[str, Sequence[str]] = {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the archives of a data set become what TFDS's builder makes of them.

    Attributes:
      dataset: what TFDS calls it, `name` or `name/config`.
      files: the files it takes, in words.
      splits: official number of images by split.
      archives: patterns of the names of tars, zips and compressed files that are looked into;
        others are left alone.
      unpacked: most bytes that a compressed file of these unpacks to.
      look: finds the examples in the archives; raises DataError for what is not as it should be.
      encode: makes an example, by name of feature, of the bytes at its places and its values;
        raises BadImage. It runs in other processes.
      version: of TFDS's builder; none: the newest.
      downloads: names of the files that TFDS knows how to download; none: it does not.
    """

    dataset: str
    files: str
    splits: Mapping[str, int]
    archives: tuple[str, ...]
    unpacked: int
    look: Callable[[Archives], Contents]
    encode: Callable[[Sequence[bytes], tuple[Any, ...]], dict[str, Any]]
    version: str = ""
    downloads: tuple[str, ...] = ()

    @property
    def builder(self) -> str:
        """The name of TFDS's builder, with the version if there is one."""
        return f"{self.dataset}:{self.version}" if self.version else self.dataset


def class_names(dataset: Dataset, feature: str = "label") -> tuple[str, ...]:
    """Returns the names of the classes in the order of their labels."""
    return _names(dataset.tfds, feature)


@functools.cache
def _names(name: str, feature: str) -> tuple[str, ...]:
    features: Any = tfds.builder(name).info.features
    return tuple(features[feature].names)
