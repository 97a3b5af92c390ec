"""Tables printed on a terminal."""

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from vit_jax.pages import document


def metric(key: str, value: float | str) -> str:
    """The value of a metric as text; split names stay as they are."""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if key.endswith(("count", "step")) else f"{value:.4f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints rows under a header, as wide as the terminal."""
    from rich.cells import cell_len

    lines, terminal = (header, *rows), sys.stdout.isatty()
    # In terminal cells: a character may take two.
    widths = [max(map(cell_len, column)) + 1 for column in zip(*lines, strict=True)]
    whole = sum(widths) + len(widths) - 1
    # Off a terminal, lines are as long as they need to be: a cut path helps nobody.
    most = shutil.get_terminal_size().columns if terminal else 200
    plain = all(cell.isprintable() for line in lines for cell in line)
    if whole <= most and plain and (sys.stdout.encoding or "").lower().startswith("utf"):
        # None wraps: as rich draws it, in a tenth of the time.
        drawn = [
            " ".join(
                cell + " " * (width - cell_len(cell))
                for cell, width in zip(line, widths, strict=True)
            )
            for line in lines
        ]
        bold = terminal and os.environ.get("TERM", "dumb") != "dumb"
        print(f"\033[1m{drawn[0]}\033[0m" if bold else drawn[0], "─" * whole, *drawn[1:], sep="\n")
        return
    from rich.console import Console  # slow to import

    Console(width=most, highlight=False, markup=False, emoji=False).print(_table(header, rows))


def titled(tables: "Iterable[tuple[str, document.Table]]") -> None:
    """Prints tables under their titles, each with its caption."""
    for title, one in tables:
        print(title)
        table(one.header, one.rows)
        print(f"{one.caption}\n" if one.caption else "")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> "Table":
    from rich import box
    from rich.table import Table

    drawn = Table(*header, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    # The first column is for copying: if a line is too long, other columns shrink.
    drawn.columns[0].no_wrap = True
    drawn.columns[0].min_width = max(
        len(line) for row in (header, *rows) if row for line in row[0].split("\n")
    )
    for row in rows:
        drawn.add_row(*row)
    return drawn
