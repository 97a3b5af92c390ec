"""Tables printed on a terminal."""

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
    from rich.console import Console  # slow to import

    # Off a terminal, lines are as long as they need to be: a cut path helps nobody.
    width = None if sys.stdout.isatty() else 200
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    if rows and not any("\n" in cell for row in rows for cell in row):
        # rich draws one cell of many lines three times as fast as many cells.
        joined = _table(header, [["\n".join(column) for column in zip(*rows, strict=True)]])
        unlimited = console.options.update(max_width=sys.maxsize)
        if console.measure(joined, options=unlimited).maximum <= console.width:  # none wraps
            console.print(joined)
            return
    console.print(_table(header, rows))


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
