"""What a report consists of, before it becomes HTML or Markdown: titled sections of blocks."""

import dataclasses
from collections.abc import Mapping, Sequence

from vit_jax.reports.charts import Chart
from vit_jax.reports.confusion import Confusion
from vit_jax.reports.tables import Table as Table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Numbers:
    """A few numbers to see first: each a value, what it is, and a remark."""

    items: Sequence[tuple[str, str, str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Charts:
    """Charts side by side where there is room; in Markdown, the picture of them, if any."""

    charts: Sequence[Chart]
    picture: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """One image with what the model makes of it.

    Attributes:
      name: where the image comes from.
      png: the image, encoded.
      truth: its class.
      top: classes with probabilities, best first.
    """

    name: str
    png: bytes
    truth: str
    top: Sequence[tuple[str, float]]

    @property
    def right(self) -> bool:
        """Whether the best class is the true one."""
        return self.top[0][0] == self.truth


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gallery:
    """Images with their predictions."""

    samples: Sequence[Sample]
    caption: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure that is a file.

    Attributes:
      png: the file.
      path: where it is, from the run directory.
      caption: what it shows.
    """

    png: bytes
    path: str
    caption: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text:
    """A paragraph; `note` for one that stands back."""

    text: str
    note: bool = False


Block = Numbers | Table | Charts | Gallery | Picture | Confusion | Text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """Blocks under a title; `level` 3 for a part of the section before."""

    title: str
    blocks: Sequence[Block]
    level: int = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Document:
    """A whole report: its title, a line about it, facts for the last line, sections."""

    title: str
    lead: str
    sections: Sequence[Section]
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)
