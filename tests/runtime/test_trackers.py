"""Weights & Biases and MLflow: a run logs there, a resumed one goes on, a missing package is told.

The packages are extras; without them only what needs none of them is tested.
"""

import importlib
import json
import logging
from unittest import mock

import pytest

import runs
from vit_jax import config, train_loop
from vit_jax.runtime import logs
from vit_jax.runtime.logs import trackers


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
