"""What share of the time trains on machines that come and go: `python -m research.fleet`.

A simulation. Machines are held for a time drawn from an exponential distribution, at most a limit.
Held, they start, train, and save at intervals; then they are gone, and what was not yet on the disk
is lost, unless a notice came in time to save. What a start and a save take is measured; how often
machines go is published, or assumed.
"""

import argparse
import dataclasses

import numpy as np

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
HELD = 20_000  # times that machines are held in a simulation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fleet:
    """Machines.

    Attributes:
      name: for the table.
      between: seconds between interruptions, on average.
      limit: seconds after which machines always go.
      notice: share of the interruptions that come with enough notice to save.
      wait: seconds until other machines are there.
    """

    name: str
    between: float
    limit: float = np.inf
    notice: float = 0.0
    wait: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavingRun:
    """A run.

    Attributes:
      start: seconds from machines to the first step.
      every: seconds of training between saves.
      pause: seconds that training waits for a save to begin.
      write: seconds until a save is complete.
    """

    start: float
    every: float
    pause: float
    write: float


def share(fleet: Fleet, run: SavingRun) -> tuple[float, float]:
    """The share of the time that machines are held that is kept as training, and of all."""
    rng = np.random.default_rng(0)
    held = np.minimum(rng.exponential(fleet.between, HELD), fleet.limit)
    noticed = rng.random(HELD) < fleet.notice
    working = np.maximum(held - run.start, 0.0)
    turn = run.every + run.pause
    saves = np.floor(working / turn)
    # The last save that began may not be complete.
    complete = np.maximum(np.floor((working - run.write) / turn), 0.0)
    trained = saves * run.every + np.minimum(working - saves * turn, run.every)
    kept = np.where(noticed, np.maximum(trained - run.write, 0.0), complete * run.every)
    return kept.sum() / held.sum(), kept.sum() / (held.sum() + HELD * fleet.wait)


# 419 unexpected interruptions in 54 days of 16,384 GPUs (arXiv 2407.21783, table 5), for 256.
FAULTS = 54 * DAY / 419 * 16_384 / 256
FLEETS = (
    Fleet(name="256 devices, reserved: hardware faults alone", between=FAULTS),
    Fleet(name="preempted once a day, 24 h at most", between=DAY,
          limit=DAY, notice=0.9, wait=10 * MINUTE),
    Fleet(name="preempted every 6 h", between=6 * HOUR, limit=DAY, notice=0.9, wait=10 * MINUTE),
    Fleet(name="preempted every hour", between=HOUR, limit=DAY, notice=0.9, wait=10 * MINUTE),
    Fleet(name="preempted every hour, without notice", between=HOUR, limit=DAY, wait=10 * MINUTE),
)  # fmt: skip
# ViT-B/16: installation 70 s, imports and data 9 s, 44 s to compile, 1 s from the cache.
COLD, WARM = 70 + 9 + 44, 70 + 9 + 1
EVERY = (HOUR, 10 * MINUTE, MINUTE, 10.0)
PAUSE, WRITE = 0.07, 0.84  # of a save, measured by `vit_jax bench checkpoint`


def table() -> list[str]:
    """The table of docs/reliability.md."""
    head = ("fleet", "every hour", "10 minutes", "1 minute", "10 s", "10 s, compiling anew")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for fleet in FLEETS:
        runs = [SavingRun(start=WARM, every=every, pause=PAUSE, write=WRITE) for every in EVERY]
        runs.append(dataclasses.replace(runs[-1], start=COLD))
        shares = [f"{100 * share(fleet, run)[0]:.1f} %" for run in runs]
        lines.append(f"| {fleet.name} | " + " | ".join(shares) + " |")
    return lines


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m research.fleet", description=__doc__).parse_args()
    print("\n".join(table()))
