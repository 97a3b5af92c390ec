"""Tables and figures of the paper as scores: runs, measures and printed numbers."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping

from vit_jax.config import catalog, paper, table_names
from vit_jax.studies.reproduce import figures
from vit_jax.studies.reproduce.exhibit import (
    BIT_ROW,
    CORE_DAYS,
    EXAFLOPS,
    FEW_SHOT,
    FIVE,
    HELD_OUT,
    TARGETS,
    Exhibit,
    Score,
    TableRun,
    after_jft,
    bit_vtab,
    few_shot,
    finetuning,
    length_row,
    pretraining,
    row_label,
    spelled,
    transfer,
    vtab,
)


def table(name: str) -> Exhibit:
    """A table or figure by any name that `table_names` knows; raises ConfigError."""
    return _TABLES[table_names.measured(name)]()


def _table2() -> Exhibit:
    numbers = []
    for (model, pretrained), printed in paper.TABLE_2.items():
        runs = {target: finetuning(model, pretrained, target) for target in paper.TABLE_4}
        # Table 2 fine-tunes on ImageNet at more pixels than Table 5.
        runs["imagenet"] = finetuning(model, pretrained, f"imagenet-{printed.imagenet_pixels}")
        row = row_label(model, pretrained)
        numbers += _column_of_table2(row, printed, runs, vtab(model, pretrained))
    bit = {target: transfer(f"bit/R152x4-jft-{target}") for target in paper.TABLE_4}
    numbers += _column_of_table2(BIT_ROW, paper.TABLE_2_BIT, bit, bit_vtab())
    for column, value in paper.TABLE_2_NOISY_STUDENT.items():
        measure = CORE_DAYS if column == "core-days" else TARGETS[column][1]
        row = "Noisy Student (EfficientNet-L2)"
        numbers.append(Score(row=row, column=column, runs=(), measure=measure, printed=value))
    return Exhibit(
        name="table2",
        title="Transfer beside the state of the art",
        scores=tuple(numbers),
        note="Of Noisy Student's ImageNet 88.5 is printed besides, by Touvron et al. (2020)",
    )


def _column_of_table2(
    row: str,
    printed: paper.TransferScores,
    runs: Mapping[str, TableRun],
    tasks: tuple[TableRun, ...],
) -> Iterator[Score]:
    # VTAB and the core-days, the fields behind these six, follow.
    for (column, (target, measure)), (mean, std) in zip(TARGETS.items(), printed[:6], strict=True):
        yield Score(row=row, column=column, runs=(runs[target],), measure=measure,
                   printed=mean, std=std)  # fmt: skip
    mean, std = printed.vtab
    yield Score(row=row, column="VTAB", runs=tasks, printed=mean, std=std)
    origin = tasks[0].origin
    assert origin is not None
    yield Score(row=row, column="core-days", runs=(origin,), measure=CORE_DAYS,
               printed=printed.core_days)  # fmt: skip


def _table4() -> Exhibit:
    """Held-out results of each learning rate; the paper prints only the grid."""
    numbers = [
        Score(row=f"{row_label(*pair)}: {target}", column=f"{lr:g}", measure=f"{HELD_OUT}{lr:g}",
             runs=(finetuning(*pair, target),))
        for target, grid in paper.TABLE_4.items()
        for pair in paper.TABLE_5
        for lr in grid.lrs
    ]  # fmt: skip
    numbers += [  # a single rate needs no selection, so this is the test result
        Score(row=f"{row_label(*pair)}: vtab", column=f"{paper.VTAB_LR:g}",
             runs=vtab(*pair))
        for pair in paper.TABLE_2
    ]  # fmt: skip
    title = "Top-1 by learning rate: on held-out images, of VTAB on test images"
    return Exhibit(name="table4", title=title, scores=tuple(numbers))


def _table5() -> Exhibit:
    numbers = tuple(
        Score(row=row_label(*pair), column=column, runs=(finetuning(*pair, TARGETS[column][0]),),
             measure=TARGETS[column][1], printed=value)
        for pair, scores in paper.TABLE_5.items()
        for column, value in paper.titled(scores).items()
    )  # fmt: skip
    return Exhibit(name="table5", title="Top-1 by network and pre-training set", scores=numbers)


def _table6() -> Exhibit:
    numbers = []
    for (model, epochs), printed in paper.TABLE_6.items():
        row = length_row(model, epochs)
        for column, value in paper.titled(printed.scores).items():
            target, measure = TARGETS[column]
            run = after_jft(model, epochs, target)
            numbers.append(
                Score(row=row, column=column, runs=(run,), measure=measure, printed=value)
            )
        # All targets of a row begin with the same pre-training run.
        origin = numbers[-1].runs[0].origin
        numbers.append(
            Score(row=row, column="exaFLOPs", runs=(origin,), measure=EXAFLOPS,
                 printed=printed.exaflops)
        )  # fmt: skip
    return Exhibit(name="table6", title="Top-1 after JFT-300M, by compute", scores=tuple(numbers))


def _table7() -> Exhibit:
    numbers = []
    for (model, optimizer), printed in paper.TABLE_7.items():
        row = f"{model}, {'Adam' if optimizer == 'adam' else 'SGD'}"
        origin = f"pretrain/{model}-jft-7ep{'-sgd' * (optimizer == 'sgd')}"
        runs = {c: after_jft(model, 7, TARGETS[c][0], origin) for c in FIVE}
        for column, value in printed.items():
            used = tuple(runs.values()) if column == "Average" else (runs[column],)
            numbers.append(Score(row=row, column=column, runs=used, printed=value))
    return Exhibit(
        name="table7", title="Pre-training ResNets by Adam and by SGD", scores=tuple(numbers)
    )


def _table8() -> Exhibit:
    kinds = {"none": "none", "learned_1d": "1d", "learned_2d": "2d", "relative": "relative"}
    numbers = tuple(
        Score(row=position.replace("_", " "), column=place, measure=FEW_SHOT,
             runs=(few_shot("posemb/" + (kinds[position] if not position.startswith("learned")
                                           else f"{kinds[position]}-{place}")),),
             # 100 times 0.61382 is not 61.382 in binary.
             printed=round(100 * value, 3))
        for (position, place), value in paper.TABLE_8.items()
    )  # fmt: skip
    return Exhibit(name="table8", title="5-shot ImageNet by position embedding", scores=numbers)


def _table9() -> Exhibit:
    numbers = []
    for task, scores in paper.TABLE_9.items():
        for (model, pretrained), value in zip(paper.TABLE_2, scores, strict=True):
            run = transfer(f"vtab/{spelled(model)}-{pretrained}-{task}")
            column = row_label(model, pretrained)
            numbers.append(Score(row=task, column=column, runs=(run,), printed=value))
    return Exhibit(name="table9", title="VTAB-1k by task", scores=tuple(numbers))


def _home() -> Exhibit:
    """The experiments of Figures 3 to 5 on the bundled digits: configs/home.py."""
    numbers, shares = [], {"-25": 0.25, "-50": 0.5, "": 1.0}
    options = (("evaluation.fewshot", "digits"), ("evaluation.shots", "5"))
    for model in ("ViT", "ResNet"):
        whole = catalog.about(f"home/{model}-half").images or 0
        for share, part in shares.items():
            images = float(round(part * whole))
            first = dataclasses.replace(pretraining(f"home/{model}-half{share}"), measured=options)
            row = f"{model}, {images:.0f} images"
            numbers.append(
                Score(
                    row=row,
                    column="5-shot",
                    runs=(first,),
                    x=images,
                    measure="fewshot/digits/5shot",
                )
            )
            second = dataclasses.replace(transfer(f"home/{model}-digits", first.name), origin=first)
            numbers.append(Score(row=row, column="fine-tuned", runs=(second,), x=images))
    return Exhibit(
        name="home",
        title="All ten digits after pre-training on 0 to 4, by images and network",
        scores=tuple(numbers),
        x="images of 0 to 4",
        # Two scores a row; the first three rows are those of one network.
        ticks=tuple((score.x or 0.0, f"{score.x:.0f}") for score in numbers[:6:2]),
        apart=True,
    )


def _masked() -> Exhibit:
    """Section 4.6, and the same experiment on the bundled digits: configs/masked.py."""
    numbers = []
    for name in catalog.names():
        if name.startswith("masked/") and name.endswith("-to-imagenet"):
            about = catalog.about(name)
            printed = about.results[0].value if about.results else None
            row = about.row.removesuffix(", ImageNet")
            run = transfer(name)
            numbers.append(Score(row=row, column="ImageNet", runs=(run,), printed=printed))
    scratch = TableRun(
        directory="masked/digits-scratch", name="masked/digits-scratch", kind="transfer"
    )
    rows = {
        "digits, 10 % of the labels, after masked patches": transfer("masked/digits-tenth"),
        "digits, 10 % of the labels, from random weights": scratch,
    }
    numbers += [Score(row=row, column="digits", runs=(run,)) for row, run in rows.items()]
    return Exhibit(
        name="masked", title="Top-1 after masked patch prediction", scores=tuple(numbers)
    )


_TABLES: Mapping[str, Callable[[], Exhibit]] = {
    "table2": _table2,
    "table4": _table4,
    "table5": _table5,
    "table6": _table6,
    "table7": _table7,
    "table8": _table8,
    "table9": _table9,
    "figure2": figures.figure2,
    "figure3": figures.figure3,
    "figure4": figures.figure4,
    "figure5": figures.figure5,
    "figure8": figures.figure8,
    "figure9": figures.figure9,
    "figure13": figures.figure13,
    "home": _home,
    "masked": _masked,
}
NAMES = tuple(_TABLES)
