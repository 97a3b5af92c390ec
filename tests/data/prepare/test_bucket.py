"""Copies of a bucket: whole objects, exact resume, one line for what breaks; fsspec's memory."""

import errno
import json
import pathlib

import fsspec
import pytest

from vit_jax import config
from vit_jax.data.prepare import bucket
from vit_jax.data.prepare.request import Request
from vit_jax.data.prepare.shards import PrepareError
from vit_jax.data.source import DataError
from vit_jax.utils.errors import NotWritten

MOST = 10**6
HELD = {"a/0.jpg": b"zero", "a/1.jpg": b"one", "b/c/2.jpg": b"two and more" * 1000, "list.txt": b""}
ROOT = "memory://photos"


class Memory:
    """The bucket of a test: what it holds, and what was downloaded from it."""

    def __init__(self, monkeypatch):
        self.system = fsspec.filesystem("memory", skip_instance_cache=True)
        self.store = type(self.system)
        monkeypatch.setattr(self.store, "store", {})
        monkeypatch.setattr(self.store, "pseudo_dirs", [""])
        self.taken, self.whole = [], self.store.get_file
        monkeypatch.setattr(self.store, "get_file", self.get_file)
        self.before = lambda name, local: None
        monkeypatch.setattr(bucket, "SCHEMES", {"memory": ("none", "none"), "s3": ("s3fs", "s3")})
        for name, content in HELD.items():
            self.put(name, content)

    def put(self, name, content):
        self.system.pipe_file(f"/photos/{name}", content)

    def get_file(self, name, local, **options):
        self.taken.append(name.removeprefix("/photos/"))
        if not self.before(name, local):
            self.whole(self.system, name, local, **options)


@pytest.fixture
def memory(monkeypatch):
    return Memory(monkeypatch)


def content(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_copy_holds_what_the_bucket_holds(memory, tmp_path):
    found = bucket.copy(ROOT, tmp_path, MOST)
    assert content(found) == HELD
    assert sorted(memory.taken) == sorted(HELD)
    one = bucket.copy(f"{ROOT}/b/c/2.jpg", tmp_path, MOST)
    assert one.name == "2.jpg"
    assert one.read_bytes() == HELD["b/c/2.jpg"]
    below = bucket.copy(f"{ROOT}/b/", tmp_path, MOST)
    assert content(below) == {"c/2.jpg": HELD["b/c/2.jpg"]}
    bucket.remove(ROOT, tmp_path)
    assert not found.exists()
    assert one.exists()


def test_a_copy_goes_on_where_it_was_stopped(memory, tmp_path):
    def broken(name, local):
        if name.endswith("2.jpg"):
            pathlib.Path(local).write_bytes(b"two")
            raise ConnectionResetError("peer")

    memory.before = broken
    with pytest.raises(PrepareError, match="photos: b/c/2.jpg: cannot be read: peer; the same"):
        bucket.copy(ROOT, tmp_path, MOST)
    (files,) = tmp_path.glob("*/files")
    done = content(files)
    assert done.items() <= HELD.items()  # no part under any name
    memory.taken, memory.before = [], lambda name, local: None
    assert content(bucket.copy(ROOT, tmp_path, MOST)) == HELD
    assert sorted(memory.taken) == sorted(HELD.keys() - done)
    memory.taken = []
    bucket.copy(ROOT, tmp_path, MOST)
    assert memory.taken == []


def test_what_has_changed_since_is_copied_again(memory, tmp_path):
    found = bucket.copy(ROOT, tmp_path, MOST)
    memory.taken = []
    memory.put("a/1.jpg", b"uno")  # as long as before
    memory.system.rm_file("/photos/a/0.jpg")
    memory.put("new.jpg", b"new")
    assert content(bucket.copy(ROOT, tmp_path, MOST)) == {
        "a/1.jpg": b"uno", "b/c/2.jpg": HELD["b/c/2.jpg"], "list.txt": b"", "new.jpg": b"new"
    }  # fmt: skip
    assert sorted(memory.taken) == ["a/1.jpg", "new.jpg"]
    (found / "a/1.jpg").write_bytes(b"cut")
    (found / "new.jpg").write_bytes(b"")
    found.with_name("objects.json").write_text("{damaged")
    memory.taken = []
    bucket.copy(ROOT, tmp_path, MOST)
    assert sorted(memory.taken) == ["a/1.jpg", "b/c/2.jpg", "list.txt", "new.jpg"]


def test_half_an_object_is_not_kept(memory, tmp_path):
    def half(name, local):
        if name.endswith("0.jpg"):
            pathlib.Path(local).write_bytes(b"ze")
            return True

    memory.before = half
    with pytest.raises(PrepareError, match=r"a/0.jpg came only in part, 2 of 4 bytes; the same"):
        bucket.copy(ROOT, tmp_path, MOST)
    (files,) = tmp_path.glob("*/files")
    assert "a/0.jpg" not in content(files)


def test_what_changes_while_it_is_copied_is_said(memory, tmp_path):
    def change(name, local):
        if name.endswith("0.jpg"):
            memory.put("a/1.jpg", b"uno")

    memory.before = change
    with pytest.raises(PrepareError, match=r"a/1.jpg changed while it was copied; run the same"):
        bucket.copy(ROOT, tmp_path, MOST)
    memory.before = lambda name, local: None
    assert content(bucket.copy(ROOT, tmp_path, MOST))["a/1.jpg"] == b"uno"


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (PermissionError("Access Denied"), DataError, "no permission to read it; log in"),
        (FileNotFoundError("x"), DataError, "no such object or folder"),
        (RuntimeError("Unable to locate\ncredentials"), PrepareError, "locate credentials; the sa"),
        (OSError(errno.ENOSPC, "No space left on device"), NotWritten, "No space left on device"),
    ],
)
def test_every_failure_is_one_line(error, kind, words, memory, tmp_path):
    def fail(name, local):
        raise error

    memory.before = fail
    with pytest.raises(kind) as raised:
        bucket.copy(ROOT, tmp_path, MOST)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
    (files,) = tmp_path.glob("*/files")
    assert content(files) == {}


def test_a_bucket_has_to_be_there_and_hold_something(memory, tmp_path):
    with pytest.raises(DataError, match=r"memory://none: (holds no objects|no such object)"):
        bucket.copy("memory://none", tmp_path, MOST)
    assert not list(tmp_path.iterdir())
    with pytest.raises(DataError, match=r"needs s3fs: pip install 'vit_jax\[s3\]'"):
        bucket.copy("s3://bucket/photos", tmp_path, MOST)


@pytest.mark.parametrize("name", ["../x.jpg", "a/../../x", "a//x.jpg", "./x", "a\0.jpg", "x" * 256])
def test_no_name_leads_out_of_the_copy(name, memory, tmp_path, monkeypatch):
    listed = {f"/photos/{name}": {"size": 1, "type": "file"}}
    monkeypatch.setattr(memory.store, "find", lambda self, root, detail: listed)
    with pytest.raises(DataError, match="is no name of a file on this machine"):
        bucket.copy(ROOT, tmp_path, MOST)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [None, -1, "9"])
def test_the_size_of_an_object_is_known(size, memory, tmp_path, monkeypatch):
    listed = {"/photos/x": {"size": size, "type": "file"}}
    monkeypatch.setattr(memory.store, "find", lambda self, root, detail: listed)
    with pytest.raises(DataError, match="its size is not known"):
        bucket.copy(ROOT, tmp_path, MOST)


def test_a_cache_holds_no_more_than_it_may(memory, tmp_path, monkeypatch):
    total = sum(map(len, HELD.values()))
    with pytest.raises(DataError, match=r"has 12.0 kB; the cache may hold 12.0 kB; set --cache"):
        bucket.copy(ROOT, tmp_path, total - 1)
    assert memory.taken == []
    bucket.copy(f"{ROOT}/b", tmp_path, total)
    with pytest.raises(DataError, match=r"holds 12.0 kB of others; the cache may hold 24.0 kB; r"):
        bucket.copy(ROOT, tmp_path, total + 11_999)
    bucket.copy(ROOT, tmp_path, total + 12_000)
    monkeypatch.setattr(bucket, "OBJECTS", 3)
    with pytest.raises(DataError, match="holds 4 objects, more than 3; pack them in tars"):
        bucket.copy(ROOT, tmp_path, MOST)


@pytest.mark.slow
def test_a_dataset_is_packed_from_a_bucket_as_from_a_folder(memory, prepare, photos, tmp_path):
    assert prepare("new", f"--from={photos}", data_dir="folder")[0] == 0
    memory.store.store.clear()
    for path in photos.rglob("*"):
        if path.is_file():
            memory.put(path.relative_to(photos).as_posix(), path.read_bytes())
    code, lines, woe = prepare("new", f"--from={ROOT}", "--dry-run", data_dir="bucket")
    assert (code, memory.taken) == (0, [])
    assert lines[0].startswith(f"new: would copy {ROOT}: 32 objects, ")
    code, lines, woe = prepare("new", f"--from={ROOT}", data_dir="bucket")
    assert code == 0, woe
    folder, packed = (tmp_path / name / "new" / "1.0.0" for name in ("folder", "bucket"))
    assert content(packed) == content(folder)
    assert not list((tmp_path / "bucket" / ".buckets").iterdir())
    memory.taken = []
    code, lines, _ = prepare("new", f"--from={ROOT}", data_dir="bucket")
    assert (code, memory.taken) == (0, [])
    assert "is packed already" in lines[0]


def test_flags_of_buckets_are_for_buckets(memory, tmp_path):
    for given, said in (({"cache": "x"}, "--cache=x"), ({"cache_size": 5.0}, "--cache-size=5.0")):
        with pytest.raises(config.ConfigError, match=f"{said}: is for --from=s3://"):
            Request(sources=("photos",), **given)
    with pytest.raises(config.ConfigError, match="--from=http://a/b: cannot be opened"):
        Request(sources=("http://a/b",))
    with pytest.raises(config.ConfigError, match="--cache=s3://b: only a folder of this machine"):
        Request(sources=(ROOT,), cache="s3://b").paths()
    asked = Request(sources=(ROOT, str(tmp_path)), cache=str(tmp_path / "cache"))
    copied, local = asked.paths()
    assert content(copied) == HELD
    assert local == tmp_path
    assert json.loads((copied.parent / "objects.json").read_text()).keys() == HELD.keys()
