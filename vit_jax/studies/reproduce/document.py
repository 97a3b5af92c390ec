"""A report on a table of the paper: printed and measured numbers, machines, remaining runs."""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vit_jax.pages import html
from vit_jax.pages.charts import Chart, Series
from vit_jax.pages.document import Charts, Document, Section, Table, Text
from vit_jax.studies.report import formatting
from vit_jax.studies.reproduce import measurements
from vit_jax.studies.reproduce.exhibit import Exhibit, Score
from vit_jax.studies.reproduce.measurements import Found, Number
from vit_jax.studies.reproduce.planning import Planned
from vit_jax.utils import storage

NOT_RUN = "not run"
OTHERS = "others' model"  # with no run in the catalog


def ours(table: Exhibit, planned: Sequence[Planned], found: Found) -> dict[Score, Number]:
    """The numbers of the cells that have been run."""
    compute = {one.step.directory: one.exaflops for one in planned}
    every = {
        cell: measurements.number(cell, found, compute.get(cell.steps[0].directory))
        for cell in table.cells
        if cell.steps
    }
    return {cell: number for cell, number in every.items() if number is not None}


def grid(table: Exhibit, known: Mapping[Score, Number]) -> Table:
    """The table: for each row the paper's line, if printed, and ours."""
    cells = {(cell.row, cell.column): cell for cell in table.cells}
    columns = list(dict.fromkeys(cell.column for cell in table.cells))
    rows = []
    for row in dict.fromkeys(cell.row for cell in table.cells):
        here = [cells.get((row, column)) for column in columns]
        title = row
        if any(cell and cell.printed is not None for cell in here):
            rows.append((title, "paper", *("" if c is None else _printed(c) for c in here)))
            title = ""
        shown = ("" if c is None else _here(c, known.get(c)) for c in here)
        rows.append((title, "here", *shown))
    return Table(header=("", "", *columns), rows=rows, caption=_caption(table, known))


def _caption(table: Exhibit, known: Mapping[Score, Number]) -> str:
    caption = "Shares are in %"
    if any(cell.printed is not None for cell in table.cells):
        caption += "; in brackets: ours - paper"
    if any(cell.std is not None for cell in table.cells):
        caption += "; the paper's ± is a standard deviation"
    if any(number.ci95 is not None for number in known.values()):
        caption += f"; here {formatting.PLUS_MINUS}, each from one pre-training"
    return f"{caption}. {table.note}." if table.note else f"{caption}."


def costs(table: Exhibit, planned: Sequence[Planned]) -> Table:
    """The runs in order, with measures, cost and state."""
    measures: dict[str, dict[str, None]] = {}
    for cell in table.cells:
        for step in cell.steps:
            measures.setdefault(step.directory, {})[cell.measure] = None
    header = ("run", "measures", "runs", "steps", "exaFLOPs", "core-days", "fits on", "state", "")
    rows = [
        (
            one.step.directory,
            ", ".join(measures.get(one.step.directory, ())),
            f"{one.runs}",
            "" if one.steps is None else f"{one.steps:,}",
            _amount(one.exaflops),
            _amount(one.core_days),
            " ".join(one.slices),
            one.state,
            one.why,
        )
        for one in planned
    ]  # fmt: skip
    filled = [i for i in range(len(header)) if i < 3 or any(row[i] for row in rows)]
    return Table(
        header=[header[i] for i in filled],
        rows=[[row[i] for i in filled] for row in rows],
        caption="Steps and exaFLOPs are totals over the runs of a transfer; TPUv3-core-days as "
        "printed, else at 40 % of peak; slices from stored preflight results.",
    )


def commands(planned: Sequence[Planned]) -> Table:
    """Each command that starts a run or provides a missing requirement, once."""
    needed: dict[str, str] = {}
    for one in planned:
        if one.command:
            needed.setdefault(one.command, one.why or one.state)
    rows = [(why, command) for command, why in needed.items()]
    return Table(header=("for", "command"), rows=rows)


def ran(table: Exhibit, found: Found) -> Table:
    """Where and when the finished runs were run."""
    rows = [
        (one.directory, one.result, f"{one.seeds}", one.machine, one.date, one.time)
        for one in _ran(table, found)
    ]
    return Table(header=("run", "top-1", "seeds", "device, host", "date", "time"), rows=rows)


def charts(table: Exhibit, known: Mapping[Score, Number]) -> list[Chart]:
    """The charts of a figure: hollow marks for the paper, filled ones for ours."""
    if not table.x:
        return []
    if not table.apart:
        return [_chart(table, table.cells, known, table.y)]
    columns = dict.fromkeys(cell.column for cell in table.cells)
    return [
        _chart(table, [c for c in table.cells if c.column == column], known, column)
        for column in columns
    ]


def document(table: Exhibit, planned: Sequence[Planned], found: Found) -> Document:
    """The whole report: numbers, plot, machines, the runs in order, what is left to do."""
    known = ours(table, planned, found)
    drawn, where, left = charts(table, known), ran(table, found), commands(planned)
    nothing = Text(text="Nothing of it has been run yet.")
    sections = [
        Section(title="", blocks=[grid(table, known)]),
        Section(title="Plot", blocks=[Charts(charts=drawn)] if drawn else []),
        Section(title="Where it was run", blocks=[where if where.rows else nothing]),
        Section(title="The runs, in order", blocks=[costs(table, planned)]),
        Section(title="What is left", blocks=[left] if left.rows else []),
    ]
    done = len([cell for cell in table.cells if cell in known])
    own = len([cell for cell in table.cells if cell.steps])
    return Document(
        title=table.name.replace("table", "Table ").replace("figure", "Figure "),
        lead=f"{table.title}: {done} of {own} cells have been run.",
        sections=[section for section in sections if section.blocks],
    )


def blocks(table: Exhibit, planned: Sequence[Planned], found: Found) -> Iterator[tuple[str, Table]]:
    """Titles and tables for a terminal, the numbers last."""
    for section in reversed(document(table, planned, found).sections):
        for block in section.blocks:
            if isinstance(block, Table):
                yield section.title or f"{table.name}: {table.title}", block


def write(
    table: Exhibit, planned: Sequence[Planned], found: Found, output: pathlib.Path
) -> tuple[pathlib.Path, pathlib.Path]:
    """Writes Markdown, and HTML beside it; raises ConfigError where that cannot be done."""
    page = output.with_suffix(".html")
    with storage.writing("--output", output):
        html.write(document(table, planned, found), page, output)
    return output, page


def as_dict(
    table: Exhibit, planned: Sequence[Planned], found: Found, workdir: pathlib.Path
) -> dict[str, Any]:
    """Everything as values for JSON."""
    known = ours(table, planned, found)
    cells = []
    for cell in table.cells:
        number = known.get(cell)
        cells.append(
            {
                "row": cell.row,
                "column": cell.column,
                "measure": cell.measure,
                "runs": [step.directory for step in cell.steps],
                "paper": cell.printed,
                "paper_std": cell.std,
                "ours": None if number is None else number._asdict(),
            }
        )
    plain = ("runs", "steps", "exaflops", "core_days", "state", "why", "command")
    steps = [
        {
            "run": one.step.directory,
            "config": one.step.name,
            "kind": one.step.kind,
            "origin": one.step.origin and one.step.origin.directory,
            "fits_on": list(one.slices),
            **{name: getattr(one, name) for name in plain},
        }
        for one in planned
    ]
    where = [one._asdict() for one in _ran(table, found)]
    return {"name": table.name, "title": table.title, "workdir": str(workdir),
            "cells": cells, "steps": steps, "ran": where}  # fmt: skip


def _ran(table: Exhibit, found: Found) -> Iterator[measurements.Where]:
    for step in table.steps:
        there = found.get(step.directory)
        if there is not None and measurements.finished(there):
            yield measurements.where(step, there)


def _amount(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _printed(cell: Score) -> str:
    return formatting.NOTHING if cell.printed is None else _value(cell, cell.printed, cell.std)


def _here(cell: Score, number: Number | None) -> str:
    if number is None:
        return NOT_RUN if cell.steps else OTHERS
    difference = ""
    if cell.printed is not None:
        off = number.mean - cell.printed
        difference = f" ({off:+.2f})" if cell.share else f" ({off:+,.0f})"
    seeds = f", n = {number.seeds}" if cell.share and number.seeds > 1 else ""
    return _value(cell, number.mean, number.ci95) + seeds + difference


def _value(cell: Score, mean: float, half: float | None) -> str:
    if cell.share:
        return formatting.spread(mean, half)
    return f"{mean:,.0f}" if mean >= 10 else f"{mean:.2g}"


def _chart(
    table: Exhibit, cells: Sequence[Score], known: Mapping[Score, Number], what: str
) -> Chart:
    series = []
    groups = dict.fromkeys(_group(table, cell) for cell in cells)
    for color, group in enumerate(groups):
        members = [c for c in cells if _group(table, c) == group and c.x is not None]
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


def _group(table: Exhibit, cell: Score) -> str:
    """The series of a cell's points: its network, or the type of network."""
    if not table.apart:
        return cell.series or cell.row
    return "hybrid" if "+ViT" in cell.row else "ViT" if cell.row.startswith("ViT") else "ResNet"
