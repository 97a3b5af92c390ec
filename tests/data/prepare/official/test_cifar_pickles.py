"""Pickles of CIFAR are parsed and never executed."""

import pickle
import struct

import numpy as np
import pytest

from commands import error_line
from vit_jax.data.prepare.official import pickles
from vit_jax.data.source import DataError


def python_2(data, labels, names):
    """A batch as Python 2's cPickle wrote the real ones: texts of bytes, one byte per number."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    def whole(value):
        if value < 256:
            return b"K" + bytes([value])
        return b"M" + struct.pack("<H", value)

    raw = data.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x06cnumpy\nndarray\nq\x07K\x00\x85"
        + text(b"b") + b"\x87R(K\x01" + whole(data.shape[0]) + whole(data.shape[1]) + b"\x86"
        + b"cnumpy\ndtype\nq\x0b" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + b"T" + struct.pack("<I", len(raw)) + raw + b"tb"
    )  # fmt: skip
    return (
        b"\x80\x02}q\x01(" + text(b"batch_label") + text(b"training batch 1 of 5")
        + text(b"labels") + b"]q\x04(" + b"".join(map(whole, labels)) + b"e"
        + text(b"data") + array
        + text(b"filenames") + b"](" + b"".join(map(text, names)) + b"eu."
    )  # fmt: skip


def test_a_batch_of_python_2():
    """As the first bytes of the real data_batch_1 are; Python's own reader agrees."""
    data = np.random.default_rng(0).integers(0, 256, (3, 3072), np.uint8)
    batch = python_2(data, [6, 9, 9], [b"leptodactylus_pentadactylus_s_000004.png"] * 3)
    found = pickles.load_dictionary(batch, "data_batch_1")
    expected = pickle.loads(batch, encoding="latin1")
    assert found.keys() == expected.keys()
    np.testing.assert_array_equal(found["data"], data)
    assert found["labels"] == expected["labels"] == [6, 9, 9]
    assert found["filenames"] == expected["filenames"]


class Evil:
    """Runs a command where it is unpickled."""

    def __reduce__(self):
        return (print, ("executed",))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_are_not_run(protocol, capsys):
    with pytest.raises(DataError) as caught:
        pickles.load_dictionary(pickle.dumps({"data": Evil()}, protocol), "data_batch_1")
    assert str(caught.value).startswith("data_batch_1: its pickle has ")
    assert str(caught.value).endswith("which CIFAR's do not; use the binary archive")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x02}q\x01(U\x0b",
        b"\x80\x02.",
        b"\x80\x02h\x05.",
        b"\x80\x02t.",
        b"(e.",
        b"\x80\x02" + b"(" * 100_000,
        b"\x80\x02X\xff\xff\xff\x7f",
        pickle.dumps([1, 2]),
        pickle.dumps({"data": {1, 2}}),
        pickle.dumps({"data": np.zeros(3, np.float32)}),
        pickle.dumps({"data": np.zeros(3, np.int8)}, 2),
        pickle.dumps({"data": np.zeros((2, 3), np.uint8, order="F")}, 2),
        b"\x80\x02}U\x01a" + b"cnumpy.core.multiarray\n_reconstruct\n" + b")Rs.",  # no values
    ],
)
def test_what_is_no_batch_is_one_line(data):
    assert len(error_line(DataError, pickles.load_dictionary, data, "data_batch_1")) < 300


def test_a_list_that_stands_for_more_values_than_fit(tmp_path):
    """Lists of lists that are one list, tuples of tuples as a key, one text as many bytes."""
    deep = []
    for _ in range(60):
        deep = [deep, deep]
    with pytest.raises(DataError, match="a list within a value"):
        pickles.load_dictionary(pickle.dumps({"label_names": deep}), "meta")
    with pytest.raises(DataError, match="a tuple for a key"):
        pickles.load_dictionary(b"}" + b")q\x00" + b"h\x00\x86q\x00" * 60 + b"K\x01s.", "meta")
    encode = b"c_codecs\nencode\n(h\x00X\x06\x00\x00\x00latin1tR"
    text = b"X" + (1000).to_bytes(4, "little") + b"x" * 1000 + b"q\x00"
    many = b"}X\x01\x00\x00\x00a(" + text + encode * 100 + b"ls."
    with pytest.raises(DataError, match="a text that stands for many"):
        pickles.load_dictionary(many, "batch")
