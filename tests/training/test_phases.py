"""Phases count every second once."""

import pytest

from vit_jax.runtime.watchdog import PhaseTimer


def test_time_goes_to_the_innermost_phase():
    now = [0.0]
    phases = PhaseTimer("start", clock=lambda: now[0])
    now[0] = 1
    with phases("train"):
        now[0] = 3
        with phases("save"):
            now[0] = 7
            assert phases.now == ("save", 4)
        assert phases.now == ("train", 0)
        now[0] = 12
        phases.beat()
        now[0] = 20
        assert phases.now == ("train", 8)
    assert phases.seconds == {"start": 1, "train": 2 + 5 + 8, "save": 4}
    assert phases.now == ("start", 0)


def test_a_phase_that_fails_ends_too():
    phases = PhaseTimer("start")
    with pytest.raises(OSError, match="full"), phases("save"):
        raise OSError("full")
    assert phases.now[0] == "start"
