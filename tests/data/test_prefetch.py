"""The wait for a batch: what comes is handed on, and a stop ends a wait for what does not."""

import threading

import pytest

from vit_jax.data import prefetch


class Batches:
    """Batches that a function makes from their number; notes whether it was closed."""

    def __init__(self, make):
        self.make, self.taken, self.closed = make, 0, False

    def __next__(self):
        self.taken += 1
        return self.make(self.taken)

    def close(self):
        self.closed = True


@pytest.fixture
def fed():
    """Makes feeds, and ends their threads."""
    made = []

    def make(function, stop=lambda: False):
        batches = Batches(function)
        made.append((prefetch.Prefetcher(batches, stop), batches))
        return made[-1][0]

    yield make
    for one, batches in made:
        one.close()
        assert batches.closed
    assert not prefetch.stuck()


def test_batches_come_in_order_and_only_when_asked_for(fed):
    asked = []

    def make(number):
        asked.append(number)
        if number > 3:
            raise StopIteration
        return number

    one = fed(make)
    for expected in (1, 2, 3):
        assert len(asked) == expected - 1
        assert next(one) == expected
    with pytest.raises(StopIteration):
        next(one)


def test_a_thread_that_hangs_does_not_keep_python_from_its_end(fed):
    fed(lambda number: number)
    threads = [one for one in threading.enumerate() if one.name == prefetch.THREADS[0]]
    assert threads
    assert all(one.daemon for one in threads)


def test_an_error_of_the_loader_is_raised_where_the_batch_is_asked_for(fed):
    def make(number):
        if number > 1:
            raise OSError("disk")
        return number

    one = fed(make, stop=lambda: True)
    assert next(one) == 1
    with pytest.raises(OSError, match="disk"):
        next(one)


def test_a_stop_ends_a_wait_that_has_no_end(fed, monkeypatch):
    monkeypatch.setattr(prefetch, "POLL", 0.01)
    comes, asked = threading.Event(), []
    one = fed(lambda _: comes.wait(), stop=lambda: asked.append(True) or len(asked) == 3)
    with pytest.raises(prefetch.StoppedError):
        next(one)
    assert len(asked) == 3
    assert prefetch.stuck(patience=0.01)
    comes.set()


def test_a_batch_that_is_only_slow_is_taken_after_a_stop(fed, monkeypatch):
    monkeypatch.setattr(prefetch, "POLL", 0.05)
    comes = threading.Event()

    def stop():
        comes.set()  # it comes as soon as the run was asked to stop
        return True

    assert next(fed(lambda _: comes.wait(), stop)) is True
