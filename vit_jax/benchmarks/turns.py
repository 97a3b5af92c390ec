"""Programs that do the same work in this process, timed in turns."""

import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any, Protocol

import jax

from vit_jax.benchmarks import Table
from vit_jax.runtime import provenance

OURS = "vit_jax"


class Timed(Protocol):
    """Turns of one program."""

    @property
    def seconds(self) -> Sequence[float]:
        """Of every turn."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Turns:
    """All turns of one program.

    Attributes:
      seconds: of every turn.
      cpu: CPU seconds of this process, likewise, which other programs disturb less.
    """

    name: str
    seconds: Sequence[float]
    cpu: Sequence[float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared:
    """One piece of work and the programs that did it, ours first.

    Attributes:
      what: the work.
      unit: what it is counted in, such as images.
      amount: how many of them a turn has.
    """

    what: str
    unit: str
    amount: float
    results: Sequence[Turns]

    def rate(self, one: Turns) -> float:
        """Returns the units per second of a program, the median of its turns."""
        return self.amount / statistics.median(one.seconds)


def take(
    programs: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    before: Callable[[str], None] = lambda name: None,
    after: Callable[[str], None] = lambda name: None,
) -> list[Turns]:
    """Returns the turns of programs that return once their work is done.

    Args:
      programs: by name; each has run once before, so that it is compiled.
      rounds: turns of each; every second round goes backwards.
      before: prepares the turn of a program; it is not timed.
      after: ends it; not timed either.
    """
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    cpu: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(rounds):
        for name in reversed(list(programs)) if turn % 2 else list(programs):
            before(name)
            began, busy = time.perf_counter(), time.process_time()
            programs[name]()
            seconds[name].append(time.perf_counter() - began)
            cpu[name].append(time.process_time() - busy)
            after(name)
    return [Turns(name=name, seconds=seconds[name], cpu=cpu[name]) for name in programs]


def ratios(ours: Timed, other: Timed) -> tuple[float, float, float]:
    """Returns how many times faster we are than another: the median of the turns and its range."""
    found = [theirs / own for own, theirs in zip(ours.seconds, other.seconds, strict=True)]
    return statistics.median(found), min(found), max(found)


def table(compared: Sequence[Compared]) -> Table:
    """Returns rows for people."""
    rows = []
    for one in compared:
        ours = one.results[0]
        for result in one.results:
            against = "-"
            if result is not ours:
                against = "{:.2f}x ({:.2f} to {:.2f})".format(*ratios(ours, result))
            rows.append(
                (
                    one.what,
                    result.name,
                    f"{one.rate(result):,.4g} {one.unit}",
                    f"{statistics.median(result.seconds):.3f}",
                    f"{statistics.median(result.cpu):.3f}",
                    against,
                )
            )
    header = ("work", "program", "per second", "seconds", "CPU seconds", "vit_jax's speed over it")
    return header, rows


def machine(device: str | None = None) -> str:
    """Returns where, and beside how much else, something was measured; by default with jax."""
    device = device or jax.devices()[0].device_kind
    return f"{device}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}"


def record(
    compared: Sequence[Compared],
    work: Mapping[str, Any],
    command: str,
    packages: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns a measurement as it is kept: what, by which code, when and where.

    Args:
      compared: what was measured, by `take` in this process.
      work: what it was measured on.
      command: repeats it.
      packages: distributions that matter beside jax.
    """
    versions = {name: metadata.version(name) for name in ("jax", "jaxlib", *packages)}
    device = jax.devices()[0].device_kind

    def line(one: Compared, result: Turns) -> dict[str, Any]:
        ours = one.results[0]
        return dataclasses.asdict(result) | (
            {} if result is ours else {"ratio": ratios(ours, result)}
        )

    return {
        "command": command,
        **provenance.fields(device, versions),
        "load": round(os.getloadavg()[0], 2),
        "work": dict(work),
        "compared": [
            {
                "what": one.what,
                "unit": one.unit,
                "amount": one.amount,
                "results": [line(one, result) for result in one.results],
            }
            for one in compared
        ],
    }
