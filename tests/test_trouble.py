"""A run that fails twice from one checkpoint goes back to an older one."""

import json

import jax
import numpy as np
import pytest

import runs
from vit_jax import train_loop
from vit_jax.runs import run_log
from vit_jax.runtime import goodput

pytestmark = pytest.mark.usefixtures("one_device")


def weights_that_overflow(monkeypatch):
    """Makes the head infinite just before step 13, as a flipped bit in memory might."""
    original = train_loop.run_steps

    def patched(trainer, start, step, *arguments, **keywords):
        count = start.step

        def one(state, *inputs):
            nonlocal count
            count += 1
            head = state["params"]["head"]
            kernel, place = np.asarray(head["kernel"]), head["kernel"].sharding
            if count == 13:
                head["kernel"] = jax.device_put(kernel * np.float32(np.inf), place)
            return step(state, *inputs)

        return original(trainer, start, one, *arguments, **keywords)

    monkeypatch.setattr(train_loop, "run_steps", patched)


def fail(workdir):
    with pytest.raises(run_log.Diverged):
        train_loop.train(runs.configure(), workdir)
    kept = json.loads((workdir / goodput.FILE).read_text())
    return kept[-1]["first_step"], kept[-1].get("failed")


@pytest.mark.slow
def test_the_checkpoint_before_is_taken_after_two_failures(tmp_path, monkeypatch):
    workdir = tmp_path / "run"
    weights_that_overflow(monkeypatch)
    found = [fail(workdir) for _ in range(6)]
    # Steps 5 and 10 are saved. Of 0 there is no checkpoint; after both, the newest again.
    assert found == [(0, True), (10, True), (10, True), (5, True), (5, True), (10, True)]
    monkeypatch.undo()
    oracle = tmp_path / "oracle"
    assert train_loop.train(runs.configure(), workdir).steps == runs.STEPS
    train_loop.train(runs.configure(), oracle)
    assert runs.digests(workdir) == runs.digests(oracle)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([], set()),
        ([(5, True)], set()),
        ([(5, True), (5, True)], {5}),
        ([(5, True), (10, True), (5, True)], {5}),
        ([(5, True), (5, True), (10, True), (10, True)], {5, 10}),
        ([(5, True), (5, True), (10, False)], set()),  # it got on, or was only told to stop
        ([(10, False), (5, True), (5, True)], {5}),
    ],
)
def test_suspects(ends, expected):
    kept = [{"first_step": step} | ({"failed": True} if bad else {}) for step, bad in ends]
    assert goodput.suspects(kept, "own") == expected
