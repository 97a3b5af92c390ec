"""A run that fails twice from one checkpoint goes back to an older one."""

import json

import pytest

import runs
from test_trouble import weights_that_overflow
from vit_jax import train_loop
from vit_jax.runs import run_log
from vit_jax.runtime import goodput


def fail(workdir):
    with pytest.raises(run_log.Diverged):
        train_loop.train(runs.configure(), workdir)
    kept = json.loads((workdir / goodput.FILE).read_text())
    return kept[-1]["first_step"], kept[-1].get("failed")


@pytest.mark.slow
def test_the_checkpoint_before_is_taken_after_two_failures(tmp_path, monkeypatch):
    workdir = tmp_path / "run"
    weights_that_overflow(monkeypatch, 13)
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
    assert goodput.suspects(kept) == expected
