"""Scaling efficiency: the bytes that collectives move, and their share of the step time."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from vit_jax.preflight.program import Report
from vit_jax.preflight.topologies import count_chips
from vit_jax.reports import markdown as tables

HEADER = (
    "run", "slice", "images a device", "collectives", "GB sent", "links, ms",
    "arithmetic, ms", "efficiency, one after the other", "at once",
)  # fmt: skip


class Bound(NamedTuple):
    """Lower bounds on the time of a step, in seconds."""

    arithmetic: float  # at the assumed share of peak
    links: float  # its collectives, over all links of a chip at full speed

    @property
    def efficiency(self) -> tuple[float, float]:
        """Returns the share of arithmetic in a step, without and with overlapping communication."""
        both = self.arithmetic + self.links
        return self.arithmetic / both, self.arithmetic / max(self.arithmetic, self.links)


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
    sent = report.sent * (chips - 1) / chips
    return Bound(whole["step_seconds"], sent / (report.links * report.devices / chips))


def rows(reports: Iterable[Report], mfu: float) -> list[Sequence[str]]:
    """Returns a row of text for each report."""
    found: list[Sequence[str]] = []
    for report in reports:
        count = sum(kind["count"] for kind in report.collectives.values())
        one = bound(report, mfu)
        limits = ("", "", "", "")
        if one is not None:
            limits = (
                f"{one.links * 1e3:.2f}", f"{one.arithmetic * 1e3:.1f}",
                *(f"{share:.1%}" for share in one.efficiency),
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
