"""The parts of a report, independent of HTML and Markdown: sections of blocks."""

import collections
import dataclasses
import datetime
from collections.abc import Mapping, Sequence

from vit_jax import __version__
from vit_jax.pages.charts import Chart


@dataclasses.dataclass(frozen=True, kw_only=True)
class Numbers:
    """Headline numbers: (value, name, remark)."""

    items: Sequence[tuple[str, str, str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under a header; `highlighted` are indices of rows to emphasize."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    highlighted: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Confusion:
    """Image counts by (true, predicted) class."""

    classes: Sequence[str]
    counts: collections.Counter[tuple[str, str]]

    def commonest(self, most: int = 10) -> Table:
        """The most frequent confusions, most frequent first."""
        pairs = [pair for pair in self.counts if pair[0] != pair[1]]
        # Then by name, so that ties do not depend on the order of counting.
        pairs.sort(key=lambda pair: (-self.counts[pair], pair))
        rows = [(truth, taken, f"{self.counts[truth, taken]}") for truth, taken in pairs[:most]]
        return Table(header=("true class", "taken for", "images"), rows=rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Charts:
    """Charts side by side where there is room; Markdown links `picture`, a PNG of them, if any."""

    charts: Sequence[Chart]
    picture: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """One image, its true class or classes, the predicted ones, and whether the first is right."""

    name: str
    png: bytes
    truth: str
    top: Sequence[tuple[str, float]]
    right: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure that is a file, by its path relative to the run directory, or to the page."""

    png: bytes
    path: str
    caption: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gallery:
    """Small images, each with its prediction or its caption."""

    samples: Sequence[Sample | Picture]
    caption: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Paragraph:
    """A paragraph; `note` for secondary text, `code` for a command."""

    text: str
    note: bool = False
    code: bool = False


Block = Numbers | Table | Charts | Gallery | Picture | Confusion | Paragraph


@dataclasses.dataclass(frozen=True, kw_only=True)
class PageSection:
    """Blocks under a title; `level` 3 for a part of the section before."""

    title: str
    blocks: Sequence[Block]
    level: int = 2


def _made() -> dict[str, str]:
    now = datetime.datetime.now(datetime.UTC)
    return {"made": f"{now:%Y-%m-%d %H:%M} UTC", "by": f"vit_jax {__version__}"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Document:
    """A whole report: title, lead, sections, and facts for the footer."""

    title: str
    lead: str
    sections: Sequence[PageSection]
    facts: Mapping[str, str] = dataclasses.field(default_factory=_made)
