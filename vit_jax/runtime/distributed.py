"""The processes of one run: how they join, and what becomes of the others when one is lost."""

import contextlib
import ctypes
import os
import pathlib
import platform
import signal
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import jax

from vit_jax import config
from vit_jax.runtime import logs
from vit_jax.utils import messages, storage

LOST = 70  # worth a retry
NAMING = 20.0  # seconds to look up the names of hosts, at most, when one is lost
FOLDER = "hosts"  # of a run directory: a file for each process, which names its host


class PeerLost(config.UserError):
    """Another process of the run has ended or does not answer."""

    exit_code = LOST


class ProcessInfo(NamedTuple):
    """What the environment says of this process: its number, how many there are, and where."""

    number: int
    count: int
    address: str | None  # of process 0; None: jax finds it


def from_environment() -> ProcessInfo | None:
    """Returns this process's place among several, or None where it is alone.

    JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID name it explicitly; on a TPU slice
    of several hosts TPU_WORKER_HOSTNAMES and TPU_WORKER_ID do. Raises ConfigError.
    """
    address = os.environ.get("JAX_COORDINATOR_ADDRESS")
    if address:
        why = "as JAX_COORDINATOR_ADDRESS is set"
        count, number = (_number(key, why) for key in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"))
        return ProcessInfo(number, count, address)
    workers = os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
    if len(workers) > 1:
        return ProcessInfo(
            _number("TPU_WORKER_ID", "on a slice of several hosts"), len(workers), None
        )
    return None


def is_first() -> bool:
    """Returns whether this process acts for all of its run: the first one, or the only one."""
    me = from_environment()
    return me is None or me.number == 0


def _number(name: str, why: str) -> int:
    text = os.environ.get(name, "")
    if not text.isdigit():
        raise config.ConfigError(f"{name}={text}: must be a number, {why}")
    return int(text)


def initialize(workdir: pathlib.Path | None, *, wait: int, heartbeat: int) -> None:
    """Joins the other processes where the environment names them; alone, does nothing.

    Args:
      workdir: the run directory that all of them share, where each says that it is there.
      wait: seconds until processes that have not come are named, and this one ends.
      heartbeat: seconds without a sign of life after which a process counts as lost, and all others
        end.

    Both ends have code 70.
    """
    me = from_environment()
    if me is None or jax.distributed.is_initialized():
        return
    if workdir is not None:
        with contextlib.suppress(OSError):  # that it cannot be written is said soon enough
            _say_here(workdir / FOLDER, me)
    _end_with_code(me, workdir, wait)
    found = me.address is None  # by jax itself, on a TPU slice
    jax.distributed.initialize(
        coordinator_address=me.address,
        num_processes=None if found else me.count,
        process_id=None if found else me.number,
        initialization_timeout=wait,
        heartbeat_timeout_seconds=heartbeat,
    )
    _joined.append(True)


_joined: list[bool] = []
_handlers: list[object] = []  # kept alive: C calls them


def _say_here(folder: pathlib.Path, me: ProcessInfo) -> None:
    with storage.os_errors():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(me.number)).write_text(platform.node())


def _end_with_code(me: ProcessInfo, workdir: pathlib.Path | None, wait: int) -> None:
    """Makes the end that jax gives a process, when another one is lost, an exit with code 70.

    jax logs which one is lost and calls abort(); that can only be caught as a signal, in C, for the
    callback that jaxlib has in its place fails (0.10 to 0.12: std::bad_cast).
    """
    began = time.time()

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def end(number: int) -> None:
        # Names of hosts may be in a bucket that does not answer.
        unnamed = threading.Timer(NAMING, os._exit, (LOST,))
        unnamed.daemon = True
        unnamed.start()
        text = lost_process(me, workdir) if _joined else missing_processes(me, workdir, began, wait)
        os.write(2, f"{messages.PREFIX}{messages.one_line(text)}\n".encode())
        os._exit(LOST)

    _handlers.append(end)
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    libc.signal(signal.SIGABRT, ctypes.cast(end, ctypes.c_void_p))


def missing_processes(
    me: ProcessInfo, workdir: pathlib.Path | None, began: float, wait: int
) -> str:
    """Returns the line about processes that did not come."""
    present = {me.number} | (set() if workdir is None else _present(workdir / FOLDER, began - wait))
    missing = [str(number) for number in range(me.count) if number not in present]
    return (
        f"after {wait} s process {', '.join(missing) or '(none by name)'} of {me.count} had not "
        f"joined; start all of them with the same JAX_COORDINATOR_ADDRESS, or raise watchdog.join"
    )


def _present(folder: pathlib.Path, since: float) -> set[int]:
    """Returns the processes whose files are not older than a time."""
    with storage.os_errors():
        return {
            int(file.name)
            for file in folder.glob("[0-9]*")
            if file.name.isdigit() and storage.modified(file) >= since
        }


def lost_process(me: ProcessInfo, workdir: pathlib.Path | None) -> str:
    """Returns the line about a process that is lost, which jax has named by its number."""
    hosts = [f"{number} on {name(workdir, number)}" for number in range(me.count)]
    return (
        "a process of this run is lost, so the others end; jax names it above by its number "
        f"({', '.join(hosts)}); the same command goes on from the last checkpoint"
    )


def name(workdir: pathlib.Path | None, number: int) -> str:
    """Returns the host of a process, as far as it is known."""
    if workdir is None:
        return "?"
    try:
        with storage.os_errors():
            return (workdir / FOLDER / str(number)).read_text()
    except OSError:
        return "?"


@contextlib.contextmanager
def failures(heartbeat: int) -> Iterator[None]:
    """Waits, where a collective fails, for jax to say which process is lost; that ends this one.

    On CPUs and GPUs the connection to a lost process breaks before its heartbeats are missed.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1 or "RESOURCE_EXHAUSTED" in str(error):
            raise
        first = str(error).strip().partition("\n")[0]
        logs.log.error("%s; waiting %d s to learn whether a process is lost", first, heartbeat)
        time.sleep(2 * heartbeat)
        raise PeerLost(f"no process is lost, but this one cannot go on: {first}") from error
