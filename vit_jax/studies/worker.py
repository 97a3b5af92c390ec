"""Runs one cell in its own process: reads it on standard input, prints its result as JSON.

A process per cell frees all host and device memory when it ends, and allows several cells to run at
a time, each on its own devices. The imports cost some seconds per cell; the cells share a
compilation cache.
"""

import json
import math
import os
import pathlib
import platform
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import jax

from vit_jax import config, train_loop
from vit_jax.checkpoints import record as records
from vit_jax.config import components
from vit_jax.data import sources, split_roles
from vit_jax.runs.directory import reconcile
from vit_jax.runs.run_log import Diverged
from vit_jax.runtime import backend, device, logs, provenance
from vit_jax.studies.records import DONE, FAILED
from vit_jax.training import run_config

# Measures a trained network: (run directory, one of `Cell.measurements`) -> results by name.
Measure = Callable[[pathlib.Path, Mapping[str, Any]], dict[str, float]]


def train_cell(
    cfg: config.Config, workdir: pathlib.Path, directory: str, *, alike: bool = False
) -> dict[str, Any]:
    """Trains or resumes a cell until its end and returns its result.

    The cell lies in `directory`, below the `workdir` of the study.

    A cell with a non-finite loss returns `failed`. Raises UserError, as `train_loop.train` does.
    """
    _check_same_run(cfg, workdir / directory)
    device.cache_programs()
    machine = {
        "devices": jax.device_count(),
        "host": platform.node(),
        **provenance.fields(
            jax.devices()[0].device_kind,
            {"jax": jax.__version__, "python": platform.python_version()},
        ),
    }
    failed: dict[str, Any] = {"state": FAILED, "machine": machine}
    try:
        like = _beside(workdir / directory) if alike else None
        # A run that goes on compares its data with its own checkpoint.
        if alike and not records.steps(workdir / directory / "checkpoints"):
            _check_images_of_other_stages(workdir, workdir / directory)
        outcome = train_loop.train(cfg, workdir / directory, like=like)
    # A result like any other: such a learning rate is too high. Other errors stop the study.
    except Diverged as error:
        return failed | {"why": str(error)}
    prefix = f"{split_roles.evaluation(cfg.data).name}/"
    results = {key.removeprefix(prefix): value for key, value in outcome.last.items()}
    for key, value in results.items():
        # JSON has no NaN, and a mean over seeds with one would be none.
        if not math.isfinite(value):
            return failed | {"why": f"{key} is {value} after step {outcome.steps}"}
    return {"state": DONE, "steps": outcome.steps, "results": results, "machine": machine}


def _beside(path: pathlib.Path) -> pathlib.Path | None:
    """The first run with a checkpoint in the same folder, or None."""
    # Any will do: each was compared with another one when it began.
    others = sorted(other for other in path.parent.iterdir() if other != path)
    return next((other for other in others if records.steps(other / "checkpoints")), None)


def _check_images_of_other_stages(workdir: pathlib.Path, path: pathlib.Path) -> None:
    """Raises ConfigError if a run of another stage would now read other images.

    Stages train on other parts of the images, so the splits of that run are opened again.
    """
    stages = sorted(one for one in workdir.iterdir() if one.is_dir() and one != path.parent)
    other = next(filter(None, (_beside(stage / path.name) for stage in stages)), None)
    if other is None:
        return
    _, record = records.find_step(other / "checkpoints", records.NEWEST)
    cfg = config.build(record["config"])
    evaluated = split_roles.evaluation(cfg.data)
    for split, train, before in (  # `data.examples` lists training images alone
        (cfg.data.train_split, True, record["data"]),
        (evaluated.split, False, record.get("measured", {}).get(evaluated.name)),
    ):
        classes, labels = cfg.model.num_classes, cfg.needs_labels
        now = sources.open_source(cfg.data, split, num_classes=classes, labels=labels, train=train)
        if before not in (None, now.fingerprint()):
            raise config.ConfigError(
                f"cannot be compared with {other}: data.root: the examples of {split} are not "
                "those it read; restore them, or choose another --workdir"
            )


def _check_same_run(cfg: config.Config, path: pathlib.Path) -> None:
    if not (path / "config.json").exists():
        return
    stored = reconcile(path, None, {})
    changed = config.differences(stored, config.as_recorded(run_config.complete(cfg), stored))
    if changed:
        raise config.ConfigError(
            f"{path}: holds another run ({config.listed(changed)}); choose another --workdir, or "
            "remove it"
        )


def _end_with_parent() -> None:
    # The parent writes no more: this returns at the end of the pipe alone.
    while os.read(0, 1):
        pass
    # sys.exit would end this thread alone.
    os._exit(1)


def _take_output() -> TextIO:
    """Standard output for the answer alone; what else is printed there goes to the log."""
    # The pipe is read once the cell has ended: a plug-in that prints much would fill it and wait.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def serve(measure: Measure | None = None) -> None:
    """Runs the cell described on standard input; ends when that is closed."""
    if len(sys.argv) != 3:
        sys.exit(f"{pathlib.Path(sys.argv[0]).name}: runs a cell of a study, which starts it")
    workdir, directory = pathlib.Path(sys.argv[1]), sys.argv[2]
    answers = _take_output()
    backend.choose_platform()
    device.step_by_step()
    # Before the thread starts, which reads standard input too.
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    logs.setup()
    try:
        # The plug-ins of the parent process, which its user has named or imported.
        components.load_plugins(job["config"].get(config.PLUGINS, ()))
        with logs.assumptions_logged():
            answer = train_cell(config.build(job["config"]), workdir, directory, alike=job["alike"])
            if measure is not None and answer["state"] == DONE:
                for one in job["measurements"]:
                    answer["results"] |= measure(workdir / directory, one)
    except config.UserError as error:
        answer = {"state": "stopped", "why": str(error), "exit_code": error.exit_code}
    answers.write(json.dumps(answer) + "\n")
    answers.flush()
    if answer["state"] not in (DONE, FAILED):
        # As commands do: Python's own end would crash beside XLA's threads that still work.
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    serve()
