"""`vit_jax prepare` as its users meet it: what it does with a name, and one line for mistakes."""

import io
import json
import pathlib
import re
import shlex
import shutil
import sys

import cv2
import pytest
import tensorflow_datasets as tfds
import test_tfrecords
from array_record.python.array_record_data_source import ArrayRecordDataSource

import tfds_fakes
from commands import woe
from vit_jax import cli, config
from vit_jax.data import availability, example_lists
from vit_jax.data.prepare import download, tfrecords
from vit_jax.data.prepare.shards import read_info
from vit_jax.data.sources import open_source
from vit_jax.data.tasks import TASKS


@pytest.fixture
def data_dir(tmp_path):
    return tmp_path / "data"


def test_help_fits_a_terminal(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["prepare", "--help"])
    assert caught.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 20
    assert all(len(line) <= 100 for line in lines)


def test_packs_once_and_says_where(prepare, photos, data_dir):
    code, lines, errors = prepare("my_photos", f"--from={photos}")
    assert (code, errors) == (0, [])
    folder = data_dir / "my_photos/1.0.0"
    assert lines == [
        "my_photos: train: 26 images of 3 classes",
        "my_photos: validation: 4 images of 3 classes",
        f"my_photos: 1 files cannot be read and are left out; {folder}/vit_jax.json names them",
        "my_photos: 1 files are left out: 1 .me (no image)",
        f"my_photos: in {folder}; to train on it: vit_jax train tfds "
        f"--config.data.name=my_photos --config.data.root={data_dir} "
        "--config.data.eval_split=validation",
    ]
    flags = dict(re.findall(r"--config\.data\.(\w+)=(\S+)", lines[-1]))
    data = config.Data(source="tfds", **flags)
    assert len(open_source(data, "train", train=True)) == 26
    assert len(open_source(data, data.eval_split, train=False)) == 4
    again = prepare("my_photos", f"--from={photos}")
    there = f"my_photos: is packed already, 30 images in {folder}"
    assert again == (0, [f"{there}; to pack others, remove it: rm -r {folder}"], [])
    assert "was packed with max_side None, not 20; to pack it again, remove it: rm -r" in woe(
        prepare("my_photos", f"--from={photos}", "--max-side=20")
    )
    good = prepare("my_photos", "--verify")
    assert good == (0, [f"my_photos: 30 examples in {folder}, all good"], [])


TINY = """
--config.data.image_size=16 --config.model.variant=none --config.model.patch_size=8
--config.model.width=16 --config.model.depth=1 --config.model.mlp_dim=16 --config.model.heads=2
--config.train.batch_size=8 --config.train.duration=2 --config.schedule.warmup=1
--config.data.workers=0 --config.logging.tensorboard=false
""".split()  # noqa: SIM905


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("layout", ["classes", "train", "both", "none", "odd"])
def test_the_command_it_prints_trains(prepare, photos, tmp_path, capsys, layout):
    """Whatever splits there are: as printed, cut down to two steps of a tiny model."""
    extra = []
    if layout in ("train", "both", "odd"):
        name = "Training" if layout == "odd" else "train"
        (tmp_path / "given").mkdir()
        photos = photos.rename(tmp_path / "given" / name).parent
    if layout == "both":
        shutil.copytree(photos / "train", photos / "dev")
    if layout == "none":
        extra = ["--holdout=0"]
    code, lines, errors = prepare("my_photos", f"--from={photos}", *extra)
    assert (code, errors) == (0, [])
    command = lines[-1].partition("to train on it: ")[2]
    assert command.startswith("vit_jax train tfds ")
    _, *words = shlex.split(command)
    workdir = tmp_path / "run"
    assert cli.main([*words, *TINY, f"--workdir={workdir}"]) == 0, capsys.readouterr().err
    capsys.readouterr()
    stored = json.loads((workdir / "config.json").read_text())["data"]
    assert (stored["train_split"], stored["eval_split"]) == {
        "classes": ("train", "validation"),
        "train": ("train", "validation"),
        "both": ("train", "dev"),
        "none": ("train[:90%]", "train[90%:]"),
        "odd": ("Training", "validation"),
    }[layout]


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
    (tmp_path / "given").mkdir()
    given = photos.rename(tmp_path / "given/train").parent
    shutil.copytree(given / "train", given / "test")
    code, lines, _ = prepare("my_photos", f"--from={given}", "--holdout=0.2")
    assert code == 0
    assert lines[0] == "my_photos: --holdout=0.2: not used, as splits are given"
    assert "--config.data.eval_split=test" in lines[-1]


@pytest.mark.parametrize("share", ["1", "-0.1", "x", "nan"])
def test_a_holdout_is_a_share(prepare, capsys, share):
    with pytest.raises(SystemExit) as caught:
        prepare("my_photos", f"--holdout={share}")
    assert caught.value.code == 2
    assert f"{share}: must be at least 0 and below 1" in capsys.readouterr().err


def test_gifs_and_bitmaps_are_packed_as_png(prepare, photos, data_dir):
    for index, suffix in enumerate((".gif", ".bmp")):
        pixels = cv2.imread(str(photos / f"dog/{index}.jpg"))
        cv2.imwrite(str(photos / f"dog/new{suffix}"), pixels)
    code, lines, errors = prepare("my_photos", f"--from={photos}", "--holdout=0")
    assert (code, errors) == (0, [])
    assert lines[0] == "my_photos: train: 32 images of 3 classes"
    data = config.Data(source="tfds", name="my_photos", root=str(data_dir))
    source = open_source(data, "train", train=True)
    kinds = [bytes(source[index].image[:4]) for index in range(len(source))]
    assert sorted(kinds) == sorted([b"\x89PNG"] * 2 + [b"\xff\xd8\xff\xe0"] * 30)


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

    builder._split_generators = lambda manager: {
        "train": generate(1),
        "validation": generate(1),
        "test": generate(2),
    }
    tfds.disable_progress_bar()
    builder.download_and_prepare()
    against = ("--dedup-against", "flowers", "vtab/flowers102")
    code, lines, _ = prepare("my_photos", f"--from={photos}", *against)
    assert code == 0
    counts = [int(line.split()[2]) for line in lines[:2]]  # train, and what is held out of it
    assert sum(counts) == 27
    facts = json.loads((data_dir / "my_photos/1.0.0/vit_jax.json").read_text())
    assert sorted(facts["duplicates"]) == [
        ["bird/5.jpg", "oxford_flowers102/2.1.1 test example 0", -1],
        ["cat/3.jpg", "oxford_flowers102/2.1.1 test example 1", -1],
    ] or sorted(facts["duplicates"]) == [
        ["bird/5.jpg", "oxford_flowers102/2.1.1 test example 1", -1],
        ["cat/3.jpg", "oxford_flowers102/2.1.1 test example 0", -1],
    ]
    assert facts["dedup_against"] == ["flowers", "vtab/flowers102"]
    assert woe(prepare("more", f"--from={photos}", "--dedup-against=pets")) == (
        f"--dedup-against=pets: is not prepared; first: vit_jax prepare pets --data-dir={data_dir}"
    )
    assert woe(prepare("more", f"--from={photos}", "--dedup-against=imagenet-a")).startswith(
        "--dedup-against=imagenet-a: is not prepared"
    )


def test_imagenet21k_is_packed_as_the_split_that_its_runs_name(prepare, photos, data_dir):
    code, lines, _ = prepare("imagenet21k", f"--from={photos}")
    assert code == 0
    assert lines[0] == "imagenet21k: full: 30 images of 3 classes"
    assert lines[-1] == (
        "imagenet21k: has 3 classes, not the 21,843 of the paper's models, whose heads do not fit"
    )
    assert (data_dir / "imagenet21k/1.0.0/full.txt").exists()
    found = availability.find_prepared(TASKS["imagenet21k"].dataset, data_dir)
    assert found is not None
    assert (found.readable, found.images) == (True, {"full": 30})


def test_vtab_lists_its_images_once_and_finds_them_again(prepare, data_dir):
    tfds_fakes.prepare_vtab(data_dir, "vtab/dtd")
    code, lines, errors = prepare("vtab/dtd")
    assert (code, errors) == (0, [])
    assert lines[0].startswith("vtab/dtd: is prepared already, in ")
    path = data_dir / "examples/vtab/dtd.json"
    assert lines[1].startswith(f"vtab/dtd: its 1,000 images are listed in {path}, SHA-256 ")
    listing = example_lists.read_list(path)
    assert len(listing.examples) == 1000
    before = path.read_bytes()
    assert prepare("vtab/dtd")[1][1] == f"vtab/dtd: the images of {path} are all there"
    assert path.read_bytes() == before
    listing = json.loads(before)
    listing["examples"][5] = "0" * 16
    listing["sha256"] = example_lists.Listing("", "", "", "", tuple(listing["examples"])).sha256
    path.write_text(json.dumps(listing))
    code, _, errors = prepare("vtab/dtd")
    assert code == 2
    assert "1 of its 1000 images are not there, beginning with number 5" in errors[-1]


def test_real_labels_are_checked_and_kept(prepare, tmp_path, data_dir):
    file = tmp_path / "real.json"
    file.write_text(json.dumps([[index % 1000] * bool(index % 20) for index in range(50_000)]))
    target = data_dir / "imagenet_real/real.json"
    line = f"imagenet-real: 50,000 images, 2,500 of them without a label, in {target}"
    assert prepare("imagenet-real", f"--from={file}") == (0, [line], [])
    assert target.read_bytes() == file.read_bytes()
    assert prepare("imagenet-real", "--verify") == (
        0,
        ["imagenet-real: 50,000 images, as imported"],
        [],
    )
    target.write_text(json.dumps([[1]] * 50_000))
    changed = "its SHA-256 has changed since it was imported"
    assert changed in woe(prepare("imagenet-real", "--verify"))


def test_mistakes_are_one_line(prepare, photos, tmp_path, data_dir):
    assert woe(prepare("cifr10")) == "cifr10: no such task; did you mean cifar10?"
    assert woe(prepare("new", f"--from={tmp_path}/none")) == (
        f"--from={tmp_path}/none: no such file or folder"
    )
    (tmp_path / "empty").mkdir()
    assert "has no image; images end in" in woe(prepare("new", f"--from={tmp_path}/empty"))
    (tmp_path / "one/cat").mkdir(parents=True)
    (tmp_path / "one/cat/1.jpg").write_bytes(b"")
    assert "one class folder alone, cat" in woe(prepare("new", f"--from={tmp_path}/one"))
    assert not (data_dir / "new").exists()
    assert woe(prepare("new", "--verify")) == (
        f"new: is not prepared in {data_dir}; first: vit_jax prepare new --from=FOLDER"
    )
    assert "choose another name" in woe(prepare("cifar10", f"--from={photos}"))
    assert "TFDS has a dataset of this name" in woe(prepare("mnist", f"--from={photos}"))
    assert "small letters, digits and _" in woe(prepare("My-Photos", f"--from={photos}"))
    assert "is packed from files of yours: fall11_whole.tar" in woe(prepare("imagenet21k"))
    assert woe(prepare("flowers", "--max-side=512")) == (
        "--max-side: is for folders and tars that are packed, and flowers is not"
    )
    partial = "--partial: is for datasets with an official number of images, and new has none"
    assert woe(prepare("new", f"--from={photos}", "--partial")) == partial
    assert partial.replace("new", "mnist") in woe(prepare("mnist", "--partial"))
    assert "for one name at a time" in woe(prepare("a", "b", f"--from={photos}"))
    assert "only a folder of this machine" in woe(prepare("new", "--from", "a.tar", "gs://b/c.tar"))
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "data/file").write_text("")
    code = cli.main(["prepare", "new", f"--from={photos}", f"--data-dir={data_dir}/file"])
    assert code == 2


def test_files_that_the_user_has_to_download_are_named(prepare, tmp_path, data_dir):
    manual = data_dir / "downloads/manual"
    assert woe(prepare("vtab/resisc45")).startswith(
        f"vtab/resisc45: put into {manual}: NWPU-RESISC45.rar"
    )
    assert woe(prepare("imagenet")).startswith(
        f"imagenet: put into {manual}: ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar from "
    )
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/ILSVRC2012_img_val.tar").write_text("")
    assert f"{tmp_path}/mine lacks ILSVRC2012_img_train.tar;" in woe(
        prepare("imagenet-c/fog_1", f"--from={tmp_path}/mine")
    )


def test_what_tfds_needs_is_named(prepare, tmp_path, monkeypatch):
    monkeypatch.setattr(download.importlib.util, "find_spec", lambda name: None)
    for split in ("train", "val"):
        (tmp_path / f"ILSVRC2012_img_{split}.tar").write_text("")
    assert woe(prepare("imagenet-c/fog_1", f"--from={tmp_path}")) == (
        "imagenet-c/fog_1: TFDS needs tensorflow, scipy, scikit-image to prepare it, once: "
        "pip install 'vit_jax[prepare]'"
    )


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ModuleNotFoundError("No module named 'scipy'", name="scipy"), 2, "TFDS needs scipy"),
        (OSError(28, "No space left on device"), 70, "No space left on device; free some space"),
        (OSError("Not enough disk space. Needed: 1 TiB"), 70, "Not enough disk space. Needed: 1"),
        (ConnectionError("reset\nby peer"), 70, "mnist: reset by peer"),
        (RuntimeError("the tar\nis not what I want"), 2, "RuntimeError: the tar is not what"),
        (AssertionError(), 2, "mnist: AssertionError: AssertionError"),
    ],
)
def test_whatever_a_builder_raises_is_one_line(prepare, monkeypatch, error, code, line):
    def fail(self, **arguments):
        raise error

    monkeypatch.setattr(download, "_check_network", lambda one, name: None)
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
    monkeypatch.setattr(download, "_check_network", lambda one, name: None)
    monkeypatch.setattr(download.importlib.util, "find_spec", lambda name: True)
    prepared = f"mnist: prepared, in {data_dir}/mnist/3.0.1"
    assert prepare("mnist")[:2] == (0, [prepared])
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


def test_a_copy_in_tfrecord_files_is_converted(prepare, tmp_path, data_dir):
    old = tmp_path / "old"
    builder = tfds_fakes.prepare(old, "dtd", {"train": 800, "validation": 200, "test": 3})
    folder = pathlib.Path(builder.data_path)
    for shard in folder.glob("*array_record*"):
        data = test_tfrecords.framed(list(ArrayRecordDataSource(str(shard))))
        shard.with_name(shard.name.replace("array_record", "tfrecord")).write_bytes(data)
        shard.unlink()
    info = folder / "dataset_info.json"
    info.write_text(info.read_text().replace('"array_record"', '"tfrecord"'))
    for given in (old, old / "dtd", folder):
        code, lines, errors = prepare("vtab/dtd", f"--from={given}")
        if given == old:
            assert (code, errors) == (0, [])
            assert lines[0] == f"vtab/dtd: converted, in {data_dir}/dtd/{folder.name}"
            assert lines[1].startswith("vtab/dtd: its 1,000 images are listed in ")
        else:
            assert code == 2
            assert "exists; choose another, or remove it" in errors[0]
    assert "tensorflow" not in sys.modules
    code, _, errors = prepare("vtab/dtd", "--verify")
    assert (code, errors) == (0, [])


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
