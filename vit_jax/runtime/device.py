"""What a process arranges with its machine: memory, compiled programs."""

import contextlib
import ctypes
import pathlib
import platform
from collections.abc import Iterator

import jax

from vit_jax import config


class OutOfMemory(config.UserError):
    """The program does not fit the device."""

    exit_code = 78


def cache_programs(workdir: pathlib.Path) -> None:
    """Keeps compiled programs in the run directory, so that a resumed run starts at once."""
    if jax.config.values["jax_compilation_cache_dir"]:
        return  # chosen by the user, through JAX_COMPILATION_CACHE_DIR
    # A program for one machine's CPU may not run on the next one's.
    backend = jax.default_backend()
    owner = f"cpu-{platform.node()}" if backend == "cpu" else backend
    jax.config.update("jax_compilation_cache_dir", str(workdir / "compiled" / owner))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def keep_freed_memory() -> None:
    """Asks glibc not to hand freed memory back to the kernel after every step on the CPU.

    XLA's CPU client allocates its buffers anew each step, and page faults take their share of a
    small model's time (320 steps of digits, start to end: 19.0 s without this, 16.3 s with it).
    """
    if jax.default_backend() == "cpu" and platform.libc_ver()[0] == "glibc":
        trim_threshold, mmap_threshold = -1, -3  # malloc.h
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_threshold, 2**25)  # the most it takes
        libc.mallopt(trim_threshold, 2**31 - 1)


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """Turns an allocation that failed on a device into one line with the remedies."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise OutOfMemory(
            f"out of device memory: {str(error).splitlines()[0]}; raise train.accumulation, "
            "set model.remat=full or mesh.fsdp, or lower train.batch_size"
        ) from error
