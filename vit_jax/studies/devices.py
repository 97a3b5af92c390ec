"""Divides the devices of this machine among processes through environment variables."""

import os

from vit_jax.config import ConfigError, check_count
from vit_jax.runtime import backend

# Chips of a TPU host visible to a process, by their number (hosts of 2 x 2 chips).
TPU_BOUNDS = {1: "1,1,1", 2: "1,2,1"}

MOST_PROCESSES = 1000

Environment = dict[str, str]


def shares(parallel: int) -> list[Environment]:
    """For each process, the environment variables that assign its share of the devices.

    All processes share the CPU. Raises ConfigError if there are too few devices.
    """
    # A TPU host of a larger slice lists all hosts of the slice in TPU_WORKER_HOSTNAMES.
    if "JAX_COORDINATOR_ADDRESS" in os.environ or "," in os.environ.get("TPU_WORKER_HOSTNAMES", ""):
        raise ConfigError(
            "transfer: its cells run on one host, and several are named here; use one of them, or "
            "run the cells by `vit_jax train`"
        )
    check_count("--parallel", parallel, MOST_PROCESSES)
    if parallel == 1:
        return [{}]
    platform, count = find_devices()
    if platform == "cpu":
        return [{}] * parallel
    each = count // parallel
    if not each or (platform == "tpu" and each not in TPU_BOUNDS):
        most = count if platform != "tpu" or each in TPU_BOUNDS else f"{count} or {count // 2}"
        raise ConfigError(f"--parallel={parallel}: there are {count} {platform}s; at most {most}")
    # Equal shares: devices that are left over stay idle.
    return [_share(platform, range(first * each, (first + 1) * each)) for first in range(parallel)]


def _share(platform: str, numbers: range) -> Environment:
    name = {"tpu": "TPU_VISIBLE_CHIPS", "rocm": "HIP_VISIBLE_DEVICES"}.get(
        platform, "CUDA_VISIBLE_DEVICES"
    )
    # A process with restricted devices numbers them from 0, but its children use global numbers.
    visible = [part for part in os.environ.get(name, "").split(",") if part]
    listed = ",".join(visible[number] if visible else str(number) for number in numbers)
    if platform != "tpu":
        return {name: listed}
    # A process with some of a host's chips has to be told the shape that they make.
    bounds = TPU_BOUNDS[len(numbers)]
    return {name: listed, "TPU_CHIPS_PER_PROCESS_BOUNDS": bounds, "TPU_PROCESS_BOUNDS": "1,1,1"}


def find_devices() -> tuple[str, int]:
    """The platform and its number of GPUs or TPU chips."""
    # The two cores of a chip of TPU v2 and v3 have the same coordinates, and count once.
    code = (
        "import jax; d = jax.local_devices(); p = d[0].platform; "
        "p = 'rocm' if 'rocm' in d[0].client.platform_version.lower() else p; "
        "print(p, len({getattr(x, 'coords', x.id) for x in d}))"
    )
    platform, count = backend.ask(code)[-2:]
    return platform, int(count)
