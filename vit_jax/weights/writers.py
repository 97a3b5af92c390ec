"""Writes files and folders of arrays, completely or not at all."""

import contextlib
import json
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from typing import IO, Any

import numpy as np

from vit_jax.weights.readers import WeightsError

Documents = Mapping[str, Mapping[str, Any]]  # fields of JSON files, by the names of the files

FOLDED = "model.safetensors"  # the file of arrays in a folder


def write(path: pathlib.Path, arrays: Mapping[str, np.ndarray], documents: Documents) -> None:
    """Writes float32 arrays to a .npz or .safetensors file, or to a folder with JSON files.

    `path` is always complete: data is written to a temporary name, synced, and renamed. If the disk
    fails, raises WeightsError and leaves nothing behind.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _removed(draft):
            if path.suffix == ".npz":
                with _synced(draft) as file:
                    np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
            elif path.suffix == ".safetensors":
                with _synced(draft) as file:
                    _safetensors(file, arrays)
            else:
                draft.mkdir()
                for name, fields in documents.items():
                    with _synced(draft / name) as file:
                        text = json.dumps(fields, indent=2, ensure_ascii=False)
                        file.write(text.encode(errors="backslashreplace"))
                with _synced(draft / FOLDED) as file:
                    _safetensors(file, arrays)
                _sync(draft)
            draft.rename(path)
            _sync(path.parent)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be written: {error.strerror or error}") from error


def _safetensors(file: IO[bytes], arrays: Mapping[str, np.ndarray]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # which transformers insists on
    start = 0
    for name, array in arrays.items():
        end = start + array.nbytes
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": (start, end)}
        start = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # arrays start at a multiple of their item size
    file.write(len(text).to_bytes(8, "little") + text)
    for array in arrays.values():
        file.write(np.ascontiguousarray(array, "<f4").data)


@contextlib.contextmanager
def _synced(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """Opens a new file and syncs it to disk at the end."""
    with path.open("xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _removed(draft: pathlib.Path) -> Iterator[None]:
    """Removes a temporary file or folder."""
    try:
        yield
    finally:
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            draft.unlink(missing_ok=True)


def _sync(folder: pathlib.Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
