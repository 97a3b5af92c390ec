"""Packed datasets: what goes in comes out, the same bytes however often it was stopped."""

import contextlib
import errno
import hashlib
import json
import multiprocessing
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import time
from concurrent import futures

import cv2
import numpy as np
import pytest

from memory_bucket import content
from official_fakes import jpeg, structured
from vit_jax import config
from vit_jax.data import decoding
from vit_jax.data.decoding import BadImage
from vit_jax.data.prepare import dedup, pack, shards, staging
from vit_jax.data.prepare.verify import verify
from vit_jax.data.source import DataError
from vit_jax.data.sources import open_source

ROOT = pathlib.Path(__file__).resolve().parents[3]


def packing(photos, data_dir, **changes):
    values = {"sources": [photos], "name": "photos", "data_dir": data_dir}
    return pack.Packing(**values | {"shard_bytes": 6_000} | changes)


def source(data_dir, split="train"):
    data = config.Data(source="tfds", name="photos", root=str(data_dir))
    return open_source(data, split, train=True)


def faults(data_dir):
    folder = data_dir / "photos" / "1.0.0"
    return list(verify(folder, workers=1))


def test_what_is_packed_is_read_back_by_the_training_source(photos, tmp_path):
    facts = pack.pack(packing(photos, tmp_path))
    packed = source(tmp_path)
    assert packed.classes == ("bird", "cat", "dog")
    names = (tmp_path / "photos/1.0.0/train.txt").read_text().split()
    expected = [f"{name}/{index}.jpg" for name in ("bird", "cat", "dog") for index in range(10)]
    expected.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
    assert names == expected
    assert len(packed) == len(names) == 30
    for index, name in enumerate(names):
        encoded, label = packed[index]
        assert encoded == (photos / name).read_bytes()
        assert packed.classes[label] == name.partition("/")[0]
    assert facts["corrupt"] == [("cat/broken.jpg", "is a truncated or damaged JPEG")]
    assert facts["ignored_first"] == ["cat/read.me"]
    assert facts["splits"]["train"]["examples"] == 30
    assert len(facts["shards"]) > 3
    written = json.loads((tmp_path / "photos/1.0.0/vit_jax.json").read_text())
    assert written == json.loads(json.dumps(facts))
    hidden = [path for path in (tmp_path / "photos").iterdir() if path.name.startswith(".")]
    assert not hidden
    assert not faults(tmp_path)
    assert "tensorflow" not in sys.modules


@pytest.mark.slow
def test_bytes_do_not_depend_on_processes(photos, tmp_path):
    pack.pack(packing(photos, tmp_path / "one"))
    before = set(multiprocessing.active_children())
    pack.pack(packing(photos, tmp_path / "two", workers=2))
    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert set(multiprocessing.active_children()) == before  # its processes have ended


def die(path, entries):
    os.kill(os.getpid(), signal.SIGKILL)


def interrupted(monkeypatch, request):
    """Packs all but for the last rename."""

    def stop(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(staging, "publish", stop)
        with pytest.raises(KeyboardInterrupt):
            pack.pack(request)


@pytest.mark.slow
def test_a_killed_worker_is_one_line_and_the_command_continues(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "_work", die)
    with pytest.raises(shards.PrepareError) as caught:
        pack.pack(packing(photos, tmp_path, workers=2))
    assert str(caught.value).startswith("a worker process was killed")
    assert caught.value.exit_code == 70
    monkeypatch.undo()
    pack.pack(packing(photos, tmp_path, workers=2))
    assert not faults(tmp_path)


def test_other_settings_do_not_continue_an_attempt(photos, tmp_path, monkeypatch):
    interrupted(monkeypatch, packing(photos, tmp_path))
    part = tmp_path / "photos/.1.0.0.part"
    with pytest.raises(DataError, match=f"was started with other images.*: rm -r {part}"):
        pack.pack(packing(photos, tmp_path, max_side=20))
    (photos / "dog/new.jpg").write_bytes((photos / "dog/0.jpg").read_bytes())
    with pytest.raises(DataError, match="was started with other images or settings"):
        pack.pack(packing(photos, tmp_path))
    (photos / "dog/new.jpg").unlink()
    finished = {p.name: p.stat().st_mtime_ns for p in (part / "whole").glob("photos-*")}
    lost = min(finished)
    (part / "whole" / lost).unlink()
    pack.pack(packing(photos, tmp_path))
    there = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "photos/1.0.0").glob("photos-*")}
    assert there.keys() == finished.keys()  # what was lost is packed again, and nothing else twice
    assert {name for name in there if there[name] != finished[name]} == {lost}
    assert not faults(tmp_path)


def test_an_interrupt_while_workers_end_leaves_none_behind(photos, tmp_path, monkeypatch):
    shutdown = futures.ProcessPoolExecutor.shutdown

    def interrupted(pool, **options):
        signal.raise_signal(signal.SIGINT)
        shutdown(pool, **options)

    monkeypatch.setattr(futures.ProcessPoolExecutor, "shutdown", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pack.pack(packing(photos, tmp_path, workers=2))
    assert not multiprocessing.active_children()


def test_only_one_command_packs_a_data_set(photos, tmp_path):
    with (
        staging.alone(packing(photos, tmp_path).part),
        pytest.raises(DataError, match="another command is packing this"),
    ):
        pack.pack(packing(photos, tmp_path))


def test_large_images_are_shrunk_and_others_keep_their_bytes(tmp_path):
    root = tmp_path / "photos"
    for name, shape in (("tall", (300, 120)), ("small", (64, 64)), ("wide", (90, 180))):
        (root / name).mkdir(parents=True)
        (root / name / "1.jpg").write_bytes(jpeg(structured(1, *shape), 98))
    facts = pack.pack(packing(root, tmp_path, max_side=128))
    assert facts["resized"] == 2
    assert facts["max_side"] == 128
    assert facts["jpeg_quality"] == 95
    packed = source(tmp_path)
    by_class = {packed.classes[label]: image for image, label in (packed[i] for i in range(3))}
    assert by_class["small"] == (root / "small/1.jpg").read_bytes()
    for name, shape in (("tall", (128, 51)), ("wide", (64, 128))):
        shrunk = decoding.decode_image(by_class[name], channels=3, max_pixels=10**6)
        assert shrunk.shape == (*shape, 3)
        original = structured(1, *((300, 120) if name == "tall" else (90, 180)))
        expected = cv2.resize(original, shape[::-1], interpolation=cv2.INTER_AREA)
        assert np.abs(shrunk.astype(int) - expected).mean() < 4


def test_any_flipped_bit_is_a_named_bad_example_or_changes_nothing(photos, tmp_path):
    pack.pack(packing(photos, tmp_path, shard_bytes=10**6))
    (shard,) = (tmp_path / "photos/1.0.0").glob("photos-*")
    whole = [source(tmp_path)[index] for index in range(30)]
    data, rng, bad = shard.read_bytes(), np.random.default_rng(0), 0
    used = len(data.rstrip(b"\0"))
    reasons = set()
    for _ in range(30):
        flipped = bytearray(data)
        flipped[rng.integers(used)] ^= 1 << int(rng.integers(8))
        shard.write_bytes(flipped)
        try:
            packed = source(tmp_path)
        except DataError:
            bad += 1
            continue
        for index in range(30):
            try:
                assert packed[index] == whole[index]
            except BadImage as error:
                reasons.add(str(error).partition(": ")[0])
                bad += 1
    assert bad > 10
    assert reasons == {"cannot be read"}


def test_verify_names_what_is_bad(photos, tmp_path):
    pack.pack(packing(photos, tmp_path))
    folder = tmp_path / "photos/1.0.0"
    name = sorted(path.name for path in folder.glob("photos-*"))[1]
    data = bytearray((folder / name).read_bytes())
    place = data.index(b"\xff\xd8\xff") + 200
    data[place] ^= 16
    (folder / name).write_bytes(data)
    (folder / "train.txt").write_text("other names\n")
    first, second, third = faults(tmp_path)
    assert first == f"{name}: its SHA-256 is not that in vit_jax.json"
    assert second == "train.txt: its SHA-256 is not that in vit_jax.json"
    assert third.startswith(f"{name}: record ")
    assert "hash mismatch" in third
    (folder / name).unlink()
    assert any(line.startswith(f"{name}: cannot be read: ") for line in faults(tmp_path))


def test_verify_counts_and_decodes(photos, tmp_path):
    pack.pack(packing(photos, tmp_path, shard_bytes=10**6))
    folder = tmp_path / "photos/1.0.0"
    file = folder / "dataset_info.json"
    file.write_text(file.read_text().replace('"30"', '"31"'))
    (folder / "vit_jax.json").unlink()
    (name,) = (path.name for path in folder.glob("photos-*"))
    assert faults(tmp_path) == [f"{name}: 30 records, not 31"]
    features = pack.features(("a", "b"))
    write = shards.tfds.core.example_serializer.ExampleSerializer(features.get_serialized_info())
    one = {"image": b"\xff\xd8\xffno", "label": np.int64(1), "file_name": b"a"}
    shards.write_records(folder / name, iter([write.serialize_example(one)] * 31))
    lines = faults(tmp_path)
    assert len(lines) == 31
    assert lines[7] == f"{name}: record 7: its image is a truncated or damaged JPEG"
    one["image"] = (photos / "dog/1.jpg").read_bytes()
    labels = (-2, -1, 0, 1, 2, 3, *[0] * 25)  # of which TFDS's -1 is no label
    rows = [write.serialize_example(one | {"label": np.int64(label)}) for label in labels]
    shards.write_records(folder / name, iter(rows))
    assert faults(tmp_path) == [
        f"{name}: record {row}: label is {label}, of 3 classes" for row, label in ((0, -2), (5, 3))
    ]


@contextlib.contextmanager
def small_disk(most):
    """Fails to write files of more bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_is_one_line_and_the_command_continues(photos, tmp_path):
    big = photos / "dog/big.jpg"
    big.write_bytes((photos / "dog/1.jpg").read_bytes() + b"\0" * 100_000)
    whole = packing(photos, tmp_path, shard_bytes=40_000_000)
    with small_disk(70_000), pytest.raises(shards.PrepareError) as caught:
        pack.pack(whole)
    remedy = "free some space and run the same command again to resume"
    assert str(caught.value).endswith(f"File too large; {remedy}")
    assert caught.value.exit_code == 70
    pack.pack(whole)
    assert not faults(tmp_path)


def test_too_little_room_is_reported_at_the_start(photos, tmp_path, monkeypatch):
    usage = type("usage", (), {"free": 10})
    monkeypatch.setattr(pack.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(shards.PrepareError, match="B are needed and 0.0 kB free"):
        pack.pack(packing(photos, tmp_path))


def test_images_of_test_sets_are_left_out_with_their_pair(photos, tmp_path):
    """Of both parts: what is held out of training is no test set."""
    tests = [structured(103), structured(205)[:, ::-1], structured(999)]
    prints = dedup.stack(
        [dedup.fingerprint(np.ascontiguousarray(image)) for image in tests], ["t 0", "t 1", "t 2"]
    )
    changes = {"prints": prints, "against": ["some"], "holdout": 0.5}
    facts = pack.pack(packing(photos, tmp_path, **changes))
    found = {name: other for name, other, _ in facts["duplicates"]}
    assert found == {"cat/3.jpg": "t 0", "dog/5.jpg": "t 1"}
    assert (facts["dedup_against"], facts["dedup_distance"]) == (["some"], 8)
    assert sum(split["examples"] for split in facts["splits"].values()) == 28


def test_prints_are_kept_for_the_next_try(photos, tmp_path, monkeypatch):
    prints = dedup.stack([dedup.fingerprint(structured(103))], ["t 0"])
    asked = packing(photos, tmp_path, prints=prints, against=["some"])
    assert pack.kept_prints(asked) is None
    interrupted(monkeypatch, asked)
    kept = pack.kept_prints(asked)
    assert kept is not None
    facts = pack.pack(packing(photos, tmp_path, prints=kept, against=["some"]))
    assert [row[:2] for row in facts["duplicates"]] == [["cat/3.jpg", "t 0"]]


def test_duplicates_stay_in_splits_to_evaluate_on(photos, tmp_path):
    (photos / "cat/broken.jpg").unlink()
    root = tmp_path / "split"
    root.mkdir()
    shutil.copytree(photos, root / "test")
    photos.rename(root / "train")
    prints = dedup.stack([dedup.fingerprint(structured(101))], ["t"])
    facts = pack.pack(packing(root, tmp_path, prints=prints, against=["some"]))
    assert [row[0] for row in facts["duplicates"]] == ["train/cat/1.jpg"]
    assert (len(source(tmp_path, "test")), len(source(tmp_path))) == (30, 29)


def test_a_split_without_a_good_image_is_refused(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "1.jpg").write_bytes(b"bad")
    reason = (
        r"packed; the first: [ab]/1\.jpg: is not a JPEG, PNG, WebP, GIF, BMP or TIFF: it starts"
    )
    with pytest.raises(DataError, match=f"none of the images of split train can be {reason}"):
        pack.pack(packing(tmp_path / "photos", tmp_path))


def test_shards_are_about_equal_and_none_is_planned_empty(tmp_path):
    """As many as the bytes of the split ask for, whatever other splits have; at most one a file."""
    sizes, split = np.array([10, 10**6, 10, 10]), np.array([2, 0, 3])
    for shard_bytes, parts in ((1, [[2], [0], [3]]), (15, [[2], [0, 3]]), (99, [[2, 0, 3]])):
        made = list(shards.divide(tmp_path / "x", "train", split, sizes, shard_bytes))
        assert [shard.positions.tolist() for shard in made] == parts
        assert [shard.size for shard in made] == [10 * len(part) for part in parts]
        assert made[-1].path.name.endswith(f"-of-{len(parts):05d}")


SCRIPT = """
import multiprocessing, pathlib, sys
from vit_jax.runtime import progress
from vit_jax.data.prepare import pack
def main():
    packing = pack.Packing(sources=[pathlib.Path(sys.argv[1])], name="photos", workers=2,
        data_dir=pathlib.Path(sys.argv[2]), shard_bytes=6_000)
    progress.Bar.update = lambda self, done: done and print(
        *(p.pid for p in multiprocessing.active_children()), flush=True)
    pack.pack(packing)
if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_workers_leave_when_the_command_is_killed(photos, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = [sys.executable, str(script), str(photos), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
    assert run.stdout
    children = []
    while len(children) < 2 and (line := run.stdout.readline()):
        children = [int(word) for word in line.split()]
    run.kill()
    run.communicate(timeout=60)  # a process that stayed would keep the pipe open
    assert len(children) == 2
    deadline = time.monotonic() + 10
    while there := [one for one in children if pathlib.Path(f"/proc/{one}/cmdline").exists()]:
        assert time.monotonic() < deadline, there
        time.sleep(0.1)


def test_names_that_are_no_text_are_packed(photos, tmp_path):
    odd = os.fsdecode(b"caf\xe9\n.jpg")
    (photos / "cat/1.jpg").rename(photos / "cat" / odd)
    facts = pack.pack(packing(photos, tmp_path))
    assert facts["splits"]["train"]["examples"] == 30
    assert "cat/caf\\xe9\\n.jpg" in (tmp_path / "photos/1.0.0/train.txt").read_text().split("\n")
    assert not faults(tmp_path)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(errno.EIO, "Input/output error", "x"), "cannot write: Input/output error"),
        (RuntimeError("of array_record; more"), "cannot write: of array_record"),
        (OSError(errno.ENOSPC, "No space left on device"),
         "cannot write: No space left on device; free some space and run the same command again "
         "to resume"),
    ],
)  # fmt: skip
def test_a_disk_that_fails_is_one_line(error, line, tmp_path):
    with (
        pytest.raises(config.UserError, match=f"^{tmp_path}: {line}$"),
        shards.disk_errors(tmp_path / "data"),
    ):
        raise error
