"""Agreement of processes, with stand-ins for what they exchange."""

import json

import jax
import numpy as np
import pytest

from vit_jax.runtime import collectives
from vit_jax.utils.errors import CheckpointError, DamagedCheckpoint


@pytest.fixture
def process(monkeypatch):
    """Makes this process one of two; the other one's parts of exchanges are given."""

    def become(number, *others):
        sent, received = [], iter(others)
        monkeypatch.setattr(jax, "process_count", lambda: 2)
        monkeypatch.setattr(jax, "process_index", lambda: number)

        def broadcast(value):
            sent.append(np.asarray(value))
            return value if number == 0 else next(received)

        def gather(value):
            sent.append(np.asarray(value))
            return np.stack([value, next(received)])

        monkeypatch.setattr(collectives.multihost_utils, "broadcast_one_to_all", broadcast)
        monkeypatch.setattr(collectives.multihost_utils, "process_allgather", gather)
        return sent

    return become


def message(**outcome):
    text = np.frombuffer(json.dumps(outcome).encode(), np.uint8)
    return np.int32(text.size), text


def test_the_result_of_the_first_process_is_that_of_all(process):
    sent = process(0)
    assert collectives.broadcast_from_main(lambda: {"a": 1}) == {"a": 1}
    size, text = message(value={"a": 1})
    assert (int(sent[0]), bytes(sent[1])) == (size, bytes(text))
    sent = process(1, size, text)
    assert collectives.broadcast_from_main(lambda: 1 / 0) == {"a": 1}
    assert sent[1].shape == text.shape  # of all processes alike


def test_its_error_is_that_of_all(process):
    def fail():
        raise DamagedCheckpoint("torn")

    sent = process(0)
    with pytest.raises(DamagedCheckpoint, match="^torn$"):
        collectives.broadcast_from_main(fail)
    assert json.loads(bytes(sent[1])) == {"error": "torn", "damaged": True}
    process(0)
    with pytest.raises(ZeroDivisionError):  # its own, there
        collectives.broadcast_from_main(lambda: 1 / 0)
    for damaged, kind in ((True, DamagedCheckpoint), (False, CheckpointError)):
        process(1, *message(error="torn", damaged=damaged))
        with pytest.raises(kind, match="^torn$") as caught:
            collectives.broadcast_from_main(fail)
        assert type(caught.value) is kind


def test_texts_are_gathered_and_the_first_problem_is_found(process):
    def padded(text, most=512):
        return np.frombuffer(text.encode().ljust(most, b"\0"), np.uint8)

    process(0, padded("übrig", 6), padded("bad"), padded(""), padded("worse"))
    assert collectives.gather_texts("1234567", 6) == ["123456", "übrig"]
    process(0, padded("", 6), padded("bad"), padded(""), padded("worse"))
    assert collectives.gather_texts("12345ü", 6) == ["12345\ufffd", ""]  # half a character fits
    assert collectives.first_problem(None) == "bad"
    assert collectives.first_problem(None) is None
    assert collectives.first_problem("mine") == "mine"


def test_one_process_exchanges_nothing():
    assert collectives.broadcast_from_main(lambda: 7) == 7
    assert collectives.gather_texts("1234567", 6) == ["1234567"]
    assert collectives.first_problem("mine") == "mine"
