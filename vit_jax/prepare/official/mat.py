"""MATLAB's .mat files of version 5, read by SciPy once they are known to be small and plain.

SciPy runs no code of a file, but takes what memory the file asks for and follows arrays within
arrays as deep as they go; both are bounded here before it sees the file.
"""

import io
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from vit_jax.data.examples import DataError

HEADER = 128
MATRIX, COMPRESSED = 14, 15  # types of elements
DEEP = 2  # arrays in arrays: a table has cells


def load(data: bytes, names: Sequence[str], named: str, most: int) -> dict[str, np.ndarray]:
    """Returns arrays of a .mat file by name.

    Args:
      data: the file.
      names: of the arrays that are wanted.
      named: the file, for messages.
      most: bytes of the file once it is unpacked.

    Raises DataError, one line, where the file is no such file, or an array is not in it.
    """
    import scipy.io  # takes 0.2 s

    try:
        plain = data[:HEADER] + b"".join(_elements(data, named, most))
        _check_depth(memoryview(plain)[HEADER:], named, 0)
        found: dict[str, Any] = scipy.io.loadmat(io.BytesIO(plain), variable_names=list(names))
    except DataError:
        raise
    except Exception as error:  # SciPy raises what it likes for a wrong file
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise DataError(f"{named}: is no MATLAB 5 file: {reason[:200]}") from None
    for name in names:
        if not isinstance(found.get(name), np.ndarray):
            raise DataError(f"{named}: has no array {name}: it is not the official file")
    return {name: found[name] for name in names}


def _elements(data: bytes, named: str, most: int) -> list[bytes]:
    """Returns the elements of a file, unpacked."""
    if data[126:128] != b"IM":  # the bytes of a file of a little-endian machine
        raise DataError(f"{named}: is no MATLAB 5 file; download it again")
    found, at, total = [], HEADER, 0
    while at < len(data):
        kind, size = struct.unpack_from("<II", data, at)
        if at + 8 + size > len(data):
            raise DataError(f"{named}: is cut off; download it again")
        element = data[at : at + 8 + size]
        if kind == COMPRESSED:
            unpacker = zlib.decompressobj()
            element = unpacker.decompress(element[8:], most - total + 1)
        total += len(element)
        if total > most:
            raise DataError(f"{named}: unpacks to more than {most:,} bytes; not the official file")
        found.append(element)
        at += 8 + size
    return found


def _check_depth(data: memoryview, named: str, depth: int) -> None:
    """Raises DataError where arrays are within arrays too often."""
    if depth > DEEP:
        raise DataError(f"{named}: has arrays within arrays; not the official file")
    at = 0
    while at + 8 <= len(data):
        kind, size = struct.unpack_from("<II", data, at)
        if kind >> 16:  # a small element: four bytes of tag, four of values
            at += 8
            continue
        if kind == MATRIX:
            _check_depth(data[at + 8 : at + 8 + size], named, depth + 1)
        at += 8 + (size if depth == 0 else size + -size % 8)
