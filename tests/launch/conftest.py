"""Stand-ins of gcloud, which end with their test."""

import pytest

import worlds


@pytest.fixture
def world(tmp_path, request):
    """Makes a world of two hosts, or of as many as HOSTS of the module says."""
    made = []

    def make(**scenario):
        hosts = {"hosts": getattr(request.module, "HOSTS", 2)}
        made.append(worlds.World(tmp_path, **hosts | scenario))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture
def ready(world):
    """Makes a world with a slice that is set up."""

    def make(**scenario):
        here = world(**scenario)
        here.make_ready()
        return here

    return make
