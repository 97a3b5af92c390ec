"""Headers of .npy files, compared with numpy's own reader."""

import io

import numpy as np
import pytest

from vit_jax.utils import limits, npy


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("array", [np.zeros((2, 3), ">f8"), np.zeros((3, 1, 2), "?").T, np.int8(1)])
def test_a_header_is_what_numpy_reads(array, version):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asarray(array), version)
    header = npy.read_header("a", io.BytesIO(stream.getvalue()))
    stream.seek(8)
    read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
    shape, fortran, dtype = read[min(version[0], 2)](stream)
    assert header == (stream.tell(), shape, dtype, fortran)


def test_a_header_of_too_many_bytes_is_not_read():
    stream = io.BytesIO(b"\x93NUMPY\2\0\xff\xff\xff\xff" + b" " * 5000)
    with pytest.raises(limits.LimitError, match="a has a header of 4294967295 bytes; the limit is"):
        npy.read_header("a", stream)
    assert stream.tell() == 12
