"""What `bench train` measured, and how it is shown and kept."""

import dataclasses
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax.benchmarks import Table, turns
from vit_jax.runtime import provenance

CLASSES = 1000
TURN = 1.0  # seconds that a turn takes at least


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """A step to take: the sizes of a plain ViT, a batch, and how to compute.

    Attributes:
      batch: images of a step; None: the largest power of two that fits, 16 on a CPU.
      dtype: float32 or bfloat16.
      attention: our `model.attention`; peers have their own.
    """

    model: str
    size: int
    patch: int
    width: int
    depth: int
    mlp_dim: int
    heads: int
    dtype: str
    attention: str
    batch: int | None
    classes: int = CLASSES

    @property
    def name(self) -> str:
        """What a line about it begins with."""
        return f"{self.model} at {self.size}, {self.dtype}, {self.attention}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """One worker's turns over some work.

    Attributes:
      seconds: of a step, for every turn.
      cpu: CPU seconds of a step, likewise, which other programs disturb less.
      peak: most bytes of the device, or of the process on a CPU.
      start: seconds until the first step had ended, compilation included.
      params: numbers that are trained.
      versions: of the packages that matter.
    """

    name: str
    seconds: Sequence[float]
    cpu: Sequence[float]
    peak: int
    start: float
    params: int
    versions: Mapping[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """All results over some work, ours first, and the device they are of.

    Attributes:
      flops: of a step: three forward passes of the batch, two for each multiply-accumulate.
      peak_flops: of the device in bfloat16, if known.
      load: running processes of the machine, as the kernel averages them over a minute.
    """

    work: Work
    results: Sequence[Result]
    platform: str
    device: str
    flops: float
    peak_flops: float | None
    load: float


def table(measured: Sequence[Measured]) -> Table:
    """Returns rows for people."""
    rows = []
    for one in measured:
        ours, work = one.results[0], one.work
        for result in one.results:
            seconds = statistics.median(result.seconds)
            speed = one.flops / seconds
            against = "-"
            if result is not ours:
                against = "{:.2f}x ({:.2f} to {:.2f})".format(*turns.ratios(ours, result))
            rows.append(
                (
                    f"{work.model} at {work.size}",
                    f"{work.batch}",
                    f"{work.dtype}, {work.attention}",
                    result.name,
                    f"{(work.batch or 0) / seconds:,.1f}",
                    f"{1000 * seconds:,.0f}",
                    f"{1000 * statistics.median(result.cpu):,.0f}",
                    f"{speed / 1e12:.3g}"
                    + (f" ({speed / one.peak_flops:.0%})" if one.peak_flops else ""),
                    f"{result.peak / 2**30:.2f}",
                    f"{result.start:.1f}",
                    against,
                )
            )
    return (
        "model", "batch", "compute", "program", "images/s", "ms/step", "CPU ms/step",
        "TFLOP/s (MFU)", "peak GiB", "first step, s", "vit_jax is faster by",
    ), rows  # fmt: skip


def title(measured: Measured, rounds: int) -> list[str]:
    """Returns lines that say what was measured and where."""
    return [
        "one step: uint8 images on the device -> loss, gradient, Adam; parameters float32; "
        f"{rounds} turns of at least {TURN:g} s; medians over the turns; ratios within each turn",
        "MFU: three forward passes of the images (two FLOPs for each multiply-accumulate) per "
        "second and per dense bfloat16 peak of the device",
        f"{measured.device} ({platform.node()}), {len(os.sched_getaffinity(0))} cores, "
        f"load {measured.load:.1f}",
    ]


def record(measured: Measured, command: str) -> dict[str, Any]:
    """Returns a measurement as it is kept: what, by which code, when and where."""
    ours = measured.results[0]
    return {
        "command": command,
        **provenance.fields(measured.device, ours.versions),
        "load": round(measured.load, 2),
        "work": dataclasses.asdict(measured.work),
        "flops": measured.flops,
        "peak_flops": measured.peak_flops,
        "results": [
            dataclasses.asdict(one) | ({} if one is ours else {"ratio": turns.ratios(ours, one)})
            for one in measured.results
        ],
    }
