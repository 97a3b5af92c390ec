"""The protocol of a worker that takes steps on command: facts, then an answer for each line."""

import io
import json
import sys
import types
from importlib import metadata

import jax
import pytest

from vit_jax.benchmarks import step_timing


def serve(monkeypatch, capsys, prepare, lines=""):
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    step_timing.serve(
        prepare,
        peak=lambda: 7,
        packages=("numpy",),
        failures=(ValueError, MemoryError),
        out_of_memory=lambda error: isinstance(error, MemoryError),
    )
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_worker_says_what_it_prepared_and_takes_the_steps_it_is_asked_for(monkeypatch, capsys):
    taken = []

    def take():
        taken.append(1)
        return 1 / len(taken)

    facts, *answers = serve(monkeypatch, capsys, lambda: (take, {"params": 9}), "3\n2\n")
    assert (facts["params"], facts["loss"], facts["peak"]) == (9, 1.0, 7)  # after one step
    assert facts["versions"] == {"numpy": metadata.version("numpy")}
    assert 60 > facts["start"] >= facts["seconds"] >= 0
    # Each follows a step that is not counted.
    assert [(one["loss"], one["peak"]) for one in answers] == [(1 / 5, 7), (1 / 8, 7)]
    assert all(one["cpu"] >= 0 for one in answers)


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (MemoryError("9 GB\nin a loop"), {"memory": "MemoryError: 9 GB"}),
        (ValueError("no such model"), {"error": "ValueError: no such model"}),
    ],
)
def test_work_that_cannot_be_prepared_is_a_line(error, answer, monkeypatch, capsys):
    def prepare():
        raise error

    assert serve(monkeypatch, capsys, prepare, "1\n") == [answer]


def test_the_peak_of_a_device_is_its_own_and_on_a_cpu_that_of_the_process(monkeypatch):
    process = step_timing.process_peak()
    assert 50e6 < process < 1e12  # bytes: jax alone takes more than 50 MB
    assert step_timing.jax_peak() >= process
    device = types.SimpleNamespace(memory_stats=lambda: {"peak_bytes_in_use": 5})
    monkeypatch.setattr(jax, "devices", lambda: [device])
    assert step_timing.jax_peak() == 5


def test_answers_are_not_kept_in_a_buffer(monkeypatch):
    flushed = []
    stream = types.SimpleNamespace(write=lambda text: None, flush=lambda: flushed.append(1))
    monkeypatch.setattr(sys, "stdout", stream)
    step_timing._print({})
    assert flushed == [1]
