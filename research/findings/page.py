"""The page of findings: verdicts with their numbers and figures, made from the records."""

import math
import pathlib
from collections.abc import Iterator
from typing import Any

from research.findings import verdicts
from research.findings.declaration import FEW_SHOT, TEST, Claim, Finding, Training
from research.findings.planning import FindingsStudy
from research.findings.verdicts import JudgedClaim, JudgedFinding
from vit_jax.pages import html
from vit_jax.pages.charts import Chart, Series
from vit_jax.pages.document import Block, Charts, Document, PageSection, Paragraph, Table
from vit_jax.runtime import logs
from vit_jax.studies.report import formatting
from vit_jax.utils import intervals, storage

RULE = (
    "A claim is a contrast between runs with the same seed. It is decided if Student's t over the "
    "seeds shows the contrast's mean inside or outside its declared bounds (p < 0.05 after Holm's "
    "correction for all claims and controls), and if a worse learning rate was tried on both sides "
    "of each one it rests on. A finding is decided if its control, an effect known to exist, "
    "holds: reproduced if all its claims hold, not reproduced at this scale if one fails."
)


def blocks(study: FindingsStudy, *, planned: bool) -> Iterator[tuple[str, Table]]:
    """Yields titles and tables for a terminal.

    `planned` ones list the cells, others the claims.
    """
    if planned:
        for finding in study.findings:
            if not finding.out_of_scope:
                yield f"{finding.name}: {finding.statement}", cells(study, finding)
        yield "All of it, each cell once", totals(study)
        return
    found = verdicts.judge(study)
    yield "Verdicts", summary(found)
    for one in found:
        if not one.finding.out_of_scope:
            yield f"{one.finding.name} ({one.finding.place})", claims(one)


def summary(found: list[JudgedFinding]) -> Table:
    """The verdict on each finding."""
    rows = [
        (one.finding.name, one.finding.statement, one.finding.place,
         _with_reason(one.verdict, one.reason))
        for one in found
    ]  # fmt: skip
    return Table(header=("finding", "the paper", "place", "here"), rows=rows, caption=RULE)


def _with_reason(verdict: str, reason: str) -> str:
    return f"{verdict} ({reason})" if reason else verdict


def claims(found: JudgedFinding) -> Table:
    """The control and the claims of a finding with their numbers."""
    tested = [("control: ", found.control)] if found.control else []
    tested += [("", one) for one in found.claims]
    rows = [
        (
            f"{prefix}{one.claim.text}",
            _bounds(one.claim),
            _contrast(one),
            f"{len(one.values)}",
            formatting.NOTHING if one.p is None else "< 0.001" if one.p < 0.001 else f"{one.p:.3f}",
            formatting.NOTHING if one.detectable is None else _number(one.claim, one.detectable),
            _with_reason(one.verdict, one.reason),
        )
        for prefix, one in tested
    ]
    return Table(
        header=("claim", "holds if", f"mean ± half the {formatting.INTERVAL}", "n", "p, Holm",
                "detectable", "verdict"),
        rows=rows,
        caption="Detectable: the distance from a bound that these seeds would notice with 80 % "
        "power, in a test of this claim alone.",
    )  # fmt: skip


def arms(study: FindingsStudy, finding: Finding) -> Table:
    """The trainings of a finding: the rate chosen, and measures over seeds."""
    rows = []
    for training in finding.trainings:
        numbers = (_spread(study, training, measure) for measure in (FEW_SHOT, TEST))
        seeds = len(verdicts.finished(study, training))
        rows.append((training.label, _rate(study, training), f"{seeds}", *numbers))
    header = ("training", "learning rate", "n", "few-shot CIFAR-10, %", "its own test images, %")
    return Table(header=header, rows=rows, caption=f"{formatting.PLUS_MINUS}.")


def _rate(study: FindingsStudy, training: Training) -> str:
    rate, rates, _ = study.search(training)
    if rate is None:
        return ""
    tried = ", ".join(f"{one:g}" for one in rates if one != rate and _tried(study, training, one))
    return f"{rate:g} (also tried: {tried})" if tried else f"{rate:g}"


def _tried(study: FindingsStudy, training: Training, rate: float) -> bool:
    """Whether a rate has its results; the next one of a search that goes on has none."""
    runs = (study.cell(training, rate, seed) for seed in study.size.choose_seeds)
    return all(run is not None and study.records.find(run) for run in runs)


def cells(study: FindingsStudy, finding: Finding) -> Table:
    """Every cell of a finding with its estimated duration and state."""
    rows = []
    for training, rate, seed, cell in study.planned(finding):
        record = cell and study.records.find(cell)
        rows.append(
            (
                training.label,
                "the best one" if rate is None else f"{rate:g}",
                f"{seed}",
                f"{study.seconds(training):,.0f}",
                record["state"] if record else "waiting",
            )
        )
    return Table(header=("training", "learning rate", "seed", "seconds", "state"), rows=rows)


def totals(study: FindingsStudy) -> Table:
    """The number of cells and their duration, by finding and in all."""
    rows, everything = [], set()
    for finding in study.findings:
        mine = set()
        for training, rate, seed, cell in study.planned(finding):
            done = cell is not None and study.records.find(cell) is not None
            mine.add((training, rate if rate in training.rates else None, seed, done))
        rows.append((finding.name, *_total(study, mine)))
        everything |= mine
    rows.append(("all", *_total(study, everything)))
    source = (
        "the median FLOP/s of the recorded cells"
        if study.known
        else "an assumed speed until a cell has run"
    )
    return Table(
        header=("finding", "cells", "left", "time left, one at a time"),
        rows=rows,
        caption=f"Estimated from the FLOPs of each cell and {source}: {study.speed / 1e9:,.3g} "
        "GFLOP/s per process. Findings share cells.",
    )


def _total(
    study: FindingsStudy, cells: set[tuple[Training, float | None, int, bool]]
) -> tuple[str, str, str]:
    left = [training for training, _, _, done in cells if not done]
    seconds = sum(study.seconds(training) for training in left)
    return f"{len(cells)}", f"{len(left)}", logs.duration(seconds)


def chart(study: FindingsStudy, finding: Finding) -> Chart:
    """The figure of a finding with error bars."""
    figure, series = finding.figure, []
    assert figure is not None, "findings in scope have one"
    for color, line in enumerate(figure.lines):
        points, errors = [], []
        for x, training, measure in line.points:
            values = list(verdicts.measured(study, training, measure).values())
            if values:
                points.append((x, sum(values) / len(values)))
                errors.append(intervals.half_width(values))
        series.append(
            Series(name=line.name, points=points, color=color, marks=True, errors=errors,
                   line="none" if figure.ticks else "solid")
        )  # fmt: skip
    return Chart(title=figure.title, series=series, x=figure.x, log_x=figure.log_x,
                 ticks=figure.ticks, percent=figure.percent)  # fmt: skip


def drawn(study: FindingsStudy) -> dict[str, Chart]:
    """The figures that have points, by finding."""
    charts = {one.name: chart(study, one) for one in study.findings if one.figure}
    return {name: one for name, one in charts.items() if any(s.points for s in one.series)}


def document(study: FindingsStudy, command: str) -> Document:
    """The whole page.

    `command` runs the findings.
    """
    figures = drawn(study)
    known = study.known
    checkout = Paragraph(text="The commands run in a checkout of the repository.", note=True)
    found = verdicts.judge(study)
    sections = [PageSection(title="", blocks=[summary(found), checkout])]
    for one in found:
        finding = one.finding
        if finding.out_of_scope:
            continue
        named = command.replace("research.findings", f"research.findings --only={finding.name}")
        content: list[Block] = [
            Paragraph(text=f"{finding.statement} ({finding.place})"),
            Paragraph(text=f"Contradicted by: {finding.contradiction}.", note=True),
            claims(one),
        ]
        if finding.name in figures:
            content.append(
                Charts(charts=[figures[finding.name]], picture=_picture(study, finding.name))
            )
        content += [arms(study, finding), Paragraph(text=named, code=True)]
        sections.append(PageSection(title=finding.name, blocks=content))
    return Document(
        title="The paper's findings at a small scale",
        lead=f"Scale {study.size.name}: {study.size.what}. {_where(known)}",
        sections=sections,
    )


def _picture(study: FindingsStudy, name: str) -> str:
    """The figure of a finding, beside the Markdown; pages of several scales share a folder."""
    return f"pictures/findings-{study.size.name}-{name}.png"


def _where(known: list[dict[str, Any]]) -> str:
    if not known:
        return "No cell has been run yet."
    data = sorted({record["data"] for record in known})
    copies = " (re-encoded copies, not the original files)" if any("_" in d for d in data) else ""
    devices = sorted({record["device"] for record in known})
    commits = sorted({record["commit"] or "no checkout" for record in known})
    seconds = sum(record["seconds"] for record in known)
    return (
        f"{len(known)} cells in {logs.duration(seconds)} of {', '.join(devices)}; data "
        f"{', '.join(data)}{copies}; commits {', '.join(commits)}."
    )


def write(
    study: FindingsStudy, output: pathlib.Path, command: str
) -> tuple[pathlib.Path, pathlib.Path]:
    """Writes Markdown with pictures, and HTML beside it; raises ConfigError where it cannot."""
    from research import chart_files  # matplotlib is slow to import

    page = output.with_suffix(".html")
    with storage.writing("--output", output):
        for name, one in drawn(study).items():
            chart_files.draw_chart(one, output.parent / _picture(study, name))
        html.write_page(document(study, command), page, output)
    return output, page


def as_dict(study: FindingsStudy) -> dict[str, Any]:
    """Verdicts, contrasts and cells as values for JSON."""
    found = []
    for judged in verdicts.judge(study):
        finding = judged.finding
        found.append(
            {
                "name": finding.name,
                "statement": finding.statement,
                "place": finding.place,
                "verdict": judged.verdict,
                "reason": judged.reason,
                "control": judged.control and _claim_values(judged.control),
                "claims": [_claim_values(one) for one in judged.claims],
                "cells": [
                    {
                        "training": training.label,
                        "rate": rate,
                        "seed": seed,
                        "seconds": round(study.seconds(training), 1),
                        "digest": cell and cell.digest,
                        "done": bool(cell and study.records.find(cell)),
                    }
                    for training, rate, seed, cell in study.planned(finding)
                ],
            }
        )
    return {"scale": study.size.name, "records": str(study.records.path), "findings": found}


def _claim_values(one: JudgedClaim) -> dict[str, Any]:
    return {
        "text": one.claim.text,
        "low": _finite(one.claim.low),
        "high": _finite(one.claim.high),
        "values": list(one.values),
        "mean": one.mean,
        "ci95": one.half,
        "p_holm": one.p,
        "detectable": one.detectable,
        "verdict": one.verdict,
        "reason": one.reason,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _bounds(claim: Claim) -> str:
    if math.isinf(claim.high):
        return f"above {_number(claim, claim.low)}"
    if math.isinf(claim.low):
        return f"below {_number(claim, claim.high)}"
    return f"between {_number(claim, claim.low)} and {_number(claim, claim.high)}"


def _contrast(one: JudgedClaim) -> str:
    if one.mean is None:
        return formatting.NOTHING
    mean = _number(one.claim, one.mean)
    return mean if one.half is None else f"{mean} ± {_number(one.claim, one.half)}"


def _number(claim: Claim, value: float) -> str:
    if claim.unit == "points":
        return f"{100 * value:.2f} points"
    if claim.unit == "%":
        return f"{100 * value:.2f} %"
    return f"{value:.3g} {claim.unit}".rstrip()


def _spread(study: FindingsStudy, training: Training, measure: str) -> str:
    values = [100 * value for value in verdicts.measured(study, training, measure).values()]
    if not values:
        return ""
    return formatting.spread(sum(values) / len(values), intervals.half_width(values))
