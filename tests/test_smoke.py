"""`--smoke`: every name of the catalog trains two real steps, as a tiny copy of itself."""

import dataclasses
import json
import math

import pytest

from vit_jax import catalog, cli, config, listing, logs, run, smoke

NAMES = list(catalog.names())


def distinct():
    """Returns the smoke configs that differ by more than their name, each with its names."""
    found = {}
    for name in NAMES:
        cfg = run.resolve(name, {}, tiny=True)
        found.setdefault(dataclasses.replace(cfg, name=""), []).append(name)
    return found


DISTINCT = distinct()
# Every kind of network, and between them every part that only some rows have.
QUICK = (
    "augreg/R50+ViT-L_32-i21k",  # hybrid, RandAugment, mixup, stochastic depth, dropout
    "axial/AxialViT-B_16",
    "axial/AxialResNet50",
    "finetune/ViT-H_14-jft-imagenet-518",  # SGD, Polyak averaging
    "posemb/relative",
    "pretrain/R50x1-jft-7ep-sgd",
)


def train(name, workdir):
    """Trains the smoke copy of `name` and returns its losses, after looking at what it left."""
    cfg = run.resolve(name, {"logging.tensorboard": "false"}, tiny=True)
    outcome = run.train(cfg, workdir)
    assert outcome.steps == 2
    lines = logs.read_metrics(workdir / "metrics.jsonl")
    losses = [line["train/loss"] for line in lines if "train/loss" in line]
    assert len(losses) == 2
    assert all(math.isfinite(loss) for loss in losses)
    assert math.isfinite(outcome.results["test/loss"])
    assert outcome.results["test/count"] == smoke.EXAMPLES
    (commit,) = (workdir / "checkpoints").glob("2/commit.json")
    assert json.loads(commit.read_text())["step"] == 2
    return losses


def test_every_name_has_a_smoke_config_that_runs():
    assert sorted(name for names in DISTINCT.values() for name in names) == sorted(NAMES)
    assert len(DISTINCT) < 70
    kinds = {cfg.model.architecture for cfg in DISTINCT}
    assert kinds == {"vit", "resnet", "axial_vit", "axial_resnet"}
    quick = [cfg for cfg, names in DISTINCT.items() if set(names) & set(QUICK)]
    assert {cfg.model.architecture for cfg in quick} == kinds
    assert any(cfg.model.resnet_units and cfg.model.architecture == "vit" for cfg in quick)


@pytest.mark.parametrize("name", QUICK)
def test_each_kind_trains(name, tmp_path):
    train(name, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("names", DISTINCT.values(), ids=lambda names: names[0])
def test_every_name_trains(names, tmp_path):
    train(names[0], tmp_path / "run")


def test_a_tiny_copy_keeps_what_makes_the_row():
    for entry in listing.entries():
        tiny = smoke.shrink(entry.cfg)
        kept = {
            "model": ("architecture", "pooling", "position", "position_place", "head_bias", "gelu",
                      "dropout", "stochastic_depth", "resnet_version", "dtype", "remat"),
            "data": ("channels", "train_crop", "eval_crop", "randaugment", "flip", "rotation"),
            "train": ("loss", "label_smoothing", "mixup", "clip_norm", "ema"),
            "schedule": ("decay", "end", "drops"),
        }  # fmt: skip
        for section, keys in kept.items():
            for key in keys:
                path = f"{section}.{key}"
                assert config.get(tiny, path) == config.get(entry.cfg, path), (entry.name, path)
        assert tiny.optimizer == entry.cfg.optimizer
        assert (tiny.name, tiny.seed, tiny.mesh) == (entry.name, entry.cfg.seed, entry.cfg.mesh)
        units = entry.cfg.model.resnet_units
        assert units is None or len(tiny.model.resnet_units) == len(units)
        layer = entry.cfg.model.representation_size
        assert (tiny.model.representation_size is None) == (layer is None)
        assert bool(tiny.schedule.warmup.amount) == bool(entry.cfg.schedule.warmup.amount)
        assert str(tiny.train.duration) == "2 steps"
        assert tiny.data.source == "synthetic"


def test_what_is_overridden_is_not_cut_down():
    overrides = {"model.depth": "3", "train.batch_size": "8", "optimizer.lr": "0.5"}
    cfg = run.resolve("pretrain/ViT-L_16-jft-7ep", overrides, tiny=True)
    assert (cfg.model.depth, cfg.model.width) == (3, smoke.WIDTH)
    assert (cfg.train.batch_size, cfg.optimizer.lr) == (8, 0.5)
    cfg = run.resolve("pretrain/ViT-L_16-jft-7ep", {"train.accumulation": "2"}, tiny=True)
    assert cfg.train.batch_size == 32


def test_the_command_starts_afresh(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert cli.main(["train", "digits", "--smoke"]) == 0
        out, err = capsys.readouterr()
        assert "runs/smoke/digits" in out
        assert "resuming" not in err
    assert cli.main(["train", "--smoke", "--workdir=x"]) == 2
    assert capsys.readouterr().err == "vit_jax: --smoke: name a config to try; see `vit_jax list`\n"
