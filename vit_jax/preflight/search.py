"""The search for the fastest settings of a step that fit the memory of a slice."""

import math
import re
from collections.abc import Callable, Iterator

from vit_jax import config
from vit_jax.config import checks
from vit_jax.preflight.program import Report, Settings, deepest, measure
from vit_jax.preflight.topologies import Slice

# Cost of a setting relative to the plain step. Recomputation costs its share of the arithmetic:
# a third for the whole forward pass, a few percent for elementwise work or for the weights of
# attention (ViT-B/16 on v3-128, compiler estimate: 80.8 ms a step against 77.8 ms). Loops over
# layers never keep everything, because XLA cannot optimize across iterations, and writing and
# reading the stacked residuals takes longer than recomputing them (ViT-B/16 on v3-128, compiler
# estimate for one layer: 17.8 ms against 16.7 ms with dots_no_batch, at 2.8 times the memory). The
# other costs are guesses that only order the search: parameter gathers mostly overlap with
# arithmetic, and microbatches lose a little to shorter matrix products.
RECOMPUTED = {"none": 1.0, "attention": 1.04, "dots_no_batch": 1.05, "full": 1.33}
GATHERED = 1.04
MICROBATCH = 1.02
SMALL = 8  # images on a device below which matrix products are too short to be fast


def candidates(cfg: config.Config, devices: int, *, loops: bool) -> Iterator[Settings]:
    """Yields settings from the fastest to the slowest, by the costs above.

    `loops`: only programs that loop over their layers, which compile in a fraction of the time.
    """
    batch = cfg.train.batch_size // devices
    counts = checks.accumulations(cfg.train, devices)
    found: list[tuple[float, Settings]] = []
    for remat, cost in RECOMPUTED.items():
        unrolled = remat in ("none", "attention")
        # A ResNet has a depth of None, and no attention to recompute.
        if (unrolled and loops) or (remat == "attention" and cfg.model.depth is None):
            continue
        unroll = deepest(cfg) if unrolled else 1
        for fsdp in sorted({1, min(8, devices), devices}):
            for parts in counts if devices % fsdp == 0 else ():
                power = math.log2(parts)
                small = max(1.0, SMALL * parts / batch)
                time = cost * MICROBATCH**power * small * (GATHERED if fsdp > 1 else 1.0)
                found.append((time, Settings(parts, remat, unroll, fsdp)))
    # At equal cost, the smaller groups: their gathers cross fewer links.
    found.sort(key=lambda pair: (pair[0], pair[1].fsdp))
    yield from (settings for _, settings in found)


def fit_batch(
    cfg: config.Config,
    where: Slice,
    examples: int,
    *,
    loops: bool = False,
    say: Callable[[str], None] = lambda text: None,
    compile_: Callable[[config.Config, Slice, int], Report] = measure,
) -> Report:
    """Compiles settings, fastest first; the report of the first that fit, or of the last tried.

    Skips candidates that cannot fit, judging by larger ones that did not. Raises ConfigError for a
    batch that does not divide over the devices.
    """
    # Without accumulation or fsdp: only the batch itself can fail here.
    checks.check_devices(Settings(1, "none", 1, 1).apply(cfg), len(where.devices))
    tried: list[Report] = []
    for settings in candidates(cfg, len(where.devices), loops=loops):
        if any(_hopeless(settings, other, where) for other in tried):
            continue
        say(f"compiling {settings.flags()}")
        report = compile_(settings.apply(cfg), where, examples)
        if report.fits:
            return report
        tried.append(report)
    return tried[-1]


def _hopeless(settings: Settings, failed: Report, where: Slice) -> bool:
    """Whether `failed` shows that `settings` need far more memory than is available."""
    other = failed.settings
    if settings.remat != other.remat or where.memory is None:
        return False
    used = failed.peak or used_memory(failed.exceeds or "")
    # Wider sharding shrinks the state, by how much the failed report does not tell.
    if used is None or settings.fsdp > other.fsdp:
        return settings == other
    # The state is constant, activations shrink with the microbatch; allow for another 10 %.
    fixed = failed.params + failed.optimizer
    activations = max(used - fixed, 0) * other.accumulation / settings.accumulation
    return 0.9 * (fixed + activations) > where.memory


def used_memory(message: str) -> float | None:
    """The bytes that a program needs, by the compiler's message."""
    # "Used 29.50G of 15.48G hbm", or "temporaries (98.02G) exceeds available HBM".
    match = re.search(r"(?:\(|Used )([\d.]+)([KMGT])", message)
    if match is None:
        return None
    return float(match[1]) * 2 ** {"K": 10, "M": 20, "G": 30, "T": 40}[match[2]]
