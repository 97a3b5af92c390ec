"""The confusion matrix as SVG."""

from vit_jax.reports.elements import Confusion
from vit_jax.reports.markup import Markup, element

MOST_CLASSES = 50  # a larger matrix cannot be read
MOST_COUNTS = 16  # classes up to which the counts are written in


def svg(confusion: Confusion) -> Markup:
    """Returns the matrix: a row for each true class, the darker the larger its share of the row."""
    classes = list(confusion.classes)
    longest = max(len(_short(name)) for name in classes)
    cell, letter = 24, 6.2
    left, top = 30 + letter * longest, 24 + (letter * longest if longest > 2 else 14)
    side = cell * len(classes)
    drawn = []
    for index, name in enumerate(classes):
        middle = cell * (index + 0.5)
        drawn.append(
            element(
                "text", _short(name), x=f"{left - 7:.0f}", y=f"{top + middle + 4:.0f}",
                class_="tick end",
            )
        )  # fmt: skip
        x, y = left + middle, top - 7
        turned = longest > 2
        drawn.append(
            element(
                "text", _short(name), x=f"{x + (4 if turned else 0):.0f}", y=f"{y:.0f}",
                class_="tick" if turned else "tick middle",
                transform=f"rotate(-90 {x + 4:.0f} {y:.0f})" if turned else None,
            )
        )  # fmt: skip
    totals = {name: confusion.per_class(name) for name in classes}
    place = {name: index for index, name in enumerate(classes)}
    for (truth, predicted), count in sorted(confusion.counts.items()):
        share = count / totals[truth]
        x, y = left + cell * place[predicted], top + cell * place[truth]
        right = truth == predicted
        drawn.append(
            element(
                "rect", element("title", f"{truth} taken for {predicted}: {count}"),
                x=f"{x + 0.5:.1f}", y=f"{y + 0.5:.1f}", width=cell - 1, height=cell - 1, rx=2,
                class_="hit" if right else "miss", fill_opacity=f"{0.12 + 0.88 * share:.2f}",
            )
        )  # fmt: skip
        if len(classes) <= MOST_COUNTS:
            drawn.append(
                element(
                    "text", count, x=f"{x + cell / 2:.0f}", y=f"{y + cell / 2 + 4:.0f}",
                    class_="count strong middle" if share > 0.5 else "count middle",
                )
            )  # fmt: skip
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
        "svg", frame, *titles, *drawn,
        viewBox=f"0 0 {width:.0f} {height:.0f}", role="img",
        style=f"max-width:{1.25 * width:.0f}px",
        aria_label="Confusion matrix: rows are true classes, columns predicted ones",
    )  # fmt: skip


def _short(name: str) -> str:
    return name if len(name) <= 14 else f"{name[:13]}…"
