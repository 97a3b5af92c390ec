"""Sets beside the run's own: those that are missing cost one line."""

import json
import logging
import pathlib
import shutil
import types

import numpy as np
import pytest

import image_folders
import runs
import tfds_fakes
import toys
import vit_jax
from vit_jax import config, train_loop
from vit_jax.config import ConfigError
from vit_jax.data import real_labels
from vit_jax.data.source import DataError
from vit_jax.evaluation import task_sets
from vit_jax.runtime import collectives
from vit_jax.training import build, run_config

SIZES = {
    "imagenet2012": {"train": 40, "validation": 20},
    "imagenet2012_corrupted/fog_1": {"validation": 10},
    "imagenet_v2/matched-frequency": {"test": 27},
    "imagenet_a": {"test": 9},
    "cifar10": {"train": 4, "test": 4},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    path = tmp_path_factory.mktemp("tfds")
    for name, splits in SIZES.items():
        tfds_fakes.prepare(path, name, splits, called if name == "imagenet2012" else None)
    return path


def called(record, split, index):
    """Names an image as ImageNet does, validation images from number 101 on."""
    name = "n01440764_{}.JPEG" if split == "train" else "ILSVRC2012_val_{:08d}.JPEG"
    record["file_name"] = name.format(index + 101)


def configure(root, *names, **data):
    values = {
        "model": {"patch_size": 8, "width": 16, "depth": 1, "mlp_dim": 16, "heads": 2},
        "data": {
            "source": "tfds", "name": "imagenet2012", "root": str(root), "image_size": 8,
            "eval_split": "validation", "train_crop": "resize",
        } | data,
        "train": {"batch_size": 16, "duration": "2 steps"},
        "logging": {"tensorboard": False},
        "evaluation": {"tasks": names},
    }  # fmt: skip
    return run_config.complete(config.build(values))


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_a_further_set_is_measured_as_where_it_is_the_main_one(root, tmp_path):
    cfg = configure(root, "imagenet-v2", "imagenet-a")
    results = train_loop.train(cfg, tmp_path / "run").results
    counts = {"validation/count": 20, "imagenet-v2/count": 27, "imagenet-a/count": 9}
    assert {key: results[key] for key in counts} == counts
    alone = vit_jax.evaluate(
        tmp_path / "run",
        {
            "data.name": "imagenet_v2/matched-frequency", "data.eval_split": "test",
            "evaluation.tasks": "()", "evaluation.batch_size": "8",
        },
    )  # fmt: skip
    assert alone["test/count"] == 27
    for key in ("top1", "top5"):
        assert alone[f"test/{key}"] == results[f"imagenet-v2/{key}"]
    assert alone["test/loss"] == pytest.approx(results["imagenet-v2/loss"], rel=1e-6)


def test_a_pattern_of_missing_sets_is_one_line(root, caplog):
    classes = task_sets.sources.open_task(
        task_sets.tasks.find_task("imagenet"), "train", root
    ).classes
    with caplog.at_level(logging.WARNING, "vit_jax"):
        found = task_sets.open_sets(configure(root, "imagenet-c/*", "imagenet-v2"), classes)
    assert list(found) == ["imagenet-c/fog_1", "imagenet-v2"]
    assert [record.message for record in caplog.records] == [
        f"evaluation.tasks=imagenet-c/*: 94 sets are not in {root}, so they are left out "
        "(imagenet-c/gaussian_noise_1, imagenet-c/gaussian_noise_2, imagenet-c/gaussian_noise_3, "
        f"...); run `vit_jax list --tasks --data-dir={root}`, which says how to get them"
    ]


def test_what_another_process_lacks_is_left_out_here_too(root, monkeypatch):
    monkeypatch.setattr(
        collectives, "first_problem", lambda problem: problem or "elsewhere it is missing"
    )
    classes = task_sets.sources.open_task(
        task_sets.tasks.find_task("imagenet"), "train", root
    ).classes
    assert task_sets.open_sets(configure(root, "imagenet-v2"), classes) == {}


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (
            "cifar10",
            "no class of the data is one of the head; data (10): 0, 1, 2, 3, 4, 5, 6, 7, 8, 9; "
            f"head (1000): {', '.join('abcd' * 9)}, ...; choose sets for the same head",
        ),
        ("jft", "has no test images"),
        ("imagenet-v3", "no such task; did you mean imagenet-v2?"),
    ],
)
def test_sets_that_do_not_fit(root, task, reason):
    with pytest.raises(ConfigError) as caught:
        task_sets.open_sets(configure(root, task), tuple("abcd" * 250))
    assert str(caught.value) == f"evaluation.tasks={task}: {reason}"


def test_class_numbers_of_imagenet_become_outputs_by_name(root, monkeypatch):
    names, found = task_sets.class_matching.imagenet()[::-1], types.SimpleNamespace(path=root)
    monkeypatch.setattr(task_sets.availability, "find_prepared", lambda *_: found)
    real = real_labels.Real(((0,), (999, 3)), "")
    monkeypatch.setattr(task_sets.real_labels, "load_real", lambda _: real)
    toy = toys.Toy([[0], [0]], [5, 6])
    toy.classes = ("cat", "dog")
    with pytest.raises(
        ConfigError, match="^evaluation.tasks=imagenet-real: .*choose sets for the same head"
    ):
        task_sets.reassess(configure(root, "imagenet-real"), toy)
    toy.classes = names
    own, right = task_sets.reassess(configure(root, "imagenet-real"), toy).decode(
        np.array([5, 1006])
    )
    assert (own.tolist(), right.tolist()) == ([5, 6], [[999, -1], [0, 996]])
    table = np.array([[2, 1], [-1, -1]], np.int32)
    monkeypatch.setattr(task_sets.objectnet, "right_classes", lambda *_: table)
    assert task_sets.objectnet_outputs(None, ("a", "b"), names).tolist() == [[997, 998], [-1, -1]]
    with pytest.raises(
        ConfigError, match="tasks=objectnet: no class of the data is one of the head"
    ):
        task_sets.objectnet_outputs(None, ("a", "b"), ("cat", "dog"))


@pytest.mark.usefixtures("one_device")
def test_a_missing_training_set_is_an_error_before_anything_is_compiled(
    root, tmp_path, monkeypatch
):
    def compiles(*_):
        raise AssertionError("compiled before the data was there")

    monkeypatch.setattr(build.Trainer, "compile_program", compiles)
    only = shutil.copytree(root / "imagenet2012", tmp_path / "data/imagenet2012").parent
    with pytest.raises(DataError) as caught:
        train_loop.train(configure(tmp_path / "nowhere"), tmp_path / "run")
    assert str(caught.value) == (
        f"data.name=imagenet2012: not prepared in {tmp_path}/nowhere/imagenet2012/5.1.0; run "
        f"`vit_jax prepare imagenet --from=FOLDER --data-dir={tmp_path}/nowhere`"
    )
    # The evaluation split is there, the one to train on is not.
    with pytest.raises(ConfigError, match=r"^data\.train_split=extra: no such split"):
        train_loop.train(configure(only, train_split="extra"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_real_is_measured_on_the_same_pass(root, tmp_path, monkeypatch, caplog):
    data = tmp_path / "data"
    shutil.copytree(root / "imagenet2012", data / "imagenet2012")
    with caplog.at_level(logging.WARNING, "vit_jax"):
        results = train_loop.train(configure(data, "imagenet-real"), tmp_path / "run").results
    assert caplog.messages == [
        f"evaluation.tasks=imagenet-real: not in {data}, so it is left out; "
        f"run `vit_jax prepare imagenet-real --from=real.json --data-dir={data}`"
    ]
    assert not any("real" in key for key in results)
    passes = []
    outputs = task_sets.SplitRunner.outputs
    monkeypatch.setattr(
        task_sets.SplitRunner, "outputs", lambda *a, **k: passes.append(a[0]) or outputs(*a, **k)
    )
    (data / "imagenet_real").mkdir()

    def evaluate(right, **overrides):
        labels = [right(number - 101) if number < 200 else [] for number in range(1, 50_001)]
        (data / "imagenet_real/real.json").write_text(json.dumps(labels))
        return vit_jax.evaluate(tmp_path / "run", {"evaluation.tasks": "imagenet-real"} | overrides)

    own = evaluate(lambda index: [index % 1000])  # as tfds_fakes labels them
    assert len(passes) == 1
    assert own["validation/real/top1"] == own["validation/top1"]
    some = evaluate(lambda index: [] if index % 3 else list(range(1000)))
    assert (some["validation/real/top1"], some["validation/real/count"]) == (1, 7)
    with pytest.raises(ConfigError, match="^evaluation.tasks=imagenet-real: n01440764_.*=validati"):
        evaluate(lambda index: [], **{"data.eval_split": "train"})


# Pairs of splits for frozen features: `evaluation.fewshot`, `probe` and `knn`

TOKEN = pathlib.Path(__file__).parent.parent / "fixtures/vit_tiny_token.npz"


def lengths(cfg):
    """The numbers of images and classes of the sets that are opened."""
    opened = task_sets.open_pairs(cfg, len)
    assert not opened["probe"]
    return {name: numbers for name, *numbers in opened["fewshot"]}


def configure_pairs(*names, **data):
    return runs.configure(data=data, evaluation={"fewshot": names})


def test_sets_that_come_with_the_run():
    cfg = configure_pairs("self", "digits", train_split="train[100:250]", eval_split="test[:20]")
    assert lengths(cfg) == {"self": [150, 20, 10], "digits": [1437, 360, 10]}


def test_images_are_not_compared_with_themselves():
    cfg = configure_pairs("self", train_split="train[:200]", eval_split="train[100:300]")
    line = r"^evaluation\.fewshot=self: data\.eval_split=train\[100:300\] has images of data\.train"
    with pytest.raises(ConfigError, match=line):
        task_sets.open_pairs(cfg, len)


def test_a_set_of_several_kinds_is_opened_once_for_all():
    data = {"train_split": "train[:10]", "eval_split": "test[:5]"}
    asked = {"fewshot": ("self",), "knn": ("self", "digits")}
    opened = task_sets.open_pairs(runs.configure(data=data, evaluation=asked), list)
    assert {kind: [pair.name for pair in pairs] for kind, pairs in opened.items()} == {
        "fewshot": ["self"], "probe": [], "knn": ["self", "digits"],
    }  # fmt: skip
    assert opened["fewshot"][0] is opened["knn"][0]


def test_tasks(tmp_path, caplog):
    tfds_fakes.prepare(tmp_path, "oxford_iiit_pet:4.0.0", {"train": 80, "test": 40})
    tfds_fakes.prepare(tmp_path, "cifar10", {"train": 30, "test": 20})
    tfds = {"source": "tfds", "name": "cifar10", "root": str(tmp_path)}
    cfg = configure_pairs("pets", "cifar10", "imagenet", **tfds)
    with caplog.at_level(logging.WARNING, "vit_jax"):
        assert lengths(cfg) == {"pets": [80, 40, 37], "cifar10": [30, 20, 10]}
        assert lengths(configure_pairs("fewshot", **tfds)) == {"pets": [80, 40, 37]}
    one, many = (record.message for record in caplog.records)
    assert one == (
        f"evaluation.fewshot=imagenet: not in {tmp_path}, so it is left out; "
        f"run `vit_jax prepare fewshot/imagenet --from=FOLDER --data-dir={tmp_path}`"
    )
    assert many.startswith(
        f"evaluation.fewshot=fewshot: 6 sets are not in {tmp_path}, so they are left out ("
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("imagenet-v2", "has no training images; choose a set with both"),
        ("jft", "has no test images; choose a set with both"),
        ("pet", "no such task; did you mean pets?"),
    ],
)
def test_names_that_are_none(name, reason):
    with pytest.raises(ConfigError) as caught:
        task_sets.open_pairs(configure_pairs(name), len)
    assert str(caught.value) == f"evaluation.fewshot={name}: {reason}"


@pytest.mark.slow
def test_weights_of_others_need_no_images_of_their_own():
    options = {
        "evaluation.fewshot": "digits",
        "evaluation.shots": "2",
        "evaluation.batch_size": "64",
    }
    assert list(vit_jax.evaluate(TOKEN, options)) == ["fewshot/digits/2shot"]
    for own in ({"evaluation.probe": "self"}, {"evaluation.tasks": "imagenet-real"}):
        with pytest.raises(ConfigError, match="names no images; set --config.data.source"):
            vit_jax.evaluate(TOKEN, own)


@pytest.mark.parametrize(("classes", "each", "said"), [(30, 4, True), (2, 60, False)])
def test_test_images_that_are_trained_on_without_labels_are_said(
    tmp_path, caplog, classes, each, said
):
    """A holdout with labels has one of each class, and that of the run has not."""
    image_folders.fill(tmp_path, *(f"{c}/{k}.png" for c in range(classes) for k in range(each)))
    data = {"source": "folder", "root": str(tmp_path), "holdout": 0.05, "eval_split": "validation"}
    values = {"objective": {"name": "mae"}, "data": data, "evaluation": {"knn": ("self",)}}
    task_sets.open_pairs(config.build(values), len)
    line = "evaluation.knn=self: 23 of 30 test images are trained on, without their labels"
    assert (line in caplog.text) == said
