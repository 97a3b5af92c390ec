"""The steps before a cooldown do not depend on the length of a run, which may change until then."""

import json

import pytest

import runs
from vit_jax import api, config, train_loop
from vit_jax.runtime import preemption


def configure(steps, cooldown=4, decay="constant"):
    return runs.configure(
        train={"duration": f"{steps} steps"},
        schedule={"name": decay} | ({"cooldown": f"{cooldown} steps"} if cooldown else {}),
        evaluation={"every": None},
    )


def losses(workdir):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["train/loss"] for line in lines if "train/loss" in line}


def stopped(workdir, monkeypatch, cfg, step=5):
    with runs.stopping_at(monkeypatch, step), pytest.raises(preemption.Preempted):
        train_loop.train(cfg, workdir)
    return workdir


def length(steps, cooldown=4):
    return {"train.duration": f"{steps} steps", "schedule.cooldown": f"{cooldown} steps"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of twelve steps, four of them the cooldown."""
    workdir = tmp_path_factory.mktemp("cooldown") / "whole"
    train_loop.train(configure(12), workdir)
    return workdir


@pytest.mark.slow
@pytest.mark.parametrize("before", [(14, 4), (10, 4), (10, 0)])
def test_a_run_that_changes_its_length_is_the_one_of_that_length(
    tmp_path, monkeypatch, before, whole
):
    changed = stopped(tmp_path / "changed", monkeypatch, configure(*before))
    api.train(None, changed, length(12))
    runs.assert_equal_runs(changed, whole)
    assert api.train(None, changed).steps == 12  # which it remembers


@pytest.mark.slow
def test_a_constant_rate_goes_on_after_its_end(tmp_path, whole):
    train_loop.train(configure(8, cooldown=0), tmp_path / "longer")
    api.train(None, tmp_path / "longer", length(12))
    assert losses(tmp_path / "longer") == losses(whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begun", "wanted", "line"),
    [
        # Step 5 of 8 is in the cooldown of the longer one, or of the one that was begun.
        ((14, 4), length(8), "train.duration: 14 steps -> 8 steps"),
        ((8, 4), length(14), "train.duration: 8 steps -> 14 steps"),
        ((14, 4), length(12) | {"seed": 1}, "seed: 0 -> 1, train.duration: 14 steps -> 12 steps"),
        ((14, 0, "cosine"), {"train.duration": "12 steps"}, "train.duration: 14 steps -> 12 steps"),
    ],
)
def test_a_length_that_would_change_what_was_done_is_refused(
    tmp_path, monkeypatch, begun, wanted, line
):
    workdir = stopped(tmp_path / "run", monkeypatch, configure(*begun))
    kept = (workdir / "config.json").read_text()
    with pytest.raises(config.ConfigError) as raised:
        api.train(None, workdir, wanted)
    assert f"holds another run ({line}); " in str(raised.value)
    hint = "; a length can change before the cooldown alone" in str(raised.value)
    assert hint == (begun[-1] != "cosine" and "seed" not in wanted)
    assert (workdir / "config.json").read_text() == kept
