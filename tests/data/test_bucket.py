"""Copies of a bucket: whole objects, exact resume, one line for what breaks; fsspec's memory."""

import dataclasses
import errno
import os
import pathlib

import cv2
import numpy as np
import pytest

import runs
from commands import error_line
from memory_bucket import HELD, ROOT, content
from vit_jax import config, train_loop
from vit_jax.data import bucket, sources, split_roles
from vit_jax.data.bucket import CopyError
from vit_jax.data.source import DataError
from vit_jax.inference import prediction
from vit_jax.runtime import preemption
from vit_jax.utils.errors import NotWritten, UserError

MOST = 10**6


def test_a_copy_holds_what_the_bucket_holds(memory, tmp_path):
    found = bucket.copy(ROOT, tmp_path, MOST)
    assert content(found) == HELD
    assert sorted(memory.taken) == sorted(HELD)
    one = bucket.copy(f"{ROOT}/b/c/2.jpg", tmp_path, MOST)
    assert one.name == "2.jpg"
    assert one.read_bytes() == HELD["b/c/2.jpg"]
    below = bucket.copy(f"{ROOT}/b/", tmp_path, MOST)
    assert content(below) == {"c/2.jpg": HELD["b/c/2.jpg"]}
    bucket.remove_copy(ROOT, tmp_path)
    assert not found.exists()
    assert one.exists()


def test_a_copy_goes_on_where_it_was_stopped(memory, tmp_path):
    def broken(name, local):
        if name.endswith("2.jpg"):
            pathlib.Path(local).write_bytes(b"two")
            raise ConnectionResetError("peer")

    memory.before = broken
    with pytest.raises(CopyError, match="photos: b/c/2.jpg: cannot be read: peer; the same"):
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
    with pytest.raises(CopyError, match=r"a/0.jpg came only in part, 2 of 4 bytes; the same"):
        bucket.copy(ROOT, tmp_path, MOST)
    (files,) = tmp_path.glob("*/files")
    assert "a/0.jpg" not in content(files)


def test_what_changes_while_it_is_copied_is_said(memory, tmp_path):
    def change(name, local):
        if name.endswith("0.jpg"):
            memory.put("a/1.jpg", b"uno")

    memory.before = change
    with pytest.raises(CopyError, match=r"a/1.jpg changed while it was copied; run the same"):
        bucket.copy(ROOT, tmp_path, MOST)
    memory.before = lambda name, local: None
    assert content(bucket.copy(ROOT, tmp_path, MOST))["a/1.jpg"] == b"uno"


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (PermissionError("Access Denied"), DataError, "no permission to read it; log in"),
        (FileNotFoundError("x"), DataError, "no such object or folder"),
        (RuntimeError("Unable to locate\ncredentials"), CopyError, "locate credentials; the sa"),
        (OSError(errno.ENOSPC, "No space left on device"), NotWritten, "No space left on device"),
    ],
)
def test_every_failure_is_one_line(error, kind, words, memory, tmp_path):
    def fail(name, local):
        raise error

    memory.before = fail
    assert words in error_line(kind, bucket.copy, ROOT, tmp_path, MOST)
    (files,) = tmp_path.glob("*/files")
    assert content(files) == {}


def listing(*names, size=1):
    return {f"/photos/{name}": {"size": size, "type": "file"} for name in names}


NAMES = ("../x.jpg", "a/../../x", "a//x.jpg", "./x", "a\0.jpg", "x" * 256, "\ud800", "\udc80.jpg",
         "/".join(["x" * 200] * 11), "a/" * 64 + "x")  # fmt: skip


@pytest.mark.parametrize(
    ("listed", "line"),
    [
        *((listing(name), "cannot be the name of a file here") for name in NAMES),
        *((listing("x", size=size), "its size is not known") for size in (None, -1, "9", 10**400)),
        (listing("a", "b/a", "a/b/c"), "'a' is an object and the folder of 'a/b/c'"),
    ],
)
def test_no_name_leads_out_of_the_copy(listed, line, memory, tmp_path, monkeypatch):
    """Nor is an object a folder, or of a size that nobody knows."""
    monkeypatch.setattr(memory.store, "find", lambda self, root, detail: listed)
    with pytest.raises(DataError, match=line):
        bucket.copy(ROOT, tmp_path, MOST)
    assert not list(tmp_path.iterdir())


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


@pytest.fixture
def rooted(memory, tmp_path):
    """Options of two classes in a bucket, listed too, and the folder that has the same."""
    memory.store.store.clear()
    rng, disk = np.random.default_rng(0), tmp_path / "disk"
    files = {
        f"{split}/{name}/{number}.png": cv2.imencode(".png", rng.integers(0, 255, (8, 8, 1)))[1]
        for split in ("train", "test")
        for name in ("cat", "dog")
        for number in range(8)
    }
    for split in ("train", "test"):
        rows = [f"{name},{name.split('/')[1]}" for name in files if name.startswith(split)]
        files[f"{split}.csv"] = "\n".join(("image,class", *rows)).encode()
    for name, held in files.items():
        memory.put(name, bytes(held))
        (disk / name).parent.mkdir(parents=True, exist_ok=True)
        (disk / name).write_bytes(bytes(held))
    yield {"root": ROOT, "cache": str(tmp_path / "cache"), "eval_split": "auto"}, disk
    end_of_process()


def end_of_process():
    """What ends with a process: locks, and what it remembers."""
    bucket.local_copy.cache_clear()
    while bucket._READ:
        _, (_, lock) = bucket._READ.popitem()
        os.close(lock)


@pytest.mark.parametrize("kind", ["folder", "csv"])
def test_a_root_in_a_bucket_holds_what_a_folder_holds(kind, rooted, memory):
    options, disk = rooted
    there = split_roles.resolved(config.Data(source=kind, **options))
    here = config.Data(source=kind, root=str(disk))
    assert there.eval_split == "test"
    found, expected = (sources.open_source(data, "train", train=True) for data in (there, here))
    assert found.fingerprint() == expected.fingerprint()
    assert [found[k] for k in range(len(found))] == [expected[k] for k in range(len(expected))]
    assert len(memory.taken) == 34  # once, for any number of splits
    end_of_process()
    sources.open_source(there, "train", train=True)
    assert len(memory.taken) == 34


def test_a_copy_that_is_read_does_not_change(rooted, memory):
    options, _ = rooted
    arguments = (ROOT, options["cache"], 1.0, bucket.ROOT)
    folder = bucket.local_copy(*arguments)
    memory.put("train/cat/0.png", b"other")
    memory.put("train/cat/8.png", b"new")
    assert bucket.local_copy(*arguments) == folder  # this process reads what it found
    bucket.local_copy.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bucket.time, "sleep", lambda seconds: None)
        with pytest.raises(DataError, match=f"{ROOT}: has changed, and another process reads it"):
            bucket.local_copy(*arguments)
    assert not (folder / "train/cat/8.png").exists()
    end_of_process()
    assert bucket.local_copy(*arguments) == folder
    assert (folder / "train/cat/0.png").read_bytes() == b"other"
    assert sorted(memory.taken[34:]) == ["train/cat/0.png", "train/cat/8.png"]


def test_a_copy_that_lost_bytes_is_completed_before_it_is_read(rooted, memory):
    options, disk = rooted
    file = bucket.local_copy(ROOT, options["cache"], 1.0, bucket.ROOT) / "test.csv"
    end_of_process()
    file.write_bytes(b"image")
    bucket.local_copy(ROOT, options["cache"], 1.0, bucket.ROOT)
    assert file.read_bytes() == (disk / "test.csv").read_bytes()
    assert memory.taken[34:] == ["test.csv"]


def test_a_mistake_about_a_root_names_its_options(rooted, memory):
    options, _ = rooted
    for data, line in (
        ({"root": "memory://none"}, "data.root=memory://none: "),
        ({"root": "s3://b/photos"}, r"data.root=s3://b/photos: needs s3fs: pip install 'vit_jax\["),
        ({"cache_size": 1e-9}, rf"data.root={ROOT}: has .*; set data.cache_size=GB"),
        ({"cache": "/dev/null"}, "data.cache=/dev/null: cannot be written: "),
        ({"cache": "~nobody-of-this-name"}, "^~nobody-of-this-name: .* folder with data.cache$"),
    ):
        with pytest.raises(UserError, match=line):
            sources.open_source(config.Data(source="folder", **options | data), "train", train=True)
    caches = pathlib.Path(options["cache"])
    assert [one.name for one in caches.rglob("*") if one.is_file()] == ["lock"]  # of the full one
    assert memory.taken == []


def test_images_of_a_command_are_named_by_their_address(rooted, memory, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    files = prediction.list_files([f"{ROOT}/train/dog/", f"{ROOT}/train/cat/3.png"])
    assert sorted(memory.taken) == ["train/cat/3.png", *(f"train/dog/{n}.png" for n in range(8))]
    names = [name for name, *_ in prediction.read_files(files)]
    assert names == [*(f"{ROOT}/train/dog/{n}.png" for n in range(8)), f"{ROOT}/train/cat/3.png"]
    assert len(prediction.list_files([ROOT])) == 32  # without its lists
    monkeypatch.setattr(config.Files, "cache_size", 1e-9)
    with pytest.raises(DataError, match=r"the cache may hold .*, or copy what you need to a disk$"):
        prediction.list_files([f"{ROOT}/test"])
    monkeypatch.setenv("HOME", "/dev/null")
    with pytest.raises(DataError, match=r"^/dev/null/.cache/vit_jax/buckets: cannot be written"):
        prediction.list_files([f"{ROOT}/test"])
    end_of_process()


@pytest.mark.slow
def test_a_run_resumes_from_a_folder_to_the_bit(rooted, tmp_path, monkeypatch, one_device):
    options, disk = rooted
    data = {"source": "folder", **options, "train_split": "train"}
    start = {"train": {"batch_size": 8, "duration": "3 epochs"}, "evaluation": {"every": None}}
    cfg = runs.configure(data=data, checkpoint={"every": 2, "best": None}, **start)
    train_loop.train(cfg, tmp_path / "whole")
    with runs.stopping_at(monkeypatch, 3), pytest.raises(preemption.Preempted):
        train_loop.train(cfg, tmp_path / "stopped")
    moved = dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, root=str(disk)))
    train_loop.train(moved, tmp_path / "stopped")
    runs.assert_equal_runs(tmp_path / "stopped", tmp_path / "whole")
