"""Tables on a terminal: drawn fast, they look as rich draws them cell by cell."""

import re
import sys

import pytest
from rich import box
from rich.console import Console
from rich.table import Table

from vit_jax.cli import tables

NAMES = [(f"runs/{i}", "x" * i, "") for i in range(30)]


def cell_by_cell(header, rows, width):
    drawn = Table(*header, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    drawn.columns[0].no_wrap = True
    drawn.columns[0].min_width = max(len(row[0]) for row in (header, *rows))
    for row in rows:
        drawn.add_row(*row)
    Console(width=width, highlight=False, markup=False, emoji=False).print(drawn)


@pytest.mark.parametrize(
    "rows",
    [
        NAMES,
        [*NAMES, ("wide", "many words that make lines wrap, " * 20, "end")],
        [("name", "two\nlines", "1"), ("other", "", "2")],
        [("wide characters", "日本語", "±"), ("[bold]", ":smile:", "")],
        [("x" * 210, "name", "1")],
        [("", "", "")],
        [],
    ],
    ids=["many", "wrapped", "lines", "characters", "long", "empty", "none"],
)
@pytest.mark.parametrize("terminal", [None, 80])
def test_a_table_is_as_rich_draws_its_cells(rows, terminal, capsys, monkeypatch):
    header = ("name", "value", "last")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal is not None)
    monkeypatch.setenv("COLUMNS", str(terminal or 50))
    monkeypatch.setenv("TERM", "xterm")
    tables.table(header, rows)
    drawn = capsys.readouterr().out
    cell_by_cell(header, rows, terminal or 200)
    bold = re.compile("\033\\[[01]m")
    assert bold.sub("", drawn) == bold.sub("", capsys.readouterr().out)
    assert drawn.startswith("\033[1mname") == (terminal is not None)
    assert ":smile:" in drawn or "[bold]" not in drawn
