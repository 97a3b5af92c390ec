"""Which tests are fast, and which slow ones a CI run takes.

Of the cases of a test marked `sampled(N)` those that `tests/mutation` names as the killers of a
fault are fast, or every Nth where it names none; the others are slow.

`--in-turn` selects, of the tests marked `slow`, a fifth, and of those marked `long(turns=N)` an
Nth: five and N runs with consecutive numbers take all of them. The number is, whichever is there
first: `TEST_TURN`, the run's number that a CI service sets, the commits on the first-parent line to
HEAD, the day. Nothing is stored. `python tests/helpers/rotation.py` prints it.
"""

import collections
import datetime
import functools
import json
import os
import pathlib
import subprocess
from typing import Any

Item = Any  # pytest.Item; `.ci/run` prints the number without pytest

SLOW_TURNS = 5
ROOT = pathlib.Path(__file__).resolve().parents[2]
COLLECTED: set[str] = set()  # the cases of this session, also those that do not run
# GitHub Actions, GitLab, and Jenkins and Google Cloud Build set these to the number of a run.
RUN_NUMBERS = ("GITHUB_RUN_NUMBER", "CI_PIPELINE_IID", "BUILD_NUMBER")


def number(root: pathlib.Path = ROOT) -> tuple[int, str]:
    """The number of this run, and where it is from."""
    for key in ("TEST_TURN", *RUN_NUMBERS):
        text = os.environ.get(key, "")
        if text.isdigit():
            return int(text), f"{key}={text}"
    commits = _commits(root)
    if commits is not None:
        return commits, f"{commits} commits"
    day = datetime.datetime.now(datetime.UTC).date()
    return day.toordinal(), f"the day, {day}"


def _commits(root: pathlib.Path) -> int | None:
    """The commits up to HEAD; None outside a repository, or in a shallow copy of one."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if git("rev-parse", "--is-shallow-repository") != "false":
            return None
        return int(git("rev-list", "--count", "--first-parent", "HEAD"))
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None


def is_sampled(item: Item) -> bool:
    """Whether a case of a test is among those that stand for the others."""
    marker = item.get_closest_marker("sampled")
    if marker is None:
        return True
    name = item.nodeid.partition("[")[0]
    if name in _killing_tests():
        return item.nodeid in _killers()
    _COUNTS[name] += 1
    return (_COUNTS[name] - 1) % marker.args[0] == 0


_COUNTS: collections.Counter[str] = collections.Counter()


@functools.cache
def _killers() -> frozenset[str]:
    lines = (ROOT / "tests/mutation/faults.jsonl").read_text(encoding="utf-8").splitlines()
    return frozenset(json.loads(line)["killed_by"] for line in lines)


@functools.cache
def _killing_tests() -> frozenset[str]:
    return frozenset(killer.partition("[")[0] for killer in _killers())


def turns(item: Item) -> int | None:
    """How many runs share the tests like this one; None if none of them takes it."""
    if long := item.get_closest_marker("long"):
        return long.kwargs.get("turns")
    return SLOW_TURNS if item.get_closest_marker("slow") else 1


def in_turn(items: list[Item], run: int) -> list[Item]:
    """The tests that the run of this number takes, in their order."""
    groups: dict[int, list[Item]] = {}
    for item in sorted(items, key=lambda item: item.nodeid):
        if count := turns(item):
            groups.setdefault(count, []).append(item)
    taken = {item for count, group in groups.items() for item in group[run % count :: count]}
    return [item for item in items if item in taken]


if __name__ == "__main__":
    run, source = number()
    print(f"run {run}, by {source}; TEST_TURN=N chooses another")
