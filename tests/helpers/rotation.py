"""Which tenth of smoke programs and VTAB tasks a CI run trains: `python tests/helpers/rotation.py`.

Ten runs with consecutive numbers train all of them. The number is, whichever is there first:
`SMOKE_PART`, the run's number that a CI service sets, the commits on the first-parent line to HEAD,
the day. Nothing is stored.
"""

import datetime
import os
import pathlib
import subprocess
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

PARTS = 10
ROOT = pathlib.Path(__file__).resolve().parents[2]
# As GitHub Actions, GitLab, and Jenkins and Google Cloud Build call the number of a run.
RUN_NUMBERS = ("GITHUB_RUN_NUMBER", "CI_PIPELINE_IID", "BUILD_NUMBER")


def number(root: pathlib.Path = ROOT) -> tuple[int, str]:
    """Returns the number of this run, and where it is from."""
    for key in ("SMOKE_PART", *RUN_NUMBERS):
        text = os.environ.get(key, "")
        if text.isdigit():
            return int(text), f"{key}={text}"
    commits = _commits(root)
    if commits is not None:
        return commits, f"{commits} commits"
    day = datetime.datetime.now(datetime.UTC).date()
    return day.toordinal(), f"the day, {day}"


def _commits(root: pathlib.Path) -> int | None:
    """Returns the commits up to HEAD; None outside a repository, or in a shallow copy of one."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if git("rev-parse", "--is-shallow-repository") != "false":
            return None
        return int(git("rev-list", "--count", "--first-parent", "HEAD"))
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None


def part(everything: Sequence[T], run: int) -> list[T]:
    """Returns what the run of this number takes: every tenth, from one place further each run."""
    return list(everything[run % PARTS :: PARTS])


if __name__ == "__main__":
    run, source = number()
    print(f"part {run % PARTS} of 0 to {PARTS - 1}, by {source}; SMOKE_PART=N chooses another")
