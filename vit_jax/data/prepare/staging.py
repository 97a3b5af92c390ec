"""Writes a dataset completely or not at all, in several processes, resuming after interruptions.

Shards are written to a hidden folder next to the dataset's, which is locked by one command at a
time. Once all are there, it gets its metadata and its name.
"""

import contextlib
import dataclasses
import fcntl
import itertools
import json
import multiprocessing
import re
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Protocol

from vit_jax.data.prepare import shards
from vit_jax.data.prepare.shards import Outcome, Planned, PrepareError
from vit_jax.data.source import DataError
from vit_jax.runtime import logs, signals
from vit_jax.runtime.progress import Bar
from vit_jax.utils import storage

PLAN, WHOLE = "plan", "whole"
FACTS = "vit_jax.json"
TEMPORARY = re.compile(r"\..+\.\d+")  # of `shards.write_records` and `storage.replacing`


class Shard(Protocol):
    """The contents of one file; must be picklable."""

    @property
    def path(self) -> Path:
        """The file."""
        ...


Pack = Callable[[Any], Outcome]
Packed = list[tuple[Planned, Outcome]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """What a dataset is made of.

    Attributes:
      fingerprint: digest of everything that determines its bytes.
      planned: its shards.
      shard: what a process gets of a planned shard.
      packer: makes the function that packs shards, in each process; takes a callback for every
        image.
      finish: writes the metadata into a folder of shards, and returns the facts for FACTS.
      remedy: what to do if the disk is too small for the planned bytes; None: others are written.
      first: called before a new attempt starts.
    """

    fingerprint: str
    planned: Sequence[Planned]
    shard: Callable[[Planned], Shard]
    packer: Callable[[Callable[[], None]], Pack]
    finish: Callable[[Path, Packed], dict[str, Any]]
    remedy: str | None = "free some space, or choose another --data-dir"
    first: Callable[[], None] = lambda: None


def write_dataset(
    name: str, folder: Path, plan: Callable[[Path], Work], workers: int
) -> dict[str, Any]:
    """Writes the dataset `folder` and returns its facts.

    Keeps the shards that an earlier attempt with the same fingerprint finished; the result is
    identical to an uninterrupted one, byte for byte. `plan` takes the hidden folder, which is
    removed if it raises. Raises DataError or PrepareError.
    """
    part = hidden(folder)
    with _alone(part):
        with _nothing_left(part):
            work = plan(part)
        _begin(part, work)
        packed = _pack_shards(name, part, work, workers)
        whole = part / WHOLE
        with shards.disk_errors(folder):
            facts = work.finish(whole, packed)
            storage.write_atomically(whole / FACTS, json.dumps(facts, indent=1) + "\n")
            publish(whole, folder)
    shutil.rmtree(part, ignore_errors=True)
    return facts


def hidden(target: Path) -> Path:
    """The folder used until the dataset `target` is complete."""
    return target.with_name(f".{target.name}.part")


@contextlib.contextmanager
def _alone(part: Path) -> Iterator[None]:
    """Holds a lock, so that a second command does not write the same files."""
    with shards.disk_errors(part):
        (part / WHOLE).mkdir(parents=True, exist_ok=True)
    with (part / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataError(f"{part}: another command is packing this; wait for it") from None
        yield


@contextlib.contextmanager
def _nothing_left(part: Path) -> Iterator[None]:
    """Removes the folder if the sources turn out to be unusable."""
    try:
        yield
    except BaseException:
        if not (part / PLAN).exists():  # nothing is packed yet
            shutil.rmtree(part, ignore_errors=True)
            with contextlib.suppress(OSError):
                part.parent.rmdir()
        raise


def _begin(part: Path, work: Work) -> None:
    """Resumes an earlier attempt; raises DataError if it had other images or settings."""
    plan = part / PLAN
    for leftover in [*part.glob(".*"), *(part / WHOLE).glob(".*")]:
        leftover.unlink()
    if plan.exists() and plan.read_text() != work.fingerprint:
        raise DataError(
            f"{part}: was started with other images or settings; repeat those to resume, or "
            f"remove it to start over: rm -r {part}"
        )
    with shards.disk_errors(part):
        if not plan.exists():
            work.first()
        storage.write_atomically(plan, work.fingerprint)


def publish(whole: Path, folder: Path) -> None:
    """Gives a finished dataset its name, without files that killed processes left in it.

    Workers may outlive a killed command and write until the folder has its new name.
    """
    _remove_temporary(whole)
    whole.replace(folder)
    _remove_temporary(folder)


def _remove_temporary(folder: Path) -> None:
    for path in folder.glob(".*"):
        if TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)


def check_free(target: Path, needed: int, remedy: str) -> None:
    """Raises PrepareError if `needed` bytes exceed the free space of the disk of `target`."""
    free = free_bytes(target)
    if needed > free:
        raise PrepareError(
            f"{target.parent.parent}: {needed / 1e9:,.1f} GB are needed and {free / 1e9:,.1f} GB "
            f"free; {remedy}"
        )


def free_bytes(target: Path) -> int:
    """The free space of the disk that a file or folder is on, or would be on."""
    return shutil.disk_usage(nearest_existing(target)).free


def nearest_existing(path: Path) -> Path:
    """A path, or the nearest of its parents that exists."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())


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


def _pack_shards(name: str, part: Path, work: Work, workers: int) -> Packed:
    """Packs the shards that no earlier attempt has finished; returns all with their outcomes."""
    done = {one.path: known for one in work.planned if (known := shards.outcome(one.path))}
    missing = [one for one in work.planned if one.path not in done]
    if work.remedy is not None:
        check_free(part, sum(one.size for one in missing), work.remedy)
    if done:
        logs.log.info(f"{name}: {len(done)} of {len(work.planned)} shards are there already")
    ready = sum(len(one.positions) for one in work.planned if one.path in done)
    with Bar(f"packing {name}", sum(len(one.positions) for one in work.planned)) as progress:
        count = Count(ready, progress)
        waiting, workers = map(work.shard, missing), min(workers, len(missing))
        if workers < 2:
            pack = work.packer(count)
            done |= {shard.path: pack(shard) for shard in waiting}
        else:
            done |= _in_processes(waiting, work.packer, workers, count)
    return [(one, done[one.path]) for one in work.planned]


def _in_processes(
    waiting: Iterator[Shard],
    packer: Callable[[Callable[[], None]], Pack],
    workers: int,
    count: Count,
) -> Mapping[Path, Outcome]:
    """Packs shards in several processes, at most two queued for each.

    Raises PrepareError if a process is killed.
    """
    pool = futures.ProcessPoolExecutor(
        workers,
        multiprocessing.get_context("spawn"),
        _start,
        (packer, count.images, count.stop),
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


def _start(packer: Callable[[Callable[[], None]], Pack], images: Any, stop: Any) -> None:
    """Initializes a worker process."""
    signals.follow_parent(signal.SIGINT, signal.SIGHUP)  # the parent decides when to stop

    def count() -> None:
        with images:
            images.value += 1
        if stop.is_set():
            raise futures.CancelledError

    global _pack
    _pack = packer(count)


def _work(shard: Shard) -> Outcome:
    return _pack(shard)
