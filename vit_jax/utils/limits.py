"""Limits for what comes from outside: bytes of a file, values and depth of JSON.

Every limit is many times what a real file has. The formats with limits of their own are images
(`data.decoding`), archives (`prepare.archives`) and weights (`weights.readers`).
"""

import io
import json
import os
import stat
from typing import IO, Any

MIB = 2**20

# Bytes of files.
CONFIG = 4 * MIB  # config.json has 5 kB
TABLE = 64 * MIB  # tables of transfers, figures and TFDS; 10,000 shards take 200 kB
RECORD = 256 * MIB  # what a checkpoint consists of; 100 kB
LABELS = 16 * MIB  # ReaL's; 1.4 MB
MAPPINGS = 16 * MIB  # ObjectNet's; 0.1 MB
EXAMPLES = 512 * MIB  # a hash of 21 bytes for each of 14 million images
METRICS = 2**30  # a line for each step that is logged

CONTAINERS = 2**20  # lists and objects of a JSON file, which take the most memory for each byte
DEPTH = 200  # of their nesting
AXES = 8  # of an array; those of weights have 5


class LimitError(ValueError):
    """More than any real file has."""


def read_file(path: Any, most: int) -> bytes:
    """The bytes of a file, on a disk or in a bucket; raises OSError or LimitError.

    A text is the name of a file on a disk. A pipe of that name would otherwise block the reader
    forever.
    """
    name = os.fspath(path)
    if "://" in name and not isinstance(path, str):
        with path.open("rb") as file:
            return _all(file, most)
    with io.FileIO(name, opener=_open) as file:
        # From the open file, not by its name, which another file may have taken.
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise LimitError("is not a regular file")
        if status.st_size > most:
            raise LimitError(f"has {status.st_size:,} bytes, more than {most:,}")
        # Counted again, as the file may grow while it is read.
        return _all(file, most)


def _all(file: IO[bytes], most: int) -> bytes:
    data = bytearray()
    while chunk := file.read(MIB):  # a larger number would be allocated first
        data += chunk
        if len(data) > most:
            raise LimitError(f"has more than {most:,} bytes")
    return bytes(data)


def _open(path: str, flags: int) -> int:
    # Opening a pipe without a writer would wait for one.
    return os.open(path, flags | os.O_NONBLOCK)


def load_json(data: bytes | str) -> Any:
    """Parses JSON; raises ValueError for other text, and for values nested too deep."""
    text = data.decode("utf-8") if isinstance(data, bytes) else data
    # Before parsing: two characters of text become a list of 56 bytes and more.
    if text.count("[") + text.count("{") > CONTAINERS:
        raise LimitError(f"has more than {CONTAINERS:,} lists and objects")
    try:
        values = json.loads(text)
    except RecursionError:
        raise LimitError(f"objects within objects, more than {DEPTH} deep") from None
    if isinstance(values, dict | list):
        _check_depth(values)
    return values


def read_json(path: str | os.PathLike[str], most: int) -> Any:
    """Parses a JSON file; raises OSError, or ValueError for another file."""
    return load_json(read_file(path, most))


def _check_depth(values: object) -> None:
    level, depth = [values], 1
    # Level by level: a function that calls itself would end at Python's own limit.
    while level := [
        inner
        for value in level
        for inner in (value.values() if isinstance(value, dict) else value)
        if isinstance(inner, dict | list)
    ]:
        depth += 1
        if depth > DEPTH:
            raise LimitError(f"objects within objects, more than {DEPTH} deep")
