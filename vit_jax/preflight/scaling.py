"""Scaling efficiency: the bytes that collectives move, and their share of the step time."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from vit_jax.pages import markdown as tables
from vit_jax.preflight.collectives import Transfer
from vit_jax.preflight.program import Report
from vit_jax.preflight.topologies import count_chips

HEADER = (
    "run", "slice", "images a device", "collectives", "GB sent", "links, ms",
    "arithmetic, ms", "efficiency, one after the other", "by the schedule", "at once",
)  # fmt: skip


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


def bound(report: Report, mfu: float) -> Bound | None:
    """Returns the lower bound of a step on a slice, or None if the chip's figures are unknown.

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


def rows(reports: Iterable[Report], mfu: float) -> list[Sequence[str]]:
    """Returns a row of text for each report."""
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


def markdown(reports: Iterable[Report], mfu: float) -> list[str]:
    """Returns the lines of a Markdown table."""
    return tables.grid(HEADER, rows(reports, mfu))
