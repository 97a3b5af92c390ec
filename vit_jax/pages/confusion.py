"""The confusion matrix as SVG."""

from collections.abc import Iterator, Sequence

from vit_jax.pages.document import Confusion
from vit_jax.pages.markup import Markup, element

MOST_CLASSES = 50  # a larger matrix cannot be read
MOST_COUNTS = 16  # classes up to which the counts are written in
CELL, LETTER = 24, 6.2  # pixels: the side of a cell, the width of a letter


def svg(confusion: Confusion) -> Markup:
    """Returns the matrix: a row for each true class, the darker the larger its share of the row."""
    classes = list(confusion.classes)
    longest = max(len(_short(name)) for name in classes)
    left, top = 30 + LETTER * longest, 24 + (LETTER * longest if longest > 2 else 14)
    side = CELL * len(classes)
    frame = element("rect", x=left, y=top, width=side, height=side, class_="frame")
    titles = (
        element("text", "predicted", x=f"{left + side / 2:.0f}", y="12", class_="tick middle"),
        element(
            "text", "true", x="12", y=f"{top + side / 2:.0f}", class_="tick middle",
            transform=f"rotate(-90 12 {top + side / 2:.0f})",
        ),
    )  # fmt: skip
    width, height = left + side + 2, top + side + 2
    return element(
        "svg", frame, *titles, *_names(classes, left, top, turned=longest > 2),
        *_cells(confusion, left, top),
        viewBox=f"0 0 {width:.0f} {height:.0f}", role="img",
        style=f"max-width:{1.25 * width:.0f}px",
        aria_label="Confusion matrix: rows are true classes, columns predicted ones",
    )  # fmt: skip


def _names(classes: Sequence[str], left: float, top: float, *, turned: bool) -> Iterator[Markup]:
    """Yields the name of every row and column; those of columns can be turned."""
    for index, name in enumerate(classes):
        middle = CELL * (index + 0.5)
        yield element(
            "text", _short(name), x=f"{left - 7:.0f}", y=f"{top + middle + 4:.0f}",
            class_="tick end",
        )  # fmt: skip
        x, y = left + middle, top - 7
        yield element(
            "text", _short(name), x=f"{x + (4 if turned else 0):.0f}", y=f"{y:.0f}",
            class_="tick" if turned else "tick middle",
            transform=f"rotate(-90 {x + 4:.0f} {y:.0f})" if turned else None,
        )  # fmt: skip


def _cells(confusion: Confusion, left: float, top: float) -> Iterator[Markup]:
    """Yields the cells that are not empty, with their counts where there is room."""
    classes = list(confusion.classes)
    totals = {name: confusion.per_class(name) for name in classes}
    place = {name: index for index, name in enumerate(classes)}
    for (truth, predicted), count in sorted(confusion.counts.items()):
        share = count / totals[truth]
        x, y = left + CELL * place[predicted], top + CELL * place[truth]
        yield element(
            "rect", element("title", f"{truth} taken for {predicted}: {count}"),
            x=f"{x + 0.5:.1f}", y=f"{y + 0.5:.1f}", width=CELL - 1, height=CELL - 1, rx=2,
            class_="hit" if truth == predicted else "miss",
            fill_opacity=f"{0.12 + 0.88 * share:.2f}",
        )  # fmt: skip
        if len(classes) <= MOST_COUNTS:
            yield element(
                "text", count, x=f"{x + CELL / 2:.0f}", y=f"{y + CELL / 2 + 4:.0f}",
                class_="count strong middle" if share > 0.5 else "count middle",
            )  # fmt: skip


def _short(name: str) -> str:
    return name if len(name) <= 14 else f"{name[:13]}…"
