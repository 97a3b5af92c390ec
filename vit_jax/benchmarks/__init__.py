"""Measurements on this machine, as ratios against a named alternative in the same run."""

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]  # a header and its rows
