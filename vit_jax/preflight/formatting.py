"""Formats reports: labeled lines for one, a table row each for many."""

from collections.abc import Iterable

from vit_jax.pages import markdown as tables
from vit_jax.preflight.program import Report
from vit_jax.preflight.topologies import GIB


def lines(report: Report, mfu: float, price: float | None = None) -> list[tuple[str, str]]:
    """Returns the report as labeled lines for people; with a price per chip and hour, the cost."""

    def gib(value: float | None) -> str:
        if value is None:
            return "not known"
        return f"{value / GIB:.2f} GiB" if value >= GIB / 100 else f"{value / 2**20:.2f} MiB"

    memory = "" if report.memory is None else f" of {gib(report.memory)}"
    if report.fits:
        verdict = f"fits: {gib(report.peak)}{memory}"
    elif report.peak is not None and report.memory is not None:
        verdict = f"does not fit: {gib(report.peak)}, {gib(report.peak - report.memory)} too much"
    else:
        verdict = f"does not fit{memory}: {report.exceeds}"
    counted = "not counted" if report.model_flops is None else f"{report.model_flops:.3e}"
    flops = f"{report.compiler_flops:.3e} by XLA's count, {counted} of the model"
    rows = [
        ("run", report.name),
        ("slice", f"{report.topology}: {report.devices} devices, {report.cores} cores"),
        ("batch", f"{report.global_batch}: {report.batch} per device x "
         f"{report.settings.accumulation} accumulated"),
        ("settings", f"remat {report.settings.remat}, unroll {report.settings.unroll}, "
         f"fsdp {report.settings.fsdp}"),
        ("memory per device", verdict),
        ("  parameters", gib(report.params)),
        ("  optimizer state", gib(report.optimizer)),
        ("  activations and the rest", gib(report.activations)),
        ("FLOPs per step and device", flops),
    ]  # fmt: skip
    for kind, one in report.collectives.items():
        rows.append((f"  {kind}", f"{one['count']} per step, {one['bytes'] / 1e9:.3f} GB"))
    if report.bytes_accessed is not None:
        rows.append(("bytes accessed", f"{report.bytes_accessed:.3e}"))
    if report.compiler_seconds is not None and report.compiler_seconds > 0:
        rows.append(("compiler's estimate", f"{report.compiler_seconds * 1e3:.1f} ms per step"))
    bounds = report.bounds()
    if bounds:
        limit = max(bounds, key=lambda key: bounds[key])
        each = ", ".join(f"{key} {value * 1e3:.1f}" for key, value in bounds.items())
        rows.append(("roofline", f"at least {bounds[limit] * 1e3:.1f} ms, by {limit} ({each} ms)"))
    whole = report.run(mfu, price)
    if whole is not None:
        rows += [
            (f"at {mfu:.0%} of peak", f"{whole['step_seconds'] * 1e3:.0f} ms per step, "
             f"{whole['images_per_second']:,.0f} images/s"),
            ("whole run", f"{report.steps:,} steps, {whole['days']:.2f} days, "
             f"{whole['core_days']:,.0f} core-days"),
        ]  # fmt: skip
        if price is not None:
            rows.append(("cost", f"{whole['cost']:,.0f} at {price:,g} per chip and hour"))
    elif price is not None:
        rows.append(("cost", "not known, as the peak FLOP/s of the device or model are not"))
    rows.append(("compiled in", f"{report.compile_seconds:.0f} s"))
    return rows


def cell(report: Report, mfu: float, price: float | None = None) -> str:
    """Summarizes one report: settings, peak memory, core-days; with a price, the cost."""
    if not report.fits:
        return "does not fit"
    remat = report.settings.remat
    setting = {"none": "", "dots_no_batch": "dots"}.get(remat, remat)
    parts = [setting] if setting else []
    if report.settings.fsdp > 1:
        parts.append(f"fsdp {report.settings.fsdp}")
    if report.settings.accumulation > 1:
        parts.append(f"acc {report.settings.accumulation}")
    whole = report.run(mfu, price)
    days = "" if whole is None else f"; {whole['core_days']:,.0f}"
    cost = "" if whole is None or price is None else f"; {whole['cost']:,.0f}"
    return f"{' + '.join(parts) or 'plain'}; {(report.peak or 0) / GIB:.1f}{days}{cost}"


def markdown(
    reports: Iterable[Report],
    mfu: float,
    printed: dict[str, float | None],
    price: float | None = None,
) -> list[str]:
    """Returns the lines of a Markdown table: a row per run, a column per slice.

    Args:
      reports: of any runs on any slices.
      mfu: share of peak FLOP/s, which turns FLOPs into days.
      printed: core-days in the paper by run, for the last column.
      price: per chip and hour; adds the cost to every cell.
    """
    cells = {(one.name, one.topology): cell(one, mfu, price) for one in reports}
    names = list(dict.fromkeys(name for name, _ in cells))
    slices = list(dict.fromkeys(topology for _, topology in cells))
    rows = []
    for name in names:
        paper = printed.get(name)
        rows.append(
            [name, *(cells.get((name, where), "") for where in slices),
             "" if paper is None else f"{paper:,.0f}"]
        )  # fmt: skip
    return tables.grid(["run", *slices, "paper"], rows)
