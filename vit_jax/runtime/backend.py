"""The backend that jax uses, chosen before jax is imported."""

import functools
import importlib.util
import os
import pathlib
import subprocess
import sys
import traceback

from vit_jax.utils import errors

GOOGLE = "0x1ae0"  # PCI vendor


def choose_platform(*, opens: bool = True) -> None:
    """Keeps jax from looking for TPUs where libtpu is installed only to compile for them.

    Otherwise every command on such a machine would print libtpu's complaints of a missing TPU.
    Leaves a JAX_PLATFORMS that is already set alone; raises ConfigError if none of its
    platforms is installed or, where this process `opens` devices, if there is no TPU.
    """
    asked = [name for name in os.environ.get("JAX_PLATFORMS", "").lower().split(",") if name]
    if asked and not any(map(_may_exist, asked)):
        raise errors.ConfigError(_missing("no package for it is installed"))
    if opens and "tpu" in asked and not _has_tpu():
        # Device files may be hidden, so jax decides; libtpu's own lines stay in that process.
        _open_in_a_process()
    if "JAX_PLATFORMS" in os.environ or importlib.util.find_spec("libtpu") is None or _has_tpu():
        return
    if not has_plugin():
        # Through the environment, which child processes inherit.
        os.environ["JAX_PLATFORMS"] = "cpu"
        if "jax" in sys.modules:  # which reads the environment once
            sys.modules["jax"].config.update("jax_platforms", "cpu")


def ask(code: str) -> list[str]:
    """Runs a program about devices in a process of its own; the words that it prints.

    A process that opens devices keeps them: a TPU has one owner, and jax takes most of a GPU's
    memory.
    Raises ConfigError.
    """
    # -P: not first in the current folder, where a user's random.py may lie.
    command = [sys.executable, "-P", "-c", code]
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode:
        # The last line of a traceback is the exception.
        why = found.stderr.strip().rpartition("\n")[2].removeprefix("RuntimeError: ")
        # jax's own remedy, in parentheses, would stand beside the one of `_missing`.
        why = why.partition(" (set JAX_PLATFORMS")[0]
        raise errors.ConfigError(
            _missing(why) if "JAX_PLATFORMS" in os.environ else f"jax finds no device: {why}"
        )
    return found.stdout.split()


@functools.cache
def _open_in_a_process() -> None:
    ask("import jax; jax.devices()")


def problem(error: BaseException) -> str | None:
    """The message for jax's error that JAX_PLATFORMS names no device; None for another."""
    if not os.environ.get("JAX_PLATFORMS"):
        return None
    # jax raises RuntimeError, as for much else, so the module that raised it has to identify it.
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    if not frame.f_code.co_filename.endswith("xla_bridge.py"):
        return None
    # Empty for the bare `assert` that fails where JAX_PLATFORMS=cuda and there is no NVIDIA GPU.
    return _missing(str(error).partition(" (set JAX_PLATFORMS")[0] or "jax has no such device")


def out_of_memory(error: BaseException) -> str | None:
    """The message for jax's error that a program does not fit a device; None for another."""
    text = str(error)
    # CPUs say INTERNAL and "Out of memory", others RESOURCE_EXHAUSTED.
    exhausted = "RESOURCE_EXHAUSTED" in text or "Out of memory" in text
    # By name: jax need not be imported.
    if type(error).__name__ != "JaxRuntimeError" or not exhausted:
        return None
    # XLA appends a table of the largest buffers.
    return f"out of device memory: {text.splitlines()[0]}"


def _missing(why: str) -> str:
    asked = os.environ["JAX_PLATFORMS"]
    return f"JAX_PLATFORMS={asked}: not on this machine ({why}); unset it to use what there is"


def _may_exist(platform: str) -> bool:
    if platform == "tpu":
        return importlib.util.find_spec("libtpu") is not None
    return platform not in ("cuda", "gpu", "rocm") or has_plugin()


def is_cpu_only() -> bool:
    """Whether jax can only choose the CPU; does not initialize a backend."""
    platforms = os.environ.get("JAX_PLATFORMS")
    if platforms:
        return platforms == "cpu"
    return not (has_plugin() or importlib.util.find_spec("libtpu") is not None)


def has_plugin() -> bool:
    """Whether a package of jax for GPUs is installed."""
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm7_plugin")
    return any(importlib.util.find_spec(name) for name in plugins)


def _has_tpu() -> bool:
    if any(pathlib.Path("/dev").glob("accel[0-9]*")):
        return True
    # As jax finds them; newer TPUs are VFIO devices, without /dev/accel files.
    vendors = pathlib.Path("/sys/bus/pci/devices").glob("*/vendor")
    return any(path.read_text().strip() == GOOGLE for path in vendors)
