"""The durations of a run in steps: what is logged, evaluated and saved when."""

import dataclasses

import pytest

from vit_jax import config
from vit_jax.training import durations


def planned(steps, *, evaluate=None, save=None):
    return durations.Durations(steps=steps, warmup=0, cooldown=0, evaluate=evaluate, save=save)


def test_each_duration_is_converted_by_the_epoch_and_the_batch():
    cfg = config.build({
        "train": {"duration": "10 epochs", "batch_size": 20},
        "schedule": {"name": "constant", "warmup": "1 epochs", "cooldown": "2 epochs"},
        "evaluation": {"every": "3 epochs"},
        "checkpoint": {"every": "7 steps"},
    })  # fmt: skip
    assert durations.Durations.from_config(cfg, 100) == durations.Durations(
        steps=50, warmup=5, cooldown=10, evaluate=15, save=7
    )


def test_the_last_step_is_evaluated_and_saved_whatever_else_is():
    steps = range(1, 11)
    made = planned(10, evaluate=4, save=3)
    assert [step for step in steps if made.evaluates(step)] == [4, 8, 10]
    assert [step for step in steps if made.saves(step)] == [3, 6, 9, 10]
    assert [(planned(10).evaluates(step), planned(10).saves(step)) for step in (9, 10)] == [
        (False, False), (True, True)
    ]  # fmt: skip


def test_weights_that_learn_on_without_labels_are_evaluated_before_the_first_step():
    for objective, init_from, first in (
        ("dino", "augreg/ViT-S_16", True), ("dino", None, False),
        ("supervised", "augreg/ViT-S_16", False),
    ):  # fmt: skip
        cfg = config.build({"objective": {"name": objective}, "init_from": init_from})
        assert durations.Durations.from_config(cfg, 1000).first == first
    made = dataclasses.replace(planned(10), first=True)
    assert [step for step in range(11) if made.evaluates(step)] == [0, 10]
    assert made.evaluations == 2


@pytest.mark.parametrize(("evaluate", "number"), [(None, 1), (4, 3), (5, 2), (20, 1)])
def test_evaluations_are_counted_with_the_last(evaluate, number):
    made = planned(10, evaluate=evaluate)
    assert made.evaluations == sum(map(made.evaluates, range(1, 11))) == number


@pytest.mark.parametrize(
    ("steps", "every", "lines"),
    [(6, None, 6), (97, None, 97), (150, None, 50), (2500, None, 50), (10_000, None, 200),
     (97, 50, 2), (97, 1, 97)],
)  # fmt: skip
def test_a_short_run_has_a_curve(steps, every, lines):
    """Of 97 steps, two lines showed a rising loss and no warm-up."""
    made = planned(steps)
    logged = [step for step in range(1, steps + 1) if made.logs(step, every)]
    assert (len(logged), logged[-1]) == (lines, steps)
