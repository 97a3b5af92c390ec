"""Timed steps on command: one protocol for the worker of `bench train` and for its peers.

It needs only the standard library: a peer's Python imports it from beside its own script.
"""

import json
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any


def answer(take: Callable[[], Any], steps: int, peak: Callable[[], int]) -> dict[str, float]:
    """Takes steps and returns their seconds, CPU seconds, last loss and the peak memory."""
    began, busy = time.perf_counter(), time.process_time()
    for _ in range(steps):
        loss = take()
    loss = float(loss)  # waits for the device
    seconds, cpu = time.perf_counter() - began, time.process_time() - busy
    return {"seconds": seconds, "cpu": cpu, "loss": loss, "peak": peak()}


def serve(
    prepare: Callable[[], tuple[Callable[[], Any], dict[str, Any]]],
    *,
    peak: Callable[[], int],
    packages: tuple[str, ...],
    failures: tuple[type[Exception], ...],
    describe: Callable[[Exception], tuple[str, str]],
    load: Callable[[], Any] = lambda: None,
) -> None:
    """Prepares, takes a step and prints facts about both, then answers until standard input ends.

    Args:
      prepare: returns a function that takes one step, and facts to print.
      peak: returns the most bytes that were used.
      packages: distributions whose versions are facts.
      failures: exceptions that are printed instead of facts.
      describe: returns the kind of a failure, `memory` or `error`, and its line.
      load: imports libraries, before the time is taken.
    """
    try:
        load()
        began = time.perf_counter()
        take, facts = prepare()
        first = answer(take, 1, peak)
    except failures as error:
        kind, line = describe(error)
        _print({kind: line})
        return
    versions = {name: metadata.version(name) for name in packages}
    _print(facts | first | {"start": time.perf_counter() - began, "versions": versions})
    for line in sys.stdin:
        _print(answer(take, int(line), peak))


def describe(error: Exception, *, memory: bool) -> tuple[str, str]:
    """Returns the kind of a peer's failure, and the type and first line of its message."""
    text = str(error).strip().partition("\n")[0]
    return "memory" if memory else "error", f"{type(error).__name__}: {text}"


def _print(answered: dict[str, Any]) -> None:
    print(json.dumps(answered), flush=True)
