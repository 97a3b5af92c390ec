"""VTAB-1k end to end: tasks trained and evaluated from records in the real TFDS format.

The splits are the real ones, `train[:800]+train[63000:63200]` and so on, except that nothing
follows what they need; network and images are tiny.
"""

import json
import math
import shutil

import pytest

import tfds_fakes
from vit_jax import cli
from vit_jax.data.labels import RULES
from vit_jax.data.tasks import TASKS
from vit_jax.runtime import logs

VTAB = [name.removeprefix("vtab/") for name in TASKS if name.startswith("vtab/")]
TINY = {
    "init_from": "none",
    "model.variant": "none",
    "model.patch_size": "8",
    "model.width": "16",
    "model.depth": "1",
    "model.mlp_dim": "16",
    "model.heads": "2",
    "model.unroll": "1",
    "data.image_size": "16",
    "data.resize_to": "18",
    "data.workers": "0",
    "train.batch_size": "16",
    "train.duration": "2 steps",
    "schedule.warmup": "1 steps",
    "logging.every": "1",
    "logging.tensorboard": "false",
}


pytestmark = pytest.mark.usefixtures("one_device")


def train(name, root, workdir, **more):
    """Runs `vit_jax train` on a task in this process, and returns its metrics."""
    options = TINY | {"data.root": str(root)} | more
    if not TASKS[f"vtab/{name}"].cropped:
        del options["data.resize_to"]
    flags = [f"--config.{key}={value}" for key, value in options.items()]
    assert cli.main(["train", f"vtab/ViT-L_16-i21k-{name}", f"--workdir={workdir}", *flags]) == 0
    metrics = {}
    for line in logs.read_metrics(workdir / "metrics.jsonl"):
        metrics |= line
    return metrics


def check(name, root, tmp_path):
    """Trains two steps on the 1,000 images of a task, and looks at what came of it."""
    tfds_fakes.prepare_vtab(root, f"vtab/{name}")
    metrics = train(name, root, tmp_path / "run")
    task = TASKS[f"vtab/{name}"]
    assert metrics["step"] == 2
    split = "validation" if name.startswith("clevr") else "test"  # CLEVR's test has no labels
    assert metrics[f"{split}/split"] == task.test
    assert metrics[f"{split}/count"] == (200 if name.startswith("smallnorb") else 40)
    (file,) = (tmp_path / "run/checkpoints").glob("*2/commit.json")
    facts = json.loads(file.read_text())["commit"]["facts"]
    assert facts["examples"] == 1000
    assert len(facts["classes"]) == task.classes == facts["config"]["model"]["num_classes"]
    if task.labels is not None:
        assert facts["classes"] == list(RULES[task.labels].classes)
    # The head begins as zeros: the loss as that of a guess, wherever it then goes.
    lines = logs.read_metrics(tmp_path / "run/metrics.jsonl")
    assert lines[0]["train/loss"] == pytest.approx(math.log(task.classes), rel=1e-5)
    assert math.isfinite(metrics[f"{split}/loss"])
    return metrics


@pytest.mark.long(turns=10)
@pytest.mark.parametrize("name", VTAB)
def test_all_19_end_to_end(name, tmp_path):
    check(name, tmp_path / "tfds", tmp_path)
    # Half a gigabyte of records together is too much to keep.
    shutil.rmtree(tmp_path / "tfds")
