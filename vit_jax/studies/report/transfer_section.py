"""One transfer as sections of a report: the choice, the final runs, the paper's number beside."""

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from vit_jax.pages.charts import Chart, Series
from vit_jax.pages.document import Block, Charts, Numbers, Section, Table, Text
from vit_jax.runtime import logs
from vit_jax.studies.report import formatting, run_section
from vit_jax.studies.report.run_data import Run, Transfer
from vit_jax.utils import intervals


def lead(transfer: Transfer) -> str:
    """Returns what was transferred to where, as a sentence."""
    task = transfer.values.get("task", "its task")
    runs = _final_runs(transfer)
    model = formatting.model(runs[0].cfg) if runs and runs[0].cfg else "A model"
    began = (
        f" from {runs[0].cfg.init_from}" if runs and runs[0].cfg and runs[0].cfg.init_from else ""
    )
    return (
        f"{model[0].upper()}{model[1:]}{began}, fine-tuned on {task}: settings chosen on held-out "
        "training images, then trained on all of them and measured once on the test images."
    )


def sections(
    transfer: Transfer, predictions: run_section.Predictions | None, *, level: int = 2
) -> Iterator[Section]:
    """Yields all there is to say of a transfer."""
    blocks: list[Block] = [Numbers(items=list(_headline(transfer)))]
    blocks += [Text(text=f"{problem}.", note=True) for problem in transfer.problems]
    yield Section(title="", blocks=blocks, level=level)
    if transfer.results:
        title = "Beside the paper" if formatting.printed(transfer.name) else "Measured"
        table = beside(transfer.name, transfer.results)
        yield Section(title=title, blocks=[table], level=level)
    choice = transfer.cells("choose")
    if choice:
        yield Section(
            title="The choice",
            blocks=[Charts(charts=[_rates(transfer)]), _cells(transfer, "choose")],
            level=level,
        )
    final = transfer.cells("final")
    if final:
        yield Section(title="The final runs", blocks=[_cells(transfer, "final")], level=level)
    curves = list(_curves(transfer))
    if curves:
        yield Section(title="Curves", blocks=[Charts(charts=curves)], level=level)
    if predictions is not None:
        yield Section(title="Predictions", blocks=list(run_section.shown(predictions)), level=level)
    runs = _final_runs(transfer)
    if runs:
        yield Section(title="What was set", blocks=list(run_section.setup(runs[0])), level=level)
    yield Section(title="Where it ran", blocks=[_machine(transfer)], level=level)


def beside(name: str, results: Mapping[str, Any]) -> Table:
    """Returns every measure with what the paper printed for it, if it did."""
    papers = formatting.printed(name)
    rows = []
    for measure, ours in results.items():
        if measure.rpartition("/")[2] in formatting.COUNTED:
            continue
        mean, half = 100 * ours["mean"], formatting.half_interval(ours)
        here = formatting.spread(mean, None if half is None else 100 * half)
        start = (formatting.title(measure), here, f"{len(ours.get('values', ()))}")
        printed = [result for result, key in papers if key == measure]
        for result in printed:
            paper = formatting.in_percent(result.value)
            rows.append(
                (*start, formatting.spread(paper, result.std), f"{mean - paper:+.2f}",
                 f"Table {result.table}")
            )  # fmt: skip
        if not printed:
            rows.append((*start, "", "", ""))
    header = ("in %", "here", "n", "paper", "difference", "printed in")
    shown = len(header) if papers else 3
    caption = formatting.PLUS_MINUS + (
        ", of the paper's numbers their standard deviation" if papers else ""
    )
    return Table(header=header[:shown], rows=[row[:shown] for row in rows], caption=f"{caption}.")


def _headline(transfer: Transfer) -> Iterator[tuple[str, str, str]]:
    measure = str(transfer.values.get("measure", "top1"))
    ours = transfer.results.get(measure)
    if ours:
        seeds = len(ours.get("values", ()))
        half = formatting.half_interval(ours)
        runs = f"{seeds} runs" if seeds != 1 else "1 run"
        interval = "" if half is None else f"± {100 * half:.2f} ({formatting.INTERVAL}), "
        yield (
            formatting.percent(ours["mean"]),
            formatting.title(measure).capitalize(),
            f"{interval}{runs}",
        )
        for result, key in formatting.printed(transfer.name):
            if key == measure:
                paper = formatting.in_percent(result.value)
                yield (
                    f"{paper:.2f} %",
                    f"Paper, Table {result.table}",
                    f"{100 * ours['mean'] - paper:+.2f} here",
                )
    chosen = transfer.values.get("chosen")
    if chosen:
        yield f"{chosen['lr']:g}", "Learning rate chosen", _setup(chosen)
    cells = list(transfer.values.get("cells", ()))
    done = sum(cell.get("state") == "done" for cell in cells)
    yield f"{done}", "Runs", "finished" if done == len(cells) else f"of {len(cells)}"
    seconds = sum(cell.get("seconds") or 0 for cell in cells)
    if seconds:
        yield logs.duration(seconds), "Time", "all runs together"


def _rates(transfer: Transfer) -> Chart:
    measure = str(transfer.values.get("measure", "top1"))
    cells = transfer.cells("choose")
    setups = list(dict.fromkeys(str(cell.get("setup", "")) for cell in cells))
    series = []
    for index, setup in enumerate(setups):
        by_rate: dict[float, list[float]] = {}
        for cell in cells:
            if str(cell.get("setup", "")) == setup and measure in (cell.get("results") or {}):
                by_rate.setdefault(cell["lr"], []).append(cell["results"][measure])
        each = sorted(by_rate.items())
        points = [(lr, statistics.fmean(values)) for lr, values in each]
        errors = [intervals.half_width(values) for _, values in each]
        series.append(Series(name=setup, points=points, color=index, marks=True, errors=errors))
    title = f"{formatting.title(measure)} on held-out images".capitalize()
    ticks = sorted({(cell["lr"], f"{cell['lr']:g}") for cell in cells})
    return Chart(
        title=title, series=series, x="learning rate", log_x=True, percent=True, ticks=ticks
    )


def _cells(transfer: Transfer, stage: str) -> Table:
    cells = transfer.cells(stage)
    measures = list(dict.fromkeys(key for cell in cells for key in cell.get("results") or {}))
    chosen = transfer.values.get("chosen") or {}
    rows, marked = [], set()
    for index, cell in enumerate(cells):
        results = cell.get("results") or {}
        if stage == "choose" and (cell.get("setup"), cell.get("lr")) == (
            chosen.get("setup"),
            chosen.get("lr"),
        ):
            marked.add(index)
        rows.append(
            (str(cell.get("setup", "")), f"{cell.get('lr', 0):g}", f"{cell.get('seed', '')}",
             ": ".join(filter(None, (str(cell.get("state", "")), cell.get("why")))),
             *(formatting.measured(key, results[key]) if key in results else ""
               for key in measures),
             logs.duration(cell["seconds"]) if cell.get("seconds") else "")
        )  # fmt: skip
    header = ("setup", "rate", "seed", "state", *map(formatting.title, measures), "time")
    return Table(header=header, rows=rows, chosen=frozenset(marked))


def _setup(cell: Mapping[str, Any]) -> str:
    setup = str(cell.get("setup", ""))
    return "" if setup == "vit" else f"setup {setup}"


def _final_runs(transfer: Transfer) -> list[Run]:
    cells = transfer.cells("final") or transfer.cells("choose")
    return [transfer.runs[c["directory"]] for c in cells if c.get("directory") in transfer.runs]


def _curves(transfer: Transfer) -> Iterator[Chart]:
    """Yields the training loss of the cells of each stage."""
    for stage, title in (("choose", "Loss while choosing"), ("final", "Loss of the final runs")):
        cells = [c for c in transfer.cells(stage) if c.get("directory") in transfer.runs]
        series = [
            Series(
                name=_named(c, several=len({one.get("seed") for one in cells}) > 1),
                points=transfer.runs[c["directory"]].points("train/loss"),
                color=index,
            )
            for index, c in enumerate(cells)
        ]
        if any(one.points for one in series):
            yield Chart(title=title, series=series, log_y=True)


def _named(cell: Mapping[str, Any], *, several: bool) -> str:
    """Returns what tells a cell from the others of its stage, of one seed or `several`."""
    if cell["stage"] == "final":
        return f"seed {cell['seed']}"
    seed = f", seed {cell['seed']}" if several else ""
    return f"{_setup(cell)} rate {cell['lr']:g}{seed}".strip()


def _machine(transfer: Transfer) -> Table:
    machine = transfer.values.get("machine") or {}
    versions = ", ".join(f"{name} {v}" for name, v in (machine.get("versions") or {}).items())
    device = formatting.machine(machine.get("device"), machine.get("devices"), machine.get("host"))
    rows = [
        ("device", device),
        ("versions", versions),
        ("date", str(transfer.values.get("date", ""))),
        ("directory", str(transfer.directory)),
    ]
    return Table(header=("", ""), rows=[row for row in rows if row[1]])
