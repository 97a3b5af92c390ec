"""A finding whose cells take no time: their results are made up, or digits in two steps."""

import dataclasses
import pathlib
from typing import Any

from research import findings
from research.findings import scales
from research.findings.declaration import (
    Claim,
    Finding,
    FindingFigure,
    Line,
    Term,
    Training,
)
from sweeps import MACHINE

SCALE = dataclasses.replace(scales.CPU, name="toy", seeds=(0, 1, 2), choose_seeds=(0, 1))
DIGITS: dict[str, Any] = {
    "model.num_classes": 10, "model.patch_size": (2, 2), "model.width": 16, "model.depth": 1,
    "model.heads": 1, "model.mlp_dim": 16,
    "data.source": "digits", "data.image_size": (8, 8), "data.channels": 1,
    "data.train_crop": "resize", "data.train_split": "train[:64]",
    "data.eval_split": "train[90%:]", "data.test_split": "test", "data.threads": 1,
    "train.batch_size": 32, "train.duration": "2 steps",
    "checkpoint.every": None, "evaluation.every": None, "logging.tensorboard": False,
}  # fmt: skip


def training(
    label: str, rates=(0.05, 0.1, 0.2), origin=None, measurements=(), **more: Any
) -> Training:
    options = DIGITS | {key.replace("__", "."): value for key, value in more.items()}
    options = tuple(sorted(options.items()))
    return Training(
        label=label, options=options, rates=rates, origin=origin, measurements=measurements
    )


def finding(*trainings: Training, name: str = "toy", **bounds: Any) -> Finding:
    """The claim that the first training is ahead of the second; the control: it learns at all."""
    terms = tuple(
        Term(weight=weight, training=one, measure="test/top1")
        for weight, one in zip((1.0, -1.0), trainings, strict=False)
    )
    points = tuple((float(x), one, "test/top1") for x, one in enumerate(trainings))
    return Finding(
        name=name,
        statement="One is ahead of another.",
        place="nowhere",
        contradiction="the other ahead",
        control=Claim(
            text="it learns", terms=(Term(weight=1.0, training=trainings[0], measure="test/top1"),)
        ),
        claims=(Claim(text="one is ahead", terms=terms, **bounds),),
        figure=FindingFigure(title="top-1", x="network", lines=(Line(name="all", points=points),)),
    )


def study(
    path: pathlib.Path, *found: Finding, size=SCALE, workdir: pathlib.Path | None = None
) -> findings.FindingsStudy:
    """A study of the records in a folder; cells run there too, or in another `workdir`."""
    records = findings.open_records(path / "records.jsonl")
    return findings.FindingsStudy(size, found, records, workdir or path)


class Runner:
    """Runs no process: results come from a function of the cell."""

    def __init__(self, result) -> None:
        self.result, self.ran = result, []

    def __call__(self, cells, workdir, shares, *, started, ended, watch) -> None:
        for cell in cells:
            started(cell)
            (workdir / cell.directory).mkdir(parents=True, exist_ok=True)
            self.ran.append(cell)
            ended(cell, 2.0, self._answer(cell))

    def _answer(self, cell) -> dict[str, Any]:
        value = self.result(cell)
        if value is None:
            return {"state": "failed", "why": "loss is nan", "machine": MACHINE}
        results = {"top1": value, "test/top1": value + 0.001 * cell.cfg.seed, "test/count": 10}
        return {"state": "done", "results": results, "machine": MACHINE}
