"""`vit_jax prepare --dry-run`: the same checks, a plan instead of the work, and nothing written."""

import json
import pathlib
import re

import pytest
import test_tfrecords
from array_record.python.array_record_data_source import ArrayRecordDataSource

import official_fakes
import tfds_fakes
from commands import woe
from vit_jax.data import datasets, tasks
from vit_jax.data.prepare import command, download, staging
from vit_jax.data.prepare.official import build

FREE = r"; [\d.,]+ (GB|MB|TB) of disk space is free"


def files(root):
    """Returns the paths, sizes and times of everything below a folder."""
    return {p: (p.stat().st_size, p.stat().st_mtime_ns) for p in pathlib.Path(root).rglob("*")}


@pytest.fixture
def dry_run(prepare, tmp_path):
    """Runs `prepare --dry-run` and checks that no file appeared or changed."""

    def run(*arguments):
        before = files(tmp_path)
        result = prepare(*arguments, "--dry-run")
        assert files(tmp_path) == before
        return result

    return run


def test_folders_of_images(dry_run, prepare, photos, tmp_path):
    code, lines, errors = dry_run("my_photos", f"--from={photos}")
    assert (code, errors) == (0, [])
    size = sum(path.stat().st_size for path in photos.rglob("*.jpg"))
    assert lines[0] == f"my_photos: would read {photos}: 31 images, {size / 1e3:.1f} kB"
    folder = tmp_path / "data/my_photos/1.0.0"
    assert re.fullmatch(
        f"my_photos: would write {folder}: 2 shards, about {size / 1e3:.1f} kB{FREE}", lines[-1]
    )
    assert lines[-2] == "my_photos: would skip 1 .me (no image)"
    # The plan counts images that turn out to be unreadable; the rest is what is packed.
    planned = {line.split()[1]: int(line.split()[2]) for line in lines[1:3]}
    (photos / "cat/broken.jpg").unlink()
    code, lines, _ = prepare("my_photos", f"--from={photos}")
    assert code == 0
    packed = {line.split()[1]: int(line.split()[2]) for line in lines[:2]}
    assert planned == packed | {"train:": packed["train:"] + 1}
    code, again, _ = dry_run("my_photos", f"--from={photos}")
    assert code == 0
    assert again[0].startswith("my_photos: is packed already, 30 images in ")


def test_images_that_are_shrunk_have_no_known_size(dry_run, photos):
    _, lines, _ = dry_run("my_photos", f"--from={photos}", "--max-side=16")
    assert "2 shards, images shrunk to 16 pixels; " in lines[-1]


def test_test_sets_for_deduplication_are_named(dry_run, photos, tmp_path):
    assert woe(dry_run("mine", f"--from={photos}", "--dedup-against=nothing")).startswith(
        "--dedup-against=nothing: no such task"
    )
    code, lines, errors = dry_run("mine", f"--from={photos}", "--dedup-against=vtab/dtd")
    assert (code, len(lines), len(errors)) == (2, 1, 1)
    assert "--dedup-against=vtab/dtd: is not prepared" in errors[0]
    tfds_fakes.prepare(tmp_path / "data", "dtd", {"train": 1, "validation": 1, "test": 3})
    code, lines, _ = dry_run("mine", f"--from={photos}", "--dedup-against=vtab/dtd")
    assert code == 0
    assert lines[1] == "mine: would read 3 images: dtd/3.0.1 test, to leave out duplicates"


def test_official_archives_are_counted_in_place(dry_run, monkeypatch, tmp_path):
    """Tars are counted; one image less is the same error as without --dry-run."""
    splits = official_fakes.imagenet2012(tmp_path / "tars")
    small = official_fakes.resized(build.RECIPES["imagenet2012"], splits)
    monkeypatch.setitem(build.RECIPES, "imagenet2012", small)
    code, lines, errors = dry_run("imagenet", f"--from={tmp_path}/tars")
    assert (code, errors) == (0, [])
    number = len(list((tmp_path / "tars").iterdir()))
    assert lines[0].startswith(f"imagenet: would read {tmp_path}/tars: {number} files, ")
    for line, (split, count) in zip(lines[1:-1], splits.items(), strict=True):
        assert line.startswith(f"imagenet: {split}: {count} of {count} images, ")
    assert re.search(f"would write {tmp_path}/data/imagenet2012/5.1.0: about .*{FREE}", lines[-1])
    more = official_fakes.resized(small, {k: v + 1 for k, v in splits.items()})
    monkeypatch.setitem(build.RECIPES, "imagenet2012", more)
    code, _, errors = dry_run("imagenet", f"--from={tmp_path}/tars")
    assert code == 2
    assert "to pack the available images, add --partial" in errors[0]
    code, lines, _ = dry_run("imagenet", f"--from={tmp_path}/tars", "--partial")
    assert code == 0
    assert f"{splits['train']} of {splits['train'] + 1} images" in lines[1]


def test_small_archives_are_unpacked_elsewhere_and_counted(dry_run, monkeypatch, tmp_path):
    splits = official_fakes.cifar10(tmp_path / "archives")
    small = official_fakes.resized(build.RECIPES["cifar10"], splits)
    monkeypatch.setitem(build.RECIPES, "cifar10", small)
    code, lines, errors = dry_run("cifar10", f"--from={tmp_path}/archives")
    assert (code, errors) == (0, [])
    assert lines[1].startswith("cifar10: train: 20 of 20 images, ")
    assert lines[2].startswith("cifar10: test: 5 of 5 images, ")


def test_large_archives_that_need_unpacking_are_named(dry_run, monkeypatch, tmp_path):
    monkeypatch.setattr(build, "UNPACKED_LIMIT", 1000)
    official_fakes.cifar10(tmp_path / "archives")
    archive = tmp_path / "archives/cifar-10-binary.tar.gz"
    code, lines, errors = dry_run("cifar10", f"--from={archive}")
    assert (code, errors) == (0, [])
    assert lines[1:4] == [
        f"cifar10: would unpack {archive} next to the target; the images are counted only then",
        "cifar10: train: 50,000 images expected",
        "cifar10: test: 10,000 images expected",
    ]
    assert lines[4].startswith(f"cifar10: would write {tmp_path}/data/cifar10/3.0.2: at least ")
    assert woe(dry_run("cifar10", f"--from={tmp_path}/none")) == (
        f"--from={tmp_path}/none: no such file or folder"
    )


def test_downloads_are_listed_without_a_network(dry_run, monkeypatch, tmp_path):
    def reached(*arguments):
        raise AssertionError("a dry run needs no network")

    monkeypatch.setattr(download.socket, "getaddrinfo", reached)
    monkeypatch.setattr(download.importlib.util, "find_spec", lambda name: True)
    code, lines, errors = dry_run("flowers", "mnist")
    assert (code, errors) == (0, [])
    assert lines[0] == (
        "flowers: would download 102flowers.tgz (344.9 MB), imagelabels.mat (0.5 kB), setid.mat "
        "(15.0 kB): 344.9 MB in all"
    )
    assert lines[1:4] == [
        f"flowers: {split}: {number:,} images expected"
        for split, number in datasets.FLOWERS.images.items()
    ]
    assert "mnist: would download t10k-images-idx3-ubyte.gz" in lines[5]
    assert f"mnist: would write {tmp_path}/data/mnist/3.0.1: converted by TFDS; " in lines[6]
    monkeypatch.setattr(download.importlib.util, "find_spec", lambda name: None)
    (tmp_path / "ILSVRC2012_img_train.tar").write_text("")
    (tmp_path / "ILSVRC2012_img_val.tar").write_text("")
    assert "TFDS needs tensorflow, scipy" in woe(dry_run("imagenet-c/fog_1", f"--from={tmp_path}"))
    assert "imagenet: put into" in woe(dry_run("imagenet"))


def test_a_copy_in_tfrecord_files(dry_run, tmp_path):
    builder = tfds_fakes.prepare(
        tmp_path / "old", "dtd", {"train": 800, "validation": 200, "test": 3}
    )
    folder = pathlib.Path(builder.data_path)
    for shard in folder.glob("*array_record*"):
        data = test_tfrecords.framed(list(ArrayRecordDataSource(str(shard))))
        shard.with_name(shard.name.replace("array_record", "tfrecord")).write_bytes(data)
        shard.unlink()
    info = folder / "dataset_info.json"
    info.write_text(info.read_text().replace('"array_record"', '"tfrecord"'))
    size = sum(path.stat().st_size for path in folder.glob("*.tfrecord*"))
    code, lines, errors = dry_run("vtab/dtd", f"--from={tmp_path}/old")
    assert (code, errors) == (0, [])
    assert lines[0] == f"vtab/dtd: would read {folder}: 3 TFRecord files, {size / 1e3:.1f} kB"
    assert sorted(lines[1:4]) == [
        "vtab/dtd: test: 3 examples",
        "vtab/dtd: train: 800 examples",
        "vtab/dtd: validation: 200 examples",
    ]
    assert lines[4].startswith(f"vtab/dtd: would write {tmp_path}/data/dtd/3.0.1: 3 shards, ")
    listing = tmp_path / "data/examples/vtab/dtd.json"
    assert lines[5] == f"vtab/dtd: would list its 1,000 images in {listing}"
    assert "is a copy of dtd, not of oxford_flowers102" in woe(
        dry_run("flowers", f"--from={folder}")
    )


def test_real_labels_and_verification(dry_run, prepare, photos, tmp_path):
    file = tmp_path / "real.json"
    file.write_text(json.dumps([[1]] * 50_000))
    code, lines, _ = dry_run("imagenet-real", f"--from={file}")
    assert code == 0
    assert lines[0].startswith(f"imagenet-real: would read {file}: labels of 50,000 images, ")
    file.write_text("[]")
    assert dry_run("imagenet-real", f"--from={file}")[0] == 2
    assert "is one file: real.json" in woe(dry_run("imagenet-real"))
    assert "new: is not prepared in" in woe(dry_run("new", "--verify"))
    prepare("new", f"--from={photos}")
    code, lines, _ = dry_run("new", "--verify")
    assert code == 0
    (line,) = lines
    folder = tmp_path / "data/new/1.0.0"
    assert line.startswith(f"new: would read {folder}: 30 examples in 2 shards, ")


def test_a_target_that_cannot_hold_the_data(dry_run, photos, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/my_photos").write_text("")
    code, _, errors = dry_run("my_photos", f"--from={photos}")
    assert code == 2
    assert f"{tmp_path}/data/my_photos is not a writable folder" in errors[0]
    (tmp_path / "data/my_photos").unlink()
    monkeypatch.setattr(staging, "free_bytes", lambda target: 10)
    code, lines, errors = dry_run("my_photos", f"--from={photos}")
    assert code == 70  # as without --dry-run
    assert "0.0 kB of disk space is free" in lines[-1]
    assert "GB are needed and 0.0 GB free; " in errors[0]


def test_every_task_of_vtab_lists_1000_images(tmp_path):
    request = command.Request(data_dir=str(tmp_path), dry_run=True)
    request = command.Request(data_dir=str(tmp_path), dry_run=True)
    for task in tasks.select("vtab/*"):
        assert "would list its 1,000 images in" in command.list_examples(task, request)


def test_the_mapping_of_objectnet_is_looked_for(dry_run, photos, tmp_path):
    _, lines, _ = dry_run("objectnet", f"--from={photos}")
    assert lines[-1].startswith(
        "objectnet: cannot be evaluated without its mapping to ImageNet's classes"
    )
    tfds_fakes.write_mappings(tmp_path / "mappings")
    _, lines, _ = dry_run("objectnet", f"--from={photos}")
    folder = tmp_path / "data/objectnet/1.0.0"
    assert lines[-1] == (
        f"objectnet: would copy its mapping to ImageNet's classes from {tmp_path}/mappings to "
        f"{folder}/mappings"
    )
