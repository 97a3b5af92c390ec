"""The config of a run: loaded, built and completed once, and shown by `train --dry-run`."""

import json
import re

import cv2
import numpy as np
import pytest

import runs
from vit_jax import api, cli, config, train_loop, weights
from vit_jax.config import catalog
from vit_jax.data.source import DataError
from vit_jax.runs import directory, evaluating, preview
from vit_jax.runtime import preemption, provenance
from vit_jax.training import run_config

WEIGHTS = runs.ROOT / "tests" / "fixtures" / "vit_tiny_finetuned.npz"


@pytest.fixture
def calls(monkeypatch):
    """Counts what turns a name into a complete config."""
    counts = {}

    def count(module, name):
        original = getattr(module, name)

        def counted(*arguments, **keywords):
            counts[name] = counts.get(name, 0) + 1
            return original(*arguments, **keywords)

        monkeypatch.setattr(module, name, counted)

    count(catalog, "load_values")
    count(config, "build")
    count(run_config, "complete")
    return counts


def test_a_config_is_loaded_built_and_completed_once(calls, monkeypatch, tmp_path):
    started = []

    def train(cfg, workdir, *, profile, accept):
        started.append((cfg, workdir))
        nothing = {"results": {}, "last": {}, "checkpoint": "", "files": ()}
        return evaluating.Outcome(workdir=workdir, steps=1, seconds=1.0, **nothing)

    monkeypatch.setattr(train_loop, "train", train)
    arguments = ["train", "digits", f"--workdir={tmp_path}/run", "--config.train.batch_size=32"]
    assert cli.main(arguments) == 0
    assert calls == {"load_values": 1, "build": 1, "complete": 1}
    ((cfg, workdir),) = started
    assert (cfg.name, cfg.train.batch_size, workdir) == ("digits", 32, tmp_path / "run")


def test_a_dry_run_shows_the_run_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "digits", "--dry-run"]) == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[2:])
    assert shown["training"].strip() == "train: 1,437 images of 10 classes"
    assert shown["evaluation"].strip() == "test: 360 images, 9 times"
    assert shown["run"].split() == ["directory", "runs/digits,", "new"]
    assert "teacher" not in shown
    distilled = {
        "objective.name": "distillation",
        "objective.teacher": "runs/large",
        "schedule.name": "constant",
    }
    monkeypatch.setattr(preview, "load_teacher", lambda *_: None)  # which is not there
    rows = dict(api.preview("digits", tmp_path / "r", distilled | {"schedule.cooldown": "9 steps"}))
    assert rows["teacher"] == "runs/large"
    assert rows["steps"] == "2,021 of 64 images, 225 of them warm-up, 9 cooldown"
    assert list(tmp_path.iterdir()) == []
    assert cli.main(["train", "digits", "--dry-run", "--smoke"]) == 2
    assert "--dry-run: does not go with --smoke" in capsys.readouterr().err


RESNET = {"model.variant": "R50x1", "data.image_size": 32}


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model.remat": "full"}, False),
        (RESNET | {"model.remat": "full"}, True),
        (RESNET, False),
    ],
    ids=["encoder", "resnet", "none"],
)
def test_rematerialization_that_saves_nothing_is_said(options, said, tmp_path):
    rows = api.preview("digits", tmp_path / "run", options)
    notes = [line for label, line in rows if label == "note"]
    assert any(line.startswith("model.remat=") for line in notes) == said


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize(
    ("dtype", "fast", "said"),
    [
        ("bfloat16", False, "slower than float32 on a CPU.*dtype=float32$"),
        ("bfloat16", True, "slower than float32 on a CPU.*dtype=bfloat16_matmul$"),
        ("bfloat16_matmul", False, "this CPU has neither AVX512-BF16 nor AMX; float32 may be fas"),
        ("bfloat16_matmul", True, None),
        ("auto", False, None),
    ],
)
def test_a_compute_type_that_is_slow_here_is_said(dtype, fast, said, tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "multiplies_bfloat16", lambda: fast)
    rows = api.preview("digits", tmp_path / "run", {"model.dtype": dtype})
    found = [line for label, line in rows if label == "note" and line.startswith("model.dtype=")]
    assert len(found) == (said is not None)
    assert said is None or re.match(f"model.dtype={dtype}: {said}", found[0])


@pytest.mark.usefixtures("one_device")
def test_a_dry_run_looks_at_the_weights_to_start_from(tmp_path):
    sizes = {"model.patch_size": 16, "model.width": 32, "model.depth": 3, "model.mlp_dim": 64}
    sizes |= {"model.heads": 4, "model.unroll": 1, "model.position": "learned_1d"}
    options = sizes | {"data.image_size": 32, "init_from": str(WEIGHTS)}
    rows = dict(api.preview("digits", tmp_path / "run", options))
    assert rows["starts from"] == str(WEIGHTS)
    with pytest.raises(weights.WeightsError, match=r"embedding/bias is \(32,\), not \(48,\)"):
        api.preview("digits", tmp_path / "run", options | {"model.width": 48})
    with pytest.raises(weights.WeightsError, match="no_such"):
        api.preview("digits", tmp_path / "run", options | {"init_from": "no_such"})


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_a_dry_run_says_where_a_run_resumes(tmp_path, monkeypatch):
    workdir = tmp_path / "run"
    with runs.stopping_at(monkeypatch, 7), pytest.raises(preemption.Preempted):
        train_loop.train(runs.configure(), workdir)
    before = sorted(tmp_path.rglob("*"))
    rows = dict(api.preview(None, workdir))
    assert rows["run directory"] == f"{workdir}, resumes after step 7"
    assert rows["steps"] == "25 of 32 images, 3 of them warm-up"
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(config.ConfigError, match=r"holds another run \(seed: 0 -> 1\)"):
        api.preview(None, workdir, {"seed": 1})


@pytest.mark.usefixtures("one_device")
def test_a_run_that_has_not_begun_may_be_corrected(tmp_path):
    """A mistake that shows late, such as weights that do not fit, leaves config.json behind."""
    wrong, right = runs.configure(), runs.configure(optimizer={"lr": 0.002})
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict(wrong)))
    (tmp_path / "metrics.jsonl").touch()
    (tmp_path / "checkpoints").mkdir()
    assert directory.reconcile(tmp_path, right, {}) == right
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(config.ConfigError, match="holds another run"):
        directory.reconcile(tmp_path, right, {})
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "checkpoints" / "5").mkdir()
    with pytest.raises(config.ConfigError, match="holds another run"):
        directory.reconcile(tmp_path, right, {})


OWN = """
import ml_collections


RUNS = ("mine",)


def get_config(name):
    return ml_collections.ConfigDict({"data": {"source": "folder"%s}})
"""


@pytest.mark.parametrize(
    ("folders", "more", "overrides", "expected"),
    [
        (("train", "valid", "test"), "", {}, ("valid", "test")),
        (("train", "test"), "", {}, ("test", None)),
        (("train", "valid"), "", {}, ("valid", None)),
        (("cat", "dog"), "", {"data.holdout": "0.2"}, ("validation", None)),
        (("train", "valid", "test"), ', "eval_split": "test"', {}, ("test", None)),
        (("train", "valid", "test"), "", {"data.eval_split": "test"}, ("test", None)),
        (("train", "valid", "test"), "", {"data.test_split": "none"}, ("valid", None)),
    ],
)
def test_a_config_of_ones_own_does_not_ignore_the_validation_folder(
    tmp_path, folders, more, overrides, expected
):
    for name in folders:
        (tmp_path / "photos" / name).mkdir(parents=True)
    (tmp_path / "my.py").write_text(OWN % more)
    given = {"data.root": f"{tmp_path}/photos", "data.image_size": "32", **overrides}
    given["model.variant"] = "ViT-Ti/16"
    data = run_config.resolve(f"{tmp_path}/my.py:mine", given).data
    assert (data.eval_split, data.test_split) == expected
    if "test" in folders:  # a stored config says what was evaluated
        stored = config.to_dict(run_config.resolve("digits", {}))
        change = {"data.source": "folder", "data.root": given["data.root"]}
        if not more and len(given) == 3:  # nor does a published one, for data with its own splits
            published = run_config.resolve("baseline/ViT-S_16-imagenet-90ep", change).data
            assert (published.eval_split, published.test_split) == expected
        assert run_config.config_from_values(stored, change).data.eval_split == "test"


@pytest.mark.parametrize(
    ("given", "box"),
    [
        ({}, 441),  # 7/6 of 378
        ({"image_size": "256"}, 299),
        ({"image_size": "448"}, 523),  # 441 would be smaller than the image
        ({"image_size": "256", "resize_to": "256"}, 256),
        ({"image_size": "256", "crop_pct": "0.5"}, 512),
    ],
)
def test_a_config_at_another_size_shows_as_much_of_an_image(given, box):
    options = {f"data.{key}": value for key, value in given.items()}
    found = api.get_config("vtab/ViT-H_14-jft-caltech101", {"model.patch_size": "2"} | options)
    assert found.data.before_crop == (box, box)
    # A Config of Python's, and one that a catalog derives.
    whole = api.get_config("vtab/ViT-H_14-jft-caltech101", {"model.patch_size": "2"})
    again = run_config.config_from_values(config.to_dict(whole), options)
    derived = catalog.derive("vtab/ViT-H_14-jft-caltech101", options).to_dict()
    assert again.data == found.data
    assert config.build(derived).data.before_crop == (box, box)


def test_data_in_a_bucket_keep_their_address():
    data = {"source": "tfds", "name": "cifar10", "root": "gs://bucket/data"}
    model = {"variant": "ViT-Ti/16", "num_classes": 10}
    cfg = run_config.config_from_values({"data": data, "model": model}, {})
    assert cfg.data.root == "gs://bucket/data"
    small = run_config.config_from_values({"data": data, "model": model}, {}, tiny=True)
    assert (small.data.source, small.model.variant) == ("synthetic", None)  # nor is it that model


@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        ({"eval_split": "test"}, ("test", None)),
        ({"eval_split": "train[1200:]", "test_split": "test"}, ("validation", "test")),
    ],
)
def test_a_smoke_run_has_the_roles_of_splits_and_the_parts_of_the_schedule(splits, expected):
    values = config.to_dict(run_config.resolve("digits", {}))
    values["data"] |= splits
    for warmup, cooldown in ((50, 0), (0, 50)):
        values["schedule"] = {
            "name": "constant", "warmup": f"{warmup} steps", "cooldown": f"{cooldown} steps",
        }  # fmt: skip
        cfg = run_config.config_from_values(values, {}, tiny=True)
        assert (cfg.data.eval_split, cfg.data.test_split) == expected
        found = cfg.schedule.warmup, cfg.schedule.cooldown
        assert [str(one) for one in found] == [f"{n > 0:d} steps" for n in (warmup, cooldown)]


def test_images_that_do_not_fit_the_patches_are_refused_before_anything_is_built():
    with pytest.raises(config.ConfigError, match=r"^data\.image_size=9,8: "):
        run_config.resolve("digits", {"data.image_size": "9,8"})


def test_a_preview_refuses_numbers_that_never_change_as_the_run_does(tmp_path):
    for name in ("a", "b"):
        cv2.imwrite(str(tmp_path / f"{name}.png"), np.zeros((8, 8, 3), np.uint8))
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").write_text("image,age\na.png,3\nb.png,3\n")
    options = {"data.root": str(tmp_path), "data.targets": "age", "loss.name": "mse"}
    with pytest.raises(
        DataError, match=r"data\.targets=age: is 3 in each of the 2 training images"
    ):
        api.preview("image_csv", tmp_path / "run", options)


def test_a_folder_without_labels_or_splits_needs_a_holdout_only_where_one_is_measured(tmp_path):
    (tmp_path / "1.jpg").write_bytes(b"")
    own = {"data.root": str(tmp_path)}
    found = run_config.resolve("dino/folder", own).data
    assert (found.eval_split, found.test_split) == ("train", None)
    assert run_config.resolve("mae/folder", own).data.eval_split == "test"  # which is missing
    assert run_config.resolve("dino/folder", own | {"data.holdout": "0.1"}).data.eval_split == (
        "validation"
    )
