"""The simulated goodput of docs/reliability.md."""

import math
import subprocess
import sys

import pytest

from research import fleet


@pytest.mark.parametrize("every", [30.0, 600.0, 7200.0])
def test_without_notice_the_share_is_that_of_whole_intervals(every):
    between, start = 3600.0, 80.0
    found, overall = fleet.share(
        fleet.Fleet(name="", between=between, wait=600.0),
        fleet.SavingRun(start=start, every=every, pause=0.0, write=0.0),
    )
    # The expectation of floor((T - start) / every), T exponential, is a geometric series.
    whole = math.exp(-start / between) / math.expm1(every / between) * every / between
    assert found == pytest.approx(whole, rel=0.03)  # 20,000 draws
    assert overall == pytest.approx(found * between / (between + 600.0), rel=0.01)


def test_with_notice_only_the_start_and_the_save_are_lost():
    found, _ = fleet.share(
        fleet.Fleet(name="", between=1e9, limit=1050.0, notice=1.0),
        fleet.SavingRun(start=100.0, every=90.0, pause=10.0, write=5.0),
    )
    assert found == pytest.approx((1050 - 100 - 9 * 10 - 5) / 1050, rel=1e-4)


def test_a_save_that_is_not_complete_is_lost():
    held = fleet.Fleet(name="", between=1e9, limit=302.0)
    for write, saves in ((1.0, 3), (3.0, 2)):
        run = fleet.SavingRun(start=0.0, every=90.0, pause=10.0, write=write)
        assert fleet.share(held, run)[0] == pytest.approx(saves * 90 / 302, rel=1e-4)


def test_the_command_takes_no_other_argument():
    command = [sys.executable, "-m", "research.fleet", "--seeds=3"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.endswith("unrecognized arguments: --seeds=3\n")
