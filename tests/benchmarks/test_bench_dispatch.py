"""`bench dispatch` takes the same steps in each of its ways."""

import contextlib
import functools
import itertools
import json

import jax
import numpy as np
import pytest

from vit_jax import cli
from vit_jax.benchmarks import dispatch


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_all_ways_take_the_steps_of_a_run():
    with dispatch.programs(100) as ways:
        # A turn goes on where the last one ended.
        states = [[take(steps) for steps in (4, 3)][-1] for take in ways.values()]
    for state in states:
        assert int(state["step"]) == 7
        for ours, other in zip(jax.tree.leaves(states[0]), jax.tree.leaves(state), strict=True):
            np.testing.assert_array_equal(np.asarray(ours), np.asarray(other))


def test_images_in_memory_come_again_and_again():
    batches = [{"image": np.full(1, number)} for number in range(3)]
    held = dispatch.held_batches(batches, 5)
    assert [int(batch["image"][0]) for batch in itertools.islice(held, 5)] == [2, 0, 1, 2, 0]


def test_every_way_takes_a_turn_that_is_not_timed(monkeypatch):
    taken, lengths = [], []
    ways = {name: functools.partial(lambda *given: taken.append(given), name) for name in "ab"}

    def programs(steps):
        lengths.append(steps)
        return contextlib.nullcontext(ways)

    monkeypatch.setattr(dispatch, "programs", programs)
    found = dispatch.measure(2)
    assert lengths[0] > 3 * dispatch.STEPS  # the last step of a run would also evaluate and save
    assert taken == [(name, dispatch.STEPS) for name in "ababba"]
    assert [(one.name, len(one.seconds)) for one in found.results] == [("a", 2), ("b", 2)]


def test_no_turn_evaluates_or_saves():
    cfg = dispatch.create_config(50)
    assert cfg.evaluation.every is cfg.checkpoint.every is cfg.checkpoint.minutes is None
    assert str(cfg.train.duration) == "50 steps"


@pytest.mark.slow
def test_the_command_prints_and_keeps(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(dispatch, "STEPS", 2)
    output = tmp_path / "speed.jsonl"
    assert cli.main(["bench", "dispatch", "--rounds=2", f"--output={output}"]) == 0
    assert dispatch.ALONE in capsys.readouterr().out
    (line,) = map(json.loads, output.read_text().splitlines())
    assert line["work"] == {"config": "digits"}
    (compared,) = line["compared"]
    assert compared["amount"] == 2
    assert [len(one["seconds"]) for one in compared["results"]] == [2, 2, 2]
