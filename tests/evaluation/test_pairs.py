"""`evaluation.fewshot` and `evaluation.probe`: what may be named, what is missing, a whole run."""

import json
import logging
import pathlib

import jax
import pytest

import runs
import tfds_fakes
import vit_jax
from vit_jax import cli, config, train_loop
from vit_jax.config import ConfigError
from vit_jax.evaluation import linear_data
from vit_jax.training import sharding

KEY = "evaluation.fewshot"
TOKEN = pathlib.Path(__file__).parent.parent / "fixtures/vit_tiny_token.npz"


def lengths(cfg):
    """The numbers of images and classes of the sets that are opened."""
    opened = linear_data.open_pairs(cfg, len)
    assert not opened["probe"]
    return {name: tuple(pair) for name, pair in opened["fewshot"].items()}


def configure(*names, **data):
    return runs.configure(data=data, evaluation={"fewshot": names})


def test_sets_that_come_with_the_run():
    cfg = configure("self", "digits", train_split="train[100:250]", eval_split="test[:20]")
    assert lengths(cfg) == {"self": (150, 20, 10), "digits": (1437, 360, 10)}


def test_a_set_of_several_kinds_is_opened_once_for_all():
    data = {"train_split": "train[:10]", "eval_split": "test[:5]"}
    asked = {"fewshot": ("self",), "knn": ("self", "digits")}
    opened = linear_data.open_pairs(runs.configure(data=data, evaluation=asked), list)
    assert {kind: list(sets) for kind, sets in opened.items()} == {
        "fewshot": ["self"], "probe": [], "knn": ["self", "digits"],
    }  # fmt: skip
    assert opened["fewshot"]["self"] is opened["knn"]["self"]


def test_tasks(tmp_path, caplog):
    tfds_fakes.prepare(tmp_path, "oxford_iiit_pet:4.0.0", {"train": 80, "test": 40})
    tfds_fakes.prepare(tmp_path, "cifar10", {"train": 30, "test": 20})
    tfds = {"source": "tfds", "name": "cifar10", "root": str(tmp_path)}
    cfg = configure("pets", "cifar10", "imagenet", **tfds)
    with caplog.at_level(logging.WARNING, "vit_jax"):
        assert lengths(cfg) == {"pets": (80, 40, 37), "cifar10": (30, 20, 10)}
        assert lengths(configure("fewshot", **tfds)) == {"pets": (80, 40, 37)}
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
        linear_data.open_pairs(configure(name), len)
    assert str(caught.value) == f"{KEY}={name}: {reason}"


def test_shots_that_are_none():
    with pytest.raises(ConfigError, match="evaluation.shots"):
        config.build({"evaluation": {"shots": (5, 0)}})


@pytest.mark.slow
def test_a_run_and_the_command_line(tmp_path, capsys, monkeypatch, caplog):
    create = sharding.create_mesh
    monkeypatch.setattr(sharding, "create_mesh", lambda fsdp, *_: create(fsdp, jax.devices()[:2]))
    cfg = runs.configure(
        train={"duration": "4 steps"},
        evaluation={"every": 2, "fewshot": ("self",), "shots": (1, 40), "fewshot_seeds": 1},
    )
    with caplog.at_level(logging.WARNING, "vit_jax"):
        results = train_loop.train(cfg, tmp_path / "run").results
    assert set(results) == {
        "test/top1", "test/top5", "test/loss", "test/count",
        "fewshot/self/1shot", "fewshot/self/40shot",
    }  # fmt: skip
    (message,) = {record.message for record in caplog.records}
    assert message.startswith("evaluation.shots=40: self has a class with ")
    assert message.endswith(" training images; all are used")
    lines = [json.loads(x) for x in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "fewshot/self/1shot" in line] == [2, 4]
    capsys.readouterr()
    arguments = ["evaluate", f"--checkpoint={tmp_path}/run", "--json"]
    arguments += ["--config.evaluation.shots=1", "--config.evaluation.probe=self"]
    assert cli.main(arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["fewshot/self/1shot"] == results["fewshot/self/1shot"]
    assert "fewshot/self/40shot" not in printed
    assert printed["probe/self/top1"] > printed["fewshot/self/1shot"]
    assert printed["probe/self/log10_l2"] in range(-5, 1)


@pytest.mark.slow
def test_weights_of_others_need_no_images_of_their_own():
    options = {
        "evaluation.fewshot": "digits",
        "evaluation.shots": "2",
        "evaluation.batch_size": "64",
    }
    assert list(vit_jax.evaluate(TOKEN, options)) == ["fewshot/digits/2shot"]
    for own in ({"evaluation.probe": "self"}, {"evaluation.tasks": "imagenet-real"}):
        with pytest.raises(ConfigError, match="brings no images; set --config.data.source"):
            vit_jax.evaluate(TOKEN, own)
