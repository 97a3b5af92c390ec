"""Checks downloaded files against published digests, or else those of the first download.

A lock file in the cache stores each file's original SHA-256, and its size and time at the last
check; a file is read again only if these have changed.
"""

import contextlib
import fcntl
import hashlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any

from vit_jax.utils import storage
from vit_jax.weights import readers
from vit_jax.weights.readers import WeightsError

LOCK = "weights.lock.json"
HIDDEN = ".locks"


def check(root: pathlib.Path, path: pathlib.Path, sha256: str | None = None) -> None:
    """Raises WeightsError if a file of the cache `root` has a wrong digest.

    Args:
      root: folder of the cache.
      path: the file, in that folder.
      sha256: its published digest; if empty, that of the first check counts.
    """
    name = path.relative_to(root).as_posix()
    stat = path.stat()
    state = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    pinned = _read(root).get(name, {})
    wanted = sha256 or pinned.get("sha256")
    if pinned == {"sha256": wanted, **state}:
        return
    found = storage.sha256(path)
    if wanted not in (None, found):
        raise WeightsError(f"{path}: {_violation(root, found, wanted, published=bool(sha256))}")
    with exclusive(root, LOCK):
        storage.write_atomically(
            root / LOCK,
            json.dumps(_read(root) | {name: {"sha256": found, **state}}, indent=1, sort_keys=True),
        )


def refuse(root: pathlib.Path, path: pathlib.Path, part: pathlib.Path, sha256: str | None) -> None:
    """Raises WeightsError, and deletes `part`, if it may not become the file `path`."""
    wanted = sha256 or _read(root).get(path.relative_to(root).as_posix(), {}).get("sha256")
    found = storage.sha256(part)
    if wanted not in (None, found):
        part.unlink()
        text = _violation(root, found, wanted, published=bool(sha256))
        raise WeightsError(f"{path}: the download is a different file: {text}")


def short(text: str) -> str:
    """Returns a name of 16 characters derived from a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextlib.contextmanager
def exclusive(root: pathlib.Path, name: str) -> Iterator[None]:
    """Holds an exclusive lock while a file of the cache is written."""
    folder = root / HIDDEN
    folder.mkdir(parents=True, exist_ok=True)
    # Deleting a lock file could let two writers in, so empty ones remain.
    with (folder / short(name)).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read(root: pathlib.Path) -> dict[str, Any]:
    values = readers.read_json(root / LOCK) if (root / LOCK).exists() else {}
    if not all(isinstance(value, dict) for value in values.values()):
        raise WeightsError(f"{root / LOCK}: is damaged; repair or delete it")
    return values


def _violation(root: pathlib.Path, found: str, wanted: Any, *, published: bool) -> str:
    by = "as published" if published else f"as at its first download ({root / LOCK})"
    remedy = "" if published else ", or, if it has changed where it is published, its entry there"
    return (
        f"its SHA-256 is {found}, not {wanted} {by}; delete the file to download it again{remedy}"
    )
