"""Tables of transfers, on a terminal and in `transfer.md`: results next to the paper's."""

import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vit_jax.data import split_roles
from vit_jax.data.tasks import TASKS
from vit_jax.pages import markdown
from vit_jax.runtime import logs
from vit_jax.studies.report import formatting
from vit_jax.studies.transfer.plan import CHOOSE, CHOSEN_BY, FINAL, Plan, Ranked
from vit_jax.utils import intervals, storage

FILE = "transfer.md"
VTAB = tuple(name for name in TASKS if name.startswith("vtab/"))
OVERALL = "vtab/overall"
Table = tuple[tuple[str, ...], list[tuple[str, ...]]]  # header, rows


def write(
    plan: Plan, ranked: Sequence[Ranked], transfer: Mapping[str, Any], workdir: pathlib.Path
) -> None:
    """Writes transfer.md.

    Args:
      plan: of the transfer.
      ranked: its candidates.
      transfer: contents of `transfer.json`.
      workdir: receives the file.
    """
    text = "\n".join(_lines(plan, ranked, transfer)) + "\n"
    storage.write_atomically(workdir / FILE, text)


def table(transfer: Mapping[str, Any]) -> Table:
    """Results of a transfer, from the contents of `transfer.json`."""
    rows = []
    for cell in transfer["cells"]:
        chosen = {"setup": cell["setup"], "lr": cell["lr"]} == transfer["chosen"]
        note = "chosen" if chosen and cell["stage"] == CHOOSE else ""
        rows.append((cell["directory"], f"{cell['lr']:g}", _top1(cell), note))
    _, means = spreads("", transfer["results"])
    rows += [(f"{key}, mean, n = {n}", "", mean, half) for key, mean, half, n in means]
    return (transfer["name"], "lr", CHOSEN_BY, f"± {formatting.INTERVAL}"), rows


def preview_table(transfer: Mapping[str, Any]) -> Table:
    """What a transfer would run, from `preview`."""
    rows = [
        (
            cell["directory"],
            "the chosen one" if cell["lr"] is None else f"{cell['lr']:g}",
            str(cell["seed"]),
            str(transfer["config"]["train"]["duration"]),
            cell["state"],
            logs.duration(cell["seconds"]) if cell["seconds"] else "",
        )
        for cell in transfer["cells"]
    ]
    return (transfer["name"], "lr", "seed", "length", "state", "time"), rows


def time_left(transfer: Mapping[str, Any]) -> float | None:
    """Seconds left at the mean duration so far, one cell at a time; None before any is done."""
    done = [cell["seconds"] for cell in transfer["cells"] if cell["state"] == "done"]
    left = sum(cell["state"] == "waiting" for cell in transfer["cells"])
    return left * sum(done) / len(done) if done else None


def spreads(title: str, results: Mapping[str, Any]) -> Table:
    """Means, 95 % confidence intervals and numbers of runs."""
    return (title, "mean", formatting.INTERVAL, "n"), [
        (k, *_spread(k, one)) for k, one in results.items()
    ]


def _lines(plan: Plan, ranked: Sequence[Ranked], transfer: Mapping[str, Any]) -> Iterator[str]:
    data = plan.base.data
    yield f"# {plan.name}\n"
    if plan.choosing():
        chosen_on = plan.candidates[0].cfg.data
        seeds = len(plan.choose_seeds)
        by = f", by the mean of {seeds} seeds" if seeds > 1 else ""
        equal = "those within one standard error of the best" if seeds > 1 else "equal ones"
        yield (
            f"Chosen on `{chosen_on.eval_split}` after training on `{chosen_on.train_split}`{by}; "
            f"of {equal} the lowest rate.\n"
        )
        header = ("setup", "learning rate", "held-out top-1", formatting.INTERVAL, "n", "")
        yield from markdown.grid(header, _choice(ranked, transfer["chosen"]))
    else:
        (only,) = plan.candidates
        yield f"One learning rate, {only.lr:g}: no selection.\n"
    measured = split_roles.final(data) or split_roles.evaluation(data)
    yield f"\nThen trained on `{data.train_split}` and measured once on `{measured.split}`.\n"
    final = [entry for entry in transfer["cells"] if entry["stage"] == FINAL]
    yield from markdown.grid(
        ("seed", f"{measured.name} top-1"), [(str(entry["seed"]), _top1(entry)) for entry in final]
    )
    yield ""
    header = ("measure", "mean", formatting.INTERVAL, "n", "paper", "table")
    yield from markdown.grid(header, _means(plan, transfer["results"] or {}))
    deviation = "; the paper's ± is a standard deviation" if plan.results else ""
    yield f"\n{formatting.PLUS_MINUS}, all from the same weights{deviation}."
    machine = transfer["machine"] or {}
    versions = ", ".join(f"{name} {value}" for name, value in machine.get("versions", {}).items())
    yield f"\n{machine.get('devices')} x {machine.get('device')}, {versions}."


def _choice(ranked: Sequence[Ranked], chosen: object) -> Iterator[tuple[str, ...]]:
    for one in ranked:
        setup, lr = one.candidate.setup, one.candidate.lr
        mark = "chosen" if chosen == {"setup": setup, "lr": lr} else ""
        if one.why:
            yield setup, f"{lr:g}", f"failed: {one.why}", "", f"{len(one.values)}", mark
        else:
            yield setup, f"{lr:g}", *_spread(CHOSEN_BY, intervals.spread(one.values)), mark


def _top1(entry: Mapping[str, Any]) -> str:
    return (
        formatting.percent(entry["results"][CHOSEN_BY])
        if entry["results"]
        else f"failed: {entry['why']}"
    )


def _means(plan: Plan, results: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for key, one in results.items():
        printed = [result for result in plan.results if formatting.MEASURES.get(result.what) == key]
        papers = [
            f"{r.value:g}" + ("" if r.std is None else f" ± {r.std:g}") + " %" for r in printed
        ]
        tables = ", ".join(result.table for result in printed)
        yield key, *_spread(key, one), ", ".join(papers), tables


def _spread(key: str, one: Mapping[str, Any]) -> tuple[str, str, str]:
    form = "{:.4f}".format if key.endswith("loss") else formatting.percent
    half = formatting.half_interval(one)
    return form(one["mean"]), "" if half is None else f"± {form(half)}", f"{len(one['values'])}"


def vtab_means(transfers: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """VTAB-1k's `means` of every model with results for all 19 tasks, by the prefix of its names.

    Args:
      transfers: contents of `transfer.json` files.
    """
    by_model: dict[str, list[Mapping[str, Any]]] = {}
    for one in transfers:
        if one["task"] in VTAB:
            model = one["name"].removesuffix("-" + one["task"].removeprefix("vtab/"))
            by_model.setdefault(model, []).append(one)
    found = {model: means(members) for model, members in by_model.items()}
    return {model: values for model, values in found.items() if values is not None}


def means(transfers: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]] | None:
    """The spread over seeds of every group's mean top-1, and of the mean of all tasks.

    Args:
      transfers: contents of the `transfer.json` of each task.

    None unless all 19 tasks are present once, with equally many finished seeds.
    """
    values = {
        one["task"]: one["results"][CHOSEN_BY]["values"] for one in transfers if one["results"]
    }
    lengths = {len(value) for value in values.values()}
    if len(transfers) != len(VTAB) or set(values) != set(VTAB) or len(lengths) != 1:
        return None
    members: dict[str, list[str]] = {}
    for name in VTAB:
        members.setdefault(TASKS[name].group.replace("VTAB ", "vtab/").lower(), []).append(name)
    members[OVERALL] = list(VTAB)
    return {
        group: intervals.spread(
            [statistics.fmean(run) for run in zip(*(values[n] for n in names), strict=True)]
        )
        for group, names in members.items()
    }
