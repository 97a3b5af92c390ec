"""Run and transfer directories, read without jax; missing or damaged files become notes."""

import contextlib
import dataclasses
import datetime
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vit_jax import config
from vit_jax.checkpoints import record as records
from vit_jax.data import split_roles
from vit_jax.data.split_roles import Role
from vit_jax.runtime import logs
from vit_jax.studies.records import unsealed
from vit_jax.utils import errors, limits, storage

TRANSFER = "transfer.json"
NEEDED = {"stage", "lr", "directory"}  # of its cells
BESIDE = ("params/objective/", "params/lora/")  # beside the model's own, in a checkpoint
WHILE_TRAINING = ("train/", "data/", "speed/")  # all other numbers are results


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A run directory.

    Attributes:
      cfg: the config; None if it cannot be read.
      lines: the metrics, a mapping for each logged line.
      record: the commit record of the newest checkpoint; empty without one.
      saved: the step of the best checkpoint; None without one.
      parameters: number of parameters; None without a checkpoint.
      date: of the newest checkpoint, as YYYY-MM-DD; empty without one.
      problems: missing and damaged files, a line each.
    """

    directory: pathlib.Path
    cfg: config.Config | None
    lines: Sequence[Mapping[str, Any]]
    record: Mapping[str, Any]
    saved: int | None
    parameters: int | None
    date: str
    problems: Sequence[str]

    @property
    def name(self) -> str:
        """The name of its config, else of its folder."""
        return self.directory.name if self.cfg is None else self.cfg.name

    @property
    def origin(self) -> str | None:
        """Where weights come from that `convert` or `average` has written; None for a run."""
        return self.record.get("origin")

    @property
    def step(self) -> int:
        """The last logged step."""
        return max((line["step"] for line in self.lines), default=0)

    @property
    def steps(self) -> int | None:
        """The length of the whole run; None where it depends on data that no checkpoint names."""
        if self.cfg is None:
            return None
        if self.stopped_early:
            return self.record["step"]
        duration, examples = self.cfg.train.duration, self.record.get("examples")
        if duration.unit == "epochs" and examples is None:
            return None
        # Only lengths in epochs depend on the number of examples.
        return duration.steps(self.cfg.train.batch_size, examples or 1)

    @property
    def stopped_early(self) -> bool:
        """Whether `checkpoint.patience` ended the run."""
        allowed = self.cfg and self.cfg.checkpoint.patience
        waited = (self.record.get("patience") or {}).get("waited", 0)
        return allowed is not None and waited >= allowed

    @property
    def finished(self) -> bool:
        """Whether the last step was reached and measured."""
        return bool(self.results) and self.step == self.steps == self.results_at

    @property
    def results_at(self) -> int | None:
        """The step of the last evaluation."""
        found = [line["step"] for line in self.lines if _results(line)]
        return found[-1] if found else None

    @property
    def evaluated(self) -> Role:
        """The split that is measured while training."""
        if self.cfg is not None:
            return split_roles.evaluation(self.cfg.data)
        named = (key.partition("/") for line in self.lines for key in line)
        # Each evaluation logs the expression of its split as NAME/split.
        name = next((name for name, _, what in named if what == "split"), split_roles.TEST)
        return Role(name, name, name)

    @property
    def tested(self) -> Role | None:
        """The split that was measured once, at the end; None before that, or without one."""
        test = None if self.cfg is None else split_roles.final(self.cfg.data)
        return test if test is not None and self.points(f"{test.name}/step") else None

    @property
    def reported(self) -> Role:
        """The split to report: the test split once it is measured."""
        return self.tested or self.evaluated

    @property
    def metric(self) -> str | None:
        """The metric that selects the best checkpoint."""
        return None if self.cfg is None else split_roles.best_metric(self.cfg)

    @property
    def reported_at(self) -> int | None:
        """The step to report: the best by the metric that selects checkpoints, else the last."""
        if self.tested is not None:
            return round(self.points(f"{self.tested.name}/step")[-1][1])
        if self.metric is None:
            return self.results_at
        if self.saved is not None and self.results_of(self.saved):
            return self.saved
        best = self._best_at(self.metric)
        return self.results_at if best is None else best

    @property
    def results(self) -> dict[str, float]:
        """The results to report, all of one checkpoint: `top1` and so on of the reported split.

        Results of other splits and tasks are prefixed with their name: `validation/top1`.
        """
        found = self._merged(self.reported_at)
        if self.tested is not None:  # whose numbers were written after the last step
            prefix, last = f"{self.tested.name}/", self._merged(self.results_at)
            found |= {key: value for key, value in last.items() if key.startswith(prefix)}
        return _without(self.reported, found)

    @property
    def undefined(self) -> tuple[str, ...]:
        """Names of what was measured beside `results` and is no finite number."""
        steps = (self.reported_at, self.results_at)
        lines = [line for line in self.lines if line["step"] in steps and _results(line)]
        # Logs have null for what is not finite.
        keys = {key: 0.0 for line in lines for key, value in line.items() if value is None}
        return tuple(key for key in _without(self.reported, keys) if key not in self.results)

    @property
    def last(self) -> dict[str, float]:
        """The results of the last evaluation, named as in `results`."""
        return self.results_of(self.results_at, self.reported)

    @property
    def best(self) -> dict[str, float]:
        """The results of the evaluation with the best top-1, whatever selects checkpoints."""
        best = self._best_at(f"{self.evaluated.name}/top1")
        return {} if best is None else self.results_of(best)

    def _best_at(self, metric: str) -> int | None:
        evaluated = {line["step"] for line in self.lines if metric in line}
        # In the form of commit records, so that ties are broken as for checkpoints.
        commits = {step: {"metrics": self._merged(step)} for step in evaluated}
        return records.best(commits, metric)

    def results_of(self, step: float | None, split: Role | None = None) -> dict[str, float]:
        """Results of the evaluation at a step; empty without one.

        Results of `split`, by default the one measured while training, have no prefix.
        """
        return _without(split or self.evaluated, self._merged(step))

    def _merged(self, step: float | None) -> dict[str, float]:
        merged: dict[str, float] = {}
        for line in self.lines:
            if line["step"] == step:
                merged |= _results(line)
        return merged

    def points(self, key: str) -> list[tuple[float, float]]:
        """(step, value) pairs of a metric, without non-finite values."""
        return [(line["step"], line[key]) for line in self.lines if _finite(line.get(key))]

    @property
    def seconds(self) -> float | None:
        """Seconds of training by the logged speed, without evaluation and saving, or None."""
        # The log has images per second; after a change, not how many each step took.
        changed = any("train.batch_size: " in change for change in self.record.get("changes", ()))
        if self.cfg is None or changed:
            return None
        speeds, total, before = self.points("speed/images_per_second"), 0.0, 0.0
        for step, speed in speeds:
            if speed > 0:
                # A line has the mean speed since the line before.
                total += (step - before) * self.cfg.train.batch_size / speed
            before = step
        return total or None


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredTransfer:
    """A transfer directory: the contents of its transfer.json, and the runs of its cells."""

    directory: pathlib.Path
    values: Mapping[str, Any]
    runs: Mapping[str, StoredRun]  # by the directory of the cell
    problems: Sequence[str]

    @property
    def name(self) -> str:
        """The name of the row that was transferred."""
        return str(self.values.get("name") or self.directory.name)

    def cells(self, stage: str) -> list[Mapping[str, Any]]:
        """The cells of a stage, `choose` or `final`, in order."""
        return [cell for cell in self.values.get("cells", ()) if cell.get("stage") == stage]

    @property
    def measure(self) -> str:
        """The result that selects the learning rate."""
        return str(self.values.get("measure", "top1"))

    def is_chosen(self, cell: Mapping[str, Any]) -> bool:
        """Whether a cell has the selected setup and learning rate."""
        return {"setup": cell.get("setup"), "lr": cell["lr"]} == self.values.get("selected")

    @property
    def results(self) -> Mapping[str, Any]:
        """Mean, standard deviation and values of each measure; empty until all is done."""
        return self.values.get("results") or {}


def read_directory(directory: pathlib.Path) -> StoredRun | StoredTransfer:
    """The run or transfer in a directory; raises ConfigError if it holds neither."""
    with storage.readable_errors(str(directory)):
        exists = directory.is_dir()
    if not exists:
        raise config.ConfigError(f"{directory}: no such directory")
    if (directory / TRANSFER).exists():
        return read_transfer(directory)
    known = ("config.json", "metrics.jsonl", "checkpoints")
    if not any((directory / name).exists() for name in known):
        raise config.ConfigError(
            f"{directory}: holds no run (config.json, metrics.jsonl, checkpoints) and no transfer "
            f"({TRANSFER})"
        )
    run = read_run(directory)
    if run.cfg is None and not any((directory / name).exists() for name in known[1:]):
        problem = next(line for line in run.problems if line.startswith("config.json"))
        raise config.ConfigError(f"{directory}: holds no run: {problem}")
    return run


def read_run(directory: pathlib.Path) -> StoredRun:
    """A run directory, or as much of it as can be read."""
    problems: list[str] = []
    found = _checkpoints(directory / "checkpoints", problems)
    cfg, lines = None, []
    # Converted weights have no config.json and no metrics, but the record of a checkpoint.
    if "origin" not in found["record"]:
        cfg = _config(directory / "config.json", problems)
        lines = _lines(directory / "metrics.jsonl", problems)
    # Before config.json, as when it resumes: its digest shows that nobody has edited it.
    if "config" in found["record"] or (cfg is None and found["record"]):
        with _noted("checkpoints", problems):
            edited, cfg = cfg, config.build(found["record"]["config"])
            if edited is not None and (changed := config.differences(cfg, edited)):
                problems.append(
                    f"config.json: is not that of the newest checkpoint, which is shown "
                    f"({config.listed(changed)})"
                )
    return StoredRun(directory=directory, cfg=cfg, lines=lines, problems=problems, **found)


def read_transfer(directory: pathlib.Path) -> StoredTransfer:
    """A transfer directory, or as much of it as can be read."""
    problems: list[str] = []
    values: dict[str, Any] = {}
    with _noted(TRANSFER, problems):
        stored = unsealed(limits.read_json(directory / TRANSFER, limits.TABLE))
        cells = [cell for cell in stored.get("cells", ()) if set(cell) >= NEEDED]
        for cell in cells:
            # A link leads out of the folder as well as .. and /.
            place = (directory / str(cell["directory"])).resolve()
            if directory.resolve() not in place.parents:
                raise ValueError(f"directory {cell['directory']!r} of a cell is outside of it")
        values = stored | {"cells": cells}
    runs = {}
    for cell in values.get("cells", ()):
        place = str(cell["directory"])
        if (directory / place).is_dir():
            runs[place] = read_run(directory / place)
            problems += [f"{place}: {problem}" for problem in runs[place].problems]
    return StoredTransfer(directory=directory, values=values, runs=runs, problems=problems)


@contextlib.contextmanager
def _noted(name: str, problems: list[str], missing: str = "is missing") -> Iterator[None]:
    """Turns errors of reading a file into a note."""
    try:
        yield
    except FileNotFoundError:
        problems.append(f"{name}: {missing}")
    except (errors.UserError, OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        problems.append(f"{name}: cannot be read ({records.first_line(error)})")


def _config(file: pathlib.Path, problems: list[str]) -> config.Config | None:
    with _noted(file.name, problems):
        return config.build(limits.read_json(file, limits.CONFIG))
    return None


def _lines(file: pathlib.Path, problems: list[str]) -> list[dict[str, Any]]:
    with _noted(file.name, problems, "is missing; nothing has been logged yet"):
        lines = logs.read_metrics(file)
        if not lines:
            problems.append(f"{file.name}: holds no numbers yet")
        return lines
    return []


def _checkpoints(folder: pathlib.Path, problems: list[str]) -> dict[str, Any]:
    committed, sound = [], {}
    with _noted(folder.name, problems):
        committed, sound = records.steps(folder), records.readable(folder)
        if not sound:
            problems.append("checkpoints: none has been saved yet")
    for step in sorted(set(committed) - set(sound)):
        problems.append(f"checkpoints/{step:08d}: its record is damaged")
    if not sound:
        return {"record": {}, "saved": None, "parameters": None, "date": ""}
    newest = max(sound)
    leaves = sound[newest].get("leaves", {}).items()
    # The moments of the optimizer have the same shapes under other names. A decoder, or another
    # part of the objective, and adapters are not of the model.
    shapes = [
        leaf["shape"]
        for name, leaf in leaves
        if name.startswith("params/") and not name.startswith(BESIDE)
    ]
    file = storage.as_path(records.folder(folder, newest)) / records.COMMIT
    date = datetime.datetime.fromtimestamp(storage.modified(file), datetime.UTC)
    return {
        "record": records.public_record(sound[newest]),
        "saved": records.best(sound, sound[newest].get("best")),
        "parameters": sum(map(math.prod, shapes)) or None,
        "date": date.strftime("%Y-%m-%d"),
    }


def _results(line: Mapping[str, Any]) -> dict[str, float]:
    return {
        key: value
        for key, value in line.items()
        if key != "step" and not key.startswith(WHILE_TRAINING) and _finite(value)
    }


def _without(split: Role, numbers: Mapping[str, float]) -> dict[str, float]:
    """Results by name, without the prefix of a split."""
    return {key.removeprefix(f"{split.name}/"): value for key, value in numbers.items()}


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
