"""Timed steps on command: one protocol for the worker of `bench train` and for its peers.

It needs only the standard library: a peer's Python imports it from beside its own script.
"""

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any, SupportsFloat


def answer(
    take: Callable[[], SupportsFloat], steps: int, peak: Callable[[], int]
) -> dict[str, float]:
    """Takes steps; the answer has their seconds, CPU seconds, last loss and the peak memory."""
    began, busy = time.perf_counter(), time.process_time()
    for _ in range(steps):
        loss = take()
    loss = float(loss)  # waits for the device
    seconds, cpu = time.perf_counter() - began, time.process_time() - busy
    return {"seconds": seconds, "cpu": cpu, "loss": loss, "peak": peak()}


def serve(
    prepare: Callable[[], tuple[Callable[[], SupportsFloat], dict[str, Any]]],
    *,
    peak: Callable[[], int],
    packages: tuple[str, ...],
    failures: tuple[type[Exception], ...],
    out_of_memory: Callable[[Exception], bool],
    load: Callable[[], object] = lambda: None,
) -> None:
    """Prepares, takes a step and prints facts about both, then answers until standard input ends.

    Args:
      prepare: makes a function that takes one step, and facts to print.
      peak: the most bytes that were used.
      packages: distributions whose versions are facts.
      failures: exceptions that are printed, as `memory` or `error`, instead of facts.
      out_of_memory: whether one of them says that the work does not fit.
      load: imports libraries, before the time is taken.
    """
    try:
        load()
        began = time.perf_counter()
        take, facts = prepare()
        first = answer(take, 1, peak)
    except failures as error:
        # chr(10): before Python 3.12 an f-string takes no backslash.
        line = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        _print({"memory" if out_of_memory(error) else "error": line})
        return
    versions = {name: metadata.version(name) for name in packages}
    _print(facts | first | {"start": time.perf_counter() - began, "versions": versions})
    for line in sys.stdin:
        # Uncounted: while others had their turn, the machine has taken back what a step frees. In a
        # virtual machine, MAE of ViT-S/16 takes 7 s after such a break, and 4 s as in a run.
        float(take())
        _print(answer(take, int(line), peak))


def jax_peak() -> int:
    """Peak memory of jax's device in bytes; on a CPU, of the process."""
    import jax

    found = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    return process_peak() if found is None else found


def process_peak() -> int:
    """The most bytes that this process has held."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def jax_out_of_memory(error: Exception) -> bool:
    """Whether an error of jax says that a program does not fit its device."""
    return "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error)


def _print(answered: Mapping[str, object]) -> None:
    print(json.dumps(answered), flush=True)
