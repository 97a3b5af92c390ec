"""Programs that do the same work, timed in turns, and how the comparison is shown and kept."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

from vit_jax import config
from vit_jax.benchmarks import Table
from vit_jax.runtime import provenance
from vit_jax.utils.machine import cores

OURS = "vit_jax"
HERE = pathlib.Path(__file__).parent
# -P: not first in the current folder, where a clone called vit_jax may lie.
PYTHON = (sys.executable, "-P")  # begins the commands that import this package


@dataclasses.dataclass(frozen=True, kw_only=True)
class Turn:
    """The cost of one turn.

    Attributes:
      cpu: CPU seconds of the process, which other programs disturb less than `seconds`.
      peak: most bytes used so far; None: not measured.
    """

    seconds: float
    cpu: float
    peak: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Turns:
    """All turns of one program.

    Attributes:
      facts: what else is known: `peak` bytes, `start`, the seconds to the end of the first step
        with compilation, `params`, `versions`.
    """

    name: str
    seconds: Sequence[float]
    cpu: Sequence[float]
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared:
    """One piece of work and the programs that did it, ours first.

    Attributes:
      work: the work, in a few words.
      unit: what it is counted in, such as images.
      amount: how many of them a turn has.
      flops: of a turn, two for each multiply-accumulate; None: not counted.
      peak_flops: of the device in bfloat16, if known.
      device: what computed; None: the first device of jax in this process.
    """

    work: str
    unit: str
    amount: float
    results: Sequence[Turns]
    flops: float | None = None
    peak_flops: float | None = None
    device: str | None = None

    def rate(self, one: Turns) -> float:
        """The units per second of a program, by the median of its turns."""
        return self.amount / statistics.median(one.seconds)


class DoesNotFit(Exception):
    """A worker's device has too little memory."""


class Worker:
    """A process that takes steps, or loads batches, on command and answers in lines of JSON."""

    def __init__(self, bench: str, name: str, command: Sequence[str]) -> None:
        """Takes the measurement and the program, for messages, and the command line."""
        self._what, self._command = f"bench {bench}: {name}", command
        self._ours = tuple(command[:2]) == PYTHON

    def __enter__(self) -> "Worker":
        environment = _environment(self._command) | {
            # On a GPU each worker takes only the memory it needs, so that several fit.
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            # Else the last line of a traceback, which `answer` shows, is about the traceback.
            "JAX_TRACEBACK_FILTERING": "off",
        }
        if not self._ours:  # a peer's user has not set what our command sets for itself
            environment.pop("GLIBC_TUNABLES", None)
        self._errors = tempfile.TemporaryFile()  # a pipe would block the process once it is full
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )
        return self

    def __exit__(self, *_: object) -> None:
        # Killed outright: a worker holds nothing that needs saving.
        self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.__exit__(None, None, None)  # closes the pipes and waits
        self._errors.close()

    def answer(self) -> dict[str, Any]:
        """The next answer; raises DoesNotFit, or ConfigError where there is none."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                found = json.loads(line)
            except json.JSONDecodeError:
                continue  # a library that prints
            if not isinstance(found, dict):
                continue
            if "memory" in found:
                raise DoesNotFit(found["memory"])
            if "error" in found:
                raise config.ConfigError(f"{self._what}: {found['error']}")
            return found
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        last = said[-1] if said else f"exit code {code}"
        raise config.ConfigError(f"{self._what} ended early: {last}")

    def take(self, count: int) -> Turn:
        """Takes steps, or loads batches; the turn is that of one step, or of one image."""
        assert self._process.stdin is not None
        # The worker has ended; `answer` reports its last line.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{count}\n")
            self._process.stdin.flush()
        found = self.answer()
        each = found.get("images", count)
        return Turn(seconds=found["seconds"] / each, cpu=found["cpu"] / each, peak=found["peak"])


def run(command: Sequence[str]) -> Turn:
    """Runs a program to its end, without its output; raises ConfigError if it fails."""
    with tempfile.TemporaryFile() as errors:
        # Isolated and without site-packages: its memory would count as the program's.
        measured = [sys.executable, "-I", "-S", str(HERE / "process_cost.py"), *command]
        environment = _environment(command)
        environment.pop("GLIBC_TUNABLES", None)  # our commands set it, each for itself
        found = json.loads(subprocess.check_output(measured, stderr=errors, env=environment))
        if code := found.pop("code"):
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip().splitlines()
            last = said[-1] if said else "it says nothing"
            raise config.ConfigError(f"bench: {shlex.join(command)}: exit code {code}: {last}")
    return Turn(**found)


def _environment(command: Sequence[str]) -> dict[str, str]:
    """Variables of a program: one of PYTHON finds this package, installed or not."""
    if tuple(command[:2]) != PYTHON:
        return dict(os.environ)
    path = [str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path)}


def take(
    programs: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    before: Callable[[str], object] = lambda name: None,
    after: Callable[[str], object] = lambda name: None,
) -> list[Turns]:
    """Times programs in turns; each has run once before, so it is compiled.

    Args:
      programs: by name; a program ends once its work is done, or times itself and returns a Turn.
      rounds: turns of each; every second round goes backwards.
      before: prepares the turn of a program, untimed.
      after: ends it, untimed.
    """
    taken: dict[str, list[Turn]] = {name: [] for name in programs}
    for turn in range(rounds):
        # Back and forth, so that a device that warms up or a load that grows favors no program.
        for name in reversed(taken) if turn % 2 else taken:
            before(name)
            began, busy = time.perf_counter(), time.process_time()
            found = programs[name]()
            seconds, cpu = time.perf_counter() - began, time.process_time() - busy
            after(name)
            taken[name].append(found if isinstance(found, Turn) else Turn(seconds=seconds, cpu=cpu))
    return [
        Turns(
            name=name,
            seconds=[one.seconds for one in turns],
            cpu=[one.cpu for one in turns],
            facts={"peak": max(one.peak or 0 for one in turns)} if turns[0].peak else {},
        )
        for name, turns in taken.items()
    ]


def ratios(ours: Turns, other: Turns) -> tuple[float, float, float]:
    """Our speed over another program's: the median of the rounds, the lowest and the highest."""
    pairs = zip(ours.seconds, other.seconds, strict=True)
    # Within a round, so that a busy moment of the machine slows down both.
    found = [peer / own for own, peer in pairs]
    return statistics.median(found), min(found), max(found)


def table(compared: Sequence[Compared]) -> Table:
    """Rows for people; a column that no program has a value for is left out."""
    rows = []
    for one in compared:
        ours = one.results[0]
        for result in one.results:
            peak, start = result.facts.get("peak"), result.facts.get("start")
            speed = (one.flops or 0) / statistics.median(result.seconds)
            share = f" ({speed / one.peak_flops:.0%})" if one.peak_flops else ""
            against = "{:.2f}x ({:.2f} to {:.2f})".format(*ratios(ours, result))
            rows.append(
                {
                    "work": one.work,
                    "program": result.name,
                    "per second": f"{one.rate(result):,.4g} {one.unit}",
                    "seconds": f"{statistics.median(result.seconds):.3g}",
                    "CPU seconds": f"{statistics.median(result.cpu):.3g}",
                    "TFLOP/s (MFU)": f"{speed / 1e12:.3g}{share}" if one.flops else "",
                    "peak GiB": "" if peak is None else f"{peak / 2**30:.2f}",
                    "first step, s": "" if start is None else f"{start:.1f}",
                    "vit_jax's speed over it": "-" if result is ours else against,
                }
            )
    header = tuple(key for key in rows[0] if any(row[key] for row in rows))
    return header, [tuple(row[key] for key in header) for row in rows]


def machine(device: str | None = None) -> str:
    """The device, by default jax's, the cores and the load of this machine."""
    return f"{device or _device()}, {cores()} cores, load {os.getloadavg()[0]:.1f}"


def record(
    compared: Sequence[Compared],
    work: Mapping[str, object],
    command: str,
    versions: Mapping[str, str] | Sequence[str] = (),
) -> dict[str, Any]:
    """A measurement for the records: values, commit, time and machine.

    `command` repeats it; `versions` are those of the packages that matter, or names of those to add
    to jax.
    """
    if not isinstance(versions, Mapping):
        versions = {name: metadata.version(name) for name in ("jax", "jaxlib", *versions)}

    def line(one: Compared, result: Turns) -> dict[str, Any]:
        ours = one.results[0]
        ratio = {} if result is ours else {"ratio": ratios(ours, result)}
        values = {"name": result.name, "seconds": result.seconds, "cpu": result.cpu}
        return {**values, **result.facts, **ratio}

    return {
        "command": command,
        **provenance.fields(compared[0].device or _device(), versions),
        "load": round(os.getloadavg()[0], 2),
        "work": dict(work),
        "compared": [
            {
                "what": one.work,
                "unit": one.unit,
                "amount": one.amount,
                **({"flops": one.flops, "peak_flops": one.peak_flops} if one.flops else {}),
                "results": [line(one, result) for result in one.results],
            }
            for one in compared
        ],
    }


def _device() -> str:
    import jax  # `bench input` measures without it

    return jax.devices()[0].device_kind
