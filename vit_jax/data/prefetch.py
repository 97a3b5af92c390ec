"""Waits for batches interruptibly, because a disk may never respond."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Protocol

import numpy as np

Batch = dict[str, np.ndarray]

POLL = 0.5  # seconds between checks whether to stop waiting
THREADS = ("feed", "grain-prefetch")  # names of the loading threads: ours, and Grain's


class StoppedError(Exception):
    """The run was asked to stop while waiting for a batch."""


class BatchIterator(Iterator[Batch], Protocol):
    """The rows of each global batch that live on this host, in the order of steps."""

    def close(self) -> None:
        """Stops loading."""
        ...


class Prefetcher(Iterator[Batch]):
    """Fetches batches in a separate thread, one per request.

    The main thread, where Python runs signal handlers, waits in short intervals: a signal just
    before a long wait would be handled only after it, and an exception raised in a handler would
    interrupt the waiting code at an arbitrary point.
    """

    def __init__(self, batches: BatchIterator, stop: Callable[[], bool]) -> None:
        """Wraps an iterator, which `close` closes; waiting ends once `stop()` is true."""
        self._batches, self._stop = batches, stop
        self._asked: queue.SimpleQueue[futures.Future[Batch] | None] = queue.SimpleQueue()
        # Daemonic, as Python waits at its exit for other threads, even for one that hangs.
        threading.Thread(target=self._work, name=THREADS[0], daemon=True).start()

    def __next__(self) -> Batch:
        """The next batch.

        Raises StoppedError if `stop()` is true and no batch arrives within 0.5 to 1 s, or any error
        of the iterator.
        """
        batch: futures.Future[Batch] = futures.Future()
        self._asked.put(batch)
        stopping = False
        while not futures.wait([batch], POLL).done:
            if stopping:
                raise StoppedError
            stopping = self._stop()
        return batch.result()

    def close(self) -> None:
        """Closes the iterator; the thread ends after its current batch."""
        self._asked.put(None)
        self._batches.close()

    def _work(self) -> None:
        while (batch := self._asked.get()) is not None:
            try:
                batch.set_result(next(self._batches))
            except BaseException as error:  # the main thread's to handle
                batch.set_exception(error)
            del batch  # free the images before the next request


def stuck(patience: float = 5.0) -> bool:
    """Whether loading threads are still running `patience` seconds after closing.

    A hanging disk blocks them, and Python waits for them at exit.
    """
    until = time.monotonic() + patience
    loading = [thread for thread in threading.enumerate() if thread.name.startswith(THREADS)]
    for thread in loading:
        thread.join(max(until - time.monotonic(), 0.0))
    return any(thread.is_alive() for thread in loading)
