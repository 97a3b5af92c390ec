"""Tables and figures of the paper as cells: the runs, the measure, and what was printed."""

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Mapping

from vit_jax import catalog, config, paper

# Columns of Tables 2, 5 and 6: where a network was transferred to, and what was measured there.
TARGETS = {
    "ImageNet": ("imagenet", "top1"),
    "ReaL": ("imagenet", "real/top1"),
    "CIFAR-10": ("cifar10", "top1"),
    "CIFAR-100": ("cifar100", "top1"),
    "Pets": ("pets", "top1"),
    "Flowers": ("flowers", "top1"),
}
FIVE = ("ImageNet", "CIFAR-10", "CIFAR-100", "Pets", "Flowers")  # those of `Average`, Table 7
PRETRAINED = {"imagenet": "ImageNet", "i21k": "ImageNet-21k", "jft": "JFT-300M"}
FEW_SHOT, CORE_DAYS, EXAFLOPS = "fewshot/imagenet/5shot", "core-days", "exaFLOPs"
HELD_OUT = "held-out/"  # a measure of the choosing stage, followed by the learning rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """A run that a table takes.

    Attributes:
      directory: where it is below the folder of all runs.
      name: its config.
      kind: `train`, or `transfer` by the protocol.
      origin: the pre-training it begins with.
      measured: knobs that make it measure what the table wants.
    """

    directory: str
    name: str
    kind: str = "train"
    origin: "Step | None" = None
    measured: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One number: of several steps it is the mean.

    Attributes:
      row, column: where it stands.
      steps: what it is measured on.
      measure: the result that is meant.
      printed: the paper's number, in % where it is a share; None where it is only drawn.
      std: the standard deviation printed with it.
      best: whether the best evaluation counts instead of the last.
      x: where it stands in a figure.
    """

    row: str
    column: str
    steps: tuple[Step, ...]
    measure: str
    printed: float | None = None
    std: float | None = None
    best: bool = False
    x: float | None = None

    @property
    def share(self) -> bool:
        """Whether the number is a share, shown in %."""
        return self.measure not in (CORE_DAYS, EXAFLOPS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A table or figure.

    Attributes:
      name: what the command calls it, such as `table5`.
      title: what it shows.
      cells: in the order of rows, then columns.
      x: what the x axis of a figure is; empty for tables.
      ticks: names of places on that axis.
      apart: whether each column is a chart of its own.
    """

    name: str
    title: str
    cells: tuple[Cell, ...]
    x: str = ""
    ticks: tuple[tuple[float, str], ...] = ()
    apart: bool = False

    @property
    def steps(self) -> list[Step]:
        """Every run once, those that others begin with first."""
        used = [step for cell in self.cells for step in cell.steps]
        origins = [step.origin for step in used if step.origin is not None]
        chosen = {step.directory: step for step in (*origins, *used)}
        return sorted(chosen.values(), key=lambda step: step.kind == "transfer")


def table(name: str) -> Table:
    """Returns a table or figure by name; raises ConfigError."""
    if name not in _TABLES:
        raise config.ConfigError(f"reproduce {name}: no such table{config.suggest(name, NAMES)}")
    return _TABLES[name]()


def pretraining(name: str) -> Step:
    """Returns a run as its config has it."""
    return Step(directory=name, name=name)


def transfer(name: str, origin: str = "") -> Step:
    """Returns a transfer; one with another `origin` than its config's is named for that."""
    usual = catalog.about(name).origin
    directory = name
    if origin and origin != usual:  # finetune/R50x1-jft7ep-cifar10: the arm of Table 7 with SGD
        stem, target = name.rsplit("-", 1)
        directory = f"{stem}{origin.removeprefix(usual)}-{target}"
    measures_real = "-imagenet" in name.partition("-")[2]
    return Step(
        directory=directory,
        name=name,
        kind="transfer",
        origin=pretraining(origin or usual),
        measured=(("evaluation.tasks", "imagenet-real"),) if measures_real else (),
    )


def _spelled(model: str) -> str:
    return model.replace("/", "_")


def _finetuning(model: str, pretrained: str, target: str, origin: str = "") -> Step:
    return transfer(f"finetune/{_spelled(model)}-{pretrained}-{target}", origin)


def _after_jft(model: str, epochs: int, target: str, origin: str = "") -> Step:
    """Returns the transfer after so many epochs; names leave out the length that Table 5 has."""
    named = f"finetune/{_spelled(model)}-jft{epochs}ep-{target}"
    pretrained = f"jft{epochs}ep" if named in catalog.names() else "jft"
    return _finetuning(model, pretrained, target, origin)


def _row(model: str, pretrained: str) -> str:
    return f"{model}, {PRETRAINED[pretrained]}"


def _vtab(model: str, pretrained: str) -> tuple[Step, ...]:
    return tuple(transfer(f"vtab/{_spelled(model)}-{pretrained}-{task}") for task in paper.TABLE_9)


def _table2() -> Table:
    cells = []
    for (model, pretrained), printed in paper.TABLE_2.items():
        row = _row(model, pretrained)
        scores = dict(zip(TARGETS, printed[:6], strict=True))
        for column, (mean, std) in scores.items():
            target, measure = TARGETS[column]
            if target == "imagenet":
                target = f"imagenet-{printed.imagenet_pixels}"
            step = _finetuning(model, pretrained, target)
            cells.append(
                Cell(row=row, column=column, steps=(step,), measure=measure, printed=mean, std=std)
            )
        mean, std = printed.vtab
        vtab = _vtab(model, pretrained)
        cells.append(
            Cell(row=row, column="VTAB", steps=vtab, measure="top1", printed=mean, std=std)
        )
        origin = vtab[0].origin
        assert origin is not None
        cells.append(
            Cell(row=row, column="core-days", steps=(origin,), measure=CORE_DAYS,
                 printed=printed.core_days)
        )  # fmt: skip
    return Table(name="table2", title="Transfer beside the state of the art", cells=tuple(cells))


def _table4() -> Table:
    """What each rate of the grid comes to on held-out images; the paper prints the grid alone."""
    cells = [
        Cell(row=f"{_row(*pair)}: {target}", column=f"{lr:g}", measure=f"{HELD_OUT}{lr:g}",
             steps=(_finetuning(*pair, target),))
        for target, grid in paper.TABLE_4.items()
        for pair in paper.TABLE_5
        for lr in grid.lrs
    ]  # fmt: skip
    cells += [  # a single rate: nothing is chosen, so it is the result on the test images
        Cell(row=f"{_row(*pair)}: vtab", column=f"{paper.VTAB_LR:g}", measure="top1",
             steps=_vtab(*pair))
        for pair in paper.TABLE_2
    ]  # fmt: skip
    title = "Top-1 by learning rate: on held-out images, of VTAB on test images"
    return Table(name="table4", title=title, cells=tuple(cells))


def _table5() -> Table:
    cells = tuple(
        Cell(row=_row(*pair), column=column, steps=(_finetuning(*pair, TARGETS[column][0]),),
             measure=TARGETS[column][1], printed=value)
        for pair, scores in paper.TABLE_5.items()
        for column, value in paper.titled(scores).items()
    )  # fmt: skip
    return Table(name="table5", title="Top-1 by network and pre-training set", cells=cells)


def _scaling(model: str, epochs: int) -> str:
    return f"{model}, {epochs} epochs"


def _table6() -> Table:
    cells = []
    for (model, epochs), printed in paper.TABLE_6.items():
        row = _scaling(model, epochs)
        for column, value in paper.titled(printed.scores).items():
            target, measure = TARGETS[column]
            step = _after_jft(model, epochs, target)
            cells.append(
                Cell(row=row, column=column, steps=(step,), measure=measure, printed=value)
            )
        origin = cells[-1].steps[0].origin
        cells.append(
            Cell(row=row, column="exaFLOPs", steps=(origin,), measure=EXAFLOPS,
                 printed=printed.exaflops)
        )  # fmt: skip
    return Table(name="table6", title="Top-1 after JFT-300M, by compute", cells=tuple(cells))


def _table7() -> Table:
    cells = []
    for (model, optimizer), printed in paper.TABLE_7.items():
        row = f"{model}, {'Adam' if optimizer == 'adam' else 'SGD'}"
        origin = f"pretrain/{model}-jft-7ep{'-sgd' * (optimizer == 'sgd')}"
        steps = {c: _after_jft(model, 7, TARGETS[c][0], origin) for c in FIVE}
        for column, value in printed.items():
            used = tuple(steps.values()) if column == "Average" else (steps[column],)
            cells.append(Cell(row=row, column=column, steps=used, measure="top1", printed=value))
    return Table(name="table7", title="Pre-training ResNets by Adam and by SGD", cells=tuple(cells))


def _few_shot(name: str) -> Step:
    knobs = (("evaluation.fewshot", "imagenet"), ("evaluation.shots", "5"))
    return dataclasses.replace(pretraining(name), measured=knobs)


def _table8() -> Table:
    kinds = {"none": "none", "learned_1d": "1d", "learned_2d": "2d", "relative": "relative"}
    cells = tuple(
        Cell(row=position.replace("_", " "), column=place, measure=FEW_SHOT,
             steps=(_few_shot("posemb/" + (kinds[position] if not position.startswith("learned")
                                           else f"{kinds[position]}-{place}")),),
             printed=round(100 * value, 3))
        for (position, place), value in paper.TABLE_8.items()
    )  # fmt: skip
    return Table(name="table8", title="5-shot ImageNet by position embedding", cells=cells)


def _table9() -> Table:
    cells = []
    for task, scores in paper.TABLE_9.items():
        for (model, pretrained), value in zip(paper.TABLE_2, scores, strict=True):
            step = transfer(f"vtab/{_spelled(model)}-{pretrained}-{task}")
            column = _row(model, pretrained)
            cells.append(
                Cell(row=task, column=column, steps=(step,), measure="top1", printed=value)
            )
    return Table(name="table9", title="VTAB-1k by task", cells=tuple(cells))


def _figure3() -> Table:
    places = {pretrained: float(x) for x, pretrained in enumerate(PRETRAINED)}
    cells = tuple(
        Cell(row=pair[0], column=PRETRAINED[pair[1]], steps=(_finetuning(*pair, "imagenet"),),
             measure="top1", printed=scores.imagenet, x=places[pair[1]])
        for pair, scores in paper.TABLE_5.items()
    )  # fmt: skip
    ticks = tuple((x, PRETRAINED[pretrained]) for pretrained, x in places.items())
    title = "ImageNet top-1 by pre-training set; the paper's points are those of Table 5"
    return Table(name="fig3", title=title, cells=cells, x="pre-trained on", ticks=ticks)


def _figure4() -> Table:
    cells = tuple(
        Cell(row=model, column=label, measure=FEW_SHOT, best=True, x=float(images),
             steps=(_few_shot(f"figure4/{_spelled(model)}-jft-{label}"),))
        for model in paper.FIGURE_4
        for label, images in paper.SUBSETS.items()
    )  # fmt: skip
    ticks = tuple((float(images), label) for label, images in paper.SUBSETS.items())
    title = "5-shot ImageNet by images of JFT-300M; the paper draws its points and prints none"
    return Table(name="fig4", title=title, cells=cells, x="images of JFT-300M", ticks=ticks)


def _figure5() -> Table:
    cells = []
    for (model, epochs), printed in paper.TABLE_6.items():
        row, scores = _scaling(model, epochs), paper.titled(printed.scores)
        steps = {column: _after_jft(model, epochs, TARGETS[column][0]) for column in FIVE}
        average = statistics.fmean(scores[column] for column in FIVE)
        cells += [
            Cell(row=row, column="Average-5", steps=tuple(steps.values()), measure="top1",
                 printed=round(average, 2), x=printed.exaflops),
            Cell(row=row, column="ImageNet", steps=(steps["ImageNet"],), measure="top1",
                 printed=scores["ImageNet"], x=printed.exaflops),
        ]  # fmt: skip
    title = "Top-1 by compute of pre-training; the paper's points are those of Table 6"
    return Table(name="fig5", title=title, cells=tuple(cells), x="exaFLOPs", apart=True)


def _home() -> Table:
    """What Figures 3 to 5 ask, of the digits that come with the package: configs/home.py."""
    cells, shares = [], {"-25": 0.25, "-50": 0.5, "": 1.0}
    knobs = (("evaluation.fewshot", "digits"), ("evaluation.shots", "5"))
    for model in ("ViT", "ResNet"):
        whole = catalog.about(f"home/{model}-half").images or 0
        for share, part in shares.items():
            images = float(round(part * whole))
            first = dataclasses.replace(pretraining(f"home/{model}-half{share}"), measured=knobs)
            row = f"{model}, {images:.0f} images"
            cells.append(
                Cell(
                    row=row,
                    column="5-shot",
                    steps=(first,),
                    x=images,
                    measure="fewshot/digits/5shot",
                )
            )
            second = dataclasses.replace(transfer(f"home/{model}-digits", first.name), origin=first)
            cells.append(
                Cell(row=row, column="fine-tuned", steps=(second,), x=images, measure="top1")
            )
    return Table(
        name="home",
        title="All ten digits after pre-training on 0 to 4, by images and network",
        cells=tuple(cells),
        x="images of 0 to 4",
        ticks=tuple((cell.x or 0.0, f"{cell.x:.0f}") for cell in cells[:6:2]),
        apart=True,
    )


def _masked() -> Table:
    """Section 4.6, and what it asks of the digits that come with the package: configs/masked.py."""
    cells = []
    for name in catalog.names():
        if name.startswith("masked/") and name.endswith("-to-imagenet"):
            about = catalog.about(name)
            printed = about.results[0].value if about.results else None
            row = about.row.removesuffix(", ImageNet")
            step = transfer(name)
            cells.append(
                Cell(row=row, column="ImageNet", steps=(step,), measure="top1", printed=printed)
            )
    scratch = Step(directory="masked/digits-scratch", name="masked/digits-scratch", kind="transfer")
    rows = {
        "digits, 10 % of the labels, after masked patches": transfer("masked/digits-tenth"),
        "digits, 10 % of the labels, from random weights": scratch,
    }
    cells += [
        Cell(row=row, column="digits", steps=(step,), measure="top1") for row, step in rows.items()
    ]
    return Table(name="masked", title="Top-1 after masked patch prediction", cells=tuple(cells))


_TABLES: Mapping[str, Callable[[], Table]] = {
    "table2": _table2,
    "table4": _table4,
    "table5": _table5,
    "table6": _table6,
    "table7": _table7,
    "table8": _table8,
    "table9": _table9,
    "fig3": _figure3,
    "fig4": _figure4,
    "fig5": _figure5,
    "home": _home,
    "masked": _masked,
}
NAMES = tuple(_TABLES)


def rows(of: Table) -> Iterator[str]:
    """Yields the rows of a table, each once."""
    yield from dict.fromkeys(cell.row for cell in of.cells)


def columns(of: Table) -> Iterator[str]:
    """Yields the columns of a table, each once."""
    yield from dict.fromkeys(cell.column for cell in of.cells)
