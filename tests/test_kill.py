"""Harm done to runs changes nothing; `tests/helpers/campaign.py` does it as often as you like."""

import pytest

import campaign

ALONE = [name for name, kind in campaign.KINDS.items() if kind.processes == 1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("campaign")  # the unbroken run is the same for all kinds


def strike(folder, kind, faults):
    (row,) = campaign.campaign(folder, kinds=[kind], faults=faults, seed=0, steps=80)
    assert row["problems"] == []
    assert row["hangs"] == 0
    assert row["n"] == faults
    assert faults == 1 or row["resumed"] > faults / 2  # else it was not resuming that was tried
    # One commit and one save in flight: at most two intervals of five steps are repeated.
    assert row["steps_lost_max"] <= 2 * 5


@pytest.mark.slow  # of two processes: test_peers.py, and with the twenty
@pytest.mark.parametrize("kind", ALONE)
def test_a_fault_of_every_kind(kind, folder):
    strike(folder, kind, faults=1)


@pytest.mark.long
@pytest.mark.parametrize("kind", campaign.KINDS)
def test_twenty_faults_of_every_kind(kind, folder):
    strike(folder, kind, faults=20)


def test_the_table():
    row = {
        "fault": "kill", "n": 20, "resumed": 17, "runs": 3, "divergences": 0,
        "steps_lost_mean": 2.5, "steps_lost_max": 9, "hangs": 0, "seconds_per_fault": 8.1,
    }  # fmt: skip
    assert campaign.markdown([row]) == [
        "| fault | n | with a checkpoint | runs | divergences | steps lost, mean | most | hangs "
        "| s each |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| kill | 20 | 17 | 3 | 0 | 2.5 | 9 | 0 | 8.1 |",
    ]
