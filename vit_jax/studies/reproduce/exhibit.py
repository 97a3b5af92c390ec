"""The building blocks of tables and figures: runs, and numbers measured on them."""

import dataclasses
import re

from vit_jax.config import catalog, paper
from vit_jax.data.tasks import TASKS

# Columns of Tables 2, 5 and 6: target dataset and measure.
TARGETS = {
    "ImageNet": ("imagenet", "top1"),
    "ReaL": ("imagenet", "real/top1"),
    "CIFAR-10": ("cifar10", "top1"),
    "CIFAR-100": ("cifar100", "top1"),
    "Pets": ("pets", "top1"),
    "Flowers": ("flowers", "top1"),
}
FIVE = ("ImageNet", "CIFAR-10", "CIFAR-100", "Pets", "Flowers")  # those of `Average`, Table 7
BIT_ROW = "BiT-L (R152x4), JFT-300M"
PRETRAINED = {"imagenet": "ImageNet", "i21k": "ImageNet-21k", "jft": "JFT-300M"}
FEW_SHOT, CORE_DAYS, EXAFLOPS = "fewshot/imagenet/5shot", "core-days", "exaFLOPs"
HELD_OUT = "held-out/"  # a measure of the choosing stage, followed by the learning rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableRun:
    """A run that a table needs.

    Attributes:
      directory: path below the folder of all runs.
      name: its config.
      kind: `train`, or `transfer` by the protocol.
      origin: the pre-training run that initializes it.
      measured: options that enable the table's measurements.
    """

    directory: str
    name: str
    kind: str = "train"
    origin: "TableRun | None" = None
    measured: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """One number: the mean over its runs.

    Attributes:
      row, column: position in the table.
      runs: what it is measured on.
      measure: name of the result.
      printed: the paper's number, fractions in %; None if the paper only plots it.
      std: its printed standard deviation.
      best: whether the best evaluation counts instead of the last.
      epoch: epoch of the measurement, for runs that evaluate after each; None: the last.
      x: x coordinate in a figure.
      series: its line in a figure; empty: the line of its row.

    Results of other projects' models, which cannot run here, have no runs.
    """

    row: str
    column: str
    runs: tuple[TableRun, ...]
    measure: str = "top1"
    printed: float | None = None
    std: float | None = None
    best: bool = False
    epoch: int | None = None
    x: float | None = None
    series: str = ""

    @property
    def share(self) -> bool:
        """Whether the number is a fraction, shown in %."""
        return self.measure not in (CORE_DAYS, EXAFLOPS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exhibit:
    """A table or figure.

    Attributes:
      name: its name on the command line, such as `table5`.
      title: caption.
      scores: in the order of rows, then columns.
      x: label of the x axis of a figure; empty for tables.
      ticks: labels at positions of that axis.
      apart: whether each column has its own chart.
      y: label of the y axis of a single chart.
      log_x: whether the x axis is logarithmic.
      joined: whether points of a series are joined by lines.
      note: other panels in the paper, and where to find their numbers.
    """

    name: str
    title: str
    scores: tuple[Score, ...]
    x: str = ""
    ticks: tuple[tuple[float, str], ...] = ()
    apart: bool = False
    y: str = "top-1"
    log_x: bool = True
    joined: bool = True
    note: str = ""

    @property
    def runs(self) -> list[TableRun]:
        """Every run once, pre-training before the runs that depend on it."""
        used = [run for score in self.scores for run in score.runs]
        origins = [run.origin for run in used if run.origin is not None]
        needed = {run.directory: run for run in (*origins, *used)}
        # The sort is stable: runs of a kind stay in the order of the table.
        return sorted(needed.values(), key=lambda run: run.kind == "transfer")


def pretraining(name: str) -> TableRun:
    """A training run of a config."""
    return TableRun(directory=name, name=name)


def transfer(name: str, origin: str = "") -> TableRun:
    """A transfer; its name includes an `origin` that differs from the config's."""
    usual = catalog.about(name).origin
    origin = origin or usual
    stem, target = name.rsplit("-", 1)
    # Of the target: networks pre-trained on ImageNet have it in their names, too.
    measures_real = re.search(r"-imagenet(-\d+)?$", name) is not None
    return TableRun(
        # Of finetune/R50x1-jft7ep-cifar10 Table 7 has an arm with SGD.
        directory=f"{stem}{origin.removeprefix(usual)}-{target}",
        name=name,
        kind="transfer",
        origin=pretraining(origin),
        measured=(("evaluation.tasks", "imagenet-real"),) if measures_real else (),
    )


def spelled(model: str) -> str:
    """A network's name as config names spell it."""
    return model.replace("/", "_")


def finetuning(model: str, pretrained: str, target: str, origin: str = "") -> TableRun:
    """The transfer of a network from its pre-training dataset to a target."""
    return transfer(f"finetune/{spelled(model)}-{pretrained}-{target}", origin)


def after_jft(model: str, epochs: int, target: str, origin: str = "") -> TableRun:
    """The transfer after some epochs; names omit the length used in Table 5."""
    named = f"finetune/{spelled(model)}-jft{epochs}ep-{target}"
    pretrained = f"jft{epochs}ep" if named in catalog.names() else "jft"
    return finetuning(model, pretrained, target, origin)


def row_label(model: str, pretrained: str) -> str:
    """The row label for a network and its pre-training dataset."""
    return f"{model}, {PRETRAINED[pretrained]}"


def vtab(model: str, pretrained: str, group: str = "") -> tuple[TableRun, ...]:
    """The transfers to all VTAB-1k tasks, or to one group."""
    prefix = f"{spelled(model)}-{pretrained}-"
    return tuple(transfer(f"vtab/{prefix}{task}") for task in vtab_tasks(group))


def vtab_tasks(group: str = "") -> list[str]:
    """All VTAB-1k tasks, or one group such as `Natural`."""
    of_group = f"VTAB {group}".rstrip()
    return [task for task in paper.TABLE_9 if TASKS[f"vtab/{task}"].group.startswith(of_group)]


def bit_vtab(group: str = "") -> tuple[TableRun, ...]:
    """Big Transfer's transfers to all VTAB-1k tasks, or to one group."""
    return tuple(transfer(f"bit/R152x4-jft-vtab-{task}") for task in vtab_tasks(group))


def length_row(model: str, epochs: int) -> str:
    """The row label for a network and its pre-training epochs."""
    return f"{model}, {epochs} epochs"


def few_shot(name: str, **more: str) -> TableRun:
    """A run that measures 5-shot ImageNet; `more` are other options of `evaluation`."""
    options = paper.FIVE_SHOT | {f"evaluation.{key}": value for key, value in more.items()}
    return dataclasses.replace(pretraining(name), measured=tuple(options.items()))
