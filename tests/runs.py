"""Small runs for tests: one config, run here or in a process of its own, and what it left."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys

from vit_jax import config, logs, opening
from vit_jax.training import loop

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Everything random is on: augmentation, dropout, and an average besides.
TINY = {
    "model": {
        "patch_size": 4, "width": 16, "depth": 2, "mlp_dim": 32, "heads": 2, "dropout": 0.1,
    },
    "data": {
        "source": "digits", "image_size": 8, "channels": 1, "train_crop": "resize",
        "train_split": "train[:200]", "eval_split": "test[:100]", "flip": False, "rotation": 10.0,
    },
    "train": {"batch_size": 32, "duration": "4 epochs", "clip_norm": 1.0, "ema": 0.9},
    "schedule": {"warmup": 3},
    "checkpoint": {"every": 5, "keep": 2},
    "evaluation": {"every": 10},
    "logging": {"every": 1, "tensorboard": False},
}  # fmt: skip
STEPS = 25


def configure(**sections):
    """Returns TINY with some knobs changed, checked as the command line would."""
    values = {name: dict(knobs) for name, knobs in TINY.items()}
    for section, knobs in sections.items():
        values[section] = values.get(section, {}) | knobs if isinstance(knobs, dict) else knobs
    return opening.complete(config.build(values))


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
        patch.setattr(loop.Stop, "__call__", stop)
        yield left


def trace(workdir, key="train/loss"):
    """Returns {step: value} of one metric, and checks that repeated steps repeated it exactly."""
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
    """Returns the digest of every array of the newest checkpoint: equal means bit for bit."""
    newest = max(p for p in (workdir / "checkpoints").iterdir() if p.name.isdigit())
    return json.loads((newest / "commit.json").read_text())["commit"]["leaves"]


def assert_equal_runs(workdir, oracle):
    """Asserts the same losses, images and final state, to the bit."""
    for key in ("train/loss", "train/grad_norm", "data/batch_crc"):
        assert trace(workdir, key) == trace(oracle, key)
    for key in ("test/top1", "test/loss"):
        ours, theirs = trace(workdir, key), trace(oracle, key)
        assert ours.items() <= theirs.items()
        assert max(ours) == max(theirs)
    assert digests(workdir) == digests(oracle)


def command(workdir, *arguments, cfg=None):
    """Returns the command line that trains `cfg` (default TINY), or resumes, in `workdir`."""
    if not workdir.exists():
        workdir.mkdir(parents=True)
        text = json.dumps(config.to_dict(cfg or configure()))
        logs.write_atomically(workdir / "config.json", text)
    return [sys.executable, "-m", "vit_jax", "train", f"--workdir={workdir}", *arguments]


def environment(devices=1, **variables):
    """Returns the environment of a training process with so many simulated devices."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    return os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)} | variables


def start(arguments, **keywords):
    """Starts a process whose output can be read as text."""
    return subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **keywords
    )
