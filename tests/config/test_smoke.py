"""`--smoke`: every name of the catalog trains two real steps, as a tiny copy of itself."""

import dataclasses
import functools
import itertools
import math

import pytest

import rotation
from vit_jax import cli, config, train_loop
from vit_jax.config import catalog
from vit_jax.inference import loading
from vit_jax.models import architectures
from vit_jax.pages import listing
from vit_jax.runtime import logs
from vit_jax.training import run_config

NAMES = list(catalog.names())


@functools.cache
def distinct():
    """The smoke configs that differ by more than their name, each with its names."""
    found = {}
    for name in NAMES:
        cfg = run_config.resolve(name, {}, tiny=True)
        found.setdefault(dataclasses.replace(cfg, name=""), []).append(name)
    return found


def train(name, workdir):
    """Trains the smoke copy of `name`, and looks at what it left."""
    cfg = run_config.resolve(name, {"logging.tensorboard": "false"}, tiny=True)
    outcome = train_loop.train(cfg, workdir)
    assert outcome.steps == 2
    lines = logs.read_metrics(workdir / "metrics.jsonl")
    losses = [line["train/loss"] for line in lines if "train/loss" in line]
    assert len(losses) == 2
    assert all(math.isfinite(loss) for loss in losses)
    if cfg.measured:
        assert math.isfinite(outcome.results["test/loss"])
        assert outcome.results["test/count"] == run_config.EXAMPLES
    else:
        assert outcome.results == {}
        assert not any("test/split" in line for line in lines)
    assert (
        loading.find_checkpoint(workdir, "newest")[1] == 2
    )  # raises unless a whole checkpoint is there


class Item:
    """A stand-in for a collected test."""

    def __init__(self, nodeid, **marks):
        self.nodeid, self.marks = nodeid, marks

    def get_closest_marker(self, name):
        return self.marks.get(name)


def test_consecutive_runs_take_every_slow_test_once():
    slow = [Item(f"s{index}", slow=pytest.mark.slow.mark) for index in range(10)]
    names = [Item(f"n{index}", long=pytest.mark.long(turns=4).mark) for index in range(9)]
    never = Item("never", long=pytest.mark.long.mark)
    for first in (0, 7, 1234):
        for items, turns in ((slow, rotation.SLOW_TURNS), (names, 4)):
            parts = [rotation.in_turn([*items, never], run) for run in range(first, first + turns)]
            taken = [item.nodeid for part in parts for item in part]
            assert sorted(taken) == sorted(item.nodeid for item in items)
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.long(turns=10)
@pytest.mark.parametrize("part", range(20))  # names are known once a test runs: they take seconds
@pytest.mark.usefixtures("one_device")
def test_every_name_trains(part, tmp_path):
    for name, *_ in itertools.islice(distinct().values(), part, None, 20):
        train(name, tmp_path / name)


def test_a_tiny_copy_keeps_what_makes_the_row():
    for entry in listing.entries():
        tiny = run_config.shrink(entry.cfg)
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
        assert (tiny.model.resnet_units is None) == (units is None)
        assert (tiny.model.resnet_units == ()) == (units == ())
        layer = entry.cfg.model.representation_size
        assert (tiny.model.representation_size is None) == (layer is None)
        assert bool(tiny.schedule.warmup.amount) == bool(entry.cfg.schedule.warmup.amount)
        assert str(tiny.train.duration) == "2 steps"
        assert tiny.data.source == "synthetic"


def test_what_is_overridden_is_not_cut_down():
    overrides = {"model.depth": "3", "train.batch_size": "8", "optimizer.lr": "0.5"}
    cfg = run_config.resolve("pretrain/ViT-L_16-jft-7ep", overrides, tiny=True)
    assert (cfg.model.depth, cfg.model.width) == (3, architectures.SMOKE_WIDTH)
    assert (cfg.train.batch_size, cfg.optimizer.lr) == (8, 0.5)
    cfg = run_config.resolve("pretrain/ViT-L_16-jft-7ep", {"train.accumulation": "2"}, tiny=True)
    assert cfg.train.batch_size == 32


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_the_command_starts_afresh(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = "finetune/ViT-H_14-jft-imagenet-518"  # SGD, Polyak averaging
    for _ in range(2):
        assert cli.main(["train", name, "--smoke"]) == 0
        out, err = capsys.readouterr()
        assert f"runs/smoke/{name}" in out
        assert "step 2/2" in err
        assert "resuming" not in err


def test_the_command_needs_a_name(capsys):
    assert cli.main(["train", "--smoke", "--workdir=x"]) == 2
    assert capsys.readouterr().err == "vit_jax: --smoke: name a config to try; see `vit_jax list`\n"
