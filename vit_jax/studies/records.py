"""Records of finished cells: an append-only file of JSON lines."""

import hashlib
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from vit_jax import config
from vit_jax.runtime import logs
from vit_jax.studies.cells import Cell
from vit_jax.utils import limits, storage

DONE, FAILED = "done", "failed"
LARGEST = 1e39  # of a number: beyond any float32
SEAL = "sha256"
Record = dict[str, Any]
T = TypeVar("T")

# What every record has, by type.
KEYS: Mapping[str, type | tuple[type, ...]] = {
    "cell": str,
    "digest": str,
    "rate": float,
    "seed": int,
    "state": str,
    "measures": dict,
    "seconds": float,
    "commit": (str, type(None)),
    "date": str,
    "device": str,
    "devices": int,
    "cores": int,
    "versions": dict,
}


class Records:
    """The records of a study, by the digest of the cell; a cell has at most one."""

    def __init__(
        self,
        path: pathlib.Path | None,
        *,
        flag: str = "--records",
        keys: Mapping[str, type | tuple[type, ...]] | None = None,
    ) -> None:
        """Reads a file, if it exists; raises ConfigError for a line that is not a record.

        Args:
          path: the file; None keeps records in memory.
          flag: the option that named it, for messages.
          keys: further keys that every record has, by type.
        """
        self.path, self._flag, self._keys = path, flag, {**KEYS, **(keys or {})}
        self._known: dict[str, Record] = {}
        self._size = 0  # of the file when it was read
        self.reload()

    def reload(self) -> None:
        """Adds records that another process has written since the file was read."""
        if self.path is None or not self.path.is_file():
            return
        before, self._size = self._size, self.path.stat().st_size
        if self._size != before:  # else what is damaged would be reported twice
            for record in self._read(self.path):
                # The first record of a cell counts, as in `add`.
                self._known.setdefault(record["digest"], record)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._known.values())

    def find(self, cell: Cell) -> Record | None:
        """The record of a cell."""
        return self._known.get(cell.digest)

    def failed(self, cell: Cell) -> bool:
        """Whether a cell has ended without a result."""
        record = self.find(cell)
        return record is not None and record["state"] == FAILED

    def measures(self, cell: Cell) -> Mapping[str, float] | None:
        """The results of a cell; None for one that has not ended, or failed."""
        record = self.find(cell)
        return record["measures"] if record is not None and record["state"] == DONE else None

    def scores(
        self, candidates: Mapping[T, Sequence[Cell]], measure: str
    ) -> dict[T, list[float]] | None:
        """A measure of every cell of the candidates to choose among.

        A candidate is left out if one of its cells failed. None while one has not ended.
        """
        if any(self.find(cell) is None for cells in candidates.values() for cell in cells):
            return None
        found = {key: [self.measures(cell) for cell in cells] for key, cells in candidates.items()}
        return {
            key: [one[measure] for one in each if one is not None]
            for key, each in found.items()
            if None not in each
        }

    def check_writable(self) -> None:
        """Raises ConfigError if records cannot be added, before hours are spent on one."""
        if self.path is None:
            return
        with storage.writing(self._flag, self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Opening for appending creates the file, but leaves what is in it.
            self.path.open("a").close()

    def add(self, cell: Cell, seconds: float, answer: Mapping[str, Any]) -> Record:
        """Records the answer of `worker.train_cell` and returns the record; an earlier one stays.

        `seconds` are those of all processes of the cell, interrupted ones included.
        """
        if cell.digest in self._known:
            return self._known[cell.digest]
        # A failed cell has no last step.
        steps = {"steps": answer["steps"]} if "steps" in answer else {}
        why = {"why": answer["why"]} if "why" in answer else {}
        record = {
            "cell": cell.directory,
            "digest": cell.digest,
            **steps,
            **cell.facts,
            "rate": cell.lr,
            "seed": cell.cfg.seed,
            "state": answer["state"],
            **why,
            "measures": {
                key: value
                for key, value in answer.get("results", {}).items()
                if isinstance(value, int | float)
            },
            "seconds": round(seconds, 1),
            **answer["machine"],
        }
        # First: a record that could not be read again is not written.
        self._check(record)
        self._known[cell.digest] = record
        if self.path is not None:
            with storage.writing(self._flag, self.path):
                storage.append_line(self.path, sealed(record))
        return record

    def _read(self, path: pathlib.Path) -> Iterator[Record]:
        where = f"{self._flag}={path}"
        try:
            lines = list(storage.read_lines(path, limits.RECORD, logs.log.warning))
        except (OSError, limits.LimitError) as error:
            raise config.ConfigError(f"{where}: {storage.reason(error)}") from error
        for number, record in lines:
            try:
                self._check(record)
                # Lines from before there were seals have none.
                record = unsealed(record) if SEAL in record else record
            except ValueError as error:
                raise config.ConfigError(
                    f"{where}: line {number} is not a record ({error}); remove the line"
                ) from None
            yield record

    def _check(self, record: object) -> None:
        """Raises ValueError unless this is the record of a cell."""
        if not isinstance(record, Mapping):
            raise ValueError("not an object")
        for key, kind in self._keys.items():
            value = record.get(key)
            # A float of JSON may be written without a fraction, and then is an int here.
            good = _is_number(value) if kind in (int, float) else isinstance(value, kind)
            if key not in record or not good or (kind is int and not isinstance(value, int)):
                expected = getattr(kind, "__name__", "str")
                raise ValueError(f"{key} is missing or not of type {expected}")
        for name, value in record["measures"].items():
            if not _is_number(value):
                raise ValueError(f"measures: {name} is not a number")
        if record["state"] not in (DONE, FAILED):
            raise ValueError(f"state is neither {DONE} nor {FAILED}")


def _is_number(value: object) -> bool:
    # Infinity and NaN, which Python's JSON reads, fail the comparison; True is an int.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values for JSON with their digest, by which `unsealed` notices a change."""
    return {**values, SEAL: _digest(values)}


def unsealed(values: Any) -> dict[str, Any]:
    """The values that `sealed` was given; raises ValueError if they were changed since."""
    if not isinstance(values, dict):
        raise ValueError("does not hold an object")
    found = {key: value for key, value in values.items() if key != SEAL}
    if values.get(SEAL) != _digest(found):
        raise ValueError(f"was changed after it was written: {SEAL} does not fit")
    return found


def _digest(values: Mapping[str, Any]) -> str:
    # Sorted: a file that lists the same keys in another order was not changed.
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
