"""Runs the cells of findings, one finding after another, and records each."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from research.findings import planning, records
from research.findings.declaration import Training
from research.findings.jobs import Job
from research.findings.planning import Cell, Study
from vit_jax import config
from vit_jax.data import availability
from vit_jax.runtime import goodput, locking, logs
from vit_jax.studies.transfer import subprocesses
from vit_jax.studies.transfer.devices import Environment

SETTLED = (records.DONE, records.FAILED)
# Several processes on one CPU take a core each: threads of one would wait for those of another.
ONE_CORE = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "OMP_NUM_THREADS": "1"}


class Run(Protocol):
    """Runs jobs, as `subprocesses.run` does."""

    def __call__(
        self,
        cells: Sequence[Any],
        workdir: pathlib.Path,
        places: Sequence[Environment],
        *,
        started: Callable[[Any], None],
        ended: Callable[[Any, float, dict[str, Any]], None],
        look: Callable[[dict[str, str]], None],
    ) -> None:
        """Calls `started` and `ended` with each job."""
        ...


def places(shares: Sequence[Environment]) -> list[Environment]:
    """Returns the variables of parallel processes; several on one CPU get a core each."""
    on_cpu = len(shares) > 1 and not any(shares)
    return [{**share, **(ONE_CORE if on_cpu else {})} for share in shares]


def perform(
    study: Study,
    workdir: pathlib.Path,
    places: Sequence[Environment] = ({},),
    *,
    run: Run = subprocesses.run,
) -> None:
    """Runs or resumes every cell without a record.

    Args:
      study: findings at a scale.
      workdir: receives the cells' run directories.
      places: environment variables that assign devices, one mapping per parallel process.
      run: runs jobs.

    Raises Preempted (exit 75), InUse (2) if another process uses `workdir`, or another UserError;
    the same call then resumes.
    """
    study.records.check_writable()
    with locking.exclusive(workdir, "findings.lock"):
        for finding in study.findings:
            logs.log.info("%s: %s", finding.name, finding.statement)
            while jobs := ready(study, finding.trainings, workdir):
                _run(study, jobs, workdir, places, run)


def ready(study: Study, trainings: Sequence[Training], workdir: pathlib.Path) -> list[Cell]:
    """Returns the cells to run next, with origins whose weights are not in `workdir`."""
    found: dict[str, Cell] = {}
    for cell in study.waiting(trainings):
        origin = cell.origin
        if origin is None or _has_weights(workdir / origin.directory):
            found.setdefault(cell.digest, cell)
        elif study.records.of(origin.digest) is not None:
            found.setdefault(origin.digest, origin)  # recorded elsewhere, or removed since
    return list(found.values())


def _has_weights(run: pathlib.Path) -> bool:
    return (run / "finished").is_file()


def _run(
    study: Study,
    cells: Sequence[Cell],
    workdir: pathlib.Path,
    places: Sequence[Environment],
    run: Run,
) -> None:
    left = len(cells)

    def started(job: Job) -> None:
        seconds = logs.duration(study.seconds(job.cell.training))
        logs.log.info("%s: about %s, %d to go", job.directory, seconds, left)

    def ended(job: Job, seconds: float, answer: dict[str, Any]) -> None:
        nonlocal left
        if answer["state"] not in SETTLED:
            return
        left -= 1
        about = planning.as_values(job.cell)
        (workdir / job.directory / "finished").touch()
        seconds += goodput.earlier_seconds(workdir / job.directory)
        record = records.made(about, study.size.name, seconds, answer)
        study.records.add(record)
        shown = ", ".join(f"{key} {value:.4f}" for key, value in record["measures"].items())
        logs.log.info("%s: %s", job.directory, record.get("why") or shown)

    jobs = [Job(cell=cell, cfg=cell.configured(workdir)) for cell in cells]
    run(jobs, workdir, places, started=started, ended=ended, look=lambda news: None)


def check_data(study: Study) -> None:
    """Raises ConfigError if a data set is missing, with the command that provides it."""
    names = {}
    for finding in study.findings:
        for training in finding.trainings:
            options = dict(training.options)
            looked = [dict(look.options).get("data.name") for look in training.looks]
            for name in (options.get("data.name"), *looked):
                if name and options["data.source"] == "tfds":
                    names[name] = None
    root = dict(study.overrides).get("data.root")
    for name in names:
        if availability.known(name) is not None:
            availability.check(name, root)
        elif not availability.splits(name, root):
            raise config.ConfigError(
                f"--copies: {name} is not in {availability.directory(root)}; run `vit_jax prepare "
                f"{name} --from=FOLDER_OR_TAR{f' --data-dir={root}' if root else ''}`"
            )
