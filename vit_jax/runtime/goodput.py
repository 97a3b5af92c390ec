"""Goodput: the time that the processes of a run spent by phase, over all restarts.

Goodput is the share of time, from the first start to the end, that went into training steps which
were not lost. The rest is start, compilation, waits for data, evaluation, saves, steps that were
done again because they had not been saved, and the time between two processes.
"""

import collections
import contextlib
import dataclasses
import itertools
import json
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax.runtime import logs
from vit_jax.utils import limits, storage

FILE = "sessions.json"
STEP = "step"  # the phase that is training
TWICE = 2  # one failure may be the machine's; a second at the same step blames the state


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """A run's time.

    Attributes:
      seconds: from the first start to the newest news.
      shares: of that time, by phase; `lost` is for steps done again, `away` between processes.
      restarts: processes after the first.
      repeated: steps done again.
    """

    seconds: float
    shares: Mapping[str, float]
    restarts: int
    repeated: int

    @property
    def goodput(self) -> float:
        """The share of time that went into training."""
        return self.shares.get(STEP, 0.0)


class GoodputLog:
    """Writes `sessions.json` of a run directory: an entry per process, the last one growing."""

    def __init__(self, workdir: pathlib.Path, step: int, *, age: float, options: str = "") -> None:
        """Begins a session of a process that started `age` seconds ago and resumes from a step.

        `options` is a digest of the run's.
        """
        self._file, self._options = workdir / FILE, options
        self._before = read_sessions(self._file)
        self._began = time.time() - age
        self._first = step
        self._last: tuple[int, Mapping[str, float]] = step, {}
        self._failed = False

    def update(self, step: int, seconds: Mapping[str, float]) -> Summary:
        """Writes this process's time up to a step, and returns the whole run's."""
        mine = {
            "began": round(self._began, 1),
            "first_step": self._first,
            "last_step": step,
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
        }
        if self._failed:
            mine |= {"failed": True, "options": self._options}
        self._last = step, seconds
        sessions = [*self._before, mine]
        # Not worth ending a run: a full disk is reported by the checkpoints.
        with contextlib.suppress(OSError):
            storage.write_atomically(self._file, json.dumps(sessions, indent=1) + "\n")
        return summarize(sessions)

    def failed(self) -> None:
        """Records that this process ends by a failure of its own."""
        self._failed = True
        self.update(*self._last)


def suspects(sessions: Sequence[Mapping[str, Any]], options: str) -> set[int]:
    """Steps from which the newest processes failed twice, without progress in between.

    Their checkpoints are intact but cannot be continued, such as one from a machine that
    miscalculates. Failures with other options, such as a larger learning rate, say nothing.
    """

    def failed(session: Mapping[str, Any]) -> bool:
        return bool(session.get("failed")) and session.get("options", options) == options

    failures = itertools.takewhile(failed, reversed(sessions))
    counts = collections.Counter(session["first_step"] for session in failures)
    return {step for step, count in counts.items() if count >= TWICE}


def read_sessions(file: pathlib.Path) -> list[dict[str, Any]]:
    """The sessions of a run, oldest first; none where the file is missing or damaged."""
    try:
        sessions = limits.read_json(file, limits.TABLE)
        # The file may hold anything; what is not a list of sessions fails in this arithmetic.
        summarize(sessions)
    # OverflowError: JSON's integers have no limit, and these become floats.
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return []
    return sessions


def seconds_so_far(run: pathlib.Path) -> float:
    """Seconds of all processes of a run."""
    return sum(sum(session["seconds"].values()) for session in read_sessions(run / FILE))


def summarize(sessions: Sequence[Mapping[str, Any]]) -> Summary:
    """Summarizes the time of a run."""
    seconds: dict[str, float] = {}
    repeated = 0
    for number, session in enumerate(sessions):
        for phase, value in session["seconds"].items():
            seconds[phase] = seconds.get(phase, 0.0) + value
        steps = session["last_step"] - session["first_step"]
        # A later process that started before this one's last step has done the rest again.
        later = [one["first_step"] for one in sessions[number + 1 :]]
        lost = max(session["last_step"] - min([*later, session["last_step"]]), 0)
        # The later process may have gone back to before this one's first step.
        lost = min(lost, steps)
        if lost:
            share = session["seconds"].get(STEP, 0.0) * lost / steps
            seconds[STEP] -= share
            seconds["lost"] = seconds.get("lost", 0.0) + share
        repeated += lost
    inside = sum(seconds.values())
    last = sessions[-1] if sessions else None
    whole = last["began"] + sum(last["seconds"].values()) - sessions[0]["began"] if last else 0.0
    # `began` is by a clock that can be set back; the phases are not.
    whole = max(whole, inside)
    if whole > inside:
        seconds["away"] = whole - inside
    return Summary(
        seconds=whole,
        shares={name: value / whole for name, value in seconds.items()} if whole else {},
        restarts=max(len(sessions) - 1, 0),
        repeated=repeated,
    )


def describe_sessions(time: Summary) -> str:
    """A summary as one line, the largest share first."""
    shares = sorted(time.shares.items(), key=lambda item: -item[1])
    parts = [f"{name} {share:.0%}" for name, share in shares if share >= 0.005 and name != STEP]
    restarts = ""
    if time.restarts:
        restarts = f"; {time.restarts} restarts, {time.repeated} steps done again"
    rest = f" ({', '.join(parts)})" if parts else ""
    return f"goodput {time.goodput:.0%} of {logs.duration(time.seconds)}{rest}{restarts}"
