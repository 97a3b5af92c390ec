"""Feature files, written batch by batch and renamed to their final name once complete."""

import contextlib
import json
import pathlib
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from vit_jax import config
from vit_jax.utils import storage

Facts = Mapping[str, Any]
SUFFIXES = (".npz", ".parquet")


def check_output(path: pathlib.Path) -> None:
    """Raises ConfigError unless a feature file can be created at `path`."""
    if path.suffix not in SUFFIXES:
        raise config.ConfigError(f"--output={path}: must end in {' or '.join(SUFFIXES)}")
    storage.check_creatable(path)


class Writer:
    """A feature file, its format chosen by its suffix; an unfinished file is removed.

    Raises ConfigError if the disk cannot be written. Without `active`, rows are discarded.
    """

    def __init__(
        self,
        path: pathlib.Path,
        count: int,
        shape: tuple[int, ...],
        facts: Facts,
        *,
        active: bool = True,
    ) -> None:
        """Takes the number of images, and the shape of the features of one."""
        self._path = path
        kind = Npz if path.suffix == ".npz" else Parquet
        self._make = (lambda part: kind(part, count, shape, facts)) if active else None
        self._rows: Npz | Parquet | None = None

    def __enter__(self) -> "Writer":
        with self._errors(), contextlib.ExitStack() as opened:
            if self._make is not None:
                self._rows = self._make(opened.enter_context(storage.replacing(self._path)))
                opened.push(self._close)
            self._opened = opened.pop_all()
        return self

    def write(self, features: np.ndarray, names: Sequence[str], labels: np.ndarray) -> None:
        """Appends features (b, ...) float32, their names, their labels (b,) or (b, K) int32."""
        with self._errors():
            if self._rows is not None:
                self._rows.write(features, names, labels)

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        # An OSError of the block is about something else.
        with contextlib.nullcontext() if kind else self._errors():
            self._opened.__exit__(kind, *error)

    def _close(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._rows is not None
        with contextlib.suppress(OSError) if kind else contextlib.nullcontext():
            self._rows.close()

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return storage.writing("--output", self._path)


class Npz:
    """Arrays `features`, `names`, `labels`, and `classes` that labels count; for `numpy.load`.

    With `data.multilabel`, labels are (N, K): 1 for each of an image's classes.

    Feature rows are appended as they arrive, after a header with their number; names and labels,
    which are small, follow at the end.
    """

    def __init__(
        self, path: pathlib.Path, count: int, shape: tuple[int, ...], facts: Facts
    ) -> None:
        self._archive = zipfile.ZipFile(path, "x")  # stored, as numpy.savez does
        self._facts = facts
        self._names: list[str] = []
        self._labels: list[int | list[int]] = []
        self._member = self._archive.open("features.npy", "w", force_zip64=True)
        header = {"descr": "<f4", "fortran_order": False, "shape": (count, *shape)}
        np.lib.format.write_array_header_1_0(self._member, header)

    def write(self, features: np.ndarray, names: Sequence[str], labels: np.ndarray) -> None:
        """Appends rows."""
        self._member.write(np.ascontiguousarray(features, "<f4").data)
        self._names += names
        self._labels += labels.tolist()

    def close(self) -> None:
        """Writes the remaining arrays and the directory of the archive."""
        with self._archive:
            self._member.close()
            rest = {
                "names": np.array(self._names, np.str_),
                "labels": np.array(self._labels, np.int32),
                "classes": np.array(self._facts["classes"], np.str_),
            }
            for name, array in rest.items():
                with self._archive.open(f"{name}.npy", "w") as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)


class Parquet:
    """Columns `name`, `label` (null where it is not known) and `features`, a list of fixed size.

    With `data.multilabel`, a label is a list of classes.

    The schema's metadata contains the key `vit_jax`: JSON with the checkpoint, the classes and the
    shape of one image's features, which is two-dimensional for tokens.
    """

    def __init__(
        self, path: pathlib.Path, count: int, shape: tuple[int, ...], facts: Facts
    ) -> None:
        self._size = int(np.prod(shape))
        self._label = pa.list_(pa.int32()) if facts.get("multilabel") else pa.int32()
        self._schema = pa.schema(
            [
                ("name", pa.string()),
                ("label", self._label),
                ("features", pa.list_(pa.float32(), self._size)),
            ],
            metadata={"vit_jax": json.dumps({**facts, "shape": shape})},
        )
        # Features never repeat, so dictionary encoding only costs time and space.
        self._file = pyarrow.parquet.ParquetWriter(path, self._schema, use_dictionary=False)

    def write(self, features: np.ndarray, names: Sequence[str], labels: np.ndarray) -> None:
        """Appends rows as a group."""
        flat = pa.array(np.ascontiguousarray(features, np.float32).reshape(-1))
        columns = [
            pa.array(names, pa.string()),
            pa.array([_label(one) for one in labels], self._label),
            pa.FixedSizeListArray.from_arrays(flat, self._size),
        ]
        self._file.write_table(pa.table(columns, schema=self._schema))

    def close(self) -> None:
        """Writes the directory of the file."""
        self._file.close()


def _label(label: np.ndarray) -> int | list[int] | None:
    """The class of a label, the classes of a (K,) one, or None if it is not known."""
    if (label < 0).any():
        return None
    return np.flatnonzero(label).tolist() if label.ndim else label.item()
