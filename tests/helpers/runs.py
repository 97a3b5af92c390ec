"""Small runs for tests: one config, run here or in a process of its own, and what it left."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time
from unittest import mock

import jax
import pytest

from vit_jax import config, train_loop
from vit_jax.pages import curves
from vit_jax.runs import evaluating
from vit_jax.runs import session as sessions
from vit_jax.runtime import preemption, watchdog
from vit_jax.runtime import progress as progress_display
from vit_jax.training import run_config, sharding
from vit_jax.training.build import Trainer
from vit_jax.utils import storage

ROOT = pathlib.Path(__file__).resolve().parents[2]

# What else was importable here stays so, such as gcsfs.
PATHS = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])

# Everything random is on: augmentation, dropout, and an average besides.
TINY = {
    "model": {
        "patch_size": 4, "width": 16, "depth": 2, "mlp_dim": 32, "heads": 2, "dropout": 0.1,
        "unroll": 1,
    },
    "data": {
        "source": "digits", "image_size": 8, "channels": 1, "train_crop": "resize",
        "train_split": "train[:200]", "eval_split": "test[:100]", "flip": False, "rotation": 10.0,
    },
    "train": {"batch_size": 32, "duration": "4 epochs", "clip_norm": 1.0, "ema": 0.9},
    "schedule": {"warmup": 3},
    "checkpoint": {"every": 5, "keep": 2, "best": "top1"},
    "evaluation": {"every": 10},
    "logging": {"every": 1, "tensorboard": False},
}  # fmt: skip
STEPS = 25


def merged(values, sections):
    """Sections of a config with some options changed, or whole values."""
    return values | {
        name: values.get(name, {}) | given if isinstance(given, dict) else given
        for name, given in sections.items()
    }


def configure(**sections):
    """TINY with some options changed, checked as the command line would."""
    return run_config.complete(config.build(merged(TINY, sections)))


def session(workdir, *, stop=None, phases=None, progress=None):
    """A session of this process alone, which shows nothing."""
    return sessions.Session(
        workdir=workdir,
        stop=stop or preemption.Stop(),
        phases=phases or watchdog.PhaseTimer("start", lambda: time.monotonic()),
        progress=progress or progress_display.Progress(active=False),
    )


@contextlib.contextmanager
def on_one_device():
    """Trains on the first device alone: programs for eight take twice as long to compile."""
    create = sharding.create_mesh
    first = lambda fsdp, devices=None: create(fsdp, jax.devices()[:1])  # noqa: E731
    with mock.patch.object(sharding, "create_mesh", first):
        yield


@contextlib.contextmanager
def untrained():
    """Runs inside leave a directory of their first parameters and draw no picture.

    They compile neither step nor evaluation: for tests of what reads such a directory.
    """

    def compile_step(self):
        metrics = {"loss": 1.0, "grad_norm": 1.0, "lr": 0.0, "finite": True, "bad_steps": 0}
        metrics |= dict.fromkeys(self.objective.measures, 0.0)
        return lambda state, *_: (state | {"step": state["step"] + 1}, metrics)

    with (
        mock.patch.object(Trainer, "compile_step", compile_step),
        mock.patch.object(evaluating.RunEvaluation, "__call__", return_value=None),
        mock.patch.object(curves, "draw_curves"),
    ):
        yield


@contextlib.contextmanager
def stopping_at(monkeypatch, *steps):
    """Makes the runs inside stop as if by a signal, the first at the first of `steps`, ..."""
    left = list(steps)

    def stop(self, step=None):
        if left and step == left[0]:
            left.pop(0)
            self.signal = 15
        return self.signal is not None

    with monkeypatch.context() as patch:
        patch.setattr(preemption.Stop, "__call__", stop)
        yield


def trace(workdir, key="train/loss"):
    """{step: value} of one metric, and checks that repeated steps repeated it exactly."""
    values = {}
    for text in (workdir / "metrics.jsonl").read_text().splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue  # cut short by a kill
        if key in line:
            before = values.setdefault(line["step"], line[key])
            assert before == line[key], f"step {line['step']}: {key} {before} became {line[key]}"
    return values


def digests(workdir):
    """The digest of every array of the newest checkpoint: equal means bit for bit."""
    newest = max((workdir / "checkpoints").glob(f"{8 * '[0-9]'}/commit.json"))
    return json.loads(newest.read_text())["commit"]["leaves"]


def assert_equal_runs(workdir, oracle):
    """Asserts the same losses, images and final state, to the bit."""
    for key in ("train/loss", "train/grad_norm", "data/batch_crc", "test/top1", "test/loss"):
        assert trace(workdir, key) == trace(oracle, key)
    assert digests(workdir) == digests(oracle)


def train_in_parts(monkeypatch, cfg, workdir, *stops):
    """Trains with a stop at each of these steps, where the state is saved; the last outcome."""
    with stopping_at(monkeypatch, *stops):
        for step in stops:
            with pytest.raises(preemption.Preempted, match=f"saved at step {step};"):
                train_loop.train(cfg, workdir)
        return train_loop.train(cfg, workdir)


def assert_resumes(monkeypatch, cfg, folder, *stops):
    """Asserts that a run in parts is that without a stop, to the bit; the directory of that."""
    train_loop.train(cfg, folder / "whole")
    train_in_parts(monkeypatch, cfg, folder / "parts", *stops)
    assert_equal_runs(folder / "parts", folder / "whole")
    return folder / "whole"


def command(workdir, *arguments, cfg=None):
    """The command line that trains `cfg` (default TINY), or resumes, in `workdir`."""
    if not workdir.exists():
        workdir.mkdir(parents=True)
        text = json.dumps(config.to_dict(cfg or configure()))
        storage.write_atomically(workdir / "config.json", text)
    return [sys.executable, "-m", "vit_jax", "train", f"--workdir={workdir}", *arguments]


def environment(devices=1, **variables):
    """The environment of a training process with so many simulated devices."""
    # Compiles in half the time, as in the process of the tests: see conftest.py.
    flags = (
        f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0 "
        "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters"
    )
    return os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": PATHS} | variables


def environments(count, devices=1):
    """The environment of each process of a run with several."""
    if count == 1:
        return [environment(devices)]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    return [
        environment(
            devices,
            JAX_COORDINATOR_ADDRESS=address,
            JAX_NUM_PROCESSES=str(count),
            JAX_PROCESS_ID=str(number),
        )
        for number in range(count)
    ]


@contextlib.contextmanager
def killed_after(seconds, process):
    """Ends a process that takes longer."""
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def start(arguments, **keywords):
    """Starts a process whose output can be read as text."""
    return subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **keywords
    )
