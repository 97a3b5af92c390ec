"""The recipe of a dataset: its archives, how examples are found in them, and how one is encoded."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
import tensorflow_datasets as tfds

from vit_jax.data import decoding, image_headers
from vit_jax.data.datasets import Dataset
from vit_jax.data.decoding import BadImage
from vit_jax.data.prepare.archives import SUFFIXES, FileEntry, stem
from vit_jax.data.prepare.official.source_files import SourceFiles
from vit_jax.data.prepare.shards import MAX_PIXELS
from vit_jax.data.source import DataError
from vit_jax.utils.storage import reason

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")  # of Pillow, which has some that run programs
STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM", b"RIFF")
CHUNK = 1024  # rows of an array to read at a time

Features = dict[str, Any]


class Example(NamedTuple):
    """An example before its files are read."""

    name: str  # its file name or number
    files: tuple[FileEntry, ...]  # where the bytes of its image, and of other files, are
    features: Features  # its features except those that `Recipe.encode` makes of the files
    key: str | int | None = None  # TFDS's sort key; None: the name

    @property
    def size(self) -> int:
        """The bytes of its files."""
        return sum(file.size for file in self.files)


@dataclasses.dataclass(frozen=True, eq=False)
class Rows(Sequence[Example]):
    """Examples of the same size, one after another in a file."""

    first: FileEntry  # the location of the first example
    columns: Mapping[str, np.ndarray]  # features (N,) of all examples by name
    name: str  # format of an example's name, which takes its index
    named: str = ""  # feature that has the name, or empty
    by_name: bool = False  # whether the name is TFDS's sort key; else the index is

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> Example:  # pyright: ignore[reportIncompatibleMethodOverride]
        name, first = self.name.format(index), self.first
        features = {key: column[index].item() for key, column in self.columns.items()}
        if self.named:
            features[self.named] = name
        file = first._replace(offset=first.offset + index * first.size)
        return Example(name, (file,), features, name if self.by_name else index)


class Contents(NamedTuple):
    """Contents of archives: examples by split, and class names that TFDS reads from files."""

    splits: Mapping[str, Sequence[Example]]
    names: Mapping[str, Sequence[str]] = {}


def encode_file(data: Sequence[bytes], features: Features) -> Features:
    """The unchanged bytes of an image file."""
    return {"image": checked(data[0])}


def encode_pixels(
    shape: tuple[int, ...], axes: tuple[int, ...], data: Sequence[bytes], features: Features
) -> Features:
    """A PNG of pixels stored in `shape`, whose `axes` are height, width and channels."""
    pixels = np.frombuffer(data[0], np.uint8).reshape(shape)
    return {"image": decoding.encode(pixels.transpose(axes))}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """Turns the archives of a dataset into the same examples as its TFDS builder."""

    dataset: Dataset  # with the official number of images by split
    files: str  # description of the files it needs
    # Finds the examples in the archives; raises DataError for unexpected contents.
    find: Callable[[SourceFiles], Contents]
    # The features that it makes of the bytes of an example's files, given its other features;
    # raises BadImage. It runs in other processes.
    encode: Callable[[Sequence[bytes], Features], Features] = encode_file
    # Name patterns of tars, zips and compressed files to open, others are ignored; empty:
    # those that begin like a download.
    archives: tuple[str, ...] = ()
    unpacked: int = 2**31  # limit in bytes for the contents of a compressed file
    version: str = ""  # version of TFDS's builder; empty: the newest
    downloads: tuple[str, ...] = ()  # names of the files that TFDS can download; empty: none

    @property
    def patterns(self) -> tuple[str, ...]:
        """Name patterns of archives to open, in lower case."""
        packed = [name for name in self.downloads if name.lower().endswith(SUFFIXES)]
        ends = (".tar*", ".tgz", ".zip", ".gz")
        return self.archives or tuple(f"{stem(name).lower()}*{e}" for name in packed for e in ends)

    @property
    def builder(self) -> str:
        """The name of TFDS's builder, with the version if there is one."""
        return f"{self.dataset.tfds}:{self.version}" if self.version else self.dataset.tfds


def class_numbers(dataset: Dataset) -> Mapping[str, int]:
    """The label of every class by its name, as in TFDS's builder."""
    features: Any = tfds.builder(dataset.tfds).info.features
    return {one: number for number, one in enumerate(features["label"].names)}


def checked(encoded: bytes) -> bytes:
    """The bytes of an image unchanged; raises BadImage for an unknown signature.

    Decoding would take most of the time of packing; `prepare --verify` does that.
    """
    if not encoded:
        raise BadImage("is empty")
    if not encoded.startswith(STARTS):
        raise BadImage(f"is not an image: it starts with {encoded[:16]!r}")
    return encoded


def check_pixels(height: float, width: float) -> None:
    """Raises BadImage for more pixels than images of any dataset have."""
    if height * width > MAX_PIXELS:
        raise BadImage(f"has {width:.0f} x {height:.0f} pixels, more than {MAX_PIXELS:,}")


def as_jpeg(encoded: bytes, quality: int, *, again: bool = False) -> bytes:
    """A gray or RGB JPEG unchanged, and other images encoded as one of `quality`.

    With `again`, encodes a JPEG again, too. Raises BadImage for anything but an image.
    """
    if image_headers.jpeg_components(checked(encoded)) in (1, 3) and not again:
        return encoded
    pixels = decoding.decode_image(encoded, channels=3, max_pixels=MAX_PIXELS)
    return decoding.encode(pixels, ".jpg", cv2.IMWRITE_JPEG_QUALITY, quality)


def spill_pixels(
    files: SourceFiles, origin: Sequence[FileEntry], images: Any, size: int
) -> FileEntry:
    """Writes an array (N, ...) to a file; returns the location of its first row, of `size` bytes.

    `origin` are the files that the array comes from: a file of an earlier attempt is kept.
    """

    def chunks() -> Iterator[bytes]:
        for start in range(0, images.shape[0], CHUNK):
            try:
                rows = np.ascontiguousarray(images[start : start + CHUNK])
            except (OSError, RuntimeError) as error:  # of h5py; no error of the disk written to
                raise DataError(f"{origin[0].path}: cannot be read: {reason(error)}") from None
            yield rows.tobytes()

    # With sizes, so that pixels of another download are not taken for those of this one.
    named = [f"{each.path}, {each.size} bytes, of {each.container}" for each in origin]
    path = files.spill(f"pixels of {'; '.join(named)}", chunks)
    return FileEntry(origin[0].path, str(path), 0, size)
