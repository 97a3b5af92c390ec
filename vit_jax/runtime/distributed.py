"""The processes of one run: how they join, agree, and end when one of them is lost."""

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import pathlib
import platform
import secrets
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import jax

from vit_jax import config
from vit_jax.runtime import collectives, logs
from vit_jax.utils import messages, storage

LOST = 70  # exit code: worth a retry
NAMING = 20.0  # seconds to look up the names of hosts, at most, when one is lost
FOLDER = "hosts"  # of a run directory: a file for each process, which names its host


# Facts that must be equal in all processes, with the remedy where they are not.
REMEDIES = {
    "code": "install the same version everywhere",
    "plugins": "give every process the same --plugins, of equal content",
    "jax": "install the same version everywhere",
    "config": "give every process the same command",
    "data": "data.root must hold the same files on every host",
    "workdir": "--workdir must be on storage that all hosts share",
}
MOST_BYTES = 2048  # of the facts of a process


class PeerLost(config.UserError):
    """Another process of the run has ended or does not answer."""

    exit_code = LOST


class ProcessInfo(NamedTuple):
    """The place of this process in its run, as the environment defines it."""

    number: int
    count: int
    address: str | None  # of process 0; None: jax finds it


def from_environment() -> ProcessInfo | None:
    """This process among several, or None where it is alone.

    JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID name it explicitly; on a TPU slice
    of several hosts TPU_WORKER_HOSTNAMES and TPU_WORKER_ID do, and of several slices
    MEGASCALE_NUM_SLICES and MEGASCALE_SLICE_ID too. Raises ConfigError.
    """
    address = os.environ.get("JAX_COORDINATOR_ADDRESS")
    if address:
        why = "as JAX_COORDINATOR_ADDRESS is set"
        # By the last colon: an IPv6 address has more.
        if not address.rpartition(":")[0] or not address.rpartition(":")[2].isdecimal():
            raise config.ConfigError(f"JAX_COORDINATOR_ADDRESS={address}: must be HOST:PORT")
        count = _number("JAX_NUM_PROCESSES", why)
        return ProcessInfo(_number("JAX_PROCESS_ID", why, below=count), count, address)
    workers = os.environ.get("TPU_WORKER_HOSTNAMES", "")
    if not workers:
        return None
    hosts, slices, at = len(workers.split(",")), 1, 0
    if os.environ.get("MEGASCALE_NUM_SLICES"):
        slices = _number("MEGASCALE_NUM_SLICES", "of TPU slices")
    if slices > 1:
        at = _number("MEGASCALE_SLICE_ID", "of one of several TPU slices", below=slices)
    if hosts * slices == 1:
        return None
    number = _number("TPU_WORKER_ID", "on a slice of several hosts", below=hosts)
    return ProcessInfo(at * hosts + number, slices * hosts, None)


def is_first() -> bool:
    """Whether this process acts for all of its run: the first one, or the only one."""
    me = from_environment()
    return me is None or me.number == 0


def _number(name: str, why: str, below: int | None = None) -> int:
    text = os.environ.get(name, "")
    if not text.isdecimal() or (below is not None and int(text) >= below):
        bound = "" if below is None else f" below {below}"
        raise config.ConfigError(f"{name}={text}: must be a number{bound}, {why}")
    return int(text)


def initialize(workdir: pathlib.Path | None = None, limits: config.Watchdog | None = None) -> None:
    """Joins the other processes where the environment names them; alone, does nothing.

    Must be called before anything asks jax for a device.

    Args:
      workdir: the run directory that all of them share, where each writes the name of its host.
      limits: those of the config; None: the defaults. After `join` seconds, processes that have not
        joined are named, and this one ends; after `heartbeat` seconds without a sign of life a
        process counts as lost, and all others end.

    Both ends have code 70.
    """
    me = from_environment()
    if me is None or jax.distributed.is_initialized():
        return
    limits = limits or config.Watchdog()
    if workdir is not None:
        with contextlib.suppress(OSError):  # an unwritable directory is reported soon enough
            _write_host(workdir / FOLDER, me)
    # Before joining: jax also aborts this process if another one never comes.
    _end_with_code(me, workdir, limits.join)
    found = me.address is None  # by jax itself, on TPU slices
    jax.distributed.initialize(
        coordinator_address=me.address,
        num_processes=None if found else me.count,
        process_id=None if found else me.number,
        initialization_timeout=limits.join,
        heartbeat_timeout_seconds=limits.heartbeat,
    )
    _joined.append(True)


_joined: list[bool] = []
_handlers: list[object] = []  # kept alive: C calls them


def _write_host(folder: pathlib.Path, me: ProcessInfo) -> None:
    with storage.os_errors():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(me.number)).write_text(platform.node())


def _end_with_code(me: ProcessInfo, workdir: pathlib.Path | None, wait: int) -> None:
    """Turns jax's abort after the loss of another process into exit code 70.

    jax logs which one is lost and calls abort(), which can only be caught as a signal, in C: the
    callback that jaxlib offers fails (0.10 to 0.12: std::bad_cast).
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
        # If this returned, abort() would restore the default action and raise the signal again.
        os._exit(LOST)

    _handlers.append(end)
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    libc.signal(signal.SIGABRT, ctypes.cast(end, ctypes.c_void_p))


def missing_processes(
    me: ProcessInfo, workdir: pathlib.Path | None, began: float, wait: int
) -> str:
    """The line about processes that did not join."""
    # Others may have started up to `wait` seconds earlier; older files are of an earlier start.
    present = {me.number} | (set() if workdir is None else _present(workdir / FOLDER, began - wait))
    missing = [str(number) for number in range(me.count) if number not in present]
    return (
        f"after {wait} s process {', '.join(missing) or '(none by name)'} of {me.count} had not "
        f"joined; start all of them with the same JAX_COORDINATOR_ADDRESS, or raise watchdog.join"
    )


def _present(folder: pathlib.Path, since: float) -> set[int]:
    """The processes whose files are not older than a time."""
    with storage.os_errors():
        return {
            int(file.name)
            for file in folder.glob("[0-9]*")
            if file.name.isdigit() and storage.modified(file) >= since
        }


def lost_process(me: ProcessInfo, workdir: pathlib.Path | None) -> str:
    """The line about a process that is lost, which jax has named by its number."""
    hosts = [f"{number} on {host_of(workdir, number)}" for number in range(me.count)]
    return (
        "a process of this run is lost, so the others end; jax names it above by its number "
        f"({', '.join(hosts)}); the same command continues from the last checkpoint"
    )


def host_of(workdir: pathlib.Path | None, number: int) -> str:
    """The host of a process, or ?."""
    if workdir is None:
        return "?"
    try:
        with storage.os_errors():
            return (workdir / FOLDER / str(number)).read_text()
    except OSError:
        return "?"


@contextlib.contextmanager
def failures(heartbeat: int) -> Iterator[None]:
    """Waits, where a collective fails, for jax to name the lost process and end this one.

    On CPUs and GPUs the connection to a lost process breaks before its heartbeats are missed.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1 or "RESOURCE_EXHAUSTED" in str(error):
            raise
        first = str(error).strip().partition("\n")[0]
        logs.log.error("%s; waiting %d s to learn whether a process is lost", first, heartbeat)
        # If a process is lost, jax ends this one meanwhile.
        time.sleep(2 * heartbeat)
        raise PeerLost(f"no process is lost, but this one cannot go on: {first}") from error


def check_consistency(workdir: pathlib.Path, facts: Mapping[str, str]) -> list[str]:
    """Raises ConfigError in every process if one differs from process 0.

    Args:
      workdir: the run directory; whether all processes see the same one is checked too.
      facts: what must be equal, as short texts by the keys of `REMEDIES`; `host` and `seconds`,
        the time it took to come here, may differ.

    Returns a line with those two for each process; none where this process is alone.
    """
    if jax.process_count() == 1:
        return []
    folder = workdir / FOLDER
    # A token tells one folder that all see from folders of the same name on several hosts.
    token = collectives.broadcast_from_main(functools.partial(_write_token, folder))
    everyone = _gather(dict(facts) | {"workdir": _read_token(folder, token)})
    for number, other in enumerate(everyone):
        for key, remedy in REMEDIES.items():
            first = everyone[0].get(key)
            if other.get(key) != first:
                raise config.ConfigError(
                    f"process {number} on {other['host']}: its {key} is {other.get(key)}, but "
                    f"{first} on process 0, {everyone[0]['host']}; {remedy}"
                )
    return [
        f"process {number} on {facts['host']}: ready after {facts['seconds']} s"
        for number, facts in enumerate(everyone)
    ]


@functools.cache
def code_digest() -> str:
    """16 hex digits of this package's source."""
    root = pathlib.Path(__file__).parents[1]
    total = hashlib.sha256()
    # Sorted: rglob's order is that of the file system, which differs between hosts.
    for file in sorted(root.rglob("*.py")):
        total.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    return total.hexdigest()[:16]


def _write_token(folder: pathlib.Path) -> str:
    token = secrets.token_hex(8)
    with storage.os_errors():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "token").write_text(token)
    return token


def _read_token(folder: pathlib.Path, token: str) -> str:
    try:
        with storage.os_errors():
            found = (folder / "token").read_text()
    except OSError:
        return "without what process 0 writes there"
    return "shared" if found == token else "another directory of that name"


def _gather(facts: Mapping[str, str]) -> list[dict[str, str]]:
    text = json.dumps(facts)  # ASCII
    # JSON that is cut could not be parsed.
    assert len(text) <= MOST_BYTES, facts
    return [json.loads(one) for one in collectives.gather_texts(text, MOST_BYTES)]
