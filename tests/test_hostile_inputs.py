"""Damaged inputs of every kind: a line that says what is wrong, or values, and nothing else.

`python tests/helpers/hostile.py --inputs=100000` reads many more, also where the process could
crash; docs/reliability.md has its results.
"""

import itertools
import json
import os
import time

import pytest

import hostile
import rotation
from vit_jax.runtime import goodput

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

NUMBER = st.integers(0, 2**31 - 1)
EDIT = st.tuples(NUMBER, NUMBER, NUMBER, st.binary(max_size=8))
SLOW = {"official": pytest.mark.slow}


@pytest.fixture(
    scope="module", params=[pytest.param(one, marks=SLOW.get(one, ())) for one in hostile.READERS]
)
def reader(request, tmp_path_factory):
    """A reader by name, with sound files that it reads."""
    name = request.param
    if name == "official":
        pytest.importorskip("h5py")
    contents, read = hostile.READERS[name]()
    folder = tmp_path_factory.mktemp(name)

    def attempt(data):
        return hostile.attempt(read, data, folder, hostile.FOREIGN.get(name, ()))

    for content in contents:
        read(content, folder)  # which imports what is needed
    return contents, attempt


def test_sound_files_are_read(reader):
    contents, attempt = reader
    assert not [content for content in contents if attempt(content)]


def check(attempt, inputs):
    """Reads 25 inputs, the same in every run."""

    @hypothesis.settings(
        max_examples=25, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(inputs)
    def read(data):
        attempt(data)

    read()


def test_damaged_files(reader):
    contents, attempt = reader
    edits = st.lists(EDIT, min_size=1, max_size=4)
    check(attempt, st.builds(hostile.damaged, st.sampled_from(contents), edits))


def test_any_bytes(reader):
    check(reader[1], st.binary(max_size=200))


@pytest.mark.long(turns=len(hostile.READERS))
@pytest.mark.parametrize("name", hostile.READERS)
def test_new_damage_of_every_reader(name):
    """New damaged files for 20 seconds, in processes that may crash."""
    began, seeds = time.monotonic(), itertools.count(1000 * rotation.number()[0])
    while time.monotonic() - began < 20:
        seed = next(seeds)
        _, bad = hostile.campaign(name, 500, seed)
        assert not bad, f"python tests/helpers/hostile.py {name} --inputs=500 --seed={seed}"


def test_what_runs_code_is_noticed(tmp_path):
    """The guard of these tests is not blind."""
    for bad in (lambda data, folder: os.system("true"), lambda data, folder: exec("1")):
        with pytest.raises(hostile.Ran):
            hostile.attempt(bad, b"", tmp_path)


def test_a_number_of_400_digits_is_no_count_of_steps(tmp_path):
    file = tmp_path / "goodput.json"
    session = {"first_step": 10**400, "last_step": 3, "seconds": {"train": 1.5}}
    file.write_text(json.dumps([session]))
    assert goodput.read_sessions(file) == []
