"""What every measurement comes to: a header and its rows."""

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
