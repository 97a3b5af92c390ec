"""Cores and memory of this machine that a process may use."""

import math
import os
import pathlib

CGROUPS = pathlib.Path("/sys/fs/cgroup")
OWN = pathlib.Path("/proc/self/cgroup")


def cores() -> int:
    """How many cores this process may use, by its affinity and the limit of its container."""
    quotas = [limit.split() for limit in _limits("cpu.max")]  # microseconds in each period
    limits = [math.ceil(int(quota) / int(period)) for quota, period in quotas if quota != "max"]
    return min([len(os.sched_getaffinity(0)), *limits])


def memory() -> int:
    """Bytes of memory, of the machine or of the container that it is limited to."""
    limits = [int(limit) for limit in _limits("memory.max") if limit != "max"]
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *limits])


def _limits(name: str) -> list[str]:
    """The values of a limit of this process's cgroup (of version 2) and of those around it."""
    found = []
    try:
        # In a container the path is `/`, or leads out of what is mounted.
        own = next(line[3:] for line in OWN.read_text().splitlines() if line.startswith("0::"))
        inside = CGROUPS / own.lstrip("/")
        for folder in (inside, *inside.parents):
            if folder.is_relative_to(CGROUPS) and (file := folder / name).exists():
                found.append(file.read_text().strip())
    except (OSError, StopIteration):  # without cgroups, or of version 1
        return []
    return found
