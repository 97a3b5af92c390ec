"""Reads the arrays of Orbax checkpoints of other programs: plain trees in a folder.

A folder has one Zarr array for each name, either in folders of their own or all in one key-value
store (OCDBT); a checkpoint of several items has such a folder for each. Names join the keys on the
way by dots, or by `~` in big_vision's. TensorStore reads the bytes; nothing is executed.
"""

import itertools
import math
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorstore

from vit_jax.utils import limits
from vit_jax.weights.arrays import MAX_ENTRIES, WeightsError

STORE = "manifest.ocdbt"
DRIVERS = {".zarray": "zarr", "zarr.json": "zarr3"}  # by the file that describes an array


class OrbaxArray:
    """An array in a checkpoint."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.shape: tuple[int, ...] = tuple(store.shape)
        self.dtype = np.dtype(store.dtype.numpy_dtype)
        # TensorStore gives text and JSON as arrays of Python objects.
        if self.dtype.hasobject or len(self.shape) > limits.AXES:
            raise WeightsError(f"has an array of {store.dtype.name} with {len(self.shape)} axes")
        chunk = tuple(store.chunk_layout.read_chunk.shape or self.shape)
        # A chunk is unpacked as a whole, also where it is larger than the array.
        self.span = max(math.prod(self.shape), math.prod(chunk)) * self.dtype.itemsize

    def read(self) -> np.ndarray:
        """Its values, (shape)."""
        return np.asarray(self._store.read().result())


def recognizes(path: pathlib.Path) -> bool:
    """Whether a folder is an Orbax checkpoint."""
    return bool(_items(path))


def open_arrays(path: pathlib.Path) -> dict[str, OrbaxArray]:
    """The arrays by their names joined by slashes, the item's name first.

    Raises WeightsError for other contents, ValueError for damage.
    """
    found: dict[str, OrbaxArray] = {}
    for item, folder in _items(path).items():
        for name, spec in _specs(folder):
            store = tensorstore.open(spec, read=True).result()
            short = name.replace(".", "/").replace("~", "/").removesuffix("/value")  # of NNX
            full = f"{item}/{short}" if item else short
            if full in found:
                raise ValueError(f"{full[:80]!r} occurs twice")
            found[full] = OrbaxArray(store)
    return found


def size(path: pathlib.Path) -> int:
    """The bytes of all files in the folder."""
    files = itertools.islice(path.rglob("*"), MAX_ENTRIES)
    return sum(file.stat().st_size for file in files if file.is_file())


def _items(path: pathlib.Path) -> dict[str, pathlib.Path]:
    """The folders of arrays by item name; the checkpoint's own folder has the empty name."""
    if _holds_arrays(path):
        return {"": path}
    # A folder that is no checkpoint may hold millions of files.
    children = itertools.islice(path.iterdir(), MAX_ENTRIES)
    return {one.name: one for one in sorted(children) if one.is_dir() and _holds_arrays(one)}


def _holds_arrays(folder: pathlib.Path) -> bool:
    return (folder / STORE).is_file() or any(True for _ in _folders(folder))


def _folders(folder: pathlib.Path) -> Iterator[tuple[str, str]]:
    for one in itertools.islice(folder.iterdir(), MAX_ENTRIES):
        for file, driver in DRIVERS.items():
            if (one / file).is_file():
                yield one.name, driver


def _specs(folder: pathlib.Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The arrays of a folder by name, as TensorStore opens them."""
    if not (folder / STORE).is_file():
        for name, driver in sorted(_folders(folder)):
            yield name, {"driver": driver, "kvstore": _files(folder / name)}
        return
    store = {"driver": "ocdbt", "base": _files(folder)}
    keys = tensorstore.KvStore.open(store).result().list().result()
    if len(keys) > MAX_ENTRIES:
        raise WeightsError(f"has {len(keys)} keys; the limit is {MAX_ENTRIES}")
    for key in sorted(keys):
        # An array has one key NAME/.zarray beside a key for each of its chunks.
        name, _, file = key.decode().rpartition("/")
        if file in DRIVERS:
            yield name, {"driver": DRIVERS[file], "kvstore": {**store, "path": f"{name}/"}}


def _files(folder: pathlib.Path) -> dict[str, str]:
    # TensorStore joins keys to the path as text, so it ends in a slash.
    return {"driver": "file", "path": f"{folder.resolve()}/"}
