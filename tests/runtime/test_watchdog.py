"""A stuck process ends and says where; one that gets on is left alone; every second counts once."""

import os
import pathlib
import subprocess
import sys
import threading

import pytest

from vit_jax.runtime.watchdog import PhaseTimer, Watchdog

ROOT = pathlib.Path(__file__).parents[2]
STUCK = """
import ctypes, sys, time
from vit_jax.runtime import logs
from vit_jax.runtime import watchdog
logs.setup()
watchdog.GRACE = 0.5
now = watchdog.PhaseTimer("start")
def blocked_in_a_read():
    time.sleep(100)
def holding_the_lock():
    ctypes.PyDLL(None).sleep(100)
with watchdog.Watchdog(now, {"step": 0.3}, poll=0.05), now("step"):
    time.sleep(0.2)
    globals()[sys.argv[1]]()
"""


@pytest.mark.parametrize(
    ("how", "code"), [("blocked_in_a_read", 70), ("holding_the_lock", 1)], ids=["read", "lock"]
)
def test_a_stuck_process_ends_with_the_stacks_of_all_threads(how, code):
    done = subprocess.run(
        [sys.executable, "-c", STUCK, how],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, done.stderr
    assert how in done.stderr
    assert ("watchdog: no progress in step for" in done.stderr) == (code == 70)


def test_a_phase_that_gets_on_is_left_alone():
    now, ended = [0.0], threading.Event()
    phases = PhaseTimer("start", clock=lambda: now[0])
    watchdog = Watchdog(phases, {"step": 10}, poll=0.001, end=lambda code: ended.set())
    assert watchdog._thread.daemon  # one that hangs keeps no process alive
    with watchdog, phases("step"):
        for _ in range(20):
            now[0] += 9
            phases.beat()
            assert not ended.wait(0.01)
        with phases("save"):  # has no limit
            now[0] += 1000
            assert not ended.wait(0.05)
        now[0] += 11
        assert ended.wait(60)


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
