"""Tables of transfers on a terminal, by hand."""

from vit_jax.studies.transfer import tables
from vit_jax.studies.transfer.plan import CHOOSE, SELECTED_BY


def cell(setup, lr, stage, top1):
    results = {SELECTED_BY: top1} if top1 is not None else None
    return {
        "directory": f"{setup}-{stage}", "setup": setup, "lr": lr, "stage": stage,
        "results": results, "why": "it diverged",
    }  # fmt: skip


def test_what_was_chosen_is_a_setup_at_a_rate():
    """Another setup at the same rate was not, nor is its final run."""
    cells = [
        cell("vit", 0.1, CHOOSE, 0.5), cell("lora", 0.1, CHOOSE, 0.6),
        cell("lora", 0.3, CHOOSE, None), cell("lora", 0.1, "final", 0.7),
    ]  # fmt: skip
    transfer = {
        "name": "t", "cells": cells, "selected": {"setup": "lora", "lr": 0.1},
        "results": {
            "test/top1": {"mean": 0.7, "half": 0.01, "values": [0.69, 0.71]},
            "test/loss": {"mean": 0.7, "half": None, "values": [0.7]},
            "test/kappa/low": {"mean": 0.7, "half": None, "values": [0.7]},
        },
    }  # fmt: skip
    header, rows = tables.table(transfer)
    assert header[0] == "t"
    assert [row[3] for row in rows[:4]] == ["", "chosen", "", ""]
    assert rows[2][2] == "failed: it diverged"
    assert rows[4][0] == "test/top1, mean, n = 2"
    assert rows[4][2].startswith("70")
    assert rows[5][2] == rows[6][2] == "0.7000"


def test_the_time_left_is_of_what_waits():
    def left(*cells):
        return tables.time_left(
            {"cells": [{"state": state, "seconds": seconds} for state, seconds in cells]}
        )

    assert left(("done", 10.0), ("done", 30.0), ("waiting", None), ("failed", 99.0)) == 20
    assert left(("waiting", None)) is None


def test_means_need_every_task_once_with_equally_many_seeds():
    def vtab(name, seeds):
        return {"task": name, "results": {SELECTED_BY: {"values": seeds}}}

    tasks = [vtab(name, [0.5, 0.7]) for name in tables.VTAB]
    assert tables.means(tasks)[tables.OVERALL]["mean"] == 0.6
    assert tables.means([*tasks, tasks[0]]) is None
    assert tables.means([vtab(tables.VTAB[0], [0.5]), *tasks[1:]]) is None
