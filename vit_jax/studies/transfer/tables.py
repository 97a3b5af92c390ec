"""`transfer.md`: the results of a transfer next to the paper's."""

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from vit_jax.data import split_roles
from vit_jax.pages import markdown
from vit_jax.runtime import logs
from vit_jax.studies.report import formatting
from vit_jax.studies.transfer.plan import CHOSEN_BY, Plan
from vit_jax.studies.transfer.results import Entry, Results, spread
from vit_jax.utils import storage

FILE = "transfer.md"


def write(plan: Plan, results: Results, workdir: pathlib.Path) -> None:
    """Writes the file."""
    storage.write_atomically(workdir / FILE, "\n".join(_lines(plan, results)) + "\n")


def table(transfer: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Returns the header and rows of a readable table of `transfer.json`."""
    rows = []
    for cell in transfer["cells"]:
        chosen = {"setup": cell["setup"], "lr": cell["lr"]} == transfer["chosen"]
        note = "chosen" if chosen and cell["stage"] == "choose" else ""
        rows.append((cell["directory"], f"{cell['lr']:g}", _top1(cell), note))
    _, means = spreads("", transfer["results"])
    rows += [(f"{key}, mean, n = {n}", "", mean, half) for key, mean, half, n in means]
    return (transfer["name"], "lr", CHOSEN_BY, f"± {formatting.INTERVAL}"), rows


def preview_table(transfer: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Returns the header and rows of a readable table of `protocol.preview`."""
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
    """Returns the seconds left, running one cell at a time at the mean duration so far; or None."""
    done = [cell["seconds"] for cell in transfer["cells"] if cell["state"] == "done"]
    left = sum(cell["state"] == "waiting" for cell in transfer["cells"])
    return left * sum(done) / len(done) if done else None


def spreads(
    title: str, results: Mapping[str, Any]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Returns header and rows of means, 95 % confidence intervals and numbers of runs."""
    return (title, "mean", formatting.INTERVAL, "n"), [
        (k, *_spread(k, one)) for k, one in results.items()
    ]


def _lines(plan: Plan, results: Results) -> Iterator[str]:
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
        yield from markdown.grid(header, _choice(results))
    else:
        (only,) = plan.candidates
        yield f"One learning rate, {only.lr:g}: no selection.\n"
    measured = split_roles.final(data) or split_roles.evaluation(data)
    yield f"\nThen trained on `{data.train_split}` and measured once on `{measured.split}`.\n"
    final = [entry for entry in results.entries if entry["stage"] == "final"]
    yield from markdown.grid(
        ("seed", f"{measured.name} top-1"), [(str(entry["seed"]), _top1(entry)) for entry in final]
    )
    yield ""
    header = ("measure", "mean", formatting.INTERVAL, "n", "paper", "table")
    yield from markdown.grid(header, _means(plan, results))
    deviation = "; the paper's ± is a standard deviation" if plan.results else ""
    yield f"\n{formatting.PLUS_MINUS}, all from the same weights{deviation}."
    machine = results.machine or {}
    versions = ", ".join(f"{name} {value}" for name, value in machine.get("versions", {}).items())
    yield f"\n{machine.get('devices')} x {machine.get('device')}, {versions}."


def _choice(results: Results) -> Iterator[tuple[str, ...]]:
    for one in results.candidates():
        mark = "chosen" if results.chosen == one.cell else ""
        lr = f"{one.cell.lr:g}"
        if one.why:
            yield one.cell.setup, lr, f"failed: {one.why}", "", f"{len(one.values)}", mark
        else:
            yield one.cell.setup, lr, *_spread(CHOSEN_BY, spread(one.values)), mark


def _top1(entry: Entry) -> str:
    return percent(entry["results"][CHOSEN_BY]) if entry["results"] else f"failed: {entry['why']}"


def _means(plan: Plan, results: Results) -> Iterator[tuple[str, ...]]:
    for key, one in (results.summary() or {}).items():
        printed = [result for result in plan.results if formatting.MEASURES.get(result.what) == key]
        papers = [
            f"{r.value:g}" + ("" if r.std is None else f" ± {r.std:g}") + " %" for r in printed
        ]
        tables = ", ".join(result.table for result in printed)
        yield key, *_spread(key, one), ", ".join(papers), tables


def _spread(key: str, one: Mapping[str, Any]) -> tuple[str, str, str]:
    form = "{:.4f}".format if key.endswith("loss") else percent
    half = formatting.half_interval(one)
    return form(one["mean"]), "" if half is None else f"± {form(half)}", f"{len(one['values'])}"


def percent(share: float) -> str:
    """Returns a fraction in percent, as the paper prints it."""
    return f"{100 * share:.2f} %"
