"""The type of a measurement: a header and rows."""

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
