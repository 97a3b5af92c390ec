"""Findings about the network: attention, positions, pooling, shape."""

import dataclasses

from research.findings.arms import Arms
from research.findings.declaration import TEST, Finding, FindingFigure, Line
from research.findings.shorthand import MARGIN, changed, difference, named, single, trained


def distance(arms: Arms) -> Finding:
    """Attention distance by layer, of the middle ViT."""
    base, depth = arms.base, arms.size.encoders[1][1]
    points = tuple((float(n), base, f"distance/layer{n}") for n in range(1, depth + 1))
    return Finding(
        name="attention-distance",
        statement="Attention distance grows with depth, and in the first layer some heads attend "
        "to most of the image already, while others stay local.",
        place="section 4.5, figure 7 (right), figure 11",
        contradiction="the mean distance of the last layer below that of the first, or no head of "
        "the first layer with three quarters of the distance of uniform attention, or none with "
        "less than half of it",
        control=trained(arms),
        claims=(
            single("the last layer's mean distance is above the first's", base,
                 {f"distance/layer{depth}": 1.0, "distance/layer1": -1.0}, unit="pixels"),
            single("the widest head of the first layer is at 3/4 of uniform attention or above",
                 base, {"distance/first_widest": 1.0}, low=0.75, unit=""),
            single("the narrowest head of the first layer is below half of uniform attention",
                 base, {"distance/first_narrowest": 1.0}, low=0.0, high=0.5, unit=""),
        ),
        figure=FindingFigure(title="mean attention distance, pixels", x="layer",
                      lines=(Line(name="ViT M", points=points),), percent=False,
                      ticks=tuple((layer, f"{layer:g}") for layer, _, _ in points)),
    )  # fmt: skip


def rows_and_columns(arms: Arms) -> Finding:
    """Similarities of the middle ViT's position embeddings."""
    measures = {"near": "neighbors", "far": "others", "aligned": "5 apart in a line",
                "diagonal": "5 apart askew"}  # fmt: skip
    points = tuple((float(x), arms.base, f"positions/{key}") for x, key in enumerate(measures))
    return Finding(
        name="rows-and-columns",
        statement="Position embeddings learn distance, and rows and columns: closer patches, and "
        "patches of the same row or column, have more similar embeddings.",
        place="section 4.5, figure 7 (center)",
        contradiction="neighbors no more similar than others, or patches of one row or column no "
        "more similar than patches equally far apart in neither",
        control=trained(arms),
        claims=(
            single("neighbors are more similar than other patches", arms.base,
                 {"positions/near": 1.0, "positions/far": -1.0}, unit=""),
            single("5 patches apart, those of one row or column are more similar", arms.base,
                 {"positions/aligned": 1.0, "positions/diagonal": -1.0}, unit=""),
        ),
        figure=FindingFigure(title="cosine similarity", x="", percent=False,
                      lines=(Line(name="ViT M", points=points),),
                      ticks=tuple(enumerate(measures.values()))),
    )  # fmt: skip


def positions(arms: Arms) -> Finding:
    """Kinds of position embedding."""
    base = arms.base
    kinds = {"none": "none", "1-D": "learned_1d", "2-D": "learned_2d", "relative": "relative"}
    found = {
        name: base if kind == "learned_1d" else changed(base, f"positions {name}",
                                                        model__position=kind)
        for name, kind in kinds.items()
    }  # fmt: skip
    alike = tuple(
        difference(f"{name} positions are within 2 points of 1-D", found[name], base,
                   low=-MARGIN, high=MARGIN)
        for name in ("2-D", "relative")
    )  # fmt: skip
    return Finding(
        name="positions",
        statement="Without position embeddings a ViT is behind; the kinds of embedding are alike.",
        place="section D.4, table 8",
        contradiction="no difference without them, or more than 2 points between the kinds",
        control=trained(arms),
        claims=(difference("1-D positions are ahead of none", base, found["none"]), *alike),
        figure=named({name: (training, TEST) for name, training in found.items()}),
    )


def pooling(arms: Arms) -> Finding:
    """Class token against mean pooling, each with a rate of its own."""
    token = arms.base
    mean = changed(token, "mean pooling", model__pooling="gap")
    mean = dataclasses.replace(mean, rates=(min(arms.size.adam_rates) / 3, *arms.size.adam_rates))
    return Finding(
        name="pooling",
        statement="With a learning rate of its own, mean pooling is as good as a class token.",
        place="section D.3, figure 9",
        contradiction="more than 2 points between them, each at its best rate",
        control=trained(arms),
        claims=(
            difference("mean pooling is within 2 points of the class token", mean, token,
                       low=-MARGIN, high=MARGIN),
        ),
        figure=named({"class token": (token, TEST), "mean": (mean, TEST)}),
    )  # fmt: skip


def shape(arms: Arms) -> Finding:
    """Depth, width, MLP width and patch size: not tested."""
    del arms
    return Finding(
        name="shape",
        statement="Of the dimensions of a ViT, depth helps most and width least for its compute; "
        "smaller patches help without more parameters.",
        place="section D.2, figure 8",
        out_of_scope="networks of equal compute lie within a point of each other, and five seeds "
        "notice no less",
    )
