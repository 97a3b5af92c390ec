"""Writes a dataset completely or not at all, in several processes, resuming after interruptions.

Shards are written to a hidden folder next to the dataset's, which is locked by one command at a
time. Once all are there, it gets its metadata and its name.
"""

import contextlib
import dataclasses
import fcntl
import functools
import itertools
import json
import multiprocessing
import re
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from vit_jax.data.prepare import shards
from vit_jax.data.prepare.shards import Encoder, PrepareError, Shard, ShardResult
from vit_jax.data.source import DataError
from vit_jax.runtime import logs, signals
from vit_jax.runtime.progress import Bar
from vit_jax.utils import limits, storage

PLAN, WHOLE = "plan", "whole"
FACTS = "vit_jax.json"
TEMPORARY = re.compile(r"\..+\.\d+")  # names that `storage.replacing` uses until a file is complete
FOR_PARENT = signal.SIGINT, signal.SIGHUP  # signals: the parent decides when to stop

Packed = list[tuple[Shard, ShardResult]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackingWork:
    """The plan of a dataset's files."""

    fingerprint: str  # digest of everything that determines its bytes
    shards: Sequence[Shard]
    # The inputs of a shard's encoder, which go to a worker process by pickle.
    entries: Callable[[Shard], Sequence[object]]
    encoder: Callable[[], Encoder]  # creates the encoder of a process, which may hold open archives
    # Writes the metadata into a folder of shards, and returns the facts for FACTS.
    finish: Callable[[Path, Packed], dict[str, Any]]
    # Advice for a disk too small for the planned bytes; None: sizes are unknown.
    remedy: str | None = "free some space, or choose another --data-dir"
    first: Callable[[], None] = lambda: None  # called once before the first attempt


def write_dataset(
    name: str, folder: Path, plan: Callable[[Path], PackingWork], workers: int
) -> dict[str, Any]:
    """Writes the dataset `folder` and returns its facts.

    Keeps the shards that an earlier attempt with the same fingerprint finished; the result is
    identical to an uninterrupted one, byte for byte. `plan` takes the hidden folder, which is
    removed if it raises. Raises DataError or PrepareError.
    """
    part = hidden(folder)
    with alone(part):
        with _nothing_left(part):
            work = plan(part)
        begin(part, work.fingerprint, work.first)
        packed = _write_shards(name, part, work, workers)
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


def read_facts(folder: Path) -> dict[str, Any] | None:
    """The facts of a dataset that was packed here, with its `splits`; None for any other folder."""
    try:
        facts = limits.read_json(folder / FACTS, limits.TABLE)
        for about in facts["splits"].values():
            if not (type(about["examples"]) is int and type(about["names_sha256"]) is str):
                return None
        return facts if isinstance(facts["shards"], dict) else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


@contextlib.contextmanager
def alone(part: Path) -> Iterator[None]:
    """Holds a lock, so that a second command does not write the same files."""
    with shards.disk_errors(part):
        (part / WHOLE).mkdir(parents=True, exist_ok=True)
        file = (part / "lock").open("w")
    with file:
        try:
            # The kernel drops it with a killed process; a file as a lock would stay.
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
                # This fails for a folder that holds anything else.
                part.parent.rmdir()
        raise


def begin(part: Path, fingerprint: str, first: Callable[[], None] = lambda: None) -> None:
    """Resumes an earlier attempt; raises DataError if it had other images or settings."""
    plan = part / PLAN
    # Parts of files of a killed attempt; finished shards stay.
    for leftover in [*part.glob(".*"), *(part / WHOLE).glob(".*")]:
        leftover.unlink()
    if plan.exists() and plan.read_text() != fingerprint:
        raise DataError(
            f"{part}: was started with other images or settings; repeat those to resume, or "
            f"remove it to start over: rm -r {part}"
        )
    with shards.disk_errors(part):
        # First: the plan's file says that an attempt has begun, and all it needs is there.
        if not plan.exists():
            first()
        storage.write_atomically(plan, fingerprint)


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
    if short := storage.shortage(target, needed):
        raise PrepareError(f"{target.parent.parent}: {short}; {remedy}")


class Count:
    """Counts the finished images of all processes, and carries the signal to stop."""

    def __init__(self, ready: int) -> None:
        # Not fork: TFDS and OpenCV have threads by now, and a forked lock may stay locked for ever.
        context = multiprocessing.get_context("spawn")
        self.images = context.Value("q", ready)
        self.stop = context.Event()

    def __call__(self) -> None:
        """Counts one more; raises CancelledError to stop."""
        with self.images:
            # `+=` reads and then writes; another process could count in between.
            self.images.value += 1
        if self.stop.is_set():
            raise futures.CancelledError


def _write_shards(name: str, part: Path, work: PackingWork, workers: int) -> Packed:
    """Writes the shards that no earlier attempt has finished; returns all with their outcomes."""
    done = {s.path: known for s in work.shards if (known := shards.find_outcome(s.path))}
    missing = [shard for shard in work.shards if shard.path not in done]
    if work.remedy is not None:
        check_free(part, sum(shard.size for shard in missing), work.remedy)
    if done:
        logs.log.info(f"{name}: {len(done)} of {len(work.shards)} shards are there already")
    count = Count(sum(len(shard.positions) for shard in work.shards if shard.path in done))
    # A generator: the entries of millions of images are made shard by shard.
    waiting = ((shard.path, work.entries(shard)) for shard in missing)
    with Bar(f"packing {name}", sum(len(shard.positions) for shard in work.shards)) as progress:

        def show() -> None:
            progress.update(count.images.value)

        show()
        if min(workers, len(missing)) < 2:

            def counted() -> None:
                count()
                show()

            # In this process: starting one takes seconds of imports.
            encode = work.encoder()
            for path, entries in waiting:
                done[path] = shards.write_shard(path, entries, encode, counted)
        else:
            done |= _in_processes(waiting, work.encoder, min(workers, len(missing)), count, show)
    return [(shard, done[shard.path]) for shard in work.shards]


def _in_processes(
    waiting: Iterator[tuple[Path, Sequence[object]]],
    encoder: Callable[[], Encoder],
    workers: int,
    count: Count,
    show: Callable[[], None],
) -> dict[Path, ShardResult]:
    """Writes shards in several processes, with two queued for each so that none waits.

    Raises PrepareError if a process is killed.
    """
    context = multiprocessing.get_context("spawn")
    pool = futures.ProcessPoolExecutor(workers, context, _start, (encoder, count))
    done: dict[Path, ShardResult] = {}
    running = dict[futures.Future[ShardResult], Path]()
    try:
        while True:
            for path, entries in itertools.islice(waiting, 2 * workers - len(running)):
                # `submit` may start a process, which inherits the mask of signals.
                with signals.kept_from_children(*FOR_PARENT):
                    running[pool.submit(_work, path, entries)] = path
            if not running:
                return done
            # Wakes up four times a second for the progress bar; a shard takes seconds.
            ready, _ = futures.wait(running, 0.25, futures.FIRST_COMPLETED)
            done |= {running.pop(future): future.result() for future in ready}
            show()
    except BrokenProcessPool:
        raise PrepareError(
            "a worker process was killed (out of memory?); run the same command again to resume; "
            "fewer --workers take less memory"
        ) from None
    finally:
        # Workers check this at every image; without it, shutdown would wait for whole shards.
        count.stop.set()
        # An interrupt here would leave a worker alone that still imports, to fail with a traceback.
        with signals.StopSignal(says="stopping") as stop:
            pool.shutdown(cancel_futures=True)
            stop.release()


_write: Callable[[Path, Sequence[object]], ShardResult]  # of a worker process


def _start(encoder: Callable[[], Encoder], count: Count) -> None:
    """Initializes a worker process."""
    signals.follow_parent(*FOR_PARENT)
    # One encoder per process, not per shard: it may index millions of fingerprints.
    global _write
    _write = functools.partial(shards.write_shard, encode=encoder(), count=count)


def _work(path: Path, entries: Sequence[object]) -> ShardResult:
    return _write(path, entries)
