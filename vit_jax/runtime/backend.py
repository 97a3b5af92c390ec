"""Which backend jax is to use, decided before jax is imported."""

import importlib.util
import os
import pathlib
import sys

GOOGLE = "0x1ae0"  # PCI vendor


def choose() -> None:
    """Keeps jax from looking for TPUs where libtpu is installed only to compile for them.

    Without this every command on such a machine would begin with libtpu's complaints of a missing
    TPU. A JAX_PLATFORMS that is set already is left alone.
    """
    if "JAX_PLATFORMS" in os.environ or importlib.util.find_spec("libtpu") is None or _has_tpu():
        return
    if not _has_plugin():
        os.environ["JAX_PLATFORMS"] = "cpu"
        if "jax" in sys.modules:  # which reads the environment once
            sys.modules["jax"].config.update("jax_platforms", "cpu")


def is_cpu_only() -> bool:
    """Returns whether jax can only choose the CPU; does not make it choose."""
    platforms = os.environ.get("JAX_PLATFORMS")
    if platforms:
        return platforms == "cpu"
    return not (_has_plugin() or importlib.util.find_spec("libtpu") is not None)


def _has_plugin() -> bool:
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm7_plugin")
    return any(importlib.util.find_spec(name) for name in plugins)


def _has_tpu() -> bool:
    if any(pathlib.Path("/dev").glob("accel[0-9]*")):
        return True
    vendors = pathlib.Path("/sys/bus/pci/devices").glob("*/vendor")
    return any(path.read_text().strip() == GOOGLE for path in vendors)
