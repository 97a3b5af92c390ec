"""Finds the largest batch that fits a remote device, from few compilations."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax

from vit_jax.benchmarks import Table
from vit_jax.benchmarks.forward import Forward
from vit_jax.benchmarks.infer import peak_memory
from vit_jax.benchmarks.infer_files import Panel
from vit_jax.benchmarks.step_timing import jax_out_of_memory
from vit_jax.preflight.topologies import Slice

FIRST, SECOND = 8, 64  # batches for the first linear fit: bytes are nearly linear in the batch
CLOSE = 1.05  # largest ratio of a batch that does not fit to the answer
MOST = 7  # compilations
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


class MemoryUse(NamedTuple):
    """Memory that a batch takes on a device, in bytes."""

    peak: float
    fits: bool
    memory: float  # memory available to programs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Largest:
    """The largest batch of a model at an input size on a device: a core of v2 and v3, else a chip.

    `batch` is 0 where not even one image fits, `peak` its bytes by the compiler, and `compiled` how
    many programs that took.
    """

    model: str
    size: int
    side: int
    batch: int
    peak: float
    compiled: int


def search(
    forwards: Sequence[Forward], where: Slice, say: Callable[[str], None]
) -> Iterator[Largest]:
    """Yields the largest batch of every forward pass on one device of a slice."""
    for forward in forwards:
        tried: list[int] = []

        def use(batch: int, forward: Forward = forward, tried: list[int] = tried) -> MemoryUse:
            say(f"{forward.name} for {where.name}: compiling a batch of {batch:,}")
            tried.append(batch)
            return compile_use(forward, batch, where)

        batch, peak = find_largest(use)
        yield Largest(
            model=forward.model,
            size=forward.size,
            side=forward.side,
            batch=batch,
            peak=peak,
            compiled=len(tried),
        )


def find_largest(use: Callable[[int], MemoryUse]) -> tuple[int, float]:
    """The largest batch that fits and its bytes; (0, 0.0) if not one image does.

    It is within 5 % of a batch that does not fit, according to the compiler or to a linear fit of
    the nearest batches, unless that takes more than MOST compilations. Above 8 it is a multiple of
    8, because TPUs pad batches to that.
    """
    tried: dict[int, MemoryUse] = {}
    guess: int | None = FIRST
    while guess is not None and len(tried) < MOST:
        tried[guess] = use(guess)
        guess = _next(tried)
    best = max((batch for batch, found in tried.items() if found.fits), default=0)
    return best, tried[best].peak if best else 0.0


def _next(tried: dict[int, MemoryUse]) -> int | None:
    """The batch to try next, or None if the largest that fits is close enough."""
    # The answer is at least `low`, and below `high` if anything did not fit.
    low = max((batch for batch, found in tried.items() if found.fits), default=0)
    high = min((batch for batch, found in tried.items() if not found.fits), default=None)
    # A line takes two points.
    if high is None and len(tried) == 1:
        return SECOND
    guess = _on_line(tried, low, high) if low and len(tried) > 1 else None
    # Without a line through two batches, or where it leads to one that did not fit.
    if guess is None and high is not None:
        guess = (low + 3 * high) // 4 if low else high // 2
    if guess is None:
        return None
    guess = guess // 8 * 8 if guess > 8 else guess
    return guess if guess > CLOSE * low else None


def _on_line(tried: dict[int, MemoryUse], low: int, high: int | None) -> int | None:
    """The batch that would just fit by a linear fit; None if it is known not to."""
    other = high
    if other is None or math.isinf(tried[other].peak):
        other = max((batch for batch in tried if batch < low), default=None)
    if other is None:
        return None
    each = (tried[other].peak - tried[low].peak) / (other - low)
    memory = min(found.memory for found in tried.values())
    # Slightly below the line, which is an estimate; a slope below a byte an image is noise.
    guess = int(low + 0.995 * (memory - tried[low].peak) / max(each, 1.0))
    return guess if high is None or guess < high else None


def compile_use(forward: Forward, batch: int, where: Slice) -> MemoryUse:
    """The compiler's memory report for a batch on the first device of a slice."""
    assert where.memory is not None
    try:
        compiled = forward.compile(batch, where.devices[0])
    except jax.errors.JaxRuntimeError as error:
        if not jax_out_of_memory(error):
            raise
        return parse_refusal(str(error), where.memory)
    peak = peak_memory(compiled, where.platform)
    return MemoryUse(peak, peak <= where.memory, where.memory)


def parse_refusal(message: str, memory: float) -> MemoryUse:
    """Parses the needed and the available memory from the error message of a compiler.

    The compiler reserves some memory: it allows 15.48 of the 16 GiB of a v3 core.
    """
    said = [float(n) * UNITS[u] for n, u in re.findall(r"([\d.]+)([KMG])\b", message)[:2]]
    peak, available = said if len(said) == 2 else (math.inf, memory)
    return MemoryUse(peak, False, min(available, memory))


def table(found: Sequence[Largest]) -> Table:
    """Rows for people."""
    rows = [
        (one.model, str(one.side), f"{one.batch:,}", f"{one.peak / 2**30:.2f}", str(one.compiled))
        for one in found
    ]
    return ("model", "pixels", "largest batch per device", "GiB", "compilations"), rows


def files(found: Sequence[Largest]) -> tuple[Table, list[Panel]]:
    """The rows of infer.csv and the panel of infer.png."""
    rows = [
        (one.model, str(one.size), str(one.side), str(one.batch), f"{one.peak:.0f}")
        for one in found
    ]
    header = ("model", "size", "pixels", "largest_batch_per_device", "peak_bytes")
    points = [(one.model, one.side, float(one.batch)) for one in found if one.batch]
    return (header, rows), [Panel("largest batch per device", points)]
