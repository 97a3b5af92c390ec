"""Goodput by hand."""

import json

import pytest

from vit_jax.runtime import goodput


def session(began, first, last, **seconds):
    return {"began": began, "first_step": first, "last_step": last, "seconds": seconds}


def test_lost_steps_and_the_time_between_are_no_goodput():
    # Killed at step 50 with 40 saved; begun again 30 s later; killed before its first save.
    time = goodput.summarize(
        [
            session(0, 0, 50, start=10, step=100),
            session(140, 40, 45, start=5, step=10),
            session(155, 40, 60, start=5, step=40),
        ]
    )
    assert time.seconds == 200
    assert (time.restarts, time.repeated) == (2, 10 + 5)
    assert time.shares["lost"] == pytest.approx((100 * 10 / 50 + 10) / 200)
    assert time.goodput == pytest.approx((80 + 40) / 200)
    assert time.shares["away"] == pytest.approx(30 / 200)
    assert sum(time.shares.values()) == pytest.approx(1)
    assert goodput.describe_sessions(time) == (
        "goodput 60% of 3m20s (lost 15%, away 15%, start 10%); 2 restarts, 15 steps done again"
    )


@pytest.mark.parametrize("text", ["", "[", "{}", "[1]", '[{"began": 1}]', json.dumps({"a": 1})])
def test_a_damaged_file_is_begun_anew(tmp_path, text):
    (tmp_path / goodput.FILE).write_text(text)
    time = goodput.GoodputLog(tmp_path, 3, age=1).update(4, {"step": 1.0})
    assert time.restarts == 0
    assert len(goodput.read_sessions(tmp_path / goodput.FILE)) == 1


def test_a_step_is_suspect_from_which_two_processes_have_failed(tmp_path):
    for number, failed in enumerate((True, True, False)):
        log = goodput.GoodputLog(tmp_path, 8, age=1, options="own")
        log.update(9, {"step": 2.0})
        if failed:
            log.failed()
        sessions = goodput.read_sessions(tmp_path / goodput.FILE)
        assert (sessions[-1]["last_step"], sessions[-1].get("failed", False)) == (9, failed)
        assert goodput.suspects(sessions, "own") == ({8} if number == 1 else set())
        assert goodput.suspects(sessions, "other") == set()  # such as stop_on_collapse=false
    assert goodput.seconds_so_far(tmp_path) == 6.0


def test_shares_that_round_to_nothing_are_left_out():
    shares = {"step": 0.5, "start": 0.4, "save": 0.006, "lost": 0.004}
    time = goodput.Summary(seconds=100, shares=shares, restarts=0, repeated=0)
    assert goodput.describe_sessions(time) == "goodput 50% of 1m40s (start 40%, save 1%)"
