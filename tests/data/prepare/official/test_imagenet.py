"""ImageNet from what its users have: tars, trees, Kaggle's archive; and what is wrong with them."""

import functools
import io
import sys

import cv2
import numpy as np
import PIL.Image
import pytest

import official_fakes
from commands import printed, woe
from official_fakes import VALIDATION, WORDNET
from vit_jax import config
from vit_jax.data.prepare.official import build
from vit_jax.data.sources import open_source

TRAIN, VALID = official_fakes.imagenet_files()
COUNTS = {"train": len(TRAIN), "validation": len(VALID)}


@pytest.fixture
def small(monkeypatch):
    """Has the recipe expect the images of the fakes."""
    one = official_fakes.resized(build.RECIPES["imagenet2012"], COUNTS)
    monkeypatch.setitem(build.RECIPES, "imagenet2012", one)


@pytest.fixture
def prepare(prepare):
    """Runs the command on a folder."""
    return functools.partial(prepare, "imagenet")


def label(name):
    """The class of an image by its file name."""
    if name.startswith("ILSVRC"):
        return WORDNET.index(VALIDATION[int(name[15:23]) - 1])
    return WORDNET.index(name[:9])


def contents(data_dir):
    """The image and label of every file, by split and file name, as a run reads them."""
    found = {}
    for split in COUNTS:
        data = config.Data(source="tfds", name="imagenet2012", root=str(data_dir))
        source = open_source(data, split, train=split == "train")
        assert source.classes == tuple(WORDNET)
        found[split] = {source.file_name(at): source[at] for at in range(len(source))}
    return found


def layout(kind, root):
    """Writes ImageNet's images in one of the ways in which its users have them."""
    if kind.startswith("tars"):
        official_fakes.imagenet2012(root)
        return
    train = {f"train/{name[:9]}/{name}": data for name, data in TRAIN.items()}
    flat = {f"val/{name}": data for name, data in VALID.items()}
    sorted_ = {f"val/{WORDNET[label(name)]}/{name}": data for name, data in VALID.items()}
    if kind == "class tars":
        for name in {name[:9] for name in TRAIN}:
            files = {n: data for n, data in TRAIN.items() if n.startswith(name)}
            official_fakes.write(root, {f"train/{name}.tar": official_fakes.tar(files)})
        official_fakes.write(root, {"ILSVRC2012_img_val.tar": official_fakes.tar(VALID)})
    elif kind == "unpacked, validation images in class folders":
        official_fakes.write(root, train | sorted_)
    elif kind == "unpacked, flat":
        official_fakes.write(root, train | flat)
    else:
        files = {f"ILSVRC/Data/CLS-LOC/{name}": data for name, data in (train | flat).items()}
        files["ILSVRC/Data/CLS-LOC/test/ILSVRC2012_test_00000001.JPEG"] = b"without a label"
        files |= {"ILSVRC/Annotations/CLS-LOC/val/a.xml": b"<a>", "LOC_val_solution.csv": "a,b"}
        name = "imagenet-object-localization-challenge.zip"
        official_fakes.write(root, {name: official_fakes.zipped(files)})


@pytest.mark.parametrize(
    "kind",
    [
        "tars",
        "class tars",
        "unpacked, validation images in class folders",
        "unpacked, flat",
        "Kaggle's zip",
        "tars by their names",
    ],
)
@pytest.mark.usefixtures("small")
def test_layouts(kind, prepare, tmp_path):
    """Whatever the way, the images are byte for byte those of the archive, under their names."""
    layout(kind, tmp_path / "mine")
    given = [tmp_path / "mine"]
    if kind == "tars by their names":
        given = [tmp_path / f"mine/ILSVRC2012_img_{split}.tar" for split in ("train", "val")]
    lines = printed(prepare("--from", *given))
    folder = tmp_path / "data/imagenet2012/5.1.0"
    assert lines == [
        "imagenet: train: 12 of 12 images, validation: 6 of 6 images",
        f"imagenet: prepared, in {folder}",
    ]
    packed = contents(tmp_path / "data")
    for split, images in (("train", TRAIN), ("validation", VALID)):
        assert packed[split] == {name: (data, label(name)) for name, data in images.items()}
        assert set((folder / f"{split}.txt").read_text().split()) == set(images)
    assert not list(folder.parent.glob(".*"))
    (folder.parent / ".5.1.0.part/unpacked").mkdir(parents=True)  # killed after the last rename
    there = f"imagenet: is prepared already, in {folder}"
    assert prepare("--from", *given) == (0, [there], [])
    assert not list(folder.parent.glob(".*"))
    assert "tensorflow" not in sys.modules


def test_missing_images_are_counted(prepare, tmp_path):
    layout("tars", tmp_path / "mine")
    given = f"--from={tmp_path / 'mine'}"
    counts = "train: 12 of 1,281,167 images, validation: 6 of 50,000 images"
    assert woe(prepare(given)) == (
        f"imagenet: {given}: {counts}; it requires ILSVRC2012_img_train.tar, "
        "ILSVRC2012_img_val.tar from image-net.org/download-images (registration); to pack the "
        "available images, add --partial"
    )
    assert not (tmp_path / "data/imagenet2012").exists()
    folder = tmp_path / "data/imagenet2012/5.1.0"
    prepared = [f"imagenet: {counts}", f"imagenet: prepared, in {folder}"]
    assert prepare(given, "--partial") == (0, prepared, [])
    # What is only a part is not taken for the whole.
    assert woe(prepare(given)) == (
        f"imagenet: is prepared in part, in {folder}: {counts}; to prepare all of it, remove that: "
        f"rm -r {folder}"
    )
    assert prepare(given, "--partial")[1] == [f"imagenet: is prepared already, in {folder}"]
    (tmp_path / "mine/ILSVRC2012_img_train.tar").unlink()
    validation = prepare(given, "--partial", data_dir="other")
    counts = "train: 0 of 1,281,167 images, validation: 6 of 50,000 images"
    assert validation[:2] == (
        0,
        [f"imagenet: {counts}", f"imagenet: prepared, in {tmp_path}/other/imagenet2012/5.1.0"],
    )
    assert not (tmp_path / "other/imagenet2012/5.1.0/train.txt").exists()


@pytest.mark.parametrize(
    ("names", "data", "line"),
    [
        ([f"train/{WORDNET[5]}/{WORDNET[0]}_1.JPEG"], b"\xff\xd8\xff",
         f"is in the folder {WORDNET[5]}, but is an image of {WORDNET[0]}"),
        (["train/n00000001_1.JPEG"], b"\xff\xd8\xff",
         "n00000001 is not among the 1,000 classes of ILSVRC2012"),
        ([f"val/{WORDNET[5]}/ILSVRC2012_val_00000001.JPEG"], b"\xff\xd8\xff",
         f"is in the folder {WORDNET[5]}, but is an image of n01751748"),
        (["val/ILSVRC2012_val_00050001.JPEG"], b"\xff\xd8\xff",
         "is not among the 50,000 images with a label"),
        (["a/ILSVRC2012_val_00000001.JPEG", "b/ILSVRC2012_val_00000001.JPEG"], b"\xff\xd8\xff",
         "validation: ILSVRC2012_val_00000001.JPEG occurs twice; give each image once"),
        (["val/ILSVRC2012_val_00000001.JPEG"], b"<html>",
         "is not an image: it starts with b'<html>'; download it again"),
        (["val/ILSVRC2012_val_00000001.JPEG"], b"", "is empty; download it again"),
    ],
    ids=["folder", "class", "folder of val", "number", "twice", "html", "empty"],
)  # fmt: skip
def test_what_is_not_as_it_should_be(names, data, line, prepare, tmp_path):
    official_fakes.write(tmp_path / "mine", dict.fromkeys(names, data))
    said = woe(prepare(f"--from={tmp_path / 'mine'}", "--partial"))
    assert said.endswith(line)
    assert names[0].rpartition("/")[2] in said
    assert not (tmp_path / "data/imagenet2012/5.1.0").exists()


def test_cmyk_and_png_become_rgb_jpegs(prepare, tmp_path):
    """TFDS does so by name, with quality 100; every other image stays as it is."""
    pixels = official_fakes.pixels(3, height=64, width=64)
    gray = cv2.imencode(".jpg", pixels[:, :, 0])[1].tobytes()
    cmyk = io.BytesIO()  # as 22 of ImageNet's are
    PIL.Image.fromarray(pixels).convert("CMYK").save(cmyk, "JPEG", quality=95)
    files = {
        "n01739381_1309.JPEG": cmyk.getvalue(),
        "n02105855_2933.JPEG": official_fakes.picture(3, kind=".png", height=64, width=64),
        "n01739381_1.JPEG": gray,
    }
    official_fakes.write(tmp_path / "mine", {f"train/{n[:9]}/{n}": d for n, d in files.items()})
    assert prepare(f"--from={tmp_path / 'mine'}", "--partial")[0] == 0
    data = config.Data(source="tfds", name="imagenet2012", root=str(tmp_path / "data"))
    source = open_source(data, "train", train=True)
    found = {source.file_name(at): source[at].image for at in range(3)}
    assert found["n01739381_1.JPEG"] == gray
    for name in ("n01739381_1309.JPEG", "n02105855_2933.JPEG"):
        image = found[name]
        assert isinstance(image, bytes)
        assert image.startswith(b"\xff\xd8\xff")
        again = cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_UNCHANGED)
        assert again.shape == (64, 64, 3)
        before = cv2.imdecode(np.frombuffer(files[name], np.uint8), cv2.IMREAD_COLOR)
        # Chroma has half the resolution, and JPEG rounds: one gray level on average.
        assert np.abs(again.astype(int) - before).mean() < 1


def test_a_part_of_other_images_is_not_continued(tmp_path, prepare):
    layout("unpacked, flat", tmp_path / "mine")
    part = tmp_path / "data/imagenet2012/.5.1.0.part"
    (part / "whole").mkdir(parents=True)
    (part / "plan").write_text("of others")
    line = woe(prepare(f"--from={tmp_path / 'mine'}", "--partial"))
    assert line.startswith(f"{part}: was started with other images or settings; ")
