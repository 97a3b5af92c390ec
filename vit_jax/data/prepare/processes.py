"""Packs shards in several processes, with progress and clean interruption."""

import itertools
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Protocol

from vit_jax.data.prepare.shards import Outcome, Planned, PrepareError, outcome
from vit_jax.runtime import logs, signals
from vit_jax.runtime.progress import Bar


class Shard(Protocol):
    """The contents of one file; must be picklable."""

    @property
    def path(self) -> Path:
        """The file."""
        ...


Pack = Callable[[Any], Outcome]
Make = Callable[[Callable[[], None]], Pack]  # takes the callback for every image


class Count:
    """Counts the images done in all processes and shows the count."""

    def __init__(self, ready: int, progress: Bar) -> None:
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


def finish(
    name: str,
    planned: Sequence[Planned],
    check_room: Callable[[list[Planned]], None],
    shard: Callable[[Planned], Shard],
    make: Make,
    workers: int,
) -> list[tuple[Planned, Outcome]]:
    """Packs the shards that no earlier try has finished; returns all, with what became of them.

    `shard` makes what a process gets of a planned one; the rest is as in `run`.
    """
    done = {one.path: known for one in planned if (known := outcome(one.path))}
    missing = [one for one in planned if one.path not in done]
    check_room(missing)
    if done:
        logs.log.info(f"{name}: {len(done)} of {len(planned)} shards are there already")
    ready = sum(len(one.positions) for one in planned if one.path in done)
    with Bar(f"packing {name}", sum(len(one.positions) for one in planned)) as progress:
        count = Count(ready, progress)
        done |= run(map(shard, missing), len(missing), make, workers, count)
    return [(one, done[one.path]) for one in planned]


def run(
    waiting: Iterator[Shard], number: int, make: Make, workers: int, count: Count
) -> dict[Path, Outcome]:
    """Packs `number` shards in this or several other processes, at most two queued for each.

    Each process packs with the result of `make`, which must be picklable. Raises PrepareError if a
    process is killed.
    """
    workers = min(workers, number)
    if workers < 2:
        pack = make(count)
        return {shard.path: pack(shard) for shard in waiting}
    pool = futures.ProcessPoolExecutor(
        workers,
        multiprocessing.get_context("spawn"),
        _start,
        (make, count.images, count.stop),
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
            "a worker process was killed (out of memory?); run the same command again to resume; "
            "fewer --workers take less memory"
        ) from None
    finally:
        count.stop.set()
        pool.shutdown(cancel_futures=True)


_pack: Pack


def _start(make: Make, images: Any, stop: Any) -> None:
    """Initializes a worker process."""
    signals.follow_parent(signal.SIGINT, signal.SIGHUP)  # the parent decides when to stop

    def count() -> None:
        with images:
            images.value += 1
        if stop.is_set():
            raise futures.CancelledError

    global _pack
    _pack = make(count)


def _work(shard: Shard) -> Outcome:
    return _pack(shard)
