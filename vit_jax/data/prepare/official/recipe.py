"""The recipe of a dataset: its archives, how examples are found in them, and how one is encoded."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import cv2
import numpy as np
import tensorflow_datasets as tfds

from vit_jax.config import Data
from vit_jax.data import decoding
from vit_jax.data.datasets import Dataset
from vit_jax.data.decoding import BadImage
from vit_jax.data.prepare.image_listing import FileEntry
from vit_jax.data.prepare.official.archives import Archives

JPEG = b"\xff\xd8\xff"
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")  # of Pillow, which has some that run programs
STARTS = (JPEG, b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM", b"RIFF")
CHUNK = 1024  # rows of an array to read at a time


class Span(NamedTuple):
    """`size` bytes of a file, starting at `offset`."""

    file: str
    offset: int
    size: int


Location = FileEntry | Span


class Example(NamedTuple):
    """An example before it is read.

    Attributes:
      key: TFDS's sort key.
      name: its file name or number.
      locations: where the bytes of its image and other files are.
      values: other inputs, mostly labels.
    """

    key: str | int
    name: str
    locations: tuple[Location, ...]
    values: tuple[Any, ...]


class Examples(Protocol):
    """The examples of a split, in any order."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example: ...

    def keys(self) -> Iterator[str | int]:
        """Yields the key of every example."""
        ...

    def sizes(self) -> np.ndarray:
        """The bytes of every example (N,), int64."""
        ...


class ExampleList:
    """Examples in a list, for datasets of up to some 100,000."""

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
        """The bytes of every example (N,), int64."""
        sizes = (sum(one.size for one in example.locations) for example in self._examples)
        return np.fromiter(sizes, np.int64, len(self._examples))


class Rows:
    """Examples of `size` bytes each, one after another in a file, and columns of their labels.

    `key` and `name` turn an index into the key and the name of an example. Its values are its name
    and its row of the columns.
    """

    def __init__(
        self,
        file: str,
        start: int,
        size: int,
        columns: Sequence[np.ndarray],
        name: Callable[[int], str],
        key: Callable[[int], str | int] = int,
    ) -> None:
        self._file, self._start, self._size = file, start, size
        self._columns, self._name, self._key = columns, name, key

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, index: int) -> Example:
        name = self._name(index)
        span = Span(self._file, self._start + index * self._size, self._size)
        row = tuple(column[index].item() for column in self._columns)
        return Example(self._key(index), name, (span,), (name, *row))

    def keys(self) -> Iterator[str | int]:
        """Yields the key of every example."""
        return map(self._key, range(len(self)))

    def sizes(self) -> np.ndarray:
        """The bytes of every example (N,), int64."""
        return np.full(len(self), self._size, np.int64)


class Contents(NamedTuple):
    """Contents of archives: examples by split, and class names that TFDS reads from files."""

    splits: Mapping[str, Examples]
    names: Mapping[str, Sequence[str]] = {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to turn the archives of a dataset into the same examples as its TFDS builder.

    Attributes:
      dataset: the dataset, with the official number of images by split.
      files: description of the files it needs.
      archives: name patterns of tars, zips and compressed files to open; others are ignored.
      unpacked: limit in bytes for the contents of a compressed file.
      find: finds the examples in the archives; raises DataError for unexpected contents.
      encode: the features of an example, from the bytes at its locations and its values; raises
        BadImage. It runs in other processes.
      version: version of TFDS's builder; empty: the newest.
      downloads: names of the files that TFDS can download; empty: none.
    """

    dataset: Dataset
    files: str
    archives: tuple[str, ...]
    unpacked: int
    find: Callable[[Archives], Contents]
    encode: Callable[[Sequence[bytes], tuple[Any, ...]], dict[str, Any]]
    version: str = ""
    downloads: tuple[str, ...] = ()

    @property
    def splits(self) -> Mapping[str, int]:
        """The official number of images by split."""
        return self.dataset.images

    @property
    def builder(self) -> str:
        """The name of TFDS's builder, with the version if there is one."""
        return f"{self.dataset.tfds}:{self.version}" if self.version else self.dataset.tfds


def class_numbers(dataset: Dataset) -> Mapping[str, int]:
    """The label of every class by its name, as in TFDS's builder."""
    return _class_numbers(dataset.tfds)


@functools.cache
def _class_numbers(name: str) -> Mapping[str, int]:
    features: Any = tfds.builder(name).info.features
    return {one: number for number, one in enumerate(features["label"].names)}


def encode_file(feature: str, data: Sequence[bytes], values: tuple[Any, ...]) -> dict[str, Any]:
    """An image as it is, with its label and, as `feature`, its file name."""
    name, label = values
    return {"image": checked(data[0]), "label": label, feature: name}


def checked(encoded: bytes) -> bytes:
    """The bytes of an image unchanged; raises BadImage for an unknown signature.

    Whether they can be decoded is not tried, which takes most of the time of packing: that is what
    `prepare --verify` is for.
    """
    if not encoded:
        raise BadImage("is empty")
    if not encoded.startswith(STARTS):
        raise BadImage(f"is not an image: it starts with {encoded[:16]!r}")
    return encoded


def check_pixels(height: float, width: float) -> None:
    """Raises BadImage for more pixels than images of any dataset have."""
    if height * width > Data().max_pixels:
        raise BadImage(f"has {width:.0f} x {height:.0f} pixels, more than {Data().max_pixels:,}")


def as_jpeg(encoded: bytes, quality: int, *, again: bool = False) -> bytes:
    """A gray or RGB JPEG unchanged, and other images encoded as one.

    With `again`, encodes a JPEG again, too. Encodes with `quality`. Raises BadImage for anything
    but an image.
    """
    colors = _colors(checked(encoded))
    if colors in (1, 3) and not again:
        return encoded
    pixels = decoding.decode(encoded, channels=3, max_pixels=Data().max_pixels)
    bgr = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    return cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()


def as_png(pixels: np.ndarray) -> bytes:
    """Encodes uint8 pixels `H W C`, C = 1 or 3, RGB, as a PNG."""
    if pixels.shape[-1] == 3:
        pixels = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    found, encoded = cv2.imencode(".png", pixels)
    if not found:
        raise BadImage(f"cannot be encoded: {pixels.shape}")
    return encoded.tobytes()


def _colors(encoded: bytes) -> int | None:
    """The number of components in the frame header of a JPEG; None for another format."""
    if not encoded.startswith(JPEG):
        return None
    at = 2
    while at + 9 < len(encoded):
        marker = encoded[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return encoded[at + 9]
        at += 1 if marker == 0xFF else 2 + int.from_bytes(encoded[at + 2 : at + 4], "big")
    return None


def cache_name(found: FileEntry) -> str:
    """Identifies the pixels of a file in the cache of unpacked files."""
    return f"pixels of {found.path}, {found.size} bytes, of {found.container}"


def blocks(images: Any) -> Iterator[bytes]:
    """Yields the bytes of an array (N, ...) in chunks of rows."""
    for start in range(0, images.shape[0], CHUNK):
        yield np.ascontiguousarray(images[start : start + CHUNK]).tobytes()
