"""A report as Markdown: its text and tables, with links to pictures that are files."""

import re
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import quote  # of links, which a space or a bracket would end

from vit_jax.pages.document import (
    Block,
    Charts,
    Confusion,
    Document,
    Gallery,
    Numbers,
    PageSection,
    Paragraph,
    Picture,
    Table,
)

# An underscore within a word means nothing to Markdown.
SIGNS = re.compile(r"[\\`*\[\]|<>&]|(?<!\w)_|_(?!\w)")


def page(document: Document) -> str:
    """A report as Markdown."""
    lines = [f"# {escape(document.title)}", "", escape(document.lead), ""]
    for section in document.sections:
        lines += _section(section)
    facts = (f"{name} {value}".strip() for name, value in document.facts.items())
    return "\n".join([*lines, escape(" · ".join(facts))]).rstrip() + "\n"


def table(block: Table) -> list[str]:
    """The lines of a table; highlighted rows are bold."""
    rows = []
    for index, row in enumerate(block.rows):
        cells = [escape(cell) for cell in row]
        bold = index in block.highlighted
        rows.append([f"**{cell}**" if bold and cell else cell for cell in cells])
    header = [escape(name) for name in block.header]
    return [*grid(header, rows), *(["", escape(block.caption)] if block.caption else []), ""]


def escape(text: str) -> str:
    """Text escaped for Markdown, including the separators of tables."""
    # A newline would end a table's row or a heading.
    return SIGNS.sub(r"\\\g<0>", text).replace("\n", " ")


def grid(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a table whose cells are Markdown already."""
    return [f"| {' | '.join(map(str, row))} |" for row in (header, ["---"] * len(header), *rows)]


def _section(section: PageSection) -> Iterator[str]:
    if section.title:
        yield from (f"{'#' * section.level} {escape(section.title)}", "")
    for block in section.blocks:
        yield from _block(block)


def _block(block: Block) -> Iterator[str]:
    match block:
        case Numbers():
            rows = [
                (what, " ".join(filter(None, (value, remark))))
                for value, what, remark in block.items
            ]
            yield from table(Table(header=("", ""), rows=rows))
        case Table():
            yield from table(block)
        case Charts(picture=str(picture)):
            titles = ", ".join(chart.title for chart in block.charts)
            yield from (f"![{escape(titles)}]({quote(picture)})", "")
        case Charts():
            yield from ("Drawn in the HTML page.", "")
        case Gallery():
            rows = [
                (one.path, one.caption, "", "")
                if isinstance(one, Picture)
                else (one.name, one.truth, one.top[0][0], f"{one.top[0][1]:.1%}")
                for one in block.samples
            ]
            header = ("image", "truth", "prediction", "probability")
            yield from table(Table(header=header, rows=rows, caption=block.caption))
        case Picture():
            yield from (
                f"![{escape(block.path)}]({quote(block.path)})",
                "",
                escape(block.caption),
                "",
            )
        case Confusion():
            yield from table(block.commonest())
        case Paragraph(code=True):
            yield from ("```sh", block.text, "```", "")
        case Paragraph():
            yield from (escape(block.text), "")
