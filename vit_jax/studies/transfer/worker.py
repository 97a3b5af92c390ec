"""Runs one cell in its own process: reads the config on standard input, prints JSON.

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
from collections.abc import Callable
from typing import Any

import jax

from vit_jax import __version__, config, experiment, run_config, run_directory
from vit_jax.config import components
from vit_jax.data import split_roles
from vit_jax.runtime import backend, device, logs
from vit_jax.training import hooks


def work(cfg: config.Config, workdir: pathlib.Path, directory: str) -> dict[str, Any]:
    """Trains or resumes a cell until its end and returns its result.

    Args:
      cfg: the run.
      workdir: the directory of the transfer.
      directory: the directory of the cell, below `workdir`.

    A cell with a non-finite loss returns `failed`. Raises UserError, as `experiment.train` does.
    """
    _check(cfg, workdir / directory)
    device.cache_programs()
    machine = {
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "host": platform.node(),
        "versions": {
            "vit_jax": __version__,
            "jax": jax.__version__,
            "python": platform.python_version(),
        },
    }
    failed: dict[str, Any] = {"state": "failed", "machine": machine}
    try:
        outcome = experiment.train(cfg, workdir / directory)
    except hooks.Diverged as error:
        return failed | {"why": str(error)}
    evaluated = split_roles.evaluation(cfg.data)
    prefix = f"{evaluated.name}/"
    results = {key.removeprefix(prefix): value for key, value in outcome.last.items()}
    for key, value in results.items():
        if not math.isfinite(value):
            return failed | {"why": f"{key} is {value} after step {outcome.steps}"}
    return {
        "state": "done",
        "steps": outcome.steps,
        "split": {"name": evaluated.name, "split": evaluated.split},
        "results": results,
        "machine": machine,
    }


def _check(cfg: config.Config, path: pathlib.Path) -> None:
    """Raises ConfigError if a cell's directory contains another run."""
    if not (path / "config.json").exists():
        return
    changed = config.differences(run_directory.reconcile(path, None, {}), run_config.complete(cfg))
    if cfg.model.num_classes is None:  # the data's, which the stored config knows
        changed.pop("model.num_classes", None)
    if changed:
        listed = ", ".join(f"{key}: {a} -> {b}" for key, (a, b) in changed.items())
        raise config.ConfigError(
            f"{path}: holds another run ({listed}); choose another --workdir, or remove it"
        )


def _follow() -> None:
    """Ends this process when its parent ends for any reason."""
    while os.read(0, 1):
        pass
    os._exit(1)


def serve(work: Callable[[config.Config, pathlib.Path, str], dict[str, Any]]) -> None:
    """Runs the cell described on standard input by `work`; ends when that is closed."""
    workdir, directory = sys.argv[1:3]
    backend.choose()
    device.keep_freed_memory()
    values = json.loads(sys.stdin.readline())
    threading.Thread(target=_follow, daemon=True).start()
    logs.setup()
    try:
        # Those of the process that started this one, which its user has named or imported.
        components.load_plugins(values.get(config.PLUGINS, ()))
        with logs.assumptions_logged():
            answer = work(config.build(values), pathlib.Path(workdir), directory)
    except config.UserError as error:
        answer = {"state": "stopped", "why": str(error), "exit_code": error.exit_code}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    serve(work)
