"""Shards packed by several processes, which are counted and can be stopped."""

import itertools
import multiprocessing
import signal
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from vit_jax.data import workers as processes
from vit_jax.prepare import shards
from vit_jax.prepare.progress import Progress
from vit_jax.prepare.shards import Outcome, PrepareError, Settings, Shard


class Count:
    """Counts images that are done, in this process and in others, and shows how many."""

    def __init__(self, ready: int, progress: Progress) -> None:
        context = multiprocessing.get_context("spawn")
        self.images = context.Value("q", ready)
        self.stop = context.Event()
        self._progress = progress
        self.show()

    def __call__(self) -> None:
        """Counts one more."""
        with self.images:
            self.images.value += 1
        self.show()

    def show(self) -> None:
        """Shows the count."""
        self._progress.update(self.images.value)


def run(
    waiting: Iterator[Shard], number: int, settings: Settings, workers: int, count: Count
) -> dict[Path, Outcome]:
    """Packs `number` shards, in this process or in several others; at most two each are under way.

    Raises PrepareError where a process is killed.
    """
    workers = min(workers, number)
    if workers < 2:
        packer = shards.Packer(settings, count)
        return {shard.path: packer(shard) for shard in waiting}
    pool = futures.ProcessPoolExecutor(
        workers,
        multiprocessing.get_context("spawn"),
        _start,
        (settings, count.images, count.stop),
    )
    done: dict[Path, Outcome] = {}
    running = dict[futures.Future[Outcome], Path]()
    try:
        while True:
            for shard in itertools.islice(waiting, 2 * workers - len(running)):
                running[pool.submit(_work, shard)] = shard.path
            if not running:
                return done
            ready, _ = futures.wait(running, 0.25, futures.FIRST_COMPLETED)
            done |= {running.pop(future): future.result() for future in ready}
            count.show()
    except BrokenProcessPool:
        raise PrepareError(
            "a worker process was killed (out of memory?); run the same command again: it goes on; "
            "fewer --workers take less memory"
        ) from None
    finally:
        count.stop.set()
        pool.shutdown(cancel_futures=True)


_packer: shards.Packer


def _start(settings: Settings, images: Any, stop: Any) -> None:
    """Makes a process ready to pack."""
    processes.begin(signal.SIGINT)  # the first process tells when to stop

    def count() -> None:
        with images:
            images.value += 1
        if stop.is_set():
            raise futures.CancelledError

    global _packer
    _packer = shards.Packer(settings, count)


def _work(shard: Shard) -> Outcome:
    return _packer(shard)
