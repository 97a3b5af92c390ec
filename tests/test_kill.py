"""kill -9 at random moments changes nothing; `tests/campaign.py` does it as often as you like."""

import pytest

import campaign


@pytest.mark.slow
def test_twenty_kills(tmp_path):
    figures = campaign.campaign(tmp_path, kills=20, seed=0)
    assert figures["kills"] == 20
    # One commit and one save in flight: at most two intervals of five steps are repeated.
    assert figures["most_steps_lost"] <= 2 * 5


def test_three_kills(tmp_path):
    assert campaign.campaign(tmp_path, kills=3, seed=1)["kills"] == 3
