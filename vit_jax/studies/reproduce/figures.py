"""The figures with results, as scores (`exhibit`); points that are only plotted have no number."""

import statistics

from vit_jax.config import paper
from vit_jax.pages import listing
from vit_jax.studies.reproduce.exhibit import (
    EXAFLOPS,
    FEW_SHOT,
    FIVE,
    PRETRAINED,
    TARGETS,
    Exhibit,
    Score,
    after_jft,
    bit_vtab,
    few_shot,
    finetuning,
    length_row,
    spelled,
    vtab,
    vtab_tasks,
)

FIVE_SHOT = "5-shot ImageNet"


def figure2() -> Exhibit:
    """VTAB scores by task group for ViT-H/14 and its competitors."""
    groups = {"VTAB": "", **{group: group for group in ("Natural", "Specialized", "Structured")}}
    numbers = []
    for x, (column, group) in enumerate(groups.items()):
        h14, bit = paper.TABLE_2["ViT-H/14", "jft"], paper.TABLE_2_BIT
        scores = [paper.TABLE_9[task][0] for task in vtab_tasks(group)]
        # Rounded as the paper prints numbers: to two digits.
        mean, std = h14.vtab if not group else (round(statistics.fmean(scores), 2), None)
        numbers.append(
            Score(row="ViT-H/14", column=column, runs=vtab("ViT-H/14", "jft", group),
                 printed=mean, std=std, x=float(x))
        )  # fmt: skip
        mean, std = bit.vtab if not group else (None, None)
        numbers.append(
            Score(row="BiT-L (R152x4)", column=column, runs=bit_vtab(group),
                 printed=mean, std=std, x=float(x))
        )  # fmt: skip
        numbers += [
            Score(row=other, column=column, runs=(), x=float(x)) for other in paper.FIGURE_2_OTHERS
        ]
    return Exhibit(
        name="figure2",
        title="VTAB-1k top-1 by group of tasks",
        # The loop goes by column; a table is listed by row, in the order of first appearance.
        scores=tuple(sorted(numbers, key=lambda score: [c.row for c in numbers].index(score.row))),
        x="tasks",
        ticks=tuple((float(x), column) for x, column in enumerate(groups)),
        log_x=False,
        joined=False,
        note="ViT-H/14's groups are means of Table 9's scores; the other bars are only drawn",
    )


def figure3() -> Exhibit:
    """Fine-tuned ImageNet top-1 by pre-training set."""
    places = {pretrained: float(x) for x, pretrained in enumerate(PRETRAINED)}
    numbers = tuple(
        Score(row=pair[0], column=PRETRAINED[pair[1]], runs=(finetuning(*pair, "imagenet"),),
             printed=scores.imagenet, x=places[pair[1]])
        for pair, scores in paper.TABLE_5.items()
    )  # fmt: skip
    ticks = tuple((x, PRETRAINED[pretrained]) for pretrained, x in places.items())
    title = "ImageNet top-1 by pre-training set; the paper's points are those of Table 5"
    return Exhibit(
        name="figure3", title=title, scores=numbers, x="pre-trained on", ticks=ticks, log_x=False
    )


def figure4() -> Exhibit:
    """5-shot ImageNet top-1 by number of JFT-300M images."""
    numbers = tuple(
        Score(row=model, column=label, measure=FEW_SHOT, best=True, x=float(images),
             runs=(few_shot(f"figure4/{spelled(model)}-jft-{label}"),))
        for model in paper.FIGURE_4
        for label, images in paper.SUBSETS.items()
    )  # fmt: skip
    ticks = tuple((float(images), label) for label, images in paper.SUBSETS.items())
    title = "5-shot ImageNet by images of JFT-300M; the paper draws its points and prints none"
    return Exhibit(
        name="figure4",
        title=title,
        scores=numbers,
        x="images of JFT-300M",
        ticks=ticks,
        y=FIVE_SHOT,
    )


def figure5() -> Exhibit:
    """Fine-tuned top-1 by pre-training compute."""
    numbers = []
    for (model, epochs), printed in paper.TABLE_6.items():
        row, scores = length_row(model, epochs), paper.titled(printed.scores)
        runs = {column: after_jft(model, epochs, TARGETS[column][0]) for column in FIVE}
        average = statistics.fmean(scores[column] for column in FIVE)
        numbers += [
            Score(row=row, column="Average-5", runs=tuple(runs.values()),
                 printed=round(average, 2), x=printed.exaflops),
            Score(row=row, column="ImageNet", runs=(runs["ImageNet"],),
                 printed=scores["ImageNet"], x=printed.exaflops),
        ]  # fmt: skip
    title = "Top-1 by compute of pre-training; the paper's points are those of Table 6"
    return Exhibit(
        name="figure5", title=title, scores=tuple(numbers), x="exaFLOPs", apart=True, joined=False
    )


def figure8() -> Exhibit:
    """5-shot ImageNet top-1 of one network scaled along one or all dimensions."""
    entries = listing.entries(table="figure8")
    compute = {entry.name: entry.exaflops or 0.0 for entry in entries}
    base = compute["scaling/base"]
    numbers = tuple(
        Score(row=name.removeprefix("scaling/"), column=FIVE_SHOT, measure=FEW_SHOT,
             runs=(few_shot(name),), x=exaflops / base,
             series=name.removeprefix("scaling/").partition("-")[0])
        for name, exaflops in compute.items()
    )  # fmt: skip
    return Exhibit(
        name="figure8",
        title="5-shot ImageNet by depth, width, MLP width and patch size; the paper draws its "
        "points and prints none",
        scores=numbers,
        x="compute, relative to 8 layers of width 1024",
        y=FIVE_SHOT,
        note="The paper's other panel is an average over 5-shot sets that it does not name",
    )


def figure9() -> Exhibit:
    """5-shot ImageNet top-1 by epoch, for class token and mean pooling."""
    numbers = tuple(
        Score(row=entry.about.row, column=f"epoch {epoch}", measure=FEW_SHOT,
             # The curves have a point for each epoch.
             runs=(few_shot(entry.name, every="1 epochs"),), epoch=epoch, x=float(epoch))
        for entry in listing.entries(table="figure9")
        for epoch in range(1, paper.FIGURE_9_EPOCHS + 1)
    )  # fmt: skip
    return Exhibit(
        name="figure9",
        title="5-shot ImageNet by epoch, class token and mean token; the paper draws its curves "
        "and prints no number",
        scores=numbers,
        x="epochs of JFT-300M",
        y=FIVE_SHOT,
        log_x=False,
    )


def figure13() -> Exhibit:
    """5-shot ImageNet top-1 by compute for axial networks and their base networks."""
    numbers = []
    for entry in listing.entries(table="figure13"):
        run = few_shot(entry.name)
        numbers += [
            Score(row=entry.model, column=FIVE_SHOT, runs=(run,), measure=FEW_SHOT,
                 x=entry.exaflops),
            Score(row=entry.model, column="exaFLOPs", runs=(run,), measure=EXAFLOPS,
                 printed=entry.about.exaflops),
        ]  # fmt: skip
    return Exhibit(
        name="figure13",
        title="5-shot ImageNet by compute, axial and not; the paper draws its points, Table 6 "
        "prints the compute of the three that are not",
        scores=tuple(numbers),
        x="exaFLOPs",
        y=FIVE_SHOT,
        joined=False,
        note="The speeds of the paper's other panel are measured by `vit_jax bench infer`",
    )
