"""A report as one self-contained HTML page."""

import base64
import pathlib
import re
import string

from vit_jax.pages import charts, markdown
from vit_jax.pages.charts import Chart, Series
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
    Sample,
    Table,
)
from vit_jax.pages.markup import Markup, element, empty, join, text
from vit_jax.utils import storage

STYLE = pathlib.Path(__file__).with_name("page.css")
# File and class names come from users: even one that slips through `markup` as HTML can then run
# no script and load nothing.
POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'"
)
PAGE = string.Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>
$style</style>
</head>
<body>
$body
</body>
</html>
""")
# A cell that is a number, with unit, spread or difference: columns of these are right-aligned.
NUMBER = re.compile(
    r"[-+±]?[\d.,]+([ \u202f]?[%a-zA-Zµ/²]{0,4})?"
    r"( ± [\d.]+)?( %)?(, n = \d+)?( \([-+][\d.,]+\))?|not run|\u2013|"
)
MOST_CLASSES = 50  # of a confusion matrix; a larger one is unreadable, its worst pairs are listed
MOST_COUNTS = 16  # classes; beyond, cells are too narrow for their counts


def write_page(document: Document, page_file: pathlib.Path, words: pathlib.Path) -> None:
    """Writes a report as HTML and as Markdown; raises OSError."""
    page_file.parent.mkdir(parents=True, exist_ok=True)
    storage.write_atomically(page_file, page(document))
    storage.write_atomically(words, markdown.page(document))


def page(document: Document) -> str:
    """A report as HTML."""
    head = element("header", element("h1", document.title), element("p", document.lead))
    facts = [element("li", f"{name} {value}".strip()) for name, value in document.facts.items()]
    foot = element("footer", element("ul", *facts)) if facts else None
    sections = (_section(section) for section in document.sections)
    body = join(head, element("main", *sections), foot)
    style = STYLE.read_text(encoding="utf-8")
    return PAGE.substitute(policy=POLICY, title=text(document.title), style=style, body=body)


def _section(section: PageSection) -> Markup:
    blocks = [render_block(block) for block in section.blocks]
    title = element(f"h{section.level}", section.title) if section.title else None
    return element("section", title, *blocks)


def render_block(block: Block) -> Markup:
    """A block of a page as HTML."""
    match block:
        case Numbers():
            return _numbers(block)
        case Table():
            return _table(block)
        case Charts():
            return element("div", *map(_chart, block.charts), class_="charts")
        case Gallery():
            return _gallery(block)
        case Picture():
            return _picture(block)
        case Confusion():
            return _confusion(block)
        case Paragraph(code=True):
            return element("pre", block.text)
        case Paragraph():
            return element("p", block.text, class_="note" if block.note else None)


def _numbers(block: Numbers) -> Markup:
    items = [
        element("div", element("dt", what), element("dd", value, element("small", remark)))
        for value, what, remark in block.items
    ]
    return element("dl", *items, class_="numbers")


def _table(table: Table) -> Markup:
    columns = range(len(table.header))
    # The first column names the rows, even if all names are digits.
    right = [all(NUMBER.fullmatch(row[i]) for row in table.rows) and i > 0 for i in columns]
    # `more` is hidden on narrow screens.
    kind = [
        "n" if number else "more" if name == "meaning" else None
        for name, number in zip(table.header, right, strict=True)
    ]
    head = [element("th", table.header[i], class_=kind[i], scope="col") for i in columns]
    rows = [
        element("tr", *(element("td", row[i], class_=kind[i]) for i in columns), class_=one)
        for row, one in zip(table.rows, _row_kinds(table), strict=True)
    ]
    caption = element("caption", table.caption) if table.caption else None
    drawn = element(
        "table", caption, element("thead", element("tr", *head)), element("tbody", *rows)
    )
    return element("div", drawn, class_="wide")


def _row_kinds(table: Table) -> list[str | None]:
    """The CSS class of each row: `highlighted`, or `open` if nameless rows below continue it."""
    follows = [not row[0] for row in table.rows[1:]] + [False]
    return [
        "highlighted" if index in table.highlighted else "open" if follows[index] else None
        for index in range(len(table.rows))
    ]


def _chart(chart: Chart) -> Markup:
    named = [one for one in chart.drawn if one.name]
    legend = [
        element(
            "li", element("i", class_=f"key {_key(one)} c{one.color % charts.COLORS}"), one.name
        )
        for one in named
    ]
    caption = element(
        "figcaption", element("b", chart.title), element("ul", *legend) if len(named) > 1 else None
    )
    return element("figure", caption, charts.svg(chart))


def _key(series: Series) -> str:
    return "none hollow" if series.hollow and series.line == "none" else series.line


def _picture(picture: Picture) -> Markup:
    # A PNG's header holds its width at byte 16; figures are drawn at 150 dots per inch, and CSS has
    # 96 pixels to the inch, of which two thirds are close enough.
    width = int.from_bytes(picture.png[16:20]) * 2 // 3
    image = empty("img", src=_data(picture.png), alt=picture.path, width=str(width))
    return element("figure", element("figcaption", picture.caption), image, class_="picture")


def _gallery(gallery: Gallery) -> Markup:
    caption = element("p", gallery.caption, class_="note") if gallery.caption else None
    return join(caption, element("ol", *map(_sample, gallery.samples), class_="gallery"))


def _sample(sample: Sample | Picture) -> Markup:
    if isinstance(sample, Picture):
        picture = empty("img", src=_data(sample.png), alt=sample.path, title=sample.path)
        return element("li", picture, element("span", sample.caption))
    predicted, probability = sample.top[0]
    picture = empty("img", src=_data(sample.png), alt=sample.name, title=sample.name)
    verdict = "✓" if sample.right else "✗"
    said = element("b", element("i", verdict), " ", predicted)
    truth = None if sample.right else element("span", f"is {sample.truth}")
    share = element("span", f"{probability:.0%}", class_="share")
    return element(
        "li", picture, element("p", said, share), truth, class_=None if sample.right else "wrong"
    )


def _data(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _confusion(block: Confusion) -> Markup:
    commonest = _table(block.commonest())
    if len(block.classes) > MOST_CLASSES:
        return commonest
    return element("div", _matrix(block), commonest, class_="matrix")


def _matrix(confusion: Confusion) -> Markup:
    """Counts by true and predicted class, shaded by their share of the true class."""
    classes = confusion.classes
    rows = [element("tr", element("td"), *(element("th", element("span", c)) for c in classes))]
    for truth in classes:
        total = sum(confusion.counts[truth, other] for other in classes)
        cells = [element("th", truth, scope="row")]
        for predicted in classes:
            count = confusion.counts[truth, predicted]
            cells.append(
                element(
                    "td", f"{count}" if len(classes) <= MOST_COUNTS else "",
                    class_="hit" if truth == predicted else "miss",
                    title=f"{truth} taken for {predicted}: {count}",
                    style=f"--share:{count / total:.2f}",
                ) if count else element("td")
            )  # fmt: skip
        rows.append(element("tr", *cells))
    label = "Confusion matrix: rows are true classes, columns predicted ones"
    return element("table", *rows, aria_label=label)
