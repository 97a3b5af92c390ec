"""Recipe of a data set: its archives, its examples, and the encoding of each."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow_datasets as tfds

from vit_jax.data.datasets import Dataset
from vit_jax.data.prepare.image_listing import Found
from vit_jax.data.prepare.official.archives import Archives


class Span(NamedTuple):
    """`size` bytes of a file, starting at `offset`."""

    file: str
    offset: int
    size: int


Place = Found | Span


class Example(NamedTuple):
    """An example before it is read.

    Attributes:
      key: TFDS's sort key.
      name: its file name or number.
      places: locations of the bytes of its image and other files.
      values: other inputs, mostly labels.
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
    """Examples in a list, for data sets of up to some 100,000."""

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
    """Contents of archives: examples by split, and class names that TFDS reads from files."""

    splits: Mapping[str, Examples]
    names: Mapping[str, Sequence[str]] = {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to turn the archives of a data set into the same examples as its TFDS builder.

    Attributes:
      dataset: TFDS's name, `name` or `name/config`.
      files: description of the files it needs.
      splits: official number of images by split.
      archives: name patterns of tars, zips and compressed files to open; others are ignored.
      unpacked: limit in bytes for the contents of a compressed file.
      look: finds the examples in the archives; raises DataError for unexpected contents.
      encode: returns the features of an example from the bytes at its places and its values;
        raises BadImage. It runs in other processes.
      version: version of TFDS's builder; empty: the newest.
      downloads: names of the files that TFDS can download; empty: none.
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
