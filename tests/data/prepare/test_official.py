"""Data sets packed from official archives against those that TFDS's own builders make of them."""

import io

import cv2
import numpy as np
import pytest
import tensorflow_datasets as tfds

import official_fakes
import tfds_reference
from vit_jax.data.prepare import command
from vit_jax.data.prepare.official import build

SETS = {
    "imagenet": "imagenet2012",
    "cifar10": "cifar10",
    "cifar100": "cifar100",
    "pets": "oxford_iiit_pet",
    "flowers": "oxford_flowers102",
    "fewshot/caltech101": "caltech101",
    "fewshot/dtd": "dtd",
    "fewshot/uc_merced": "uc_merced",
    "fewshot/cars": "cars196",
    "imagenet-v2": "imagenet_v2/matched-frequency",
    "imagenet-a": "imagenet_a",
    "imagenet-r": "imagenet_r",
    "imagenet-sketch": "imagenet_sketch",
    "vtab/eurosat": "eurosat/rgb",
    "vtab/resisc45": "resisc45",
    "vtab/svhn": "svhn_cropped",
    "vtab/camelyon": "patch_camelyon",
    "vtab/clevr-count": "clevr",
    "vtab/dmlab": "dmlab",
    "vtab/dsprites-location": "dsprites",
    "vtab/kitti-distance": "kitti",
    "vtab/smallnorb-azimuth": "smallnorb",
    "vtab/sun397": "sun397/tfds",
    "vtab/retinopathy": "diabetic_retinopathy_detection/btgraham-300",
}


def fake(task, root):
    """Writes small archives; returns how many images they have by split."""
    if task in ("vtab/camelyon", "vtab/dsprites-location"):
        pytest.importorskip("h5py")
    root.mkdir(parents=True, exist_ok=True)
    return getattr(official_fakes, SETS[task].partition("/")[0])(root)


@pytest.fixture(autouse=True)
def _few_images(monkeypatch):
    """The fakes have too few images for the list of VTAB's 1,000."""
    monkeypatch.setattr(command, "list_examples", lambda task, request: f"{task.name}: listed")


@pytest.fixture
def sized(monkeypatch):
    """Makes a recipe expect other numbers of images than the official ones."""

    def change(task, splits):
        name = SETS[task]
        small = official_fakes.resized(build.RECIPES[name], splits)
        monkeypatch.setitem(build.RECIPES, name, small)

    return change


# Splits that TFDS has, and the paper has no use for.
UNUSED = {
    "svhn_cropped": {"extra"},
    "clevr": {"test"},
    "diabetic_retinopathy_detection/btgraham-300": {"sample"},
}


# Features that TFDS has in a version later than the one that is packed, which is VTAB's.
LATER = {"clevr": ("question_answer",)}


def examples(builder, split):
    """All examples of a split in their order; images as pixels, read by the same decoder."""
    features = builder.info.features
    pictures = {name for name, one in features.items() if isinstance(one, tfds.features.Image)}
    skip = dict.fromkeys(pictures, tfds.decode.SkipDecoding())
    for example in builder.as_data_source(split, decoders=skip):
        for name in pictures:
            assert isinstance(example[name], bytes)
            pixels = np.frombuffer(example[name], np.uint8)
            example[name] = cv2.imdecode(pixels, cv2.IMREAD_UNCHANGED)
        yield example


def assert_same(ours, theirs, path=()):
    assert type(ours) is type(theirs), path
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), path
        for name, value in ours.items():
            assert_same(value, theirs[name], (*path, name))
    elif isinstance(ours, list):
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other, path)
    elif isinstance(ours, np.ndarray):
        np.testing.assert_array_equal(ours, theirs, str(path))
        assert ours.dtype == theirs.dtype, path
    else:
        assert ours == theirs, path


@pytest.mark.sampled(4)
@pytest.mark.parametrize("task", SETS)
def test_is_what_tfds_makes_of_the_same_archives(task, prepare, sized, tmp_path, monkeypatch):
    """Splits, order, every feature of every record, class names: all from TFDS's own code."""
    name = SETS[task]
    splits = fake(task, tmp_path / "archives")
    by_hand = None
    if name == "dmlab":  # its builder reads with tf.data
        by_hand = {
            split: [(one["filename"], one | {"image": io.BytesIO(one["image"])}) for one in some]
            for split, some in official_fakes.dmlab_examples().items()
        }
    full_name = build.RECIPES[name].builder
    theirs = tfds_reference.build(
        monkeypatch, name, tmp_path / "archives", tmp_path / "reference", by_hand
    )
    if name == "kitti":  # drawn by video
        splits = {split: info.num_examples for split, info in theirs.info.splits.items()}
    sized(task, splits)

    code, lines, errors = prepare(task, f"--from={tmp_path / 'archives'}")
    assert (code, errors) == (0, [])
    version = full_name.partition(":")[2] or str(theirs.version)
    folder = tmp_path / "data" / name / version
    assert f"{task}: prepared, in {folder}" in lines
    for ours in (
        tfds.builder(full_name, data_dir=str(tmp_path / "data")),
        tfds.builder_from_directory(folder),
    ):
        assert ours.info.full_name == f"{name}/{version}"
        assert ours.info.file_format == theirs.info.file_format
        assert {n: s.num_examples for n, s in ours.info.splits.items()} == splits
        assert set(theirs.info.splits) - set(splits) <= UNUSED.get(name, set())
        assert ours.info.supervised_keys == theirs.info.supervised_keys
        for feature, one in theirs.info.features.items():
            if isinstance(one, tfds.features.ClassLabel):
                assert ours.info.features[feature].names == one.names
        for split in splits:
            for one, other in zip(examples(ours, split), examples(theirs, split), strict=True):
                for feature in LATER.get(name, ()):
                    other.pop(feature)
                assert_same(one, other)
    good = f"{task}: {sum(splits.values())} examples in {folder}, all good"
    assert prepare(task, "--verify")[:2] == (0, [good, *([f"{task}: listed"] * ("vtab" in task))])
