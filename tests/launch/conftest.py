"""Stand-ins of gcloud, which end with their test."""

import pytest

import worlds


@pytest.fixture
def world(tmp_path):
    made = []

    def make(**scenario):
        made.append(worlds.World(tmp_path, **scenario))
        return made[-1]

    yield make
    for one in made:
        one.end()
