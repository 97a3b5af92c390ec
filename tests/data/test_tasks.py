"""The table of tasks against the fact sheet, and against the builders of the installed TFDS."""

import fnmatch
import json
import pathlib
import sys

import pytest
import tensorflow_datasets as tfds

from commands import error_line
from vit_jax.config import ConfigError, paper
from vit_jax.data import datasets, tasks
from vit_jax.data.labels import RULES
from vit_jax.data.tasks import TASKS

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TABLES = json.loads((ROOT / "tests/paper_tables.json").read_text())
VTAB = {row["task"]: row for row in TABLES if row["table"] == "VTAB-1k task"}
PACKED = {"imagenet21k", "jft_300m", "objectnet"}  # no builder is in TFDS
DATASETS = {task.dataset.tfds: task.dataset for task in TASKS.values()}
# Only the version differs: TFDS has left 3.*.* of Pets; KITTI's 3.1.0 is one of those that will do.
VERSIONS = {"oxford_iiit_pet:3.*.*": "oxford_iiit_pet:4.*.*", "kitti:3.1.0": "kitti:3.*.*"}


def test_vtab_is_the_19_tasks_of_table_9_in_its_order():
    names = [name.removeprefix("vtab/") for name in TASKS if name.startswith("vtab/")]
    assert names == list(paper.TABLE_9)
    assert [TASKS[f"vtab/{name}"].title for name in names] == list(VTAB)


@pytest.mark.parametrize("title", VTAB)
def test_vtab(title):
    row, (task,) = VTAB[title], [t for t in TASKS.values() if t.title == title and "vtab" in t.name]
    assert task.group == f"VTAB {row['group']}"
    assert task.dataset.name == VERSIONS.get(row["tfds"], row["tfds"])
    assert task.classes == row["classes"]
    assert task.test == row["test_split"]
    # As many images as task_adaptation's own tests count.
    assert task.count(task.test) == row["test"]
    assert (task.count(task.train), task.count(task.held_out)) == (800, 200)
    assert task.whole == f"{task.train}+{task.held_out}"
    assert task.count(task.whole) == 1000
    # The 200 begin where its training part ends, if both are of one split.
    if task.held_out.startswith("train"):
        assert task.held_out == f"train[{row['train']}:{row['train'] + 200}]"
        assert task.count("train") >= row["train"] + row["val"]
    assert (task.labels is None) == (row["label_rule"] == "label")
    if task.labels is not None:
        assert len(RULES[task.labels].classes) == task.classes


@pytest.mark.parametrize(("name", "percent"), [("cifar10", 98), ("cifar100", 98), ("pets", 90),
                                               ("flowers", 90), ("imagenet", 99)])  # fmt: skip
def test_fine_tuning_selects_on_the_end_of_its_training_split(name, percent):
    task = TASKS[name]
    assert (task.train, task.held_out) == (f"train[:{percent}%]", f"train[{percent}%:]")
    assert (task.whole, task.test) == ("train", "validation" if name == "imagenet" else "test")


def test_what_single_tasks_differ_in():
    """Several correct classes; classes without images that are not predicted; a border."""
    assert {n for n, t in TASKS.items() if t.several} == {"imagenet-real", "objectnet"}
    assert {n for n, t in TASKS.items() if t.restricted} == {"imagenet-a", "imagenet-r"}
    borders = {t.dataset.tfds: t.dataset.border for t in TASKS.values() if t.dataset.border}
    assert borders == {"objectnet": 2}


@pytest.mark.parametrize(
    ("name", "split", "images"),
    [
        ("imagenet", "train[:99%]", 1_268_355),  # 1,268,355.33
        ("imagenet21k", "full[51200:]", 14_145_922),
        ("pets", "train[90%:]", 368),
        ("vtab/kitti-distance", "train[-10:]+validation[:200]+test", 921),
        ("objectnet", "test", None),
        ("imagenet-v2", "test[:100]", 100),
        ("objectnet", "train[20:100]", 80),
    ],
)
def test_counts(name, split, images):
    assert TASKS[name].count(split) == images


def test_finding():
    assert tasks.find_task("vtab/dtd").title == "DTD"
    assert [t.name for t in tasks.select("pets")] == ["pets"]
    assert len(tasks.select("vtab")) == len(tasks.select("vtab/*")) == 19
    assert len(tasks.select("imagenet-c/fog_*")) == 5
    for wrong, hint in (
        ("vtab/clevr-cuont", "; did you mean vtab/clevr-count?"),
        ("zzz", "; `vit_jax list --tasks` shows all"),
    ):
        line = f"evaluation.tasks={wrong}: no such task{hint}"
        assert error_line(ConfigError, tasks.select, wrong, "evaluation.tasks=") == line


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(DATASETS.keys() - PACKED))
def test_the_builder_of_the_installed_tfds(name, tmp_path):
    """Features, classes, configs and versions, of classes loaded without data or TensorFlow."""
    dataset = DATASETS[name]
    base, _, chosen = name.partition("/")
    builder = tfds.builder(dataset.name, data_dir=str(tmp_path))
    assert "tensorflow" not in sys.modules
    assert builder.name == base
    assert (builder.builder_config.name if chosen else "") == chosen
    assert fnmatch.fnmatchcase(str(builder.version), dataset.version or "*.*.*")
    asks = bool(builder.MANUAL_DOWNLOAD_INSTRUCTIONS)
    assert asks == (dataset.obtained == datasets.MANUAL)
    features = builder.info.features
    labels = {n: f for n, f in features.items() if isinstance(f, tfds.features.ClassLabel)}
    if dataset.classes:
        # The dataset's own: of its supervised pair, else the only one.
        label = (builder.info.supervised_keys or [None, next(iter(labels))])[1]
        label = "original_label" if base == "imagenet2012_real" else label
        assert labels[label].num_classes == dataset.classes
    for task in TASKS.values():
        if task.dataset == dataset and task.labels is not None:
            rule = RULES[task.labels]
            image = features[rule.image]
            assert isinstance(image, tfds.features.Image)
            assert (image.shape[-1] == 1) == (base in ("dsprites", "smallnorb"))
            for path in rule.features:
                first, _, member = path.partition("/")
                assert member in features[first].feature if member else first in features
    for split in dataset.images:
        assert split in ("train", "validation", "test")


def test_corruptions_are_those_of_tfds(tmp_path):
    configs = tfds.builder_cls("imagenet2012_corrupted").BUILDER_CONFIGS
    ours = {n.removeprefix("imagenet-c/") for n in TASKS if n.startswith("imagenet-c/")}
    assert ours == {config.name for config in configs}
