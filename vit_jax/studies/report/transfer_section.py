"""One transfer as sections of a report: selection, final runs, comparison with the paper."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vit_jax.config import catalog
from vit_jax.pages.charts import Chart, Series
from vit_jax.pages.document import Block, Charts, Numbers, PageSection, Paragraph, Table
from vit_jax.runtime import logs
from vit_jax.studies.report import formatting, run_section
from vit_jax.studies.report.run_data import StoredRun, StoredTransfer
from vit_jax.utils import intervals

Papers = Sequence[tuple[catalog.Result, str]]  # as from `formatting.printed`


def lead(transfer: StoredTransfer) -> str:
    """The model and its target, as a sentence."""
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
    transfer: StoredTransfer, predictions: run_section.Predictions | None, *, level: int = 2
) -> Iterator[PageSection]:
    """Sections on a transfer, in the order of a report."""
    headline = Numbers(items=list(_headline(transfer)))
    notes = [Paragraph(text=f"{problem}.", note=True) for problem in transfer.problems]
    parts: list[tuple[str, list[Block]]] = [("", [headline, *notes])]
    if transfer.results:
        papers = _papers(transfer)
        title = "Compared with the paper" if papers else "Measured"
        parts.append((title, [beside(papers, transfer.results)]))
    if transfer.cells("choose"):
        chart = Charts(charts=[_rates(transfer)])
        parts.append(("The choice", [chart, _candidates(transfer), _cells(transfer, "choose")]))
    if transfer.cells("final"):
        parts.append(("The final runs", [_cells(transfer, "final")]))
    if curves := list(_curves(transfer)):
        parts.append(("Curves", [Charts(charts=curves)]))
    if predictions is not None:
        parts.append(("Predictions", list(run_section.shown(predictions))))
    if runs := _final_runs(transfer):
        parts.append(("What was set", list(run_section.setup(runs[0]))))
    parts.append(("Where it ran", [_machine(transfer)]))
    for title, blocks in parts:
        yield PageSection(title=title, blocks=blocks, level=level)


def _papers(transfer: StoredTransfer) -> Papers:
    return formatting.printed(transfer.name, (transfer.values.get("config") or {}).get("data", {}))


def beside(papers: Papers, results: Mapping[str, Any]) -> Table:
    """Every measure with the paper's number, if it has one."""
    rows = []
    for measure, ours in results.items():
        if set(measure.split("/")) & set(formatting.COUNTED):
            continue
        mean, half = 100 * ours["mean"], formatting.half_interval(ours)
        runs = len(ours.get("values", ()))
        if not formatting.is_fraction(measure, ours["mean"]):
            here = f"{ours['mean']:.4f}" + ("" if half is None else f" ± {half:.4f}")
            rows.append((f"{formatting.title(measure)}, no %", here, f"{runs}", "", "", ""))
            continue
        here = formatting.spread(mean, None if half is None else 100 * half)
        start = (formatting.title(measure), here, f"{runs}")
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
    # Without numbers of the paper, the columns about them would be empty.
    shown = len(header) if papers else 3
    caption = formatting.PLUS_MINUS + (
        ", of the paper's numbers their standard deviation" if papers else ""
    )
    return Table(header=header[:shown], rows=[row[:shown] for row in rows], caption=f"{caption}.")


def _headline(transfer: StoredTransfer) -> Iterator[tuple[str, str, str]]:
    ours = transfer.results.get(transfer.measure)
    if ours:
        seeds = len(ours.get("values", ()))
        half = formatting.half_interval(ours)
        runs = f"{seeds} runs" if seeds != 1 else "1 run"
        interval = "" if half is None else f"± {100 * half:.2f} ({formatting.INTERVAL}), "
        yield (
            formatting.percent(ours["mean"]),
            formatting.title(transfer.measure).capitalize(),
            f"{interval}{runs}",
        )
        for result, key in _papers(transfer):
            if key == transfer.measure:
                paper = formatting.in_percent(result.value)
                yield (
                    f"{paper:.2f} %",
                    f"Paper, Table {result.table}",
                    f"{100 * ours['mean'] - paper:+.2f} here",
                )
    selected = transfer.values.get("selected")
    if selected:
        yield f"{selected['lr']:g}", "Learning rate chosen", _setup(selected)
    cells = list(transfer.values.get("cells", ()))
    done = sum(cell.get("state") == "done" for cell in cells)
    yield f"{done}", "Runs", "finished" if done == len(cells) else f"of {len(cells)}"
    seconds = sum(cell.get("seconds") or 0 for cell in cells)
    if seconds:
        yield logs.duration(seconds), "Time", "all runs together"


Cells = Sequence[Mapping[str, Any]]


def _by_candidate(transfer: StoredTransfer) -> Mapping[tuple[str, float], Cells]:
    found: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
    for cell in transfer.cells("choose"):
        found.setdefault((str(cell.get("setup", "")), cell["lr"]), []).append(cell)
    return found


def _scores(transfer: StoredTransfer, cells: Cells) -> list[float]:
    """The held-out results of cells, by the measure that chooses."""
    each = (cell.get("results") or {} for cell in cells)
    return [results[transfer.measure] for results in each if transfer.measure in results]


def _candidates(transfer: StoredTransfer) -> Table:
    rows, marked = [], set()
    for (setup, lr), cells in _by_candidate(transfer).items():
        values, failed = _scores(transfer, cells), [c for c in cells if c.get("state") == "failed"]
        mean = statistics.fmean(values) if values else None
        half = formatting.half_interval({"values": values})
        shown = formatting.percent(mean), "" if half is None else f"± {formatting.percent(half)}"
        if failed:
            shown = f"failed: {failed[0]['directory']}: {failed[0].get('why')}", ""
        if transfer.is_chosen(cells[0]):
            marked.add(len(rows))
        rows.append((setup, f"{lr:g}", *shown, f"{len(values)}"))
    header = ("setup", "learning rate", f"held-out {formatting.title(transfer.measure)}",
              formatting.INTERVAL, "n")  # fmt: skip
    seeds = max(len(cells) for cells in _by_candidate(transfer).values())
    # One seed has no standard error: then only equal means tie.
    equal = "those within one standard error of the best mean" if seeds > 1 else "equal ones"
    split = (transfer.cells("choose")[0].get("split") or {}).get("split")
    caption = f"Measured on {split}. " if split else ""
    caption += f"Of {equal} the lowest rate is chosen."
    return Table(header=header, rows=rows, caption=caption, highlighted=frozenset(marked))


def _rates(transfer: StoredTransfer) -> Chart:
    candidates = _by_candidate(transfer)
    series = []
    for index, setup in enumerate(dict.fromkeys(setup for setup, _ in candidates)):
        each = sorted(
            (lr, values)
            for (its, lr), cells in candidates.items()
            if its == setup and (values := _scores(transfer, cells))
        )
        points = [(lr, statistics.fmean(values)) for lr, values in each]
        errors = [intervals.half_width(values) for _, values in each]
        series.append(Series(name=setup, points=points, color=index, marks=True, errors=errors))
    title = f"{formatting.title(transfer.measure)} on held-out images".capitalize()
    # The rates that were tried: powers of ten would label few of them.
    ticks = sorted({(lr, f"{lr:g}") for _, lr in candidates})
    return Chart(
        title=title, series=series, x="learning rate", log_x=True, percent=True, ticks=ticks
    )


def _cells(transfer: StoredTransfer, stage: str) -> Table:
    cells = transfer.cells(stage)
    measures = list(dict.fromkeys(key for cell in cells for key in cell.get("results") or {}))
    rows = []
    marked = {i for i, cell in enumerate(cells) if stage == "choose" and transfer.is_chosen(cell)}
    for cell in cells:
        results = cell.get("results") or {}
        rows.append(
            (str(cell.get("setup", "")), f"{cell.get('lr', 0):g}", f"{cell.get('seed', '')}",
             ": ".join(filter(None, (str(cell.get("state", "")), cell.get("why")))),
             *(formatting.measured(key, results[key]) if key in results else ""
               for key in measures),
             logs.duration(cell["seconds"]) if cell.get("seconds") else "")
        )  # fmt: skip
    header = ("setup", "rate", "seed", "state", *map(formatting.title, measures), "time")
    return Table(header=header, rows=rows, highlighted=frozenset(marked))


def _setup(cell: Mapping[str, Any]) -> str:
    setup = str(cell.get("setup", ""))
    # `vit` stands for the config's own options, which need no name.
    return "" if setup == "vit" else f"setup {setup}"


def _final_runs(transfer: StoredTransfer) -> list[StoredRun]:
    # Until a rate is chosen, the runs of the first stage stand for the transfer.
    cells = transfer.cells("final") or transfer.cells("choose")
    return [transfer.runs[c["directory"]] for c in cells if c.get("directory") in transfer.runs]


def _curves(transfer: StoredTransfer) -> Iterator[Chart]:
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
    """A label that distinguishes a cell within its stage, which has one seed or `several`."""
    if cell["stage"] == "final":
        return f"seed {cell['seed']}"
    seed = f", seed {cell['seed']}" if several else ""
    return f"{_setup(cell)} rate {cell['lr']:g}{seed}".strip()


def _machine(transfer: StoredTransfer) -> Table:
    machine, date = transfer.values.get("machine") or {}, str(transfer.values.get("date", ""))
    rows = [*formatting.machine_rows(machine, date), ("directory", str(transfer.directory))]
    return Table(header=("", ""), rows=[row for row in rows if row[1]])
