import dataclasses
import random

import pytest
from scipy import stats

from helpers.toy_findings import SCALE, Runner, finding, study, training
from research import findings
from research.findings import verification
from vit_jax import config


def test_the_interval_is_one_more_value_of_students_t():
    values = [0.50, 0.52, 0.55, 0.51, 0.53]
    spread = stats.tstd(values) * (1 + 1 / 5) ** 0.5
    expected = stats.t.interval(0.95, 4, loc=0.0, scale=spread)[1]
    assert verification.prediction_half(values) == pytest.approx(expected)


def verified(tmp_path, result, count=2, seeds=(0, 1, 2)):
    origin = training("origin", rates=(0.1,))
    tuned = training("tuned", origin=origin, rates=(0.3,), train__clip_norm=2.0)
    size = dataclasses.replace(SCALE, seeds=seeds, choose_seeds=seeds)
    toy = study(tmp_path, finding(tuned, origin), size=size)
    toy.perform(run=Runner(lambda cell: 0.5))
    run = Runner(result)
    found = findings.verify(toy, count, run=run, draw=random.Random(1))
    return found, run.ran


@pytest.mark.parametrize("result", [0.6, None])
def test_another_result_is_not_nor_is_one_that_diverged(tmp_path, result):
    found, _ = verified(tmp_path, lambda cell: result)
    assert [(one.repeated is None, one.good) for one in found] == [(result is None, False)] * 2


def test_fine_tuning_is_repeated_with_its_pretraining_first(tmp_path):
    """Of the four cells drawn, two are fine-tuning, and the origin of one was not drawn."""
    _, ran = verified(tmp_path, lambda cell: 0.5, count=4)
    assert [cell.origin is None for cell in ran] == [True] * 3 + [False] * 2


def test_more_than_there_are_is_refused(tmp_path):
    with pytest.raises(config.ConfigError, match=r"--verify=7: .* has 6 cells"):
        verified(tmp_path, lambda cell: 0.5, count=7)


def test_an_interval_takes_two_seeds(tmp_path):
    found, _ = verified(tmp_path / "two", lambda cell: 0.5, count=4, seeds=(0, 1))
    assert all(one.good for one in found)
    with pytest.raises(config.ConfigError, match=r"--verify=1: .* has 0 cells"):
        verified(tmp_path / "one", lambda cell: 0.5, count=1, seeds=(0,))
