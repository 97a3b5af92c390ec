"""A table, before it becomes HTML or Markdown."""

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under a header; those in `chosen` stand out."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    chosen: frozenset[int] = frozenset()
