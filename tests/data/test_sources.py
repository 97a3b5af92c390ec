"""Sources that need no files of the user, splits, and what `open_source` refuses."""

import copy
import pickle
import types

import numpy as np
import pytest

import image_folders
import runs
from commands import error_line
from vit_jax import config
from vit_jax.config import ConfigError
from vit_jax.data import class_matching, sources
from vit_jax.data.source import DataError, Record
from vit_jax.utils.errors import AssumptionWarning

DIGITS = config.Data(source="digits", image_size=(8, 8), channels=1)


def open_digits(split: str) -> sources.Source:
    return sources.open_source(DIGITS, split, train=True)


@pytest.mark.parametrize(
    ("split", "low", "high"),
    [
        ("train[:80%]", 0, 1150),
        ("train[-100:]", 1337, 1437),
        ("train[10%:-10%]", 144, 1293),
        ("test[5:6]", 5, 6),
    ],
)
def test_slices_of_digits(split, low, high):
    whole, part = open_digits(split.partition("[")[0]), open_digits(split)
    assert len(part) == high - low
    for index in (0, len(part) - 1):
        assert part[index].label == whole[low + index].label
        np.testing.assert_array_equal(part[index].image, whole[low + index].image)
    assert part.name(0) == f"digits {split.partition('[')[0]}[{low}]"


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("trian", "no such split; did you mean train?"),
        ("validation", "no such split; known: train, test"),
        ("train[:80", "not a split; write train, train[:80%] or train[100:]"),
        ("", "not a split; write train, train[:80%] or train[100:]"),
        ("train[5:5]", "selects nothing, or more than the 1437 examples of train"),
        ("train[:110%]", "selects nothing, or more than the 1437 examples of train"),
        ("train[-2000:]", "selects nothing, or more than the 1437 examples of train"),
    ],
)
def test_bad_split(split, message):
    assert error_line(ConfigError, open_digits, split) == f"data.train_split={split}: {message}"


def test_a_head_too_narrow_for_the_data_is_refused():
    line = "model.num_classes=9: the data has 10 classes; at least 10, or none"
    assert error_line(ConfigError, sources.open_source, DIGITS, "train", num_classes=9) == line
    for wide in (10, 12):
        assert len(sources.open_source(DIGITS, "train", num_classes=wide, train=True).classes) == 10


def test_fingerprints_tell_data_apart_and_survive_pickling():
    splits = ["train", "test", "train[:80%]", "train[80%:]"]
    prints = [open_digits(split).fingerprint() for split in splits]
    assert len(set(prints)) == len(splits)
    assert prints == [pickle.loads(pickle.dumps(open_digits(s))).fingerprint() for s in splits]
    # Of load_digits() of scikit-learn 1.9.1, and the same on every machine.
    assert prints[:2] == ["ef4967d75c571849", "f304f195d038f0d6"]
    assert all(len(p) == 16 and int(p, 16) >= 0 for p in prints)


def synthetic(split="train", num_classes=None, **options) -> sources.Source:
    data = config.Data(
        source="synthetic", **{"image_size": (12, 20), "num_examples": 50, **options}
    )
    return sources.open_source(data, split, num_classes=num_classes, train=True)


@pytest.mark.parametrize(("size", "channels"), [((12, 20), 3), ((3, 5), 1), ((1, 1), 3)])
def test_synthetic_images_are_a_function_of_the_index(size, channels):
    source = synthetic(image_size=size, channels=channels)
    again = pickle.loads(pickle.dumps(source))
    assert len(source) == 50
    for index in (49, 0, 7):
        image, label = source[index]
        assert image.shape == (*size, channels)
        assert image.dtype == np.uint8
        assert label == index % 10
        np.testing.assert_array_equal(image, again[index].image)


def digits(classes, split="train", train=True):
    data = config.Data(source="digits", classes=classes)
    return sources.open_source(data, split, train=train)


def test_examples_of_the_classes_named_in_their_order():
    whole = digits(None)
    for classes in (("0", "1", "2", "3", "4"), ("7", "3")):
        some = digits(classes)
        expected = [whole[i] for i in range(len(whole)) if str(whole[i].label) in classes]
        assert some.classes == classes
        assert len(some) == len(expected)
        for index, (image, label) in enumerate(expected):
            np.testing.assert_array_equal(some[index].image, image)
            assert classes[some[index].label] == str(label)
    assert some.name(0) == whole.name(next(i for i in range(9) if whole[i].label in (3, 7)))


def test_every_selection_has_its_fingerprint():
    selections = (None, ("0", "1"), ("1", "0"), ("0", "2"))
    assert len({digits(classes).fingerprint() for classes in selections}) == len(selections)
    assert digits(("0", "1")).fingerprint() == digits(("0", "1")).fingerprint()
    half = digits(("0", "1"), "train[:50%]")
    assert 0 < len(half) < len(digits(("0", "1")))


@pytest.mark.parametrize(
    ("classes", "split", "says"),
    [
        (("0", "x"), "train", "data.classes=0,x: the data has no class x; known: 0, 1, 2"),
        ((), "train", "data.classes=: must name some classes, each once; none keeps all"),
        (("1", "1"), "train", "data.classes=1,1: must name some classes, each once; none keeps"),
        (("9",), "test[:1]", "data.classes=9: no example of data.eval_split is of these classes"),
    ],
)
def test_classes_that_are_not_there(classes, split, says):
    line = error_line(ConfigError, digits, classes, split, train=split == "train")
    assert line.startswith(says)


def test_images_of_some_classes_have_labels_though_an_objective_needs_none(tmp_path):
    root = image_folders.fill(tmp_path, "train/a/1.jpg", "train/b/2.jpg", "train/b/3.jpg")
    data = config.Data(source="folder", root=str(root), classes=("b",))
    source = sources.open_source(data, "train", labels=False)
    assert ([source[i].label for i in range(len(source))], source.classes) == ([0, 0], ("b",))


def test_splits_of_one_run_have_the_same_classes_in_one_order(monkeypatch):
    classes = {"train": ("a", "b"), "test": ("b", "a")}
    monkeypatch.setattr(
        sources, "open_source", lambda _, split, **__: types.SimpleNamespace(classes=classes[split])
    )
    with pytest.raises(ConfigError, match="^data.eval_split=test: its classes differ from those"):
        sources.open_splits(runs.configure(data={"train_split": "train", "eval_split": "test"}))


def test_one_class_and_classes_that_look_alike(tmp_path):
    """One class has nothing to learn; two spellings of one class are two, and that is said."""
    spelled = ("Cat", "cat", "dog", "caf\u00e9", "cafe\u0301")
    root = image_folders.fill(
        tmp_path, *(f"{s}/{c}/1.jpg" for s in ("train", "val") for c in spelled)
    )
    for path in root.rglob("*.jpg"):
        path.write_bytes(b"\xff\xd8\xff")

    def run(**options):
        data = {
            "source": "folder",
            "root": str(root),
            "train_split": "train",
            "eval_split": "val",
        } | options
        return sources.open_splits(runs.configure(data=data))

    line = "data.classes=dog: leaves one class; a head needs at least 2"
    assert error_line(ConfigError, run, classes=("dog",)) == line
    with pytest.warns(AssumptionWarning) as told:
        assert len(run().classes) == 5
    (line,) = told[0].message.lines
    assert line == (
        "'Cat' and 'cat', 'cafe\u0301' and 'caf\u00e9' are taken for different classes; if they "
        "are one, spell it alike"
    )
    assert run(classes=("dog", "cat")).classes == ("dog", "cat")  # and no warning
    assert class_matching.alike(("-1", "1")) == []
    (line,) = class_matching.alike(("-1", "0", "1"))
    assert line == "'-1' is taken for a class; if its images have none, leave them out"


@pytest.mark.parametrize("label", [2, -1, 0.5, (0, 2)])
def test_labels_of_a_plug_in_are_numbers_of_its_classes(label):
    class Source(list):
        classes = ("a", "b")

    data = types.SimpleNamespace(source="mine", multilabel=isinstance(label, tuple))
    for good in (0, 1):
        image = np.zeros((8, 8, 1), np.uint8)
        sources.check_plugged_in(Source([Record(image, good)]), data, labels=True)
    with pytest.raises(DataError, match="^data.source=mine: its first label is .*; must be a numb"):
        sources.check_plugged_in(Source([Record(image, label)]), data, labels=True)
    # So are those of all others, once they are read; what else the source has stays.
    plugged = Source([Record(image, 1), Record(image, label)])
    plugged.name, plugged.file_name = "image {}".format, "{}.png".format
    found = copy.copy(sources.PluggedIn(plugged, data))  # as in a process of the loader
    assert (found[0].label, found.file_name(0), len(found)) == (1, "0.png", 2)
    with pytest.raises(DataError, match="^data.source=mine: the label of image 1 is .*; must be a"):
        found[1]
    if label in (2, -1):
        plugged.labels = np.array([1, label])
        with pytest.raises(DataError, match="^data.source=mine: one of its labels is -?[12]; must"):
            sources.check_plugged_in(plugged, data, labels=True)
