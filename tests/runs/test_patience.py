"""Early stopping: by the recorded count alone, and resumed as unbroken."""

import json

import pytest

import runs
import vit_jax
from vit_jax.config import ConfigError
from vit_jax.runs import patience, preview
from vit_jax.runtime import logs
from vit_jax.studies.report import run_data


def create(**checkpoint):
    return patience.Patience(runs.configure(checkpoint={"patience": 2} | checkpoint))


def observed(one, values):
    """After which evaluations the run is over."""
    over = []
    for step, value in enumerate(values, start=1):
        one.observe(step, value if isinstance(value, dict) else {"test/top1": value})
        over.append(one.over)
    return over


def test_a_single_evaluation_stops_nothing_early():
    cfg = runs.configure(checkpoint={"patience": 2}, evaluation={"every": None})
    with pytest.raises(ConfigError, match=r"patience=2: evaluation\.every=none evaluates once"):
        patience.Patience(cfg)


def test_it_ends_after_so_many_evaluations_without_a_better_one():
    assert observed(create(), [0.1, 0.3, 0.2, 0.4, 0.4, 0.39]) == [False] * 5 + [True]
    assert observed(create(patience=1), [0.1, 0.1]) == [False, True]
    losses = [{"test/loss": value} for value in (3.0, 2.0, 2.5, float("nan"))]
    assert observed(create(best="loss"), losses) == [False] * 3 + [True]
    assert not any(observed(create(patience=None), [0.2, 0.1, 0.1, 0.1]))
    # What follows the best is compared with it, and what was not measured is never better.
    assert observed(create(), [0.5, 0.3, 0.4]) == [False, False, True]
    assert observed(create(), [{}, {}]) == [False, True]
    # Of equal accuracies, a lower loss is better.
    same = [{"test/top1": 0.5, "test/loss": loss} for loss in (2.0, 1.0, 1.0, 1.5)]
    assert observed(create(), same) == [False] * 3 + [True]


def test_what_is_recorded_goes_on():
    whole, values = create(), [0.1, 0.3, 0.2, 0.25, 0.2]
    expected = observed(whole, values)
    for stopped in range(1, 5):
        first, second = create(), create()
        observed(first, values[:stopped])
        second.resume(json.loads(json.dumps(first.facts, allow_nan=False))["patience"])
        second.observe(stopped, {"test/top1": 0.9})  # an evaluation that was recorded counts once
        for step in range(stopped, 5):
            second.observe(step + 1, {"test/top1": values[step]})
            assert second.over == expected[step]
    # By another metric: a loss of -0.4 would never be better than an accuracy of 0.3.
    other = create(best="loss")
    other.resume(whole.facts["patience"])
    assert observed(other, [{"test/loss": 0.4}, {"test/loss": 0.3}]) == [False, False]
    assert create(patience=None).facts == {}


def test_it_needs_a_metric():
    with pytest.raises(ConfigError, match="checkpoint.patience=2: no metric chooses"):
        create(best=None)
    assert create(best=None, patience=None).metric is None
    with pytest.raises(ConfigError, match="checkpoint.patience=0"):
        create(patience=0)


@pytest.mark.slow
def test_a_run_stops_early_resumes_and_is_finished(tmp_path):
    """At a rate of nearly 0 nothing gets better; the test split is measured once, at that step."""
    options = {
        "train.duration": "40 steps", "schedule.warmup": "2 steps", "optimizer.lr": "1e-30",
        "evaluation.every": "3 steps", "checkpoint.every": "4 steps",
        "data.train_split": "train[:900]", "data.eval_split": "train[900:1000]",
        "data.test_split": "test[:50]", "checkpoint.patience": "2", "checkpoint.best": "top1",
        "logging.tensorboard": "false", "data.flip": "false",
    }  # fmt: skip
    outcome = vit_jax.train("digits", tmp_path / "run", options)
    assert outcome.steps == 9
    assert outcome.results["test/step"] == 3
    run = run_data.read_run(tmp_path / "run")
    assert run.finished
    assert run.stopped_early
    rows = dict(preview.preview(vit_jax.get_config("digits", options), tmp_path / "run"))
    assert rows["run directory"].endswith("/run, complete, as it stopped early at step 9")
    written = (tmp_path / "run/metrics.jsonl").read_text()
    again = vit_jax.train("digits", tmp_path / "run", options)
    assert (again.steps, dict(again.results)) == (9, dict(outcome.results))
    assert logs.read_metrics(tmp_path / "run/metrics.jsonl") == [
        json.loads(line) for line in written.splitlines()
    ]
