"""VTAB-1k's score: the mean of its 19 tasks, and of its three groups (ViT, section 4.1)."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax.data.tasks import TASKS
from vit_jax.studies.transfer.plan import CHOSEN_BY
from vit_jax.studies.transfer.results import spread

NAMES = tuple(name for name in TASKS if name.startswith("vtab/"))
OVERALL = "vtab/overall"


def vtab_means(transfers: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the `means` of every model with results for all tasks, by the prefix of its names.

    Args:
      transfers: contents of `transfer.json` files.
    """
    by_model: dict[str, list[Mapping[str, Any]]] = {}
    for one in transfers:
        if one["task"] in NAMES:
            model = one["name"].removesuffix("-" + one["task"].removeprefix("vtab/"))
            by_model.setdefault(model, []).append(one)
    found = {model: means(members) for model, members in by_model.items()}
    return {model: values for model, values in found.items() if values is not None}


def means(transfers: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]] | None:
    """Returns the spread over seeds of every group's mean top-1, and of the mean of all tasks.

    Args:
      transfers: contents of the `transfer.json` of each task.

    None unless all 19 tasks are present once, with equally many finished seeds.
    """
    values = {
        one["task"]: one["results"][CHOSEN_BY]["values"] for one in transfers if one["results"]
    }
    lengths = {len(value) for value in values.values()}
    if len(transfers) != len(NAMES) or set(values) != set(NAMES) or len(lengths) != 1:
        return None
    members: dict[str, list[str]] = {}
    for name in NAMES:
        members.setdefault(TASKS[name].group.replace("VTAB ", "vtab/").lower(), []).append(name)
    members[OVERALL] = list(NAMES)
    return {
        group: spread(
            [statistics.fmean(run) for run in zip(*(values[n] for n in names), strict=True)]
        )
        for group, names in members.items()
    }
