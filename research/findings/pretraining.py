"""Findings about pre-training: data, compute, families, optimizer, self-supervision."""

import dataclasses

from research.findings.arms import Arms, at_compute, compute
from research.findings.declaration import (
    TEST,
    TRAINING,
    Claim,
    Finding,
    FindingFigure,
    Measurement,
    Term,
    Training,
)
from research.findings.shorthand import (
    COMPUTE,
    MARGIN,
    OWN,
    changed,
    difference,
    line,
    named,
    single,
)
from vit_jax.config import paper


def little_data(arms: Arms) -> Finding:
    """ViT and ResNet by number of images."""
    size = arms.size
    pairs = {}
    for images in size.subsets:
        whole = images == arms.whole
        vit = arms.base if whole else arms.network("ViT", 1, images=images)
        pairs[images] = vit, arms.network("ResNet", 1, images=images)
    few, many = size.subsets[0], size.subsets[-1]
    ahead = difference(
        f"at {few:,} images the ResNet is ahead of the ViT", pairs[few][1], pairs[few][0]
    )
    terms = [
        Term(weight=sign * weight, training=training, measure=TEST)
        for sign, pair in ((1.0, pairs[many]), (-1.0, pairs[few]))
        for weight, training in zip((1.0, -1.0), pair, strict=True)
    ]
    catches = Claim(
        text=f"from {few:,} to {many:,} images the ViT gains on the ResNet", terms=tuple(terms)
    )
    lines = tuple(
        line(name, [(float(images), pair[place]) for images, pair in pairs.items()])
        for place, name in enumerate(("ViT M", "ResNet M"))
    )
    return Finding(
        name="little-data",
        statement="With little data to pre-train on, ResNets are ahead of ViTs of about their "
        "compute; with more data, ViTs catch up.",
        place="section 4.3, figure 4",
        contradiction="the ViT ahead at the fewest images, or losing ground with more",
        control=difference(
            f"{many:,} images are ahead of {few:,}, for the ViT", pairs[many][0], pairs[few][0]
        ),
        claims=(ahead, catches),
        figure=FindingFigure(title=OWN, x="images of CIFAR-100", lines=lines, log_x=True),
    )


def regularization(arms: Arms) -> Finding:
    """Weight decay and dropout on few images."""
    few = arms.size.subsets[1]
    plain = arms.network("ViT", 1, images=few)
    memory = Measurement(kind="training", options=(("data.eval_split", f"train[:{few}]"),))

    def arm(label: str, decay: float, dropout: float) -> Training:
        found = changed(plain, label, optimizer__weight_decay=decay, model__dropout=dropout)
        if arms.size.edition == 1:
            return found
        return dataclasses.replace(found, measurements=(*found.measurements, memory))

    found = {
        "none": arm("no regularization", 0.0, 0.0),
        "weight decay 0.3": arm("weight decay 0.3", 0.3, 0.0),
        "dropout 0.1": arm("dropout 0.1", 0.0, 0.1),
        "both": arm("weight decay 0.3, dropout 0.1", 0.3, 0.1),
    }
    return Finding(
        name="regularization",
        statement="On small datasets weight decay and dropout help.",
        place="section 4.3, figure 3",
        contradiction=f"no regularization ahead of both at {few:,} images",
        control=single("without regularization the training images are memorized",
                       found["none"], {TRAINING: 1.0}, low=0.9, unit="%"),
        claims=(
            difference(f"at {few:,} images both are ahead of none", found["both"], found["none"]),
        ),
        figure=named({name: (one, TEST) for name, one in found.items()},
                      f"CIFAR-100, {few:,} images"),
    )  # fmt: skip


def masked(arms: Arms) -> Finding:
    """Masked patch prediction beside training from scratch and with labels."""
    usual, rare = paper.MASKED.rate, paper.MASKED.ablated_rate
    masked = arms.masked("masked color", "color", usual)
    color = arms.finetuned(masked)
    others = {
        "4 x 4 colors": arms.finetuned(arms.masked("masked 4 x 4 colors", "color_4x4", usual)),
        "pixels": arms.finetuned(arms.masked("masked pixels", "pixels", usual)),
        f"color, {rare:.0%}": arms.finetuned(arms.masked(f"masked color, {rare:.0%}", "color",
                                                         rare)),
    }  # fmt: skip
    fewest = min(arms.size.labels)
    points = {"scratch": arms.scratch(), "color": color, **others,
              "supervised": arms.finetuned(arms.base)}  # fmt: skip
    return Finding(
        name="masked",
        statement="Masked patch prediction is ahead of training from scratch and behind "
        "supervised pre-training; predicting the mean color of half of the patches is not worse "
        "than other targets and rates.",
        place="section 4.6, B.1.2",
        contradiction="masked pre-training behind scratch or ahead of supervised, or color more "
        "than 2 points behind another target or rate",
        control=difference(f"with {fewest:,} labels supervised pre-training is ahead of scratch",
                           arms.finetuned(arms.base, fewest), arms.scratch(fewest)),
        claims=(
            *(difference(f"with {labels:,} labels masked patch prediction is ahead of scratch",
                         arms.finetuned(masked, labels), arms.scratch(labels))
              for labels in arms.size.labels),
            *(difference(f"with {labels:,} labels supervised pre-training is ahead of it",
                         arms.finetuned(arms.base, labels), arms.finetuned(masked, labels))
              for labels in arms.size.labels),
            *(
                difference(f"color at {usual:.0%} is not behind {name} by 2 points", color, other,
                           low=-MARGIN)
                for name, other in others.items()
            ),
        ),
        figure=named({name: (training, TEST) for name, training in points.items()}, "CIFAR-10"),
    )  # fmt: skip


def hybrids(arms: Arms) -> Finding:
    """Hybrids against ViTs, fine-tuned, by compute."""
    families = {
        family: [(compute(one), arms.finetuned(one)) for one in arms.by_family(family)]
        for family in ("ViT", "hybrid")
    }
    vits, hybrids = families["ViT"], families["hybrid"]
    small = Claim(
        text="the smallest hybrid is ahead of ViTs of its compute",
        terms=tuple(_ahead(hybrids[0], vits)),
    )
    closes = Claim(
        text="the lead is larger for the smallest hybrid than for the largest",
        terms=(*_ahead(hybrids[0], vits), *_ahead(hybrids[-1], vits, -1.0)),
    )
    return Finding(
        name="hybrids",
        statement="Hybrids are ahead of ViTs at small compute; the difference vanishes for larger "
        "networks.",
        place="section 4.4, figure 5",
        contradiction="ViTs ahead at the smallest compute, or a lead that grows with size",
        control=difference("the largest ViT is ahead of the smallest", vits[-1][1], vits[0][1]),
        claims=(small, closes),
        figure=FindingFigure(
            title="fine-tuned CIFAR-10",
            x=COMPUTE,
            lines=tuple(line(name, points) for name, points in families.items()),
            log_x=True,
        ),
    )


def equal_compute(arms: Arms) -> Finding:
    """ViTs against ResNets by compute: not tested."""
    del arms
    return Finding(
        name="compute",
        statement="At equal pre-training compute ViTs are ahead of ResNets.",
        place="section 4.4, figure 5",
        out_of_scope="the paper finds it with 300 million images; with few, its figures 3 and 4 "
        "have ResNets ahead",
    )


def adam(arms: Arms) -> Finding:
    """ResNets pre-trained by Adam and by SGD, fine-tuned."""
    pairs = []
    for index in (0, 2):
        adam = arms.network("ResNet", index)
        sgd = changed(adam, f"{adam.label} by SGD", optimizer__name="sgd",
                      optimizer__weight_decay=0.0, schedule__name="step")  # fmt: skip
        sgd = dataclasses.replace(sgd, rates=arms.size.sgd_rates)
        pairs.append((arms.finetuned(adam), arms.finetuned(sgd)))
    terms = [
        Term(weight=sign / len(pairs), training=training, measure=TEST)
        for pair in pairs
        for sign, training in zip((1.0, -1.0), pair, strict=True)
    ]
    lines = tuple(
        line(name, [(float(x), pair[place]) for x, pair in enumerate(pairs)])
        for place, name in enumerate(("Adam", "SGD"))
    )
    ticks = ((0.0, "ResNet S"), (1.0, "ResNet L"))
    return Finding(
        name="adam",
        statement="Pre-training ResNets by Adam transfers better on average than by SGD.",
        place="section D.1, table 7",
        contradiction="SGD ahead in the mean of both networks",
        control=difference(
            "after Adam the larger ResNet is ahead of the smaller", pairs[1][0], pairs[0][0]
        ),
        claims=(Claim(text="Adam is ahead, mean of two ResNets", terms=tuple(terms)),),
        figure=FindingFigure(title="fine-tuned CIFAR-10", x="network", lines=lines, ticks=ticks),
    )


def _ahead(
    one: tuple[float, Training], others: list[tuple[float, Training]], sign: float = 1.0
) -> list[Term]:
    """A network's lead on a family at its compute."""
    return [
        Term(weight=sign, training=one[1], measure=TEST),
        *(
            Term(weight=-sign * weight, training=training, measure=TEST)
            for weight, training in at_compute(others, one[0])
        ),
    ]
