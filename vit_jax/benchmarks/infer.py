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

from vit_jax import models
from vit_jax.benchmarks import Table
from vit_jax.benchmarks.forward import Forward
from vit_jax.benchmarks.infer_files import Panel
from vit_jax.benchmarks.step_timing import jax_out_of_memory
from vit_jax.preflight.program import peak_bytes
from vit_jax.runtime import logs

ROUNDS = 5
SECONDS = 1.0  # on a CPU the doubling ends with a batch that takes longer
SHARE = 0.5  # of a host's free memory, at which it ends too


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimedBatch:
    """A batch of a model at an input size: median seconds of a pass."""

    batch: int
    seconds: float

    @property
    def rate(self) -> float:
        """Images per second."""
        return self.batch / self.seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """All measured batches of a forward pass, and the `limit`: why no larger one was."""

    forward: Forward
    timed: Sequence[TimedBatch]
    limit: str

    @property
    def best(self) -> TimedBatch | None:
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
        timed: list[TimedBatch] = []
        limit = _double(forward, device, rounds, timed)
        yield Measured(forward=forward, timed=timed, limit=limit)


def _double(forward: Forward, device: Any, rounds: int, timed: list[TimedBatch]) -> str:
    """Appends batches of 1, 2, 4, ... until one fails; returns the reason."""
    host = device.platform == "cpu"
    batch = 1
    try:
        params = jax.jit(forward.network.init)(jax.random.key(0))
        while True:
            program = forward.compile(batch, device)
            # By the compiler's report: Linux lets a batch that does not fit run, and kills this
            # process.
            if host and peak_memory(program, device.platform) > SHARE * _free_memory():
                return f"memory: batch {batch} takes over half of the free memory"
            seconds = time_passes(program, params, pixels(batch, forward.side), rounds)
            timed.append(TimedBatch(batch=batch, seconds=seconds))
            if host and seconds > SECONDS:
                return f"time: batch {batch} takes {seconds:.1f} s"
            batch *= 2
    except jax.errors.JaxRuntimeError as error:
        if not jax_out_of_memory(error):
            raise
        return f"memory: batch {batch} does not fit"


def time_passes(
    program: jax.stages.Compiled, params: models.Params, images: jax.Array, rounds: int
) -> float:
    """Median seconds of `rounds` passes, after one that is not counted."""
    jax.block_until_ready(program(params, images))
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        jax.block_until_ready(program(params, images))
        times.append(time.perf_counter() - began)
    return statistics.median(times)


@functools.partial(jax.jit, static_argnums=(0, 1))
def pixels(batch: int, side: int) -> jax.Array:
    """Random uint8 images (B, H, W, 3)."""
    # Drawn on the device: no transfer from the host.
    return jax.random.bits(jax.random.key(1), (batch, side, side, 3), jnp.uint8)


def peak_memory(program: jax.stages.Compiled, platform: str) -> float:
    """Peak memory of a compiled program on a platform in bytes."""
    analysis = program.memory_analysis()
    assert analysis is not None
    return float(peak_bytes(analysis, platform))


def _free_memory() -> float:
    lines = dict(line.split(":") for line in pathlib.Path("/proc/meminfo").read_text().splitlines())
    return 1024 * float(lines["MemAvailable"].split()[0])


def title(rounds: int) -> list[str]:
    """Lines that describe the measurement and the device."""
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
    """Rows for people; ratios are to the first model at the same input size."""
    peak = logs.peak_flops(jax.devices()[0].device_kind)
    # Reversed, because the last one with a key stays.
    first = {one.forward.size: one for one in reversed(results)}
    rows = []
    for one in results:
        best, base = one.best, first[one.forward.size].best
        rate = ("-", "-", "-", "-")
        if best is not None:
            speed = best.rate * (one.forward.network.flops or 0)
            rate = (
                f"{best.rate:,.0f}" if best.rate >= 100 else f"{best.rate:.3g}",
                f"{best.batch}",
                f"{best.rate / base.rate:.2f}x" if base else "-",
                f"{speed / 1e12:.3g}" + (f" ({speed / peak:.0%})" if peak else ""),
            )
        rows.append((one.forward.model, str(one.forward.side), *rate, str(one.batch), one.limit))
    against = f"vs {results[0].forward.model}"
    return (
        "model", "pixels", "images/s", "at batch", against, "TFLOP/s", "largest batch", "then",
    ), rows  # fmt: skip


def files(results: Sequence[Measured]) -> tuple[Table, list[Panel]]:
    """The rows of infer.csv, and the two panels of figure 12."""
    rows = []
    rates, batches = Panel("images/s, best batch", []), Panel("largest batch that ran", [])
    for one in results:
        model, size, side = one.forward.model, one.forward.size, one.forward.side
        for timed in one.timed:
            numbers = (str(timed.batch), f"{timed.seconds:.6g}", f"{timed.rate:.6g}")
            rows.append((model, str(size), str(side), *numbers))
        if one.best:
            rates.points.append((model, side, one.best.rate))
            batches.points.append((model, side, float(one.batch)))
    header = ("model", "size", "pixels", "batch", "seconds", "images_per_second")
    return (header, rows), [rates, batches]
