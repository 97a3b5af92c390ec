"""Waits for batches interruptibly, because a disk may never respond."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import Any, Protocol

Batch = Mapping[str, Any]  # of numpy arrays

POLL = 0.5  # seconds between checks whether to stop waiting
THREADS = ("feed", "grain-prefetch")  # how the threads that load are called: ours, and Grain's


class GivenUp(Exception):
    """The run was asked to stop while waiting for a batch."""


class Batches(Iterator[Batch], Protocol):
    """The rows of each global batch that live on this host, in the order of steps."""

    def close(self) -> None:
        """Stops loading."""
        ...


class Feed(Iterator[Batch]):
    """Takes batches in a thread of its own, each when it is asked for.

    The main thread, where Python runs the handlers of signals, waits in short pieces: a signal that
    comes just before one long wait would be handled only after it, and an exception that a handler
    raises would leave whatever code waits in disorder.
    """

    def __init__(self, batches: Batches, stop: Callable[[], bool]) -> None:
        """Takes an iterator, which it will close, and what is asked while a batch is waited for."""
        self._batches, self._stop = batches, stop
        self._asked: queue.SimpleQueue[futures.Future[Batch] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=THREADS[0], daemon=True).start()

    def __next__(self) -> Batch:
        """Returns the next batch.

        Raises GivenUp where `stop()` is true and none comes within 0.5 to 1 s, else what the
        iterator raised.
        """
        batch: futures.Future[Batch] = futures.Future()
        self._asked.put(batch)
        stopping = False
        while not futures.wait([batch], POLL).done:
            if stopping:
                raise GivenUp
            stopping = self._stop()
        return batch.result()

    def close(self) -> None:
        """Closes the iterator; the thread ends once it does not wait for a batch."""
        self._asked.put(None)
        self._batches.close()

    def _work(self) -> None:
        while (batch := self._asked.get()) is not None:
            try:
                batch.set_result(next(self._batches))
            except BaseException as error:  # the main thread's to handle
                batch.set_exception(error)
            del batch  # or it would hold the images until the next one is asked for


def stuck(patience: float = 5.0) -> bool:
    """Returns whether threads that load images go on after `patience` seconds, though closed.

    A disk that does not answer keeps them, and Python waits for their end before its own.
    """
    until = time.monotonic() + patience
    loading = [thread for thread in threading.enumerate() if thread.name.startswith(THREADS)]
    for thread in loading:
        thread.join(max(until - time.monotonic(), 0.0))
    return any(thread.is_alive() for thread in loading)
