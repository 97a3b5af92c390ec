"""Headers of NumPy's .npy files, by a pattern: nothing is evaluated."""

import re
from typing import IO, NamedTuple

import ml_dtypes
import numpy as np

from vit_jax.utils import limits

MAX_HEADER = 1_000  # bytes
# A Python dict as numpy and compatible writers format it.
FIELDS = re.compile(
    r"\{ *'descr': *'([<>|=]?[fiubcVUS]\d{1,4})', *'fortran_order': *(True|False), *"
    r"'shape': *\(([\d, ]*)\) *,? *\} *\n?"
)


class NpyHeader(NamedTuple):
    """The header of an array: its length in bytes, and the layout of the values after it."""

    length: int
    shape: tuple[int, ...]
    dtype: np.dtype
    fortran: bool


def read_header(name: str, source: IO[bytes]) -> NpyHeader:
    """Reads the header of the array `name`; raises ValueError, of which LimitError is one."""
    magic = source.read(8)
    if magic[:6] != b"\x93NUMPY" or magic[6:] not in (b"\1\0", b"\2\0", b"\3\0"):
        raise ValueError(f"begins with {magic!r}")
    size = source.read(2 if magic[6] == 1 else 4)
    length = int.from_bytes(size, "little")
    if length > MAX_HEADER:
        raise limits.LimitError(f"{name} has a header of {length} bytes; the limit is {MAX_HEADER}")
    # Latin-1 decodes any bytes, of which the pattern then takes ASCII alone.
    match = FIELDS.fullmatch(source.read(length).decode("latin1"))
    if match is None:
        raise ValueError("the header is not as numpy writes it")
    # numpy has no bfloat16 and stores its bytes as void.
    dtype = np.dtype(ml_dtypes.bfloat16 if match[1] in ("<V2", "|V2") else match[1])
    shape = tuple(int(n) for n in match[3].split(",") if n.strip())
    if len(shape) > limits.AXES:
        raise limits.LimitError(f"{name} has {len(shape)} axes; the limit is {limits.AXES}")
    return NpyHeader(len(magic) + len(size) + length, shape, dtype, match[2] == "True")
