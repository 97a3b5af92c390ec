"""Examples that are rows of an array stored uncompressed in a file."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from vit_jax.data.prepare.image_listing import Found
from vit_jax.data.prepare.official.archives import Archives
from vit_jax.data.prepare.official.recipe import Example, Span

CHUNK = 1024  # images that are read at a time


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
        """Returns the bytes of every example (N,), int64."""
        return np.full(len(self), self._size, np.int64)


def by_name(archives: Archives, names: Iterable[str]) -> dict[str, Found]:
    """Returns files by name, from any folder."""
    wanted = set(names)
    table = archives.table(lambda path: path.rpartition("/")[2] in wanted)
    return {path.rpartition("/")[2]: found for path, found in table.items()}


def named(found: Found) -> str:
    """Returns a name that identifies the pixels of a file in the cache of unpacked files."""
    return f"pixels of {found.path}, {found.size} bytes, of {found.container}"


def blocks(images: Any) -> Iterator[bytes]:
    """Yields the bytes of an array (N, ...) in chunks of rows."""
    for start in range(0, images.shape[0], CHUNK):
        yield np.ascontiguousarray(images[start : start + CHUNK]).tobytes()
