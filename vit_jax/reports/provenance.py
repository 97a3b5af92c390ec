"""Which code made a result."""

import pathlib
import subprocess


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
