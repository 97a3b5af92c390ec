"""Weights & Biases and MLflow: a run logs there, a resumed one goes on, a missing package is told.

The packages are extras; without them only what needs none of them is tested.
"""

import importlib
import json
import logging
import time
import warnings
from unittest import mock

import pytest

import runs
from vit_jax import config, train_loop
from vit_jax.runtime import logs
from vit_jax.runtime.logs import trackers
from vit_jax.utils.errors import AssumptionWarning


@pytest.mark.parametrize("package", ["wandb", "mlflow"])
def test_a_missing_package_is_one_line_with_its_command(tmp_path, monkeypatch, package):
    absent = ModuleNotFoundError(f"No module named {package!r}", name=package)
    monkeypatch.setattr(importlib, "import_module", mock.Mock(side_effect=absent))
    with pytest.raises(config.ConfigError) as caught:
        logs.Metrics(tmp_path, tensorboard=False, loggers=(config.Logger(name=package),))
    said = f"logging.loggers={package}: is not installed; pip install 'vit_jax[{package}]'"
    assert str(caught.value) == said
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def train(workdir, logger, steps=2):
    cfg = runs.configure(
        train={"duration": f"{steps} steps"},
        schedule={"warmup": 0},
        evaluation={"every": None},
        checkpoint={"every": 1},
        logging={"every": 1, "tensorboard": False, "loggers": (logger,)},
    )
    return train_loop.train(cfg, workdir)


def stop_and_resume(workdir, logger, monkeypatch):
    with runs.stopping_at(monkeypatch, 2), pytest.raises(Exception, match="saved at step 2"):
        train(workdir, logger, steps=4)
    train(workdir, logger, steps=4)
    return runs.trace(workdir, "train/loss")


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
@pytest.mark.filterwarnings("ignore")  # of the package and those it needs
def test_mlflow_has_the_metrics_and_a_resumed_run_goes_on(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    losses = stop_and_resume(
        tmp_path / "run", {"name": "mlflow", "experiment": "mine"}, monkeypatch
    )
    client = mlflow.MlflowClient((tmp_path / "run" / "mlruns").as_uri())
    (found,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "run"
    assert found.data.params["model.width"] == "16"
    history = client.get_metric_history(found.info.run_id, "train/loss")
    assert {metric.step: metric.value for metric in history} == losses


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
@pytest.mark.filterwarnings("ignore")
def test_a_server_that_is_lost_ends_no_run(tmp_path, caplog, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    logger = trackers.MLflow(tmp_path)

    def lost(*_, **__):
        raise mlflow.exceptions.MlflowException("connection refused")

    monkeypatch.setattr(logger._client, "log_batch", lost)
    with caplog.at_level(logging.WARNING):
        for step in range(3):
            logger.write(step, {"train/loss": 1.0})
    logger.close()
    (said,) = (record.message for record in caplog.records if "mlflow" in record.message)
    assert said.endswith("cannot write; metrics.jsonl has all: connection refused")


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
@pytest.mark.filterwarnings("ignore")
def test_wandb_offline_keeps_the_run_and_a_resumed_one_has_its_id(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    stop_and_resume(tmp_path / "run", {"name": "wandb", "project": "mine"}, monkeypatch)
    name = json.loads((tmp_path / "run" / "tracking.json").read_text())["wandb"]
    kept = list((tmp_path / "run" / "wandb").glob(f"offline-run-*-{name}/run-{name}.wandb"))
    assert len(kept) == 2  # one for each process of the run; `wandb sync` joins them by the id
    assert all(b"train/loss" in file.read_bytes() for file in kept)


class Service:
    """Stands in for a package: notes every call, and gives back what has the same attributes."""

    def __init__(self, calls, name=""):
        self._calls, self._name = calls, name

    def __getattr__(self, name):
        return Service(self._calls, f"{self._name}.{name}".strip("."))

    def __call__(self, *args, **more):
        self._calls.append((self._name, args, more))
        return self


@pytest.fixture
def calls(monkeypatch):
    noted = []
    monkeypatch.setattr(trackers, "_installed", lambda package: Service(noted))
    return noted


def test_an_id_is_made_once(tmp_path):
    made = iter("ab")
    assert trackers._run_id(tmp_path, "wandb", lambda: next(made)) == "a"
    assert trackers._run_id(tmp_path, "mlflow", lambda: next(made)) == "b"
    assert trackers._run_id(tmp_path, "wandb", lambda: 1 / 0) == "a"
    assert json.loads((tmp_path / "tracking.json").read_text()) == {"wandb": "a", "mlflow": "b"}


def test_wandb_is_quiet_and_waits_for_its_uploads(tmp_path, calls):
    logger = trackers.WandB(tmp_path, project="mine")
    (settings,) = (more for name, _, more in calls if name == "Settings")
    assert settings == {"silent": True, "console": "off"}
    (given,) = (more for name, _, more in calls if name == "init")
    assert (given["project"], given["resume"], given["dir"]) == ("mine", "allow", str(tmp_path))
    # A resumed run repeats steps, so a step is no number of a log call.
    (axis,) = ((args, more) for name, args, more in calls if name.endswith("define_metric"))
    assert axis == (("*",), {"step_metric": "step"})
    logger.write(7, {"train/loss": 0.5})
    assert calls[-1][1] == ({"step": 7, "train/loss": 0.5},)
    logger.close()
    assert calls[-1][0].endswith("finish")


@pytest.mark.parametrize(
    ("given", "variable", "used"),
    [("http://a", "http://b", "http://a"), (None, "http://b", "http://b"), (None, None, "mlruns")],
)
def test_mlflow_has_every_option_a_hundred_at_a_time(
    given, variable, used, tmp_path, monkeypatch, calls
):
    if variable:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", variable)
    else:
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name in trackers.MLFLOW:
        monkeypatch.setenv(name, "1")
    options = {f"option{number}": number for number in range(205)}
    (tmp_path / "config.json").write_text(json.dumps(options))
    monkeypatch.setattr(trackers, "_run_id", lambda directory, name, make: make() and "id")
    logger = trackers.MLflow(tmp_path, uri=given)
    (client,) = (more for name, _, more in calls if name == "MlflowClient")
    assert client == {"tracking_uri": (tmp_path / used).as_uri() if used == "mlruns" else used}
    batches = [more["params"] for name, _, more in calls if name.endswith("log_batch")]
    assert [len(batch) for batch in batches] == [100, 100, 5]
    params = [args for name, args, _ in calls if name.endswith("Param")]
    assert params == [(key, str(value)) for key, value in options.items()]
    assert logger._id == "id"  # of the run that was made
    logger.write(7, {"train/loss": 0.5})
    (name, (key, value, now, step), _), (_, run, _) = calls[-2:]
    assert (name, key, value, step) == ("entities.Metric", "train/loss", 0.5, 7)
    assert (abs(now / 1000 - time.time()) < 60, run) == (True, ("id",))  # milliseconds


def test_tensorboard_is_a_logger_of_its_name_and_makes_no_folder_before_it_writes(tmp_path, caplog):
    metrics = logs.Metrics(tmp_path, tensorboard=True)
    ((_, board),) = metrics._others
    assert type(board) is logs.TensorBoard
    logs.TensorBoard(tmp_path).close()  # of a run that ends before it writes
    assert not (tmp_path / "tensorboard").exists()
    metrics.write(1, {"train/loss": 0.5, "train/grad_norm": float("nan")})
    metrics.close()
    assert not caplog.messages
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))
    metrics = logs.Metrics(tmp_path, tensorboard=False)
    assert metrics._others == []
    metrics.close()


@pytest.mark.parametrize("handlers", [[], [logging.NullHandler()]])
def test_a_command_that_logs_nothing_else_shows_assumptions(handlers, monkeypatch):
    shown, said = [], []
    monkeypatch.setattr(logs.log, "handlers", handlers)
    monkeypatch.setattr(logs.log, "info", lambda text, *values: said.append(text % values))
    monkeypatch.setattr(logs, "setup", lambda: shown.append(1))
    with logs.assumptions_logged():
        # What jax says of a full disk, where nothing can be cached, is no line of a command.
        warnings.warn("Error writing persistent compilation cache entry: full", stacklevel=1)
        warnings.warn(AssumptionWarning("a.npz", ["pooling=token", "mean=0.5"]), stacklevel=1)
    assert said == ["a.npz: pooling=token", "a.npz: mean=0.5"]
    assert len(shown) == (not handlers)
