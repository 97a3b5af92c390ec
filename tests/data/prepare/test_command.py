"""`vit_jax prepare` as its users meet it: what it does with a name, and one line for mistakes."""

import io
import json
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys

import cv2
import numpy as np
import pytest
import tensorflow_datasets as tfds

import official_fakes
import runs
import tfds_fakes
from commands import printed, woe
from memory_bucket import content
from vit_jax import config
from vit_jax.data import availability, datasets, decoding, example_lists
from vit_jax.data.prepare import command, download, pack, tfrecords
from vit_jax.data.prepare.official import build
from vit_jax.data.prepare.request import Request, file_sizes
from vit_jax.data.prepare.shards import read_info
from vit_jax.data.source import DataError
from vit_jax.data.sources import open_source
from vit_jax.data.tasks import TASKS
from vit_jax.utils import storage

FREE = r"; [\d.,]+ (GB|MB|TB) of disk space is free"


def files(root):
    """The paths, sizes and times of everything below a folder."""
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


@pytest.fixture
def data_dir(tmp_path):
    return tmp_path / "data"


def test_packs_once_and_says_where(prepare, photos, data_dir):
    folder = data_dir / "my_photos/1.0.0"
    assert prepare("my_photos", f"--from={photos}") == (0, [
        "my_photos: train: 26 images of 3 classes",
        "my_photos: validation: 4 images of 3 classes",
        f"my_photos: 1 files cannot be read and are left out; {folder}/vit_jax.json names them",
        "my_photos: 1 files are left out: 1 .me (no image)",
        f"my_photos: in {folder}; to train on it: vit_jax train tfds --config.data.name=my_photos "
        f"--config.data.root={data_dir} --config.data.eval_split=validation",
    ], [])  # fmt: skip
    remedy = f"remove it: rm -r {folder}"
    there = f"my_photos: is packed already, 30 images in {folder}; to pack others, {remedy}"
    assert prepare("my_photos", f"--from={photos}") == (0, [there], [])
    changed = f"was packed with max_side None, not 20; to pack it again, {remedy}"
    assert woe(prepare("my_photos", f"--from={photos}", "--max-side=20")).endswith(changed)
    good = f"30 examples in {folder}, all good"
    assert prepare("my_photos", "--verify") == (0, [f"my_photos: {good}"], [])
    assert prepare("my_photos:1.*.*", "--verify") == (0, [f"my_photos:1.*.*: {good}"], [])


@pytest.mark.parametrize(
    ("names", "flags"),
    [
        (("train", "dev"), ["eval_split=dev"]),
        (("train",), ["train_split=train[:90%]", "eval_split=train[90%:]"]),
        (("Training", "validation"), ["train_split=Training", "eval_split=validation"]),
    ],
)
def test_the_command_to_train_with_names_the_splits_that_there_are(names, flags, data_dir):
    packing = pack.Packing(sources=(), name="mine", data_dir=data_dir)
    flags = ["name=mine", f"root={data_dir}", *flags]
    expected = ["vit_jax", "train", "tfds", *(f"--config.data.{flag}" for flag in flags)]
    assert shlex.split(pack._training_command(packing, names)) == expected


def test_packs_images_without_labels(prepare, photos, tmp_path, data_dir):
    """Whatever their folders are called; a model that learns from labels cannot take them."""
    folder = data_dir / "mine/1.0.0"
    (photos / "loose.jpg").write_bytes((photos / "cat/1.jpg").read_bytes())
    lines = printed(prepare("mine", f"--from={photos}", "--no-labels", "--dry-run"))
    assert lines[1].startswith("mine: train: 29 images without labels, ")
    assert prepare("mine", f"--from={photos}", "--no-labels") == (0, [
        "mine: train: 28 images without labels",
        "mine: validation: 3 images without labels",
        f"mine: 1 files cannot be read and are left out; {folder}/vit_jax.json names them",
        "mine: 1 files are left out: 1 .me (no image)",
        f"mine: in {folder}; to train on it: vit_jax train tfds --config.data.name=mine "
        f"--config.data.root={data_dir} --config.data.eval_split=validation "
        "--config.objective.name=mae",
    ], [])  # fmt: skip
    assert sorted(read_info(folder).features) == ["file_name", "image"]
    names = (folder / "train.txt").read_text() + (folder / "validation.txt").read_text()
    assert sorted(names.split()) == sorted(
        str(p.relative_to(photos)) for p in photos.rglob("*.jpg") if p.name != "broken.jpg"
    )
    data = config.Tfds(name="mine", root=str(data_dir))
    found = open_source(data, "train", labels=False)
    assert ({found[at].label for at in range(28)}, found.classes) == ({-1}, ())
    with pytest.raises(DataError, match="one class label; .* set objective.name=mae or dino$"):
        open_source(data, "train")
    assert "was packed without labels; to pack it again, " in woe(
        prepare("mine", f"--from={photos}")
    )
    there = prepare("mine", f"--from={photos}", "--no-labels")
    assert there[1][0].startswith("mine: is packed already, 31 images")
    again = f"--data-dir={tmp_path / 'again'}"
    assert woe(prepare("mine", f"--from={photos}", again, "--no-labels", "--label=x")) == (
        "--label=x: contradicts --no-labels; give one"
    )
    assert woe(prepare("imagenet21k", f"--from={photos}", again, "--no-labels")) == (
        "--no-labels: is for images of your own, and imagenet21k has classes"
    )
    assert "--no-labels: is for folders, tars and tables" in woe(prepare("cifar10", "--no-labels"))


def test_a_split_that_is_held_out_is_that_of_a_folder(prepare, photos, data_dir):
    """The same images as `data.holdout` takes of the folder itself; others come and go."""
    (photos / "cat" / "broken.jpg").unlink()
    prepare("my_photos", f"--from={photos}", "--holdout=0.3")
    names = (data_dir / "my_photos/1.0.0/validation.txt").read_text().split()
    data = config.Data(source="folder", root=str(photos), holdout=0.3)
    held = open_source(data, "test", train=False)
    assert sorted(names) == [
        str(pathlib.Path(held.name(i)).relative_to(photos)) for i in range(len(held))
    ]
    facts = json.loads((data_dir / "my_photos/1.0.0/vit_jax.json").read_text())
    assert facts["holdout"] == 0.3
    assert "was packed with holdout 0.3, not 0.1; to pack it again, remove it: rm -r" in woe(
        prepare("my_photos", f"--from={photos}")
    )


def test_a_holdout_that_is_not_needed_is_said_to_be_unused(prepare, photos, tmp_path):
    shutil.copytree(photos, tmp_path / "given/test")
    photos.rename(tmp_path / "given/train")
    code, lines, _ = prepare("my_photos", f"--from={tmp_path}/given", "--holdout=0.2")
    assert (code, lines[0]) == (0, "my_photos: --holdout=0.2: not used, as splits are given")
    assert "--config.data.eval_split=test" in lines[-1]


def test_gifs_and_bitmaps_are_packed_as_png(prepare, photos, data_dir):
    for index, suffix in enumerate((".gif", ".bmp")):
        pixels = cv2.imread(str(photos / f"dog/{index}.jpg"))
        cv2.imwrite(str(photos / f"dog/new{suffix}"), pixels)
    lines = printed(prepare("my_photos", f"--from={photos}", "--holdout=0"))
    assert lines[0] == "my_photos: train: 32 images of 3 classes"
    data = config.Data(source="tfds", name="my_photos", root=str(data_dir))
    source = open_source(data, "train", train=True)
    kinds = [bytes(source[index].image[:4]) for index in range(len(source))]
    assert sorted(kinds) == sorted([b"\x89PNG"] * 2 + [b"\xff\xd8\xff\xe0"] * 30)
    again = woe(prepare("my_photos", f"--from={photos}"))
    assert "was packed with holdout 0.0, not 0.1; to pack it again, remove it: rm -r" in again


@pytest.mark.parametrize("side", [None, 64])
def test_images_of_16_bits_keep_them(prepare, photos, data_dir, side):
    pixels = np.arange(2**16, dtype=np.uint16).reshape(256, 256)
    names = {f"dog/deep.{kind}" for kind in ("png", "tif")}
    for name in names:
        cv2.imwrite(str(photos / name), pixels)
    prepare("my_photos", f"--from={photos}", "--holdout=0", *[f"--max-side={side}"] * bool(side))
    data = config.Data(source="tfds", name="my_photos", root=str(data_dir))
    source = open_source(data, "train", train=True)
    found = [k for k in range(len(source)) if source.file_name(k) in names]
    assert len(found) == 2
    expected = pixels.reshape(64, 4, 64, 4).mean((1, 3)) if side else pixels
    for k in found:
        view = decoding.load_image(source[k].image, channels=1, max_pixels=2**16, depth=16)
        np.testing.assert_allclose(view[:, :, 0], expected, atol=0.5)


def test_verify_exits_with_2_where_something_is_bad(prepare, photos, data_dir):
    prepare("my_photos", f"--from={photos}")
    (shard,) = (data_dir / "my_photos/1.0.0").glob("my_photos-train*")
    data = bytearray(shard.read_bytes())
    data[data.index(b"\xff\xd8\xff") + 100] ^= 1
    shard.write_bytes(data)
    code, lines, errors = prepare("my_photos", "--verify")
    assert code == 2
    assert len(lines) == 2
    assert all(line.startswith(f"my_photos: {shard.name}: ") for line in lines)
    assert errors == [
        f"vit_jax: my_photos: 2 faults in {shard.parent}; remove it and prepare it again"
    ]


def test_images_of_other_tasks_are_left_out(prepare, photos, data_dir):
    """The test split of Flowers gets two of the photos, one as other bytes."""
    builder = tfds.builder("oxford_flowers102", data_dir=str(data_dir), file_format="array_record")
    (photos / "dog/5.jpg").rename(photos / "bird/5.jpg")
    images = [photos / "bird/5.jpg", photos / "cat/3.jpg"]

    def generate(number):
        for index, path in enumerate(images[:number]):
            image = io.BytesIO(path.read_bytes())
            yield index, {"image": image, "label": index, "file_name": str(index)}

    splits = {"train": 1, "validation": 1, "test": 2}
    builder._split_generators = lambda manager: {
        split: generate(number) for split, number in splits.items()
    }
    tfds.disable_progress_bar()
    builder.download_and_prepare()
    against = ("--dedup-against", "flowers", "vtab/flowers102")
    lines = printed(prepare("my_photos", f"--from={photos}", *against))
    counts = [int(line.split()[2]) for line in lines[:2]]  # train, and what is held out of it
    assert sum(counts) == 27
    facts = json.loads((data_dir / "my_photos/1.0.0/vit_jax.json").read_text())
    names, others, distances = zip(*facts["duplicates"], strict=True)
    assert sorted(names) == ["bird/5.jpg", "cat/3.jpg"]
    assert sorted(others) == [f"oxford_flowers102/2.1.1 test example {k}" for k in (0, 1)]
    assert distances == (-1, -1)
    assert facts["dedup_against"] == ["flowers", "vtab/flowers102"]


KILLED = """
import os, signal, sys
from vit_jax import cli
count, made, original = int(sys.argv[1]), 0, os.fsync

def fsync(descriptor):
    global made
    made += 1
    if made == count:
        os.kill(os.getpid(), signal.SIGKILL)
    original(descriptor)

os.fsync = fsync
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["photos", "official", "copy"])
def test_a_command_that_is_killed_continues_to_the_same_bytes(kind, photos, prepare, tmp_path):
    """Every fsync is a point between two states of the disk; each try gets a little further."""
    if kind == "photos":
        words = ["my_photos", f"--from={photos}"]
    elif kind == "official":
        official_fakes.cifar10(tmp_path / "archives")
        words = ["cifar10", f"--from={tmp_path}/archives", "--partial"]
    else:
        splits = {"train": 9, "validation": 5, "test": 3}
        copy = tfds_fakes.as_tfrecords(tfds_fakes.prepare(tmp_path / "old", "dtd", splits))
        words = ["fewshot/dtd", f"--from={copy}"]
    assert prepare(*words, data_dir="whole")[0] == 0
    again, kills = tmp_path / "again", 0
    for count in (1, 2, 3, 6, 9, 99):
        command = ["prepare", *words, f"--data-dir={again}", "--workers=1"]
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(count), *command],
            cwd=runs.ROOT,
            capture_output=True,
            check=False,
        )
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        kills += 1
    assert kills >= 2
    assert content(again) == content(tmp_path / "whole")


@pytest.mark.parametrize(
    "facts",
    [
        "[]",
        '{"splits": []}',
        '{"splits": {"train": 3}}',
        '{"splits": {"train": {"examples": 3, "names_sha256": 3}}, "shards": {}}',
        "[" * 10**5,
        "\xff",
        "NaN",
    ],
)
def test_a_folder_with_other_facts_is_named(facts, prepare, photos, data_dir):
    prepare("my_photos", f"--from={photos}")
    folder = data_dir / "my_photos/1.0.0"
    (folder / "vit_jax.json").write_text(facts, encoding="latin-1")
    assert woe(prepare("my_photos", f"--from={photos}")) == (
        f"{folder}: exists, but was not packed by this command; remove it"
    )
    assert "vit_jax.json: is damaged" in woe(prepare("my_photos", "--verify"))


def test_imagenet21k_is_packed_as_the_split_that_its_runs_name(prepare, photos, data_dir):
    lines = printed(prepare("imagenet21k", f"--from={photos}"))
    assert lines[0] == "imagenet21k: full: 30 images of 3 classes"
    assert lines[-1] == (
        "imagenet21k: has 3 classes, not the 21,843 of the paper's models, whose heads do not fit"
    )
    assert (data_dir / "imagenet21k/1.0.0/full.txt").exists()
    found = availability.find_prepared(TASKS["imagenet21k"].dataset, data_dir)
    assert found is not None
    assert (found.readable, found.images) == (True, {"full": 30})


def test_a_list_of_examples_is_of_labels_that_are_made(prepare, data_dir):
    """SmallNORB's classes are poses; without their rule it has none of the images' own."""
    task = "vtab/smallnorb-azimuth"
    tfds_fakes.prepare_vtab(data_dir, task)
    path = data_dir / f"examples/{task}.json"
    lines = printed(prepare(task))
    assert lines[0].startswith(f"{task}: is prepared already, in ")
    assert lines[1].startswith(f"{task}: its 1,000 images are listed in {path}, SHA-256 ")
    before = path.read_bytes()
    lines = printed(prepare(task))
    assert lines[1] == f"{task}: the images of {path} are all there"
    assert path.read_bytes() == before
    listing = json.loads(before)
    listing["examples"][5] = "0" * 16
    listing["sha256"] = example_lists.ExampleList("", "", "", "", tuple(listing["examples"])).sha256
    path.write_text(json.dumps(listing))
    code, _, errors = prepare(task)
    assert code == 2
    assert "1 of its 1000 images are not there, beginning with number 5" in errors[-1]


def test_real_labels_are_checked_and_kept(prepare, dry_run, tmp_path, data_dir):
    file, target = tmp_path / "real.json", data_dir / "imagenet_real/real.json"
    assert "is one file: real.json" in woe(dry_run("imagenet-real"))
    file.write_text("[]")
    assert dry_run("imagenet-real", f"--from={file}")[0] == 2
    file.write_text(json.dumps([[index % 1000] * bool(index % 20) for index in range(50_000)]))
    lines = printed(dry_run("imagenet-real", f"--from={file}"))
    assert lines[0].startswith(f"imagenet-real: would read {file}: labels of 50,000 images, ")
    line = f"imagenet-real: 50,000 images, 2,500 of them without a label, in {target}"
    assert prepare("imagenet-real", f"--from={file}") == (0, [line], [])
    assert target.read_bytes() == file.read_bytes()
    imported = ["imagenet-real: 50,000 images, as imported"]
    assert prepare("imagenet-real", "--verify") == (0, imported, [])
    target.write_text(json.dumps([[1]] * 50_000))
    changed = "its SHA-256 has changed since it was imported"
    assert changed in woe(prepare("imagenet-real", "--verify"))
    target.with_suffix(".sha256").unlink()
    assert "real.sha256: No such file" in woe(prepare("imagenet-real", "--verify"))


def test_an_import_of_labels_that_is_killed_can_be_repeated(prepare, tmp_path, monkeypatch):
    """Labels that are there have their digest, too: it is written before them."""
    file = tmp_path / "real.json"
    file.write_text(json.dumps([[1]] * 50_000))
    write, written = storage.write_atomically, []

    def killed(path, content):
        if written:
            raise KeyboardInterrupt
        written.append(path)
        write(path, content)

    monkeypatch.setattr(storage, "write_atomically", killed)
    request = Request(data_dir=str(tmp_path / "data"), sources=[str(file)])
    with pytest.raises(KeyboardInterrupt):
        list(command.prepare("imagenet-real", request))
    monkeypatch.undo()
    assert "is one file: real.json" in woe(prepare("imagenet-real"))
    assert prepare("imagenet-real", f"--from={file}")[0] == 0
    assert prepare("imagenet-real", "--verify")[0] == 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["cifr10"], "cifr10: no such task; did you mean cifar10?"),
        (["new", "--from=none"], "--from=none: no such file or folder"),
        (["new", "--from=empty"], "has no image; images end in"),
        (["new", "--from=one"], "one class folder alone, cat"),
        (["new", "--verify"],
         "new: is not prepared in DATA; first: vit_jax prepare new --from=FOLDER"),
        (["cifar10", "--from=photos"], "choose another name"),
        (["mnist", "--from=photos"], "TFDS has a dataset of this name"),
        (["My-Photos", "--from=photos"], "small letters, digits and _"),
        (["imagenet21k"], "is packed from files of yours: fall11_whole.tar"),
        (["flowers", "--max-side=512"], "--max-side: is for folders, tars and tables that are "
                                        "packed; flowers packs none"),
        (["new", "--from=photos", "--partial"],
         "--partial: is for datasets with an official number of images, and new has none"),
        (["mnist", "--partial"],
         "--partial: is for datasets with an official number of images, and mnist has none"),
        (["a", "b", "--from=photos"], "for one name at a time"),
        (["new", "--from", "a.tar", "gs://b/c.tar"], "needs gcsfs: pip install"),
        (["imagenet-real", "--from=photos", "--max-side=512"], "packed; imagenet-real packs none"),
        (["new", "--verify", "--no-labels"], "--no-labels: is for folders, tars and tables that "
                                             "are packed; --verify packs none"),
        (["new", "--from=photos", "--dedup-distance=4"],
         "--dedup-distance=4: is for --dedup-against=TASK,..., and none is"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(prepare, photos, tmp_path, data_dir, monkeypatch, words, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "one/cat").mkdir(parents=True)
    (tmp_path / "one/cat/1.jpg").write_bytes(b"")
    assert line in woe(prepare(*words)).replace(str(data_dir), "DATA")
    assert not (data_dir / words[0]).exists()


def test_files_that_the_user_has_to_download_are_named(prepare, dry_run, tmp_path, data_dir):
    manual = data_dir / "downloads/manual"
    assert woe(prepare("vtab/resisc45")).startswith(
        f"vtab/resisc45: put into {manual}: NWPU-RESISC45.rar"
    )
    assert woe(dry_run("imagenet")).startswith(
        f"imagenet: put into {manual}: ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar from "
    )
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/ILSVRC2012_img_val.tar").write_text("")
    assert f"{tmp_path}/mine lacks ILSVRC2012_img_train.tar;" in woe(
        prepare("imagenet-c/fog_1", f"--from={tmp_path}/mine")
    )


def test_what_tfds_needs_is_named(prepare, dry_run, tmp_path, monkeypatch):
    monkeypatch.setattr(download.importlib.util, "find_spec", lambda name: None)
    for split in ("train", "val"):
        (tmp_path / f"ILSVRC2012_img_{split}.tar").write_text("")
    for run in (prepare, dry_run):
        assert woe(run("imagenet-c/fog_1", f"--from={tmp_path}")) == (
            "imagenet-c/fog_1: TFDS needs tensorflow, scipy, scikit-image to prepare it, once: "
            "pip install 'vit_jax[prepare]'"
        )


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ModuleNotFoundError("No module named 'scipy'", name="scipy"), 2, "TFDS needs scipy"),
        (OSError(28, "No space left on device"), 70, "No space left on device; free some space"),
        (OSError("Not enough disk space. Needed: 1 TiB"), 70, "Needed: 1 TiB; free some space"),
        (ConnectionError("reset\nby peer"), 70, "mnist: reset by peer"),
        (RuntimeError("the tar\nis not what I want"), 2, "RuntimeError: the tar is not what"),
        (AssertionError(), 2, "mnist: AssertionError: AssertionError"),
    ],
)
def test_whatever_a_builder_raises_is_one_line(prepare, monkeypatch, error, code, line):
    def fail(self, **arguments):
        raise error

    monkeypatch.setattr(download, "check_network", lambda one, name: None)
    monkeypatch.setattr(download.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", fail)
    found, lines, errors = prepare("mnist")
    assert (found, lines, len(errors)) == (code, [], 1)
    assert line in errors[0]


def test_what_tfds_prepares_is_array_record_and_is_prepared_once(prepare, monkeypatch, data_dir):
    def generators(self, manager):
        def some(number):
            return ((i, tfds_fakes.example(self, "train", i)) for i in range(number))

        return {"train": some(8), "test": some(5)}

    monkeypatch.setattr(tfds.builder_cls("mnist"), "_split_generators", generators)
    looked = []
    monkeypatch.setattr(download, "check_network", lambda one, name: looked.append(name))
    monkeypatch.setattr(download.importlib.util, "find_spec", lambda name: True)
    prepared = f"mnist: prepared, in {data_dir}/mnist/3.0.1"
    assert prepare("mnist")[:2] == (0, [prepared])
    assert looked == ["mnist"]
    again = f"mnist: is prepared already, in {data_dir}/mnist/3.0.1"
    assert prepare("mnist") == (0, [again], [])
    assert read_info(data_dir / "mnist/3.0.1").file_format == tfds.core.FileFormat.ARRAY_RECORD


def test_no_network_is_said_at_once(prepare, monkeypatch):
    def nowhere(*arguments):
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr(download.socket, "getaddrinfo", nowhere)
    monkeypatch.setattr(download.urllib.request, "getproxies", dict)
    monkeypatch.setattr(download.importlib.util, "find_spec", lambda name: True)
    code, lines, errors = prepare("vtab/dtd", "flowers")
    assert (code, lines) == (70, [])
    assert errors[0].startswith("vit_jax: vtab/dtd: cannot reach www.robots.ox.ac.uk (Name or")
    assert errors[1].startswith("vit_jax: flowers: cannot reach")
    assert errors[1].endswith(
        "; or get 102flowers.tgz, imagelabels.mat and setid.mat from "
        "www.robots.ox.ac.uk/~vgg/data/flowers/102, and give their folder by --from="
    )


def test_a_copy_in_tfrecord_files_is_converted(prepare, dry_run, tmp_path, data_dir):
    old = tmp_path / "old"
    builder = tfds_fakes.prepare(old, "dtd", {"train": 800, "validation": 200, "test": 3})
    folder = tfds_fakes.as_tfrecords(builder)
    size = sum(path.stat().st_size for path in folder.glob("*.tfrecord*"))
    lines = printed(dry_run("vtab/dtd", f"--from={old}"))
    assert lines[0] == f"vtab/dtd: would read {folder}: 3 TFRecord files, {size / 1e3:.1f} kB"
    assert sorted(lines[1:4]) == [
        "vtab/dtd: test: 3 examples",
        "vtab/dtd: train: 800 examples",
        "vtab/dtd: validation: 200 examples",
    ]
    assert lines[4].startswith(f"vtab/dtd: would write {data_dir}/dtd/3.0.1: 3 shards, ")
    listing = data_dir / "examples/vtab/dtd.json"
    assert lines[5] == f"vtab/dtd: would list its 1,000 images in {listing}"
    assert "is a copy of dtd, not of oxford_flowers102" in woe(
        dry_run("flowers", f"--from={folder}")
    )
    lines = printed(prepare("vtab/dtd", f"--from={old}"))
    assert lines[0] == f"vtab/dtd: converted, in {data_dir}/dtd/{folder.name}"
    assert lines[1].startswith("vtab/dtd: its 1,000 images are listed in ")
    assert "tensorflow" not in sys.modules
    printed(prepare("vtab/dtd", "--verify"))


def test_a_bucket_that_cannot_be_read_is_one_line(prepare, monkeypatch):
    def fail(self):
        raise error

    monkeypatch.setattr(tfrecords.epath.Path("gs://a").__class__, "exists", fail)
    error = ImportError("Please install gcsfs to access Google Storage")
    assert woe(prepare("flowers", "--from=gs://bucket/flowers")) == (
        "--from=gs://bucket/flowers: needs gcsfs: pip install 'vit_jax[gcs]'"
    )
    error = OSError("Anonymous caller does not have\nstorage.objects.get access")
    assert woe(prepare("flowers", "--from=gs://bucket/flowers")) == (
        "--from=gs://bucket/flowers: cannot be read: Anonymous caller does not have "
        "storage.objects.get access; for a private bucket first: gcloud auth application-default "
        "login"
    )


# --- The dry run: the same checks, a plan instead of the work, and nothing written


def test_folders_of_images(dry_run, prepare, photos, tmp_path):
    lines = printed(dry_run("my_photos", f"--from={photos}"))
    size = sum(path.stat().st_size for path in photos.rglob("*.jpg"))
    assert lines[0] == f"my_photos: would read {photos}: 31 images, {size / 1e3:.1f} kB"
    folder = tmp_path / "data/my_photos/1.0.0"
    assert re.fullmatch(
        f"my_photos: would write {folder}: 2 shards, about {size / 1e3:.1f} kB{FREE}", lines[-1]
    )
    assert lines[-2] == "my_photos: would skip 1 .me (no image)"
    # The plan counts images that turn out to be unreadable; the rest is what is packed.
    (photos / "cat/broken.jpg").unlink()
    packed = prepare("my_photos", f"--from={photos}")[1]
    train, validation = (int(line.split()[2]) for line in packed[:2])
    assert [int(line.split()[2]) for line in lines[1:3]] == [train + 1, validation]
    again = printed(dry_run("my_photos", f"--from={photos}"))
    assert again[0].startswith("my_photos: is packed already, 30 images in ")


def test_test_sets_for_deduplication_are_named(dry_run, photos, tmp_path):
    assert woe(dry_run("mine", f"--from={photos}", "--dedup-against=nothing")).startswith(
        "--dedup-against=nothing: no such task"
    )
    code, lines, errors = dry_run("mine", f"--from={photos}", "--dedup-against=vtab/dtd")
    assert (code, len(lines), len(errors)) == (2, 1, 1)
    assert errors[0].endswith(
        "--dedup-against=vtab/dtd: is not prepared; first: vit_jax prepare vtab/dtd "
        f"--data-dir={tmp_path}/data"
    )
    tfds_fakes.prepare(tmp_path / "data", "dtd", {"train": 1, "validation": 1, "test": 3})
    lines = printed(dry_run("mine", f"--from={photos}", "--dedup-against=vtab/dtd"))
    assert lines[1] == "mine: would read 3 images: dtd/3.0.1 test, to leave out duplicates"


def test_official_archives_are_counted_in_place(dry_run, monkeypatch, tmp_path):
    """Tars are counted; one image less is the same error as without --dry-run."""
    splits = official_fakes.imagenet2012(tmp_path / "tars")
    small = official_fakes.resized(build.RECIPES["imagenet2012"], splits)
    monkeypatch.setitem(build.RECIPES, "imagenet2012", small)
    lines = printed(dry_run("imagenet", f"--from={tmp_path}/tars"))
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
    lines = printed(dry_run("imagenet", f"--from={tmp_path}/tars", "--partial"))
    assert f"{splits['train']} of {splits['train'] + 1} images" in lines[1]


def test_large_archives_that_need_unpacking_are_named(dry_run, monkeypatch, tmp_path):
    monkeypatch.setattr(build, "UNPACKED_LIMIT", 1000)
    official_fakes.cifar10(tmp_path / "archives")
    archive = tmp_path / "archives/cifar-10-binary.tar.gz"
    lines = printed(dry_run("cifar10", f"--from={archive}"))
    assert lines[1:4] == [
        f"cifar10: would unpack {archive} next to the target; the images are counted only then",
        "cifar10: train: 50,000 images expected",
        "cifar10: test: 10,000 images expected",
    ]
    assert lines[4].startswith(f"cifar10: would write {tmp_path}/data/cifar10/3.0.2: at least ")


def test_nothing_is_listed_of_a_source_that_is_missing(tmp_path):
    with pytest.raises(DataError, match="^--from=.*/none: no such file or folder$"):
        file_sizes(tmp_path / "none")


def test_downloads_are_listed_without_a_network(dry_run, monkeypatch, tmp_path):
    def reached(*arguments):
        raise AssertionError("a dry run needs no network")

    monkeypatch.setattr(download.socket, "getaddrinfo", reached)
    monkeypatch.setattr(download.importlib.util, "find_spec", lambda name: True)
    lines = printed(dry_run("flowers", "mnist"))
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


def test_verification(dry_run, prepare, photos, tmp_path):
    assert "new: is not prepared in" in woe(dry_run("new", "--verify"))
    prepare("new", f"--from={photos}")
    (line,) = printed(dry_run("new", "--verify"))
    folder = tmp_path / "data/new/1.0.0"
    assert line.startswith(f"new: would read {folder}: 30 examples in 2 shards, ")


def test_a_target_that_cannot_hold_the_data(dry_run, photos, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/my_photos").write_text("")
    code, _, errors = dry_run("my_photos", f"--from={photos}")
    assert code == 2
    assert f"{tmp_path}/data/my_photos is not a writable folder" in errors[0]
    (tmp_path / "data/my_photos").unlink()
    monkeypatch.setattr(storage, "free_bytes", lambda target: 10)
    code, lines, errors = dry_run("my_photos", f"--from={photos}")
    assert code == 70  # as without --dry-run
    assert "0.0 kB of disk space is free" in lines[-1]
    assert "B are needed and 0.0 kB free; " in errors[0]


def test_the_mapping_of_objectnet_is_looked_for(dry_run, photos, tmp_path):
    needed = "objectnet: cannot be evaluated without its mapping to ImageNet's classes"
    assert dry_run("objectnet", f"--from={photos}")[1][-1].startswith(needed)
    tfds_fakes.write_mappings(tmp_path / "mappings")
    target = tmp_path / "data/objectnet/1.0.0/mappings"
    assert dry_run("objectnet", f"--from={photos}")[1][-1] == (
        "objectnet: would copy its mapping to ImageNet's classes from "
        f"{tmp_path}/mappings to {target}"
    )
