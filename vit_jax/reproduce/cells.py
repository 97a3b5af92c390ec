"""The building blocks of tables and figures: runs, and numbers measured on them."""

import dataclasses

from vit_jax import catalog, paper
from vit_jax.data.tasks import TASKS

# Columns of Tables 2, 5 and 6: the target data set and the measure.
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
class Step:
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
    origin: "Step | None" = None
    measured: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One number: the mean over its steps.

    Attributes:
      row, column: position in the table.
      steps: runs it is measured on.
      measure: the result that is meant.
      printed: the paper's number, in % where it is a share; None where it is only drawn.
      std: the standard deviation printed with it.
      best: whether the best evaluation counts instead of the last.
      epoch: the epoch after which it is measured, in runs that evaluate after each; None: the last.
      x: x coordinate in a figure.
      series: its line in a figure; empty: the line of its row.

    A number of another project's model, which cannot be run here, has no steps.
    """

    row: str
    column: str
    steps: tuple[Step, ...]
    measure: str
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
class Table:
    """A table or figure.

    Attributes:
      name: what the command calls it, such as `table5`.
      title: what it shows.
      cells: in the order of rows, then columns.
      x: what the x axis of a figure is; empty for tables.
      ticks: names of places on that axis.
      apart: whether each column is a chart of its own.
      y: what the y axis is, where there is one chart.
      log_x: whether the x axis is logarithmic.
      joined: whether points of a series are joined by lines.
      note: what the paper shows besides, and where it is to be had.
    """

    name: str
    title: str
    cells: tuple[Cell, ...]
    x: str = ""
    ticks: tuple[tuple[float, str], ...] = ()
    apart: bool = False
    y: str = "top-1"
    log_x: bool = True
    joined: bool = True
    note: str = ""

    @property
    def steps(self) -> list[Step]:
        """Every run once, those that others begin with first."""
        used = [step for cell in self.cells for step in cell.steps]
        origins = [step.origin for step in used if step.origin is not None]
        chosen = {step.directory: step for step in (*origins, *used)}
        return sorted(chosen.values(), key=lambda step: step.kind == "transfer")


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


def spelled(model: str) -> str:
    """Returns a network as names of configs spell it."""
    return model.replace("/", "_")


def finetuning(model: str, pretrained: str, target: str, origin: str = "") -> Step:
    """Returns the transfer of a network, pre-trained on a data set, to another."""
    return transfer(f"finetune/{spelled(model)}-{pretrained}-{target}", origin)


def after_jft(model: str, epochs: int, target: str, origin: str = "") -> Step:
    """Returns the transfer after so many epochs; names leave out the length that Table 5 has."""
    named = f"finetune/{spelled(model)}-jft{epochs}ep-{target}"
    pretrained = f"jft{epochs}ep" if named in catalog.names() else "jft"
    return finetuning(model, pretrained, target, origin)


def row_of(model: str, pretrained: str) -> str:
    """Returns the row of a network and the data set it was pre-trained on."""
    return f"{model}, {PRETRAINED[pretrained]}"


def vtab(model: str, pretrained: str, group: str = "") -> tuple[Step, ...]:
    """Returns the transfers to the tasks of VTAB-1k, or to those of a group."""
    prefix = f"{spelled(model)}-{pretrained}-"
    return tuple(transfer(f"vtab/{prefix}{task}") for task in vtab_tasks(group))


def vtab_tasks(group: str = "") -> list[str]:
    """Returns the tasks of VTAB-1k, all or those of a group such as `Natural`."""
    of_group = f"VTAB {group}".rstrip()
    return [task for task in paper.TABLE_9 if TASKS[f"vtab/{task}"].group.startswith(of_group)]


def bit_vtab(group: str = "") -> tuple[Step, ...]:
    """Returns Big Transfer's transfers to the tasks of VTAB-1k, or to those of a group."""
    return tuple(transfer(f"bit/R152x4-jft-vtab-{task}") for task in vtab_tasks(group))


def length_row(model: str, epochs: int) -> str:
    """Returns the row of a network and the epochs of its pre-training."""
    return f"{model}, {epochs} epochs"


def few_shot(name: str, **more: str) -> Step:
    """Returns a run that measures 5-shot ImageNet; `more` are further options of `evaluation`."""
    options = paper.FIVE_SHOT | {f"evaluation.{key}": value for key, value in more.items()}
    return dataclasses.replace(pretraining(name), measured=tuple(options.items()))
