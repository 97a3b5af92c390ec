"""Memory and compiled programs of a process on its machine."""

import contextlib
import ctypes
import os
import pathlib
import platform
from collections.abc import Iterator
from typing import Any

import jax

from vit_jax import config
from vit_jax.runtime import backend, logs
from vit_jax.utils import machine

CACHED = 4 * 2**30  # bytes of compiled programs, hundreds of runs
M_ARENA_MAX = -8  # in glibc's malloc.h


class OutOfMemory(config.UserError):
    """The program does not fit the device."""

    exit_code = 78


def cache_programs() -> None:
    """Caches compiled programs in the user's home, so that what ran once starts at once.

    Not in the run directory: jax executes what it finds there, and others may have written it.
    Without a private folder nothing is cached.
    """
    logs.ignore_full_cache()  # wherever the user has put it
    if jax.config.values["jax_compilation_cache_dir"]:
        return  # chosen by the user, through JAX_COMPILATION_CACHE_DIR
    # A program for one machine's CPU may not run on the next one's.
    backend = jax.default_backend()
    owner = f"cpu-{platform.node()}" if backend == "cpu" else backend
    try:
        folder = pathlib.Path("~/.cache/vit_jax/compiled", owner).expanduser()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        # The mode of mkdir does not apply to a folder that already existed.
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            logs.log.warning("%s: others may write there; compiled programs are not kept", folder)
            return
        _forget(folder)
    # `expanduser` raises RuntimeError for a user without a home.
    except (OSError, RuntimeError) as error:
        logs.log.info("compiled programs are not kept: %s", error)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # By default jax caches only programs that took a second to compile; a start has many smaller.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def _forget(folder: pathlib.Path) -> None:
    """Removes the programs written first, until the rest takes at most `CACHED` bytes."""
    with os.scandir(folder) as entries:
        files = sorted((one.stat().st_mtime, one.stat().st_size, one.path) for one in entries)
    excess = sum(size for _, size, _ in files) - CACHED
    for _, size, path in files:
        if excess <= 0:
            return
        pathlib.Path(path).unlink(missing_ok=True)  # by another process, meanwhile
        excess -= size


def memory(device: Any) -> int | None:  # jaxlib has no stubs
    """Bytes of memory of a jax device; None: unknown. CPU devices share that of the machine."""
    if device.platform == "cpu":
        return machine.memory()
    return (device.memory_stats() or {}).get("bytes_limit")


def step_by_step() -> None:
    """On the CPU, runs a program in the thread that calls it, so that none is queued.

    XLA's CPU client allocates its temporary buffers anew in every step, and a step dispatched
    before the last one has freed its own needs others: two sets, or three, of 2.7 GiB for MAE with
    ViT-S/16 at batch 16. jax reports a result as ready before the buffers are free, so waiting for
    it is not enough.

    Call this before jax starts its threads; later it has no effect.
    """
    if backend.is_cpu_only():
        jax.config.update("jax_cpu_enable_async_dispatch", False)


def return_freed_memory() -> None:
    """On the CPU, hands back what the compiler has freed in the middle of glibc's heap."""
    # Measured: half a GiB less at the peak of MAE with ViT-S/16 at batch 16, as a step's buffers do
    # not fit into the gaps that compiling leaves.
    if backend.is_cpu_only() and platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def share_one_arena() -> None:
    """Has threads that begin later share glibc's arenas; else each keeps what it has freed."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


@contextlib.contextmanager
def memory_errors(remedies: str) -> Iterator[None]:
    """Turns a failed allocation on a device, or a missing device, into a line with `remedies`.

    JAX_ENABLE_X64 is off inside: arrays that optax and jax create without a dtype would not fit the
    parameters.
    """
    try:
        with jax.enable_x64(False):
            yield
    # AssertionError: jax's own, for a JAX_PLATFORMS=cuda without a GPU.
    except (RuntimeError, AssertionError) as error:
        if line := backend.problem(error):
            raise config.ConfigError(line) from error
        if line := backend.out_of_memory(error):
            raise OutOfMemory(f"{line}; {remedies}") from error
        raise
