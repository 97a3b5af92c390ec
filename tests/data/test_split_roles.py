"""Splits by role: what their metrics are called, what chooses, what `auto` means."""

import dataclasses

import pytest

from commands import error_line
from vit_jax import config
from vit_jax.config import ConfigError
from vit_jax.data import sources, split_roles
from vit_jax.utils.errors import AssumptionWarning


def data(**options):
    return config.build({"data": options}).data


@pytest.mark.parametrize(
    ("train", "split", "name", "role"),
    [
        ("train", "test", "test", "test"),
        ("train", "val", "val", "validation"),
        ("train[:80%]", "train[80%:]", "validation", "validation"),
        ("train[:800]+validation[:200]", "validation[200:]", "validation", "validation"),
        ("training", "testing", "testing", "test"),
        ("train", "validation+test", "validation-test", "test"),
        ("train", "ma\u00df 2020/a", "ma_2020_a", "validation"),
        # Groups of other metrics.
        ("train", "speed", "speed_split", "validation"),
        ("train", "imagenet-v2", "imagenet-v2_split", "validation"),
        # Images that are trained on.
        ("train", "train", "train_split", "train"),
        ("train", "train[90%:]", "train_split", "train"),
        ("train[:90%]", "train[80%:]", "train_split", "train"),
    ],
)
def test_metrics_are_called_after_their_split(train, split, name, role):
    found = split_roles.evaluation(data(train_split=train, eval_split=split))
    assert found == (name, split, role)


@pytest.mark.parametrize(
    ("dataset", "train", "split", "name", "role"),
    [
        ("imagenet2012", "train", "validation", "validation", "test"),  # what papers report
        ("imagenet21k", "full[51200:]", "full[25600:51200]", "validation", "validation"),
        ("imagenet21k", "full[25600:]", "full[:25600]", "test", "test"),
        ("eurosat/rgb:2.*.*", "train[:800]", "train[21600:]", "test", "test"),
        ("eurosat/rgb:2.*.*", "train[:800]", "train[16200:16400]", "validation", "validation"),
        ("smallnorb:2.*.*", "train[:800]", "test[:200]", "validation", "validation"),
        ("smallnorb:2.*.*", "train[:800]", "test[50%:]", "test", "test"),
    ],
)
def test_tasks_say_which_split_judges(dataset, train, split, name, role):
    one = data(source="tfds", name=dataset, train_split=train, eval_split=split)
    assert split_roles.evaluation(one) == (name, split, role)


def test_with_a_test_split_the_other_one_chooses():
    found = split_roles.evaluation(data(eval_split="test[:50%]", test_split="test[50%:]"))
    assert found == ("validation", "test[:50%]", "validation")
    # Unless it is that very split: `evaluate` may be told to measure it.
    again = data(eval_split="test", test_split="test")
    assert split_roles.evaluation(again) == ("test", "test", "test")
    assert split_roles.final(again) == ("test", "test", "test")
    assert split_roles.final(data(test_split="hidden")) == ("hidden", "hidden", "test")
    assert split_roles.final(data()) is None


def test_a_test_split_is_neither_trained_nor_chosen_on():
    split_roles.check_splits(data(eval_split="val", test_split="test"))
    for options, key in (
        ({"eval_split": "test", "test_split": "test"}, "eval_split=test"),
        ({"eval_split": "val", "test_split": "train[90%:]"}, "train_split=train"),
    ):
        assert error_line(ConfigError, split_roles.check_splits, data(**options)) == (
            f"data.test_split={options['test_split']}: has images of data.{key}; "
            "name a split of its own, or none"
        )


def test_a_list_of_validation_images_that_stands_for_the_test_split_is_no_test(tmp_path):
    for name in ("train", "val"):
        (tmp_path / f"{name}.csv").write_text("image,class\n1.jpg,a\n2.jpg,b\n")
    own = config.Data(source="csv", root=str(tmp_path), eval_split="val", test_split="test[:9]")
    with pytest.raises(ConfigError, match="^data.test_split=test.*has images of data.eval_split=v"):
        split_roles.check_splits(own)
    with pytest.warns(AssumptionWarning, match="data.eval_split=test: there is none; val is read"):
        sources.open_source(own, "test")
    (tmp_path / "test.csv").write_text("image,class\n")
    split_roles.check_splits(own)


def test_images_are_not_evaluated_and_trained_on_under_two_names(tmp_path):
    (tmp_path / "Train.csv").write_text("image,class\n1.jpg,a\n2.jpg,b\n")
    own = config.Data(source="csv", root=str(tmp_path), eval_split="training[:50%]")
    assert error_line(ConfigError, split_roles.check_splits, own) == (
        "data.eval_split=training[:50%]: has images of data.train_split=train, as both mean Train; "
        "name another split, or both alike"
    )
    # Its metrics are then called `train_split`.
    split_roles.check_splits(dataclasses.replace(own, eval_split="train"))
    (tmp_path / "training.csv").write_text("image,class\n3.jpg,a\n4.jpg,b\n")
    (tmp_path / "train.csv").write_text("image,class\n1.jpg,a\n2.jpg,b\n")
    split_roles.check_splits(own)


DISTILLED = {"objective": {"name": "distillation"}, "data": {"eval_split": "val"}}
FEATURES = {"name": "distillation", "target": "features"}
NEIGHBORS = {"objective": {"name": "dino"}, "evaluation": {"knn": "self"}}


@pytest.mark.parametrize(
    ("options", "metric"),
    [
        ({}, None),  # nothing is chosen on the test split
        ({"data": {"eval_split": "val"}}, "val/top1"),
        ({"data": {"train_split": "train[:90%]", "eval_split": "train[90%:]"}}, "validation/top1"),
        ({"data": {"eval_split": "train"}}, None),
        ({"checkpoint": {"best": "loss"}}, "test/loss"),  # unless it is asked for
        ({"data": {"eval_split": "val"}, "checkpoint": {"best": None}}, None),
        ({"data": {"eval_split": "val"}, "objective": {"name": "masked_patches"}}, "val/loss"),
        ({"data": {"eval_split": "val"}, "objective": {"name": "dino"}}, None),
        (NEIGHBORS | {"data": {"eval_split": "val"}}, "knn/self/20nn/top1"),
        (NEIGHBORS, None),
        (DISTILLED, "val/top1"),
        (DISTILLED | {"objective": FEATURES}, None),  # its head does not train
        (DISTILLED | {"objective": FEATURES | {"weight": 0.9}}, "val/top1"),
        (DISTILLED | {"objective": FEATURES, "evaluation": {"knn": "self"}}, "knn/self/20nn/top1"),
        (
            NEIGHBORS
            | {"checkpoint": {"best": "knn"}, "evaluation": {"knn": "pets", "neighbors": (5, 99)}},
            "knn/pets/5nn/top1",
        ),
    ],
)
def test_what_chooses_the_best_checkpoint(options, metric):
    assert split_roles.best_metric(config.build(options)) == metric


@pytest.mark.parametrize(
    ("options", "evaluations", "lines"),
    [
        ({}, 1, []),
        ({}, 9,
         ["the test split `test` is measured 9 times while training; no checkpoint is chosen on "
          "it"]),
        ({"checkpoint": {"best": "top1"}, "data": {"eval_split": "test[:9]"}}, 9,
         ["the best checkpoint is chosen on the test split `test` (`test[:9]`), by test/top1; to "
          "keep it for a last measurement, set data.eval_split to another split and "
          "data.test_split=test[:9]"]),
        ({"data": {"eval_split": "val", "test_split": "test"}}, 9,
         ["the test split `test` is measured once, at the end, on the best checkpoint by "
          "val/top1"]),
        ({"data": {"eval_split": "val"}}, 9, []),
        ({"data": {"eval_split": "train[90%:]"}}, 9,
         ["data.eval_split=train[90%:]: has images that are trained on (train); its metrics are "
          "called train_split"]),
        ({"objective": {"name": "dino"}, "data": {"eval_split": "val"}}, 9,
         ["the split `val` is not measured, as objective.name=dino has no loss on it; if its "
          "images have labels, set evaluation.knn=self"]),
        ({"objective": {"name": "dino"}, "data": {"source": "folder", "holdout": 0.1}}, 9,
         ["the split `test` is not measured, as objective.name=dino has no loss on it; if its "
          "images have labels, set evaluation.knn=self; if not, set data.holdout=0 to train on "
          "all"]),
        ({"objective": {"name": "dino"}, "data": {"eval_split": "train"}}, 9,
         ["no images are held out, as objective.name=dino has no loss to measure on them; to "
          "measure features, set evaluation.knn to a set with labels"]),
        ({"objective": {"name": "dino"}, "evaluation": {"knn": "self"}}, 9, []),
        (DISTILLED | {"objective": FEATURES}, 9,
         ["the split `val` is not measured, as objective.target=features has no loss on it; if "
          "its images have labels, set evaluation.knn=self"]),
        (DISTILLED | {"objective": FEATURES, "init_from": "x", "init_head": "keep"}, 9, []),
    ],
)  # fmt: skip
def test_a_run_says_what_judges_it(options, evaluations, lines):
    assert split_roles.notes(config.build(options), evaluations) == lines


@pytest.mark.parametrize(
    ("options", "measured"),
    [
        ({}, True),
        ({"objective": {"name": "mae"}}, True),
        ({"objective": {"name": "dino"}}, False),
        ({"objective": {"name": "dino"}, "evaluation": {"knn": "cifar10"}}, False),
        ({"objective": {"name": "dino"}, "evaluation": {"knn": "self"}}, True),
        ({"objective": {"name": "dino"}, "evaluation": {"evaluators": "classification"}}, True),
    ],
)
def test_what_is_measured_on_the_evaluation_split(options, measured):
    assert split_roles.measures_split(config.build(options)) == measured


FOLDERS = {
    ("train", "test"): ("test", None),
    ("train", "val"): ("val", None),
    ("train", "valid", "test"): ("valid", "test"),
    ("train", "validation", "testing"): ("validation", "testing"),
    ("train", "val", "test", "extra"): ("val", "test"),
    ("train", "test", "testing"): ("test", None),  # neither may choose
    ("train",): ("test", None),  # which Folder then misses
    ("Train", "Valid", "TEST"): ("Valid", "TEST"),
}


@pytest.mark.parametrize(("there", "expected"), FOLDERS.items())
def test_auto_in_a_folder(tmp_path, there, expected):
    for name in there:
        (tmp_path / name / "cat").mkdir(parents=True)
    auto = data(source="folder", root=str(tmp_path), eval_split="auto", test_split="auto")
    found = split_roles.resolved(auto)
    assert (found.eval_split, found.test_split) == expected
    # What the user says stays.
    named = data(source="folder", root=str(tmp_path), eval_split="extra", test_split="auto")
    assert split_roles.resolved(named).eval_split == "extra"
    if there == ("train",):  # which stands for it where nothing is measured
        expected = "train", None
    found = split_roles.resolved(auto, labels=False, measured=False)
    assert (found.eval_split, found.test_split) == expected
    none = data(source="folder", root=str(tmp_path), eval_split="auto", test_split=None)
    assert split_roles.resolved(none).test_split is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"source": "folder", "root": ".", "holdout": 0.1}, ("validation", None)),
        ({"source": "folder", "root": "nowhere"}, ("test", None)),
        ({"source": "digits"}, ("test", None)),
        ({"source": "tfds", "name": "oxford_flowers102"}, ("validation", "test")),
        ({"source": "tfds", "name": "imagenet2012"}, ("validation", None)),  # test: no labels
        ({"source": "tfds", "name": "clevr:3.*.*"}, ("validation", None)),
        ({"source": "tfds", "name": "mine", "root": "."}, ("test", None)),
    ],
)
def test_auto_elsewhere(tmp_path, monkeypatch, options, expected):
    monkeypatch.chdir(tmp_path)
    found = split_roles.resolved(data(eval_split="auto", test_split="auto", **options))
    assert (found.eval_split, found.test_split) == expected
