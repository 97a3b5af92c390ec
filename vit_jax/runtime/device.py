"""What a process arranges with its machine: memory, compiled programs."""

import contextlib
import ctypes
import pathlib
import platform
from collections.abc import Iterator

import jax

from vit_jax import config
from vit_jax.runtime import backend

# Of glibc's malloc.h: one arena (M_ARENA_MAX), nothing mapped on its own (M_MMAP_MAX), and nothing
# handed back to the kernel (M_TRIM_THRESHOLD).
MALLOC_OPTIONS = ((-8, 1), (-4, 0), (-1, -1))


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
    """Asks glibc, on the CPU, to keep the memory that a step frees for the next step.

    XLA's CPU client allocates its temporary buffers anew in every step. glibc maps and unmaps
    memory of that size, and the kernel clears its pages one by one in between: 384 MiB and a
    quarter of the CPU time in a step of two layers of ViT-S/16 at batch 16. Only glibc's main arena
    holds blocks over 64 MiB without mapping them, and a thread stays with the arena of its first
    allocation, so call this before jax starts its threads; later it has no effect.
    """
    if backend.is_cpu_only() and platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        for parameter, value in MALLOC_OPTIONS:
            libc.mallopt(parameter, value)


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
