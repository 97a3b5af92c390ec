"""Which code made a result, where and when."""

import datetime
import os
import pathlib
import subprocess
from collections.abc import Mapping
from typing import Any

from vit_jax import __version__


def fields(device: str, versions: Mapping[str, str]) -> dict[str, Any]:
    """Returns what every record says about its origin.

    Args:
      device: what computed it.
      versions: of the packages that matter; that of this one is added.
    """
    return {
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": device,
        "cores": len(os.sched_getaffinity(0)),
        "versions": {**versions, "vit_jax": __version__},
    }


def commit() -> str | None:
    """Returns the checkout's commit, `+` where files differ from it; None if it is no checkout."""
    git = ["git", "-C", str(pathlib.Path(__file__).parent)]
    try:
        found = subprocess.run(
            [*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        )
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()[:12] + ("+" if changed.stdout.strip() else "")
