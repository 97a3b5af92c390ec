"""Which code made a result, where and when."""

import datetime
import pathlib
import platform
import subprocess
from collections.abc import Mapping

from vit_jax import __version__
from vit_jax.utils import machine


def fields(device: str, versions: Mapping[str, str | None]) -> dict[str, object]:
    """The origin of a record.

    `versions` are those of the packages that matter; that of this one is added.
    """
    return {
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": device,
        "cores": machine.cores(),
        "processor": processor(),
        "versions": {**versions, "vit_jax": __version__},
    }


def commit(package: pathlib.Path = pathlib.Path(__file__).parents[1]) -> str | None:
    """The commit of the package's checkout, followed by `+` where its code was changed.

    None where git does not track the package: an environment may lie in the checkout of another
    project. Pages and records below docs/ are no code.
    """
    git = ["git", "-C", str(package)]
    try:
        _run(*git, "ls-files", "--error-unmatch", "__init__.py")
        found = _run(*git, "rev-parse", "HEAD")
        changed = _run(*git, "status", "--porcelain", "--", ":/", ":(exclude,top)docs")
    except (OSError, subprocess.CalledProcessError):
        return None
    return found[:12] + ("+" if changed else "")


def processor() -> str:
    """The name of this machine's processor."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def multiplies_bfloat16() -> bool:
    """Whether this machine's processor has instructions for products of bfloat16 numbers."""
    flags = f"{_cpuinfo('flags')} {_cpuinfo('Features')}".split()  # Features: on Arm
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags)


def _cpuinfo(key: str) -> str:
    """What Linux says of the first processor; empty elsewhere."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    found = (line.partition(":")[2].strip() for line in lines if line.startswith(key))
    return next(found, "")


def _run(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
