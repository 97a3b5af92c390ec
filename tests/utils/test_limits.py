"""Files and JSON from outside: what is within the limits, and the first beyond."""

import io
import os
import pathlib
import signal

import pytest

from vit_jax.utils import limits


class InBucket:
    """A path of a bucket, which is opened by itself."""

    def __fspath__(self):
        return "gs://bucket/file"

    def open(self, mode):
        assert mode == "rb"
        return io.BytesIO(b"0123456789")


@pytest.mark.parametrize("remote", [False, True])
def test_as_many_bytes_as_allowed_and_one_more(tmp_path, remote):
    path = InBucket() if remote else tmp_path / "file"
    if not remote:
        path.write_bytes(b"0123456789")
    assert limits.read_file(path, 10) == b"0123456789"
    with pytest.raises(limits.LimitError, match=r"has more than 9 bytes|has 10 bytes, more than 9"):
        limits.read_file(path, 9)


def test_a_text_is_the_name_of_a_file_whatever_it_looks_like(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("gs:").mkdir()
    pathlib.Path("gs:/file").write_bytes(b"here")
    assert limits.read_file("gs://file", 10) == b"here"


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    previous = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("blocked"))
    signal.alarm(5)
    try:
        with pytest.raises(limits.LimitError, match="is not a regular file"):
            limits.read_file(tmp_path / "pipe", 10)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def test_lists_and_objects_are_counted_together(monkeypatch):
    monkeypatch.setattr(limits, "CONTAINERS", 4)
    assert limits.load_json(b'[{}, {"a": []}]') == [{}, {"a": []}]
    with pytest.raises(limits.LimitError, match="more than 4 lists and objects"):
        limits.load_json(b'[{}, {"a": []}, []]')


@pytest.mark.parametrize("opening", ["[", '{"a": '])
def test_nesting_is_as_deep_as_allowed(opening):
    closing = {"[": "]"}.get(opening, "}")

    def nested(depth):
        return opening * (depth - 1) + ("[]" if opening == "[" else "{}") + closing * (depth - 1)

    limits.load_json(nested(limits.DEPTH))
    for depth in (limits.DEPTH + 1, limits.DEPTH + 2, 100_000):
        with pytest.raises(limits.LimitError, match="more than 200 deep"):
            limits.load_json(nested(depth))
