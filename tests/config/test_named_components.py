"""Evaluators and loggers that a config names: what they get, what is shown, and the mistakes."""

import json

import numpy as np
import pytest

import runs
from vit_jax import config, train_loop
from vit_jax.config import components
from vit_jax.runtime import progress

pytestmark = pytest.mark.usefixtures("one_device")
WRITTEN = []


@components.register("evaluator", "norm_of_parameters")
def norm_of_parameters(run, scale=1.0):
    def evaluate(params, *, stop):
        total = sum(float(np.square(leaf).sum()) for leaf in runs_leaves(params))
        return {"norm": scale * total, "classes": float(len(run.classes))}

    return evaluate


def runs_leaves(params):
    for value in params.values():
        yield from runs_leaves(value) if isinstance(value, dict) else [np.asarray(value)]


@components.register("logger", "into_a_list")
class IntoAList:
    def __init__(self, directory, tag="-"):
        self.tag = tag
        assert directory.is_dir()

    def write(self, step, values):
        WRITTEN.append((self.tag, step, dict(values)))

    def close(self):
        WRITTEN.append((self.tag, "closed"))


def train(workdir, evaluators=(), loggers=()):
    cfg = runs.configure(
        train={"duration": "4 steps"},
        evaluation={"every": None, "evaluators": evaluators},
        logging={"every": 1, "tensorboard": False, "loggers": loggers},
    )
    return train_loop.train(cfg, workdir)


@pytest.mark.slow
def test_a_run_measures_and_logs_by_named_components(tmp_path, monkeypatch):
    WRITTEN.clear()
    said = []
    monkeypatch.setattr(progress.Progress, "say", lambda self, line: said.append(line))
    selected = (
        {"name": "norm_of_parameters", "scale": 2.0},
        {"name": "classification", "split": "test[:100]"},
    )
    results = train(tmp_path, selected, ({"name": "into_a_list", "tag": "a"}, "jsonl")).results
    assert results["norm_of_parameters/classes"] == 10
    assert results["classification/top1"] == results["test/top1"]
    (shown,) = (line for line in said if line.startswith("step 4/4"))
    assert f"norm_of_parameters/norm {results['norm_of_parameters/norm']:.4f}" in shown
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    numbers = [
        (line.pop("step"), {k: v for k, v in line.items() if not isinstance(v, str)})
        for line in lines
    ]
    assert WRITTEN[-1] == ("a", "closed")
    assert [entry[1:] for entry in WRITTEN[:-1]] == numbers
    assert len(numbers) == 5


@pytest.mark.parametrize(
    ("evaluators", "loggers", "message"),
    [
        (("norm_of_params",), (), "evaluation.evaluators=norm_of_params: no such evaluator"),
        (("norm_of_parameters", "norm_of_parameters"), (), "other metrics called norm"),
        (("masked_patches",), (), "needs objective.name=masked_patches"),
        ((), ("comet",), "logging.loggers=comet: no such logger"),
    ],
)
def test_mistakes_name_the_option(tmp_path, evaluators, loggers, message):
    with pytest.raises(config.ConfigError, match=message):
        train(tmp_path, evaluators, loggers)
