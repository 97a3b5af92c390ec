"""Results of cells: one JSON line each, in a file that is only ever added to."""

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from vit_jax import config
from vit_jax.runtime import logs, provenance
from vit_jax.utils import limits, storage

DONE, FAILED = "done", "failed"
LARGEST = 1e30  # a cell takes 1e15 FLOPs
KEYS = {
    "cell": str,
    "digest": str,
    "scale": str,
    "label": str,
    "data": str,
    "images": (int, type(None)),
    "steps": int,
    "options": dict,
    "rate": float,
    "seed": int,
    "state": str,
    "measures": dict,
    "seconds": float,
    "flops": float,
    "commit": (str, type(None)),
    "date": str,
    "device": str,
    "devices": int,
    "cores": int,
    "versions": dict,
}


class Records:
    """The records of a file; a cell has at most one."""

    def __init__(self, path: pathlib.Path) -> None:
        """Reads a file, if it exists; raises ConfigError for a line that is no record."""
        self.path = path
        self._known: dict[str, dict[str, Any]] = {}
        for record in self._read():
            self._known.setdefault(record["digest"], record)

    def of(self, digest: str) -> dict[str, Any] | None:
        """Returns the record of a cell, or None."""
        return self._known.get(digest)

    def failed(self, digest: str) -> bool:
        """Returns whether a cell has ended without a result."""
        record = self.of(digest)
        return record is not None and record["state"] == FAILED

    def of_scale(self, name: str) -> list[dict[str, Any]]:
        """Returns the records of a scale."""
        return [record for record in self._known.values() if record["scale"] == name]

    def check_writable(self) -> None:
        """Raises ConfigError if records cannot be added, before hours are spent on one."""
        with storage.writing("--records", self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.open("a").close()

    def add(self, record: Mapping[str, Any]) -> None:
        """Adds the record of a cell, unless there is one."""
        if record["digest"] in self._known:
            return
        check(record)
        self._known[record["digest"]] = dict(record)
        with storage.writing("--records", self.path):
            storage.append_line(self.path, record)

    def _read(self) -> Iterator[dict[str, Any]]:
        if not self.path.is_file():
            return
        try:
            lines = list(storage.read_lines(self.path, limits.RECORD, logs.log.warning))
        except (OSError, limits.LimitError) as error:
            raise config.ConfigError(f"--records={self.path}: {storage.reason(error)}") from error
        for number, record in lines:
            try:
                check(record)
            except ValueError as error:
                raise config.ConfigError(
                    f"--records={self.path}: line {number} is no record ({error}); remove the line"
                ) from None
            yield record


def check(record: Any) -> None:
    """Raises ValueError for what is no record of a cell."""
    if not isinstance(record, Mapping):
        raise ValueError("no object")
    for key, kind in KEYS.items():
        value = record.get(key)
        good = _is_number(value) if kind in (int, float) else isinstance(value, kind)
        if key not in record or not good or (kind is int and not isinstance(value, int)):
            raise ValueError(f"{key} is missing or no {getattr(kind, '__name__', 'text')}")
    for name, value in record["measures"].items():
        if not _is_number(value):
            raise ValueError(f"measures: {name} is no number")
    if record["state"] not in (DONE, FAILED):
        raise ValueError(f"state is neither {DONE} nor {FAILED}")


def _is_number(value: Any) -> bool:
    """Whether a value of JSON is a number to count with: finite, and no larger than any here."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def made(
    about: Mapping[str, Any], scale: str, seconds: float, answer: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the record of a cell that has ended.

    Args:
      about: from `planning.as_values`.
      scale: its scale.
      seconds: duration of its processes, the interrupted ones included.
      answer: from `transfer.worker`.
    """
    machine = answer["machine"]
    why = {"why": answer["why"]} if "why" in answer else {}
    return {
        **about,
        "scale": scale,
        "state": answer["state"],
        **why,
        "measures": {
            key: value
            for key, value in (answer.get("results") or {}).items()
            if not key.endswith(("count", "/step")) and isinstance(value, int | float)
        },
        "seconds": round(seconds, 1),
        "devices": machine["devices"],
        **provenance.fields(machine["device"], machine["versions"]),
    }
