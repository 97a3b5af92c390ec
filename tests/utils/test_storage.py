"""Lines of JSON that survive what cuts others short."""

import errno
import json
import os
import shutil
import subprocess

import pytest

from vit_jax import __version__, config
from vit_jax.runtime import logs, provenance
from vit_jax.utils import storage


def test_lines_are_added_and_folders_made(tmp_path):
    path = tmp_path / "new" / "folder" / "lines.jsonl"
    for number in range(3):
        storage.append_line(path, {"number": number, "text": "ü\n"})
    lines = path.read_text().split("\n")
    assert lines.pop() == ""
    assert [json.loads(line) for line in lines] == [
        {"number": number, "text": "ü\n"} for number in range(3)
    ]


@pytest.mark.parametrize("left", ['{"a": 1}\n{"a"', '{"a": 1}'])
def test_a_line_begins_after_one_that_was_cut_short(tmp_path, left):
    path = tmp_path / "lines.jsonl"
    path.write_text(left)
    storage.append_line(path, {"b": 2})
    storage.append_line(path, {"b": 3})
    assert path.read_text() == left + '\n{"b": 2}\n{"b": 3}\n'
    said = []
    found = list(storage.read_lines(path, 1000, said.append))
    cut = "1" if left.endswith("}") else "2"
    assert [line for _, line in found] == [{"a": 1}, {"b": 2}, {"b": 3}]
    torn = f"{path}: line {cut} is not JSON (cut short or damaged); passed over"
    assert said == ([torn] if cut == "2" else [])


def test_what_is_written_can_be_read(tmp_path):
    path = tmp_path / "lines.jsonl"
    storage.append_line(path, {"a": [float("nan"), 1.0], "b": {"c": float("-inf")}})
    assert list(storage.read_lines(path, 1000)) == [(1, {"a": [None, 1.0], "b": {"c": None}})]


def test_a_line_is_whole_and_flushed_before_the_call_returns(tmp_path, monkeypatch):
    path = tmp_path / "lines.jsonl"
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda file: flushed.append(path.read_text()))
    storage.append_line(path, {"a": 1})
    assert flushed == ['{"a": 1}\n']


def test_what_cannot_be_written_leaves_the_file_alone(tmp_path):
    path = tmp_path / "lines.jsonl"
    with pytest.raises(TypeError):
        storage.append_line(path, {"a": object()})
    assert not path.exists()
    with pytest.raises(OSError, match="directory"):
        storage.append_line(tmp_path, {"a": 1})


def test_a_record_names_code_date_and_machine():
    found = provenance.fields("abacus", {"jax": "1"})
    assert found.keys() == {"commit", "date", "device", "cores", "processor", "versions"}
    assert found["device"] == "abacus"
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["versions"] == {"jax": "1", "vit_jax": __version__}


def test_the_commit_is_that_of_the_code(tmp_path):
    package, records = tmp_path / "package", tmp_path / "docs" / "records.jsonl"
    for file in (package / "__init__.py", records):
        file.parent.mkdir()
        file.touch()
    assert provenance.commit(package) is None  # no checkout

    def git(*words):
        author = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *author, *words], check=True, capture_output=True
        )
        return done.stdout.decode().strip()

    git("init")
    git("add", "docs")
    git("commit", "-m", "another project's")
    assert provenance.commit(package) is None  # an environment inside it
    git("add", ".")
    git("commit", "-m", "the package")
    head = git("rev-parse", "HEAD")[:12]
    assert provenance.commit(package) == head
    records.write_text("{}\n")
    assert provenance.commit(package) == head
    (package / "__init__.py").write_text("changed = True\n")
    assert provenance.commit(package) == head + "+"


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [(errno.ENOSPC, 70), (errno.EDQUOT, 70), (errno.EFBIG, 70), (errno.EACCES, 2)],
)
def test_a_full_disk_is_worth_a_retry(code, exit_code):
    with (
        pytest.raises(config.UserError, match="^--output=x: cannot be written: ") as raised,
        storage.writing("--output", "x"),
    ):
        raise OSError(code, os.strerror(code))
    assert raised.value.exit_code == exit_code


def _full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    "write",
    [
        lambda path: storage.write_atomically(path, "text"),
        lambda path: storage.append_line(path, {}),
        lambda path: storage.sync(path.parent),
    ],
)
def test_what_a_full_disk_could_not_take_is_named(write, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", _full)  # as a write or flush, it names no file
    with pytest.raises(OSError, match="No space left") as raised:
        write(tmp_path / "one")
    assert raised.value.filename in (str(tmp_path / "one"), str(tmp_path))


def test_a_logger_on_a_full_disk_is_named(tmp_path, monkeypatch, capsys):
    logger = logs.TensorBoard(tmp_path)
    logger.close()
    assert not list(tmp_path.iterdir())  # where nothing is written
    logger.write(0, {"train/loss": 1.0})
    logger.close()
    monkeypatch.setattr(logger._events, "add_scalar", _full)
    with pytest.raises(OSError, match="tensorboard"):
        logger.write(1, {"train/loss": 1.0})


@pytest.mark.parametrize(
    ("text", "remote", "problem"),
    [
        ("runs/x", False, ""),
        ("gs://b/x", True, ""),
        ("gs://b/x", False, "must be on a disk; copy it there, or mount the bucket (gcsfuse)"),
        ("s3://b/x", True, "cannot be opened; copy it to a disk, or to a gs:// bucket"),
        ("", True, "is empty; name a path, or . for the current folder"),
        ("file:///tmp/x", True, "is an address; write the path, /tmp/x"),
        (
            "https://x.org/cat.jpg",
            False,
            "is a web address; name a path on a disk, such as that of its download",
        ),
    ],
)
def test_why_a_text_is_no_path(text, remote, problem):
    assert storage.path_problem(text, remote=remote) == problem


def test_an_output_is_checked_before_minutes_of_work(tmp_path, monkeypatch):
    storage.check_creatable(tmp_path / "new")
    (tmp_path / "there").touch()
    with pytest.raises(config.ConfigError, match="there exists; remove it or name another"):
        storage.check_creatable(tmp_path / "there")
    with pytest.raises(config.ConfigError, match="no such folder as .*/gone"):
        storage.check_creatable(tmp_path / "gone" / "new")
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(config.ConfigError, match="cannot be written to"):
        storage.check_creatable(tmp_path / "new")


class Bucket:
    """A folder of a bucket as a dict."""

    failing = False

    def __init__(self, objects, name="run"):
        self.objects, self.name = objects, name

    def __fspath__(self):
        return f"gs://bucket/{self.name}"

    def __truediv__(self, other):
        return Bucket(self.objects, f"{self.name}/{other}")

    def read_bytes(self):
        if self.name not in self.objects:
            raise FileNotFoundError(self.name)
        return self.objects[self.name]

    def write_bytes(self, content):
        if Bucket.failing:
            raise OSError("Forbidden")
        self.objects[self.name] = content


def test_a_mirror_goes_on_with_what_is_there_and_brings_changes(monkeypatch):
    objects = {"run/metrics.jsonl": b"1\n"}
    checks = []
    mirror = storage.RemoteSync(Bucket(objects), lambda: checks.append(1))
    lines = mirror.folder / "metrics.jsonl"
    assert lines.read_bytes() == b"1\n"
    lines.write_bytes(b"1\n2\n")
    mirror.bring()  # within the period
    assert (objects, checks) == ({"run/metrics.jsonl": b"1\n"}, [])
    mirror.bring(now=True)
    assert (objects, checks) == ({"run/metrics.jsonl": b"1\n2\n"}, [1])
    objects.clear()
    monkeypatch.setattr(storage, "PERIOD", 0.0)
    (mirror.folder / "new").mkdir()
    (mirror.folder / "new" / "file").write_bytes(b"x")
    mirror.bring()  # what has not changed is not brought again
    assert objects == {"run/new/file": b"x"}


def test_a_mirror_outlives_a_bad_hour_and_says_so_once(monkeypatch, caplog):
    objects = {}
    mirror = storage.RemoteSync(Bucket(objects))
    (mirror.folder / "metrics.jsonl").write_bytes(b"1\n")
    monkeypatch.setattr(Bucket, "failing", True)
    for _ in range(2):
        mirror.bring(now=True)
    (message,) = caplog.messages
    assert message.endswith(": cannot be written now: Forbidden")
    monkeypatch.setattr(Bucket, "failing", False)
    mirror.bring(now=True)
    assert objects == {"run/metrics.jsonl": b"1\n"}


def test_too_little_room(tmp_path, monkeypatch):
    """Also for a folder that does not exist yet: its disk is that of the nearest parent."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 6, 3_000))
    folder = tmp_path / "new" / "folder"
    assert storage.shortage(folder, 3_000) == ""
    assert storage.shortage(folder, 3_001_000) == "3.0 MB are needed and 3.0 kB free"
    assert storage.nearest_existing(folder) == tmp_path


def test_a_folder_to_write_is_on_a_disk_or_in_a_bucket(tmp_path):
    """`inspect` of a run in a bucket writes there, which no local check can judge."""
    storage.check_folder(tmp_path / "new" / "deep")
    storage.check_folder(storage.as_path("gs://bucket/run/inspect"))
    (tmp_path / "file").touch()
    with pytest.raises(config.ConfigError, match="--output=.*/file/x: .*/file is no folder"):
        storage.check_folder(tmp_path / "file" / "x")
