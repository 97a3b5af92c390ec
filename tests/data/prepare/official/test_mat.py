"""MATLAB files against SciPy, which writes these."""

import io
import math
import struct
import zlib

import numpy as np
import pytest
import scipy.io

import official_fakes
from commands import error_line
from vit_jax.data.prepare.official import mat
from vit_jax.data.source import DataError


@pytest.mark.parametrize("compressed", [False, True])
def test_mat(compressed):
    arrays = {
        "labels": np.arange(5, dtype=np.uint8)[None],
        "doubles": np.random.default_rng(0).normal(size=(3, 4, 2)),
        "small": np.array([[-3, 2]], np.int16),
        "none": np.zeros((0, 3)),
    }
    table = np.zeros((2, 1), [("id", "O"), ("a_longer_name", "O")])
    table[0, 0], table[1, 0] = (np.float64(3), "n01440764"), (np.array([[1.0, 2.0]]), "")
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, arrays | {"table": table}, do_compression=compressed)
    found = mat.load_arrays(buffer.getvalue(), [*arrays, "table"], "a.mat", 10_000)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
    one, two = found["table"]
    assert (one["id"].item(), one["a_longer_name"], two["a_longer_name"]) == (3, "n01440764", "")
    np.testing.assert_array_equal(two["id"], [[1, 2]])


def test_mat_numbers_in_fewer_bytes():
    """MATLAB's own files have whole doubles as bytes."""
    header = official_fakes.mat(a=1.0)[:128]
    parts = struct.pack("<IIII", 6, 8, 6, 0) + struct.pack("<IIii", 5, 8, 1, 3)
    parts += struct.pack("<HHB3x", 1, 1, ord("a"))  # a name in a small element
    parts += struct.pack("<HHBBBx", 2, 3, 7, 8, 255)
    (found,) = mat.load_arrays(
        header + struct.pack("<II", 14, len(parts)) + parts, ["a"], "", 99
    ).values()
    assert found.tolist() == [[7.0, 8.0, 255.0]]
    assert found.dtype == np.float64


def floats(value):
    """A .mat file of a table whose shape holds floating-point numbers; found by libFuzzer."""
    sound = struct.pack("<IIii", 5, 8, 1, 1)
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, {"a": {"b": np.ones((2, 2))}})
    assert sound in buffer.getvalue()
    return buffer.getvalue().replace(sound, struct.pack("<IIff", 7, 8, value, 1), 1)


def bomb(size):
    """A .mat file whose array unpacks to so many bytes."""
    header = official_fakes.mat(a=1.0)[:128]
    body = zlib.compress(struct.pack("<II", 14, size) + b"\0" * size)
    return header + struct.pack("<II", 15, len(body)) + body


def nested(depth):
    """A .mat file of arrays in arrays."""
    array = np.zeros((1, 1))
    for _ in range(depth):
        outer = np.empty((1, 1), object)
        outer[0, 0] = array
        array = outer
    return official_fakes.mat(a=array)


def tables(depth):
    """A .mat file of tables in tables."""
    value = np.ones((1, 1))
    for _ in range(depth):
        value = {"a": value}
    return official_fakes.mat(a=value)


def widths(value):
    """A .mat file of a table, the names of whose columns are said to have so many bytes each."""
    sound = struct.pack("<HHI", 5, 4, 2)  # the letter and a zero
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, {"a": {"b": 1.0}})
    assert sound in buffer.getvalue()
    return buffer.getvalue().replace(sound, struct.pack("<HHI", 5, 4, value), 1)


DAMAGED = "a.mat: is damaged: {}; download it again"
BROKEN = {
    "empty": (b"", "a.mat: is not a MATLAB 5 file; download it again"),
    "html": (b"<html>" * 100, "a.mat: is not a MATLAB 5 file; download it again"),
    "cut": (official_fakes.mat(a=1.0)[:-8], DAMAGED.format("an element is truncated")),
    "other": (official_fakes.mat(b=1.0), "a.mat: has no array a: it is not the official file"),
    "bomb": (bomb(10**7), "a.mat: unpacks to more than 100,000 bytes; not the official file"),
    "floats": (floats(1), DAMAGED.format("flags, a shape or a length are not integers")),
    "nan": (floats(math.nan), DAMAGED.format("flags, a shape or a length are not integers")),
    **{
        f"width {n}": (widths(n), DAMAGED.format("a table has no names of columns"))
        for n in (0, 24, 33, 2**31)
    },
    "nested": (nested(300), DAMAGED.format("an array is of class 1")),
    "tables": (tables(100), DAMAGED.format("arrays are within arrays too often")),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_mat_file_is_one_line(name):
    data, line = BROKEN[name]
    assert error_line(DataError, mat.load_arrays, data, ["a"], "a.mat", 100_000) == line
