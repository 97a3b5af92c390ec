"""Loggers of tracking services: Weights & Biases, and MLflow.

Both are optional packages, imported once a run names them. The run directory keeps the id of the
run there, so that a resumed run continues it.
"""

import importlib
import json
import logging
import os
import pathlib
import secrets
import time
import types
from collections.abc import Callable, Mapping

from vit_jax import config
from vit_jax.config import components
from vit_jax.utils import limits, storage

log = logging.getLogger("vit_jax")

LOGGERS = "logging.loggers"  # the option that names them
PAUSE = 60.0  # seconds without a request after one that failed: each may wait for a time-out
# MLflow asks for the first before it writes files; by default it retries for minutes.
MLFLOW = {
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


@components.register("logger", "wandb")
class WandB:
    """Logs to Weights & Biases; `WANDB_MODE=offline` keeps everything in `wandb/` of the run."""

    def __init__(
        self,
        directory: pathlib.Path,
        project: str = "vit_jax",
        entity: str | None = None,
        mode: str | None = None,
    ) -> None:
        """Starts a W&B run, or continues the one that this run directory began.

        Args:
          directory: the run directory.
          project: project of W&B.
          entity: user or team; None: the default of the account.
          mode: `online`, `offline` or `disabled`; None: as `WANDB_MODE` says.
        """
        wandb = _installed("wandb")
        # Eight characters, as W&B's own.
        run = _run_id(directory, "wandb", lambda: secrets.token_hex(4))
        self._run = wandb.init(
            project=project,
            entity=entity,
            mode=mode,
            id=run,
            resume="allow",
            dir=str(directory),
            config=_config_of(directory),
            # By default W&B takes over standard error, where the live line is.
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric("*", step_metric="step")  # a resumed run repeats steps

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Hands the numbers of a step to the process that uploads them."""
        self._run.log({"step": step, **values})

    def close(self) -> None:
        """Waits until everything is uploaded, or on the disk."""
        self._run.finish()


@components.register("logger", "mlflow")
class MLflow:
    """Logs to an MLflow server, or to `mlruns/` of the run directory."""

    def __init__(
        self, directory: pathlib.Path, experiment: str = "vit_jax", uri: str | None = None
    ) -> None:
        """Starts an MLflow run, or continues the one that this run directory began.

        Args:
          directory: the run directory.
          experiment: name of the experiment; made if it does not exist.
          uri: address of the server; None: as `MLFLOW_TRACKING_URI` says, else a file store.
        """
        for name, value in MLFLOW.items():
            os.environ.setdefault(name, value)
        self._mlflow = _installed("mlflow")
        uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or (directory / "mlruns").as_uri()
        self._client = self._mlflow.MlflowClient(tracking_uri=uri)
        self._id = _run_id(directory, "mlflow", lambda: self._create(directory, experiment))
        # The previous process marked it as finished.
        self._client.update_run(self._id, status="RUNNING")
        self._again = 0.0  # when to try again after a failure

    def _create(self, directory: pathlib.Path, experiment: str) -> str:
        found = self._client.get_experiment_by_name(experiment)
        number = found.experiment_id if found else self._client.create_experiment(experiment)
        run = self._client.create_run(number, run_name=directory.name).info.run_id
        options = _config_of(directory)
        names = list(options)
        for first in range(0, len(names), 100):  # the most that a server takes
            part = names[first : first + 100]
            params = [self._mlflow.entities.Param(key, str(options[key])) for key in part]
            self._client.log_batch(run, params=params)
        return run

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the numbers of a step; warns where the server cannot be reached."""
        now = round(time.time() * 1000)
        metrics = [self._mlflow.entities.Metric(k, v, now, step) for k, v in values.items()]
        self._attempt(lambda: self._client.log_batch(self._id, metrics=metrics))

    def close(self) -> None:
        """Marks the run as finished."""
        self._attempt(lambda: self._client.set_terminated(self._id))

    def _attempt(self, call: Callable[[], object]) -> None:
        if time.monotonic() < self._again:
            return
        try:
            call()
        except self._mlflow.exceptions.MlflowException as error:
            log.warning("%s=mlflow: cannot write; metrics.jsonl has all: %s", LOGGERS, error)
            self._again = time.monotonic() + PAUSE


def _installed(package: str) -> types.ModuleType:
    """A package that the extra of its name installs; raises ConfigError without it."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        # The package is there and lacks one of its own: pip would not help with the line below.
        if error.name != package:
            raise
        raise config.ConfigError(
            f"{LOGGERS}={package}: is not installed; pip install 'vit_jax[{package}]'"
        ) from None


def _run_id(directory: pathlib.Path, name: str, make: Callable[[], str]) -> str:
    file = directory / storage.TRACKING
    try:
        known = limits.read_json(file, limits.CONFIG)
    except (OSError, ValueError):
        known = {}
    if isinstance(known, dict) and isinstance(known.get(name), str):
        return known[name]
    made = make()
    # The file holds one id per service.
    known = known if isinstance(known, dict) else {}
    storage.write_atomically(file, json.dumps({**known, name: made}) + "\n")
    return made


def _config_of(directory: pathlib.Path) -> dict[str, object]:
    try:
        values = limits.read_json(directory / "config.json", limits.CONFIG)
    except (OSError, ValueError):
        return {}
    return {
        f"{section}.{key}" if key else section: value
        for section, content in values.items()
        for key, value in (content if isinstance(content, dict) else {"": content}).items()
    }
