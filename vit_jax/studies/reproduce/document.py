"""A report on a table of the paper: printed and measured numbers, machines, remaining runs."""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vit_jax.pages import html
from vit_jax.pages.charts import Chart, Series
from vit_jax.pages.document import Charts, Document, PageSection, Paragraph, Table
from vit_jax.studies.report import formatting
from vit_jax.studies.reproduce import measurements
from vit_jax.studies.reproduce.exhibit import Exhibit, Score
from vit_jax.studies.reproduce.measurements import Number
from vit_jax.studies.reproduce.planning import DONE, TablePlan
from vit_jax.utils import storage

NOT_RUN = "not run"
OTHERS = "others' model"  # with no run in the catalog


def grid(plan: TablePlan) -> Table:
    """The table: for each row the paper's line, if printed, and ours."""
    table, known = plan.table, plan.numbers
    scores = {(score.row, score.column): score for score in table.scores}
    columns = list(dict.fromkeys(score.column for score in table.scores))
    rows = []
    for row in dict.fromkeys(score.row for score in table.scores):
        here = [scores.get((row, column)) for column in columns]
        title = row
        if any(score and score.printed is not None for score in here):
            rows.append((title, "paper", *("" if c is None else _printed(c) for c in here)))
            # The name of a row stands once, beside the paper's line.
            title = ""
        shown = ("" if c is None else _here(c, known.get(c), plan) for c in here)
        rows.append((title, "here", *shown))
    caption = _caption(table, known)
    if any(one.state == DONE and one.why for one in plan.planned.values()):
        caption += " Some runs had options of their own or failed, as said beside their state."
    return Table(header=("", "", *columns), rows=rows, caption=caption)


def _caption(table: Exhibit, known: Mapping[Score, Number]) -> str:
    caption = "Shares are in %"
    if any(score.printed is not None for score in table.scores):
        caption += "; in brackets: ours - paper"
    if any(score.std is not None for score in table.scores):
        caption += "; the paper's ± is a standard deviation"
    if any(number.ci95 is not None for number in known.values()):
        caption += f"; here {formatting.PLUS_MINUS}, each from one pre-training"
    return f"{caption}. {table.note}." if table.note else f"{caption}."


def costs(plan: TablePlan) -> Table:
    """The runs in order, with measures, cost and state."""
    measures: dict[str, dict[str, None]] = {}
    for score in plan.table.scores:
        for run in score.runs:
            measures.setdefault(run.directory, {})[score.measure] = None
    header = ("run", "measures", "runs", "steps", "exaFLOPs", "core-days", "fits on", "state", "")
    rows = [
        (
            one.run.directory,
            ", ".join(measures.get(one.run.directory, ())),
            f"{one.runs}",
            "" if one.steps is None else f"{one.steps:,}",
            _amount(one.exaflops),
            _amount(one.core_days),
            " ".join(one.slices),
            one.state,
            one.why,
        )
        for one in plan.planned.values()
    ]  # fmt: skip
    # Columns that no run fills are left out.
    filled = [i for i in range(len(header)) if i < 3 or any(row[i] for row in rows)]
    return Table(
        header=[header[i] for i in filled],
        rows=[[row[i] for i in filled] for row in rows],
        caption="Steps and exaFLOPs are totals over the runs of a transfer; TPUv3-core-days as "
        "printed, else at the share of peak of public runs; slices from stored preflight results.",
    )


def commands(plan: TablePlan) -> Table:
    """Each command that starts a run or provides a missing requirement, once."""
    needed: dict[str, str] = {}
    for one in plan.planned.values():
        if one.command:
            # Several runs may wait for one dataset.
            needed.setdefault(one.command, one.why or one.state)
    rows = [(why, command) for command, why in needed.items()]
    return Table(header=("for", "command"), rows=rows)


def ran(plan: TablePlan) -> Table:
    """Where and when the finished runs were run."""
    rows = [[str(value) for value in one.values()] for one in _ran(plan)]
    return Table(header=("run", "top-1", "seeds", "device, host", "date", "time"), rows=rows)


def charts(plan: TablePlan) -> list[Chart]:
    """The charts of a figure: hollow marks for the paper, filled ones for ours."""
    table, known = plan.table, plan.numbers
    if not table.x:
        return []
    if not table.apart:
        return [_chart(table, table.scores, known, table.y)]
    columns = dict.fromkeys(score.column for score in table.scores)
    return [
        _chart(table, [c for c in table.scores if c.column == column], known, column)
        for column in columns
    ]


def document(plan: TablePlan) -> Document:
    """The whole report: numbers, plot, machines, runs in order, remaining work."""
    table, drawn, where, left = plan.table, charts(plan), ran(plan), commands(plan)
    nothing = Paragraph(text="None of its runs has started.")
    sections = [
        PageSection(title="", blocks=[grid(plan)]),
        PageSection(title="Plot", blocks=[Charts(charts=drawn)] if drawn else []),
        PageSection(title="Where it was run", blocks=[where if where.rows else nothing]),
        PageSection(title="The runs, in order", blocks=[costs(plan)]),
        PageSection(title="Remaining runs", blocks=[left] if left.rows else []),
    ]
    own = len([score for score in table.scores if score.runs])
    return Document(
        title=table.name.replace("table", "Table ").replace("figure", "Figure "),
        lead=f"{table.title}: {len(plan.numbers)} of {own} cells have been run.",
        sections=[section for section in sections if section.blocks],
    )


def blocks(plan: TablePlan) -> Iterator[tuple[str, Table]]:
    """Titles and tables for a terminal, the numbers last."""
    # A terminal shows the end of what is printed.
    for section in reversed(document(plan).sections):
        for block in section.blocks:
            if isinstance(block, Table):
                yield section.title or f"{plan.table.name}: {plan.table.title}", block


def write_document(plan: TablePlan, output: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Writes Markdown and, next to it, HTML; raises ConfigError if they cannot be written."""
    page = output.with_suffix(".html")
    with storage.writing("--output", output):
        html.write_page(document(plan), page, output)
    return output, page


def as_dict(plan: TablePlan) -> dict[str, Any]:
    """Everything as values for JSON."""
    scores = []
    for score in plan.table.scores:
        number = plan.numbers.get(score)
        scores.append(
            {
                "row": score.row,
                "column": score.column,
                "measure": score.measure,
                "runs": [run.directory for run in score.runs],
                "paper": score.printed,
                "paper_std": score.std,
                "ours": None if number is None else number._asdict(),
            }
        )
    plain = ("runs", "steps", "exaflops", "core_days", "state", "why", "command")
    runs = [
        {
            "run": one.run.directory,
            "config": one.run.name,
            "kind": one.run.kind,
            "origin": one.run.origin and one.run.origin.directory,
            "fits_on": list(one.slices),
            **{name: getattr(one, name) for name in plain},
        }
        for one in plan.planned.values()
    ]
    return {"name": plan.table.name, "title": plan.table.title, "workdir": str(plan.workdir),
            "cells": scores, "runs": runs, "ran": list(_ran(plan))}  # fmt: skip


def _ran(plan: TablePlan) -> Iterator[dict[str, str | int]]:
    for run in plan.table.runs:
        there = plan.found.get(run.directory)
        if there is not None and measurements.finished(there):
            yield measurements.where(run, there)


def _amount(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _printed(score: Score) -> str:
    return formatting.NOTHING if score.printed is None else _value(score, score.printed, score.std)


def _here(score: Score, number: Number | None, plan: TablePlan) -> str:
    if number is None:
        seeds = sorted(measurements.counts(score, plan.found))
        if len(seeds) > 1 and seeds[0] > 0:
            return f"no mean: n = {', '.join(map(str, seeds))}"
        return NOT_RUN if score.runs else OTHERS
    difference = ""
    if score.printed is not None:
        off = number.mean - score.printed
        difference = f" ({off:+.2f})" if score.share else f" ({off:+,.0f})"
    seeds = f", n = {number.seeds}" if score.share and number.seeds > 1 else ""
    return _value(score, number.mean, number.ci95) + seeds + difference


def _value(score: Score, mean: float, half: float | None) -> str:
    if score.share:
        return formatting.spread(mean, half)
    return f"{mean:,.0f}" if mean >= 10 else f"{mean:.2g}"


def _chart(
    table: Exhibit, scores: Sequence[Score], known: Mapping[Score, Number], what: str
) -> Chart:
    series = []
    groups = dict.fromkeys(_group(table, score) for score in scores)
    for color, group in enumerate(groups):
        members = [c for c in scores if _group(table, c) == group and c.x is not None]
        printed = [(c.x or 0.0, c.printed) for c in members if c.printed is not None]
        ours = [c for c in members if c in known]
        measured = [(c.x or 0.0, known[c].mean) for c in ours]
        errors = [known[c].ci95 for c in ours]
        joined, faint = ("solid", "faint") if table.joined else ("none", "none")
        series += [
            Series(name=f"{group}, paper", points=printed, color=color, marks=True, hollow=True,
                   line=faint),
            Series(name=f"{group}, here", points=measured, color=color, marks=True, line=joined,
                   errors=errors),
        ]  # fmt: skip
    return Chart(title=f"{what}, %", series=series, x=table.x, log_x=table.log_x, ticks=table.ticks)


def _group(table: Exhibit, score: Score) -> str:
    """The series of a score's point: its network, or the type of network."""
    if not table.apart:
        return score.series or score.row
    return "hybrid" if "+ViT" in score.row else "ViT" if score.row.startswith("ViT") else "ResNet"
