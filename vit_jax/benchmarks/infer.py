"""Inference speed on this device, and the largest batch that fits (ViT, figure 12)."""

import dataclasses
import functools
import pathlib
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax.benchmarks import Table
from vit_jax.benchmarks.forward import Forward, out_of_memory
from vit_jax.benchmarks.max_batch import Largest
from vit_jax.runtime import logs

ROUNDS = 5
SECONDS = 1.0  # on a CPU the doubling ends with a batch that takes longer
SHARE = 0.5  # of a host's free memory, at which it ends too


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timed:
    """A batch of a model at an input size: median seconds of a pass."""

    batch: int
    seconds: float

    @property
    def rate(self) -> float:
        """Images per second."""
        return self.batch / self.seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """All measured batches of a model at an input size, and why they end.

    Attributes:
      flops: of one image, two for each multiply-accumulate.
      limit: why no larger batch was measured.
    """

    model: str
    size: int
    side: int
    flops: float
    timed: Sequence[Timed]
    limit: str

    @property
    def best(self) -> Timed | None:
        """The batch with the most images per second, if any fits."""
        return max(self.timed, key=lambda one: one.rate, default=None)

    @property
    def batch(self) -> int:
        """The largest batch that ran."""
        return max((one.batch for one in self.timed), default=0)


def measure(
    forwards: Sequence[Forward], *, rounds: int, say: Callable[[str], None]
) -> Iterator[Measured]:
    """Yields the measurements of each forward pass on the first device, batches doubling from 1."""
    device = jax.devices()[0]
    for forward in forwards:
        say(forward.name)
        timed: list[Timed] = []
        limit = _double(forward, device, rounds, timed)
        yield Measured(
            model=forward.model,
            size=forward.size,
            side=forward.side,
            flops=float(forward.network.flops or 0),
            timed=timed,
            limit=limit,
        )


def _double(forward: Forward, device: Any, rounds: int, timed: list[Timed]) -> str:
    """Appends batches of 1, 2, 4, ... until one fails; returns the reason."""
    host = device.platform == "cpu"
    batch = 1
    try:
        params = jax.jit(forward.network.init)(jax.random.key(0))
        while True:
            program = forward.compile(batch, device)
            if host and _peak(program) > SHARE * _free():
                return f"memory: batch {batch} takes over half of the free memory"
            seconds = _time(program, params, _images(batch, forward.side), rounds)
            timed.append(Timed(batch=batch, seconds=seconds))
            if host and seconds > SECONDS:
                return f"time: batch {batch} takes {seconds:.1f} s"
            batch *= 2
    except jax.errors.JaxRuntimeError as error:
        if not out_of_memory(error):
            raise
        return f"memory: batch {batch} does not fit"


def _time(program: Any, params: Any, images: jax.Array, rounds: int) -> float:
    """Returns the median seconds of `rounds` passes, after one that is not counted."""
    jax.block_until_ready(program(params, images))
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        jax.block_until_ready(program(params, images))
        times.append(time.perf_counter() - began)
    return statistics.median(times)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _images(batch: int, side: int) -> jax.Array:
    return jax.random.bits(jax.random.key(1), (batch, side, side, 3), jnp.uint8)


def _peak(program: Any) -> float:
    return float(program.memory_analysis().peak_memory_in_bytes)


def _free() -> float:
    """Returns the memory available to new programs in bytes, as reported by Linux."""
    lines = dict(line.split(":") for line in pathlib.Path("/proc/meminfo").read_text().splitlines())
    return 1024 * float(lines["MemAvailable"].split()[0])


def title(rounds: int) -> list[str]:
    """Returns lines that describe the measurement and the device."""
    device = jax.devices()[0]
    host = device.platform == "cpu"
    ends = (
        f"as far as a batch takes {SECONDS:g} s or half of the free memory: on a CPU that, not "
        "what fits, limits it"
        if host
        else "until the device is out of memory"
    )
    return [
        "uint8 images on the device -> probabilities of 1,000 classes; "
        f"{'float32' if host else 'bfloat16'}, parameters float32; median of {rounds} passes",
        f"{device.device_kind} ({platform.node()}), jax {jax.__version__}; batches 1, 2, 4, ... "
        + ends,
    ]


def table(results: Sequence[Measured]) -> Table:
    """Returns rows for people; ratios are to the first model at the same input size."""
    peak = logs.peak_flops(jax.devices()[0].device_kind)
    first = {one.size: one for one in reversed(results)}
    rows = []
    for one in results:
        best, base = one.best, first[one.size].best
        rate = ("-", "-", "-", "-")
        if best is not None:
            speed = best.rate * one.flops
            rate = (
                _short(best.rate),
                f"{best.batch}",
                f"{best.rate / base.rate:.2f}x" if base else "-",
                f"{speed / 1e12:.3g}" + (f" ({speed / peak:.0%})" if peak else ""),
            )
        rows.append((one.model, str(one.side), *rate, str(one.batch), one.limit))
    against = f"vs {results[0].model}"
    return (
        "model", "pixels", "images/s", "at batch", against, "TFLOP/s", "largest batch", "then",
    ), rows  # fmt: skip


def table_of_fits(found: Sequence[Largest]) -> Table:
    """Returns rows for people about batches that were only compiled."""
    rows = [
        (one.model, str(one.side), f"{one.batch:,}", f"{one.peak / 2**30:.2f}", str(one.compiled))
        for one in found
    ]
    return ("model", "pixels", "largest batch per device", "GiB", "compilations"), rows


def _short(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
