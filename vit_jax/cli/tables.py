"""Tables printed on a terminal."""

import sys
from collections.abc import Sequence


def metric(key: str, value: float | str) -> str:
    """Returns the value of a metric as text; split names stay as they are."""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if key.endswith(("count", "step")) else f"{value:.4f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints rows under a header, as wide as the terminal."""
    from rich import box  # slow to import
    from rich.console import Console
    from rich.table import Table

    drawn = Table(*header, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    # The first column is for copying: if a line is too long, other columns shrink.
    drawn.columns[0].no_wrap = True
    drawn.columns[0].min_width = max(len(row[0]) for row in (header, *rows))
    for row in rows:
        drawn.add_row(*row)
    # Off a terminal, lines are as long as they need to be: a cut path helps nobody.
    Console(width=None if sys.stdout.isatty() else 200, highlight=False, markup=False).print(drawn)
