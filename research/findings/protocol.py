"""Runs the cells of findings, one finding after another."""

import pathlib
from collections.abc import Sequence

from research.findings.planning import FindingsStudy
from vit_jax import config
from vit_jax.data import availability
from vit_jax.runtime import locking, logs
from vit_jax.studies import processes, runner
from vit_jax.studies.cells import Cell
from vit_jax.studies.devices import Environment

# Several processes on one CPU take a core each: threads of one would wait for those of another.
ONE_CORE = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "OMP_NUM_THREADS": "1"}
FINISHED = "finished"  # a file in the run directory of a cell whose final weights are there


def one_core_each(shares: Sequence[Environment]) -> list[Environment]:
    """The variables of parallel processes; several on one CPU get a core each."""
    on_cpu = len(shares) > 1 and not any(shares)
    return [{**share, **(ONE_CORE if on_cpu else {})} for share in shares]


def perform(
    study: FindingsStudy,
    workdir: pathlib.Path,
    shares: Sequence[Environment] = ({},),
    *,
    run: processes.RunCells = processes.run,
) -> None:
    """Runs or resumes every cell without a record.

    Args:
      study: findings at a scale.
      workdir: receives the cells' run directories.
      shares: environment variables that assign devices, one mapping per parallel process.
      run: runs cells.

    Raises Preempted (exit 75), InUse (2) if another process uses `workdir`, or another UserError;
    the same call then resumes.
    """
    study.records.check_writable()
    with locking.exclusive(workdir, "findings.lock"):
        runner.perform(_InWorkdir(study, workdir), workdir, shares, run=run)


class _InWorkdir:
    """Findings whose fine-tunings begin with weights that are in a directory."""

    def __init__(self, study: FindingsStudy, workdir: pathlib.Path) -> None:
        self._study, self._workdir, self.records = study, workdir, study.records

    def ready(self) -> list[Cell]:
        """The cells of the first finding that has some left, origins that are missing first."""
        for finding in self._study.findings:
            found: dict[str, Cell] = {}
            for cell in self._study.waiting(finding.trainings):
                origin = cell.origin
                if origin is None or self._has_weights(origin):
                    found.setdefault(cell.digest, cell)
                elif self.records.find(origin) is not None:
                    found.setdefault(origin.digest, origin)  # recorded elsewhere, or removed since
            if found:
                cells = list(found.values())
                seconds = sum(self._study.seconds_of(cell.facts["flops"]) for cell in cells)
                each = logs.duration(seconds / len(cells))
                logs.log.info("%s: %s", finding.name, finding.statement)
                logs.log.info("%d cells, about %s each", len(cells), each)
                return cells
        return []

    def recorded(self, cell: Cell) -> None:
        """Marks that the weights of a cell are there."""
        (self._workdir / cell.directory / FINISHED).touch()

    def _has_weights(self, cell: Cell) -> bool:
        return (self._workdir / cell.directory / FINISHED).is_file()


def check_data(study: FindingsStudy) -> None:
    """Raises ConfigError if a dataset is missing, with the command that provides it."""
    names = {}
    for finding in study.findings:
        for training in finding.trainings:
            options = dict(training.options)
            measured = [dict(m.options).get("data.name") for m in training.measurements]
            for name in (options.get("data.name"), *measured):
                if name and options["data.source"] == "tfds":
                    names[name] = None
    root = dict(study.overrides).get("data.root")
    for name in names:
        if availability.known_dataset(name) is not None:
            availability.check_prepared(name, root)
        elif not availability.labeled_splits(name, root):
            raise config.ConfigError(
                f"--copies: {name} is not in {availability.directory(root)}; run `vit_jax prepare "
                f"{name} --from=FOLDER_OR_TAR{f' --data-dir={root}' if root else ''}`"
            )
