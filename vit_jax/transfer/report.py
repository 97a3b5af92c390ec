"""`transfer.md`: what a transfer came to, beside what the paper printed."""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vit_jax import logs
from vit_jax.data import split_roles
from vit_jax.reports import words
from vit_jax.transfer.plan import CHOSEN_BY, Plan
from vit_jax.transfer.results import Entry, Results

FILE = "transfer.md"


def write(plan: Plan, results: Results, workdir: pathlib.Path) -> None:
    """Writes the file."""
    logs.write_atomically(workdir / FILE, "\n".join(_lines(plan, results)) + "\n")


def table(transfer: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Returns header and rows of what `transfer.json` holds, for people."""
    rows = []
    for cell in transfer["cells"]:
        chosen = {"setup": cell["setup"], "lr": cell["lr"]} == transfer["chosen"]
        note = "chosen" if chosen and cell["stage"] == "choose" else ""
        rows.append((cell["directory"], f"{cell['lr']:g}", _top1(cell), note))
    _, means = spreads("", transfer["results"])
    rows += [(key, "", mean, f"± {std}" if std else "") for key, mean, std in means]
    return (transfer["name"], "lr", CHOSEN_BY, ""), rows


def spreads(
    title: str, results: Mapping[str, Any]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Returns header and rows of means and standard deviations."""
    return (title, "mean", "deviation"), [(k, *_spread(k, one)) for k, one in results.items()]


def _lines(plan: Plan, results: Results) -> Iterator[str]:
    data = plan.base.data
    yield f"# {plan.name}\n"
    if plan.choosing():
        chosen_on = plan.candidates[0].cfg.data
        yield (
            f"Chosen on `{chosen_on.eval_split}` after training on `{chosen_on.train_split}`; of "
            "equal ones the lower rate.\n"
        )
        yield from _table(("setup", "learning rate", "held-out top-1", ""), _choice(results))
    else:
        (only,) = plan.candidates
        yield f"One learning rate, {only.lr:g}: nothing to choose.\n"
    measured = split_roles.final(data) or split_roles.evaluation(data)
    yield f"\nThen trained on `{data.train_split}` and measured once on `{measured.split}`.\n"
    final = [entry for entry in results.entries if entry["stage"] == "final"]
    yield from _table(
        ("seed", f"{measured.name} top-1"), [(str(entry["seed"]), _top1(entry)) for entry in final]
    )
    yield ""
    yield from _table(("measure", "mean", "deviation", "paper", "table"), _means(plan, results))
    machine = results.machine or {}
    versions = ", ".join(f"{name} {value}" for name, value in machine.get("versions", {}).items())
    yield f"\n{machine.get('devices')} x {machine.get('device')}, {versions}."


def _choice(results: Results) -> Iterator[tuple[str, ...]]:
    for entry in results.entries:
        if entry["stage"] == "choose":
            chosen = results.chosen
            ours = chosen is not None and chosen.directory == entry["directory"]
            yield entry["setup"], f"{entry['lr']:g}", _top1(entry), "chosen" if ours else ""


def _top1(entry: Entry) -> str:
    return percent(entry["results"][CHOSEN_BY]) if entry["results"] else f"failed: {entry['why']}"


def _means(plan: Plan, results: Results) -> Iterator[tuple[str, ...]]:
    for key, one in (results.summary() or {}).items():
        printed = [result for result in plan.results if words.MEASURES.get(result.what) == key]
        papers = [
            f"{r.value:g}" + ("" if r.std is None else f" ± {r.std:g}") + " %" for r in printed
        ]
        tables = ", ".join(result.table for result in printed)
        yield key, *_spread(key, one), ", ".join(papers), tables


def _spread(key: str, one: Mapping[str, Any]) -> tuple[str, str]:
    form = "{:.4f}".format if key.endswith("loss") else percent
    return form(one["mean"]), "" if one["std"] is None else form(one["std"])


def percent(share: float) -> str:
    """Returns a share of 1 as the paper prints it."""
    return f"{100 * share:.2f} %"


def _table(header: Sequence[str], rows: Any) -> Iterator[str]:
    for row in (header, ("---",) * len(header), *rows):
        yield f"| {' | '.join(row)} |"
