"""Tables of transfers on a terminal, and the means of VTAB-1k."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax.data.tasks import TASKS
from vit_jax.runtime import logs
from vit_jax.studies.report import formatting
from vit_jax.studies.transfer.plan import CHOOSE, SELECTED_BY
from vit_jax.utils import intervals

VTAB = tuple(name for name in TASKS if name.startswith("vtab/"))
OVERALL = "vtab/overall"
Table = tuple[tuple[str, ...], list[tuple[str, ...]]]  # header, rows


def table(transfer: Mapping[str, Any]) -> Table:
    """Results of a transfer, from the contents of `transfer.json`."""
    rows = []
    for cell in transfer["cells"]:
        selected = {"setup": cell["setup"], "lr": cell["lr"]} == transfer["selected"]
        # The final cells have the chosen rate, too.
        note = "chosen" if selected and cell["stage"] == CHOOSE else ""
        rows.append((cell["directory"], f"{cell['lr']:g}", _top1(cell), note))
    _, means = spreads("", transfer["results"])
    rows += [(f"{key}, mean, n = {n}", "", mean, half) for key, mean, half, n in means]
    return (transfer["name"], "lr", SELECTED_BY, f"± {formatting.INTERVAL}"), rows


def preview_table(transfer: Mapping[str, Any]) -> Table:
    """The runs of a transfer, from `preview`."""
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


def _top1(entry: Mapping[str, Any]) -> str:
    return (
        formatting.percent(entry["results"][SELECTED_BY])
        if entry["results"]
        else f"failed: {entry['why']}"
    )


def _spread(key: str, one: Mapping[str, Any]) -> tuple[str, str, str]:
    share = formatting.is_fraction(key, one["mean"])
    form = formatting.percent if share else "{:.4f}".format
    half = formatting.half_interval(one)
    return form(one["mean"]), "" if half is None else f"± {form(half)}", f"{len(one['values'])}"


def vtab_means(transfers: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """VTAB-1k's `means` of every model that has all 19 tasks, by the prefix of its names."""
    by_model: dict[str, list[Mapping[str, Any]]] = {}
    for one in transfers:
        if one["task"] in VTAB:
            model = one["name"].removesuffix("-" + one["task"].removeprefix("vtab/"))
            by_model.setdefault(model, []).append(one)
    found = {model: means(members) for model, members in by_model.items()}
    return {model: values for model, values in found.items() if values is not None}


def means(transfers: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]] | None:
    """The spread over seeds of every group's mean top-1, and of the mean of all tasks.

    None unless all 19 tasks are present once, with equally many finished seeds.
    """
    values = {
        one["task"]: one["results"][SELECTED_BY]["values"] for one in transfers if one["results"]
    }
    # A mean over tasks, seed by seed, needs equally many of each.
    lengths = {len(value) for value in values.values()}
    if len(transfers) != len(VTAB) or set(values) != set(VTAB) or len(lengths) != 1:
        return None
    members: dict[str, list[str]] = {}
    for name in VTAB:
        members.setdefault(TASKS[name].group.replace("VTAB ", "vtab/").lower(), []).append(name)
    members[OVERALL] = list(VTAB)
    return {
        group: intervals.spread(
            # Over tasks first, seed by seed: the spread is that of the mean, not of single tasks.
            [statistics.fmean(run) for run in zip(*(values[n] for n in names), strict=True)]
        )
        for group, names in members.items()
    }
