"""Formats reports: labeled lines for one, a row each for many, and how well a step scales."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from vit_jax.pages import markdown as tables
from vit_jax.preflight.collectives import Transfer
from vit_jax.preflight.program import Report
from vit_jax.preflight.topologies import CHIPS, GIB, count_chips, parse_topology
from vit_jax.utils.messages import memory_text, rounded

# 224-pixel crops of ImageNet's JPEGs that one core loads in a second, with RandAugment
# (docs/records/input.jsonl).
LOADED = 1173

SCALING = (
    "run", "slice", "images a device", "collectives", "GB sent", "links, ms",
    "arithmetic, ms", "efficiency, one after the other", "by the schedule", "at once",
)  # fmt: skip


def lines(
    report: Report, mfu: float | None = None, price: float | None = None
) -> list[tuple[str, str]]:
    """The report as labeled lines for people; with a price per chip and hour, the cost."""
    memory = "" if report.memory is None else f" of {memory_text(report.memory)}"
    if report.fits:
        verdict = f"fits: {memory_text(report.peak)}{memory}"
    elif report.peak is not None and report.memory is not None:
        excess = memory_text(report.peak - report.memory)
        verdict = f"does not fit: {memory_text(report.peak)}, {excess} too much"
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
        ("  parameters", memory_text(report.params)),
        ("  optimizer state", memory_text(report.optimizer)),
        ("  activations and the rest", memory_text(report.activations)),
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
        expected, why = report.expected_mfu
        share = f"{100 * mfu:.3g}%" if mfu else f"{expected:.0%}"
        rows += [
            (f"at {share} of peak", f"{rounded(whole['step_seconds'] * 1e3, 0.5)} ms per step, "
             f"{rounded(whole['images_per_second'])} images/s" + ("" if mfu else f" ({why})")),
            ("whole run", f"{report.steps:,} steps, {_days(whole['days'])} days, "
             f"{rounded(whole['core_days'], 0.5)} core-days"),
        ]  # fmt: skip
        rows += _input(report, whole["images_per_second"])
        if price is not None:
            rows.append(("cost", f"{rounded(whole['cost'])} at {price:,g} per chip and hour"))
    elif price is not None:
        rows.append(("cost", "not known, as the peak FLOP/s of the device or model are not"))
    rows.append(("compiled in", f"{report.compile_seconds:.0f} s"))
    return rows


def _days(value: float) -> str:
    return f"{value:.2f}" if value >= 0.005 else f"{value:.2g}"


def _input(report: Report, images_per_second: float) -> list[tuple[str, str]]:
    if report.topology in ("cpu", "gpu"):
        return []
    rate = images_per_second / count_chips(report.topology, report.devices)
    # A core is two vCPUs.
    needs, has = 2 * rate / LOADED, CHIPS[parse_topology(report.topology)[0]].cpus
    text = f"{rate:,.0f} images/s a chip, about {needs:.1f} of its {has} vCPUs for JPEGs at 224 px"
    bound = "; the input would bind: expect a longer run" if needs > has else ""
    return [("input", text + bound)]


def cell(report: Report, mfu: float | None = None, price: float | None = None) -> str:
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
    days = "" if whole is None else f"; {rounded(whole['core_days'], 0.5)}"
    cost = "" if whole is None or price is None else f"; {rounded(whole['cost'])}"
    return f"{' + '.join(parts) or 'plain'}; {(report.peak or 0) / GIB:.1f}{days}{cost}"


def markdown(
    reports: Iterable[Report],
    mfu: float | None,
    printed: dict[str, float | None],
    price: float | None = None,
) -> list[str]:
    """A Markdown table in lines: a row per run, a column per slice.

    `mfu` is the share of peak FLOP/s, None the expected one; `printed` has the core-days of the
    paper by run, for the last column; a price per chip and hour adds the cost to every cell.
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


class Bound(NamedTuple):
    """Lower bounds on the time of a step, in seconds."""

    arithmetic: float  # at the assumed share of peak
    links: float  # its collectives, over all links of a chip at full speed
    hidden: float | None  # what of `links` the schedule puts beside arithmetic; None: not recorded

    @property
    def efficiency(self) -> tuple[float, float | None, float]:
        """Share of arithmetic in a step: without overlap, by the schedule, overlapping fully."""
        both = self.arithmetic + self.links
        scheduled = None if self.hidden is None else self.arithmetic / (both - self.hidden)
        return self.arithmetic / both, scheduled, self.arithmetic / max(self.arithmetic, self.links)


def bound(report: Report, mfu: float | None = None) -> Bound | None:
    """The lower bound of a step on a slice; None if the chip's figures are unknown.

    Of n chips, each sends at least (n - 1) / n of what a device of a large slice does. The cores of
    a chip share its sum and its links. The link speed is the total of all links in one direction,
    from Google's documentation.
    """
    whole = report.run(mfu)
    if whole is None or report.links is None:
        return None
    # `links` is per device: where a chip is two devices, each counts half of its links.
    chips = count_chips(report.topology, report.devices)
    seconds = (chips - 1) / chips / (report.links * report.devices / chips)  # a byte
    arithmetic, hidden = whole["step_seconds"], None
    if report.asynchronous is not None:
        # The arithmetic beside a collective is a share of that of the step, by the cycles that the
        # compiler expects; what of the collective takes longer is not hidden.
        transfers = [Transfer(**one) for one in report.asynchronous]
        hidden = sum(
            one.count * min(one.sent * seconds, one.beside * arithmetic) for one in transfers
        )
    return Bound(arithmetic, report.sent * seconds, hidden)


def scaling_rows(reports: Iterable[Report], mfu: float | None = None) -> list[Sequence[str]]:
    """A row of text for each report."""
    found: list[Sequence[str]] = []
    for report in reports:
        count = sum(kind["count"] for kind in report.collectives.values())
        one = bound(report, mfu)
        limits = ("",) * 5
        if one is not None:
            limits = (
                f"{one.links * 1e3:.2f}", f"{one.arithmetic * 1e3:.1f}",
                *("" if share is None else f"{share:.1%}" for share in one.efficiency),
            )  # fmt: skip
        images = report.global_batch // report.devices
        found.append(
            (report.name, report.topology, f"{images}", f"{count}",
             f"{report.sent / 1e9:.3f}", *limits)
        )  # fmt: skip
    return found


def scaling_table(reports: Iterable[Report], mfu: float | None = None) -> list[str]:
    """A Markdown table in lines."""
    return tables.grid(SCALING, scaling_rows(reports, mfu))
