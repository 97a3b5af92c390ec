"""VTAB-1k end to end: tasks trained and evaluated from records in the real TFDS format.

The splits are the real ones, `train[:800]+train[63000:63200]` and so on, except that nothing
follows what they need; network and images are tiny.
"""

import json
import math
import shutil

import pytest
from array_record.python import array_record_data_source, array_record_module

import tfds_fakes
from vit_jax import cli
from vit_jax.data import example_lists, sources
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


@pytest.mark.slow
def test_a_task_end_to_end(tmp_path, capsys):
    metrics = check("clevr-count", tmp_path / "tfds", tmp_path)
    capsys.readouterr()
    assert cli.main(["evaluate", f"--checkpoint={tmp_path}/run", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)  # from the checkpoint, the same
    for key in ("top1", "top5", "count"):
        assert results[f"validation/{key}"] == metrics[f"validation/{key}"]


@pytest.mark.long(turns=10)
@pytest.mark.parametrize("name", VTAB)
def test_all_19_end_to_end(name, tmp_path):
    check(name, tmp_path / "tfds", tmp_path)
    # Half a gigabyte of records together is too much to keep.
    shutil.rmtree(tmp_path / "tfds")


def reverse(folder, split):
    """Turns the records of a split around: the dataset as it might be on another machine."""
    (shard,) = folder.glob(f"*-{split}.array_record-*")
    source = array_record_data_source.ArrayRecordDataSource(str(shard))
    records = source.__getitems__(range(len(source)))
    other = shard.with_name("reversed")
    writer = array_record_module.ArrayRecordWriter(str(other), "group_size:1")
    for record in reversed(records):
        writer.write(record)
    writer.close()
    other.replace(shard)


@pytest.mark.slow
def test_a_list_keeps_the_same_1000_images(tmp_path):
    name, task = "dtd", TASKS["vtab/dtd"]
    builder = tfds_fakes.prepare(
        tmp_path, task.dataset.tfds, {"train": 850, "validation": 210, "test": 8}, distinct=True
    )
    before = sources.open_task(task, task.whole, str(tmp_path))
    images = [before[index] for index in range(1000)]
    file = example_lists.list_path(tmp_path, task.name)
    example_lists.write_list(
        before, file, task=task.name, dataset=before.dataset, version=before.version,
        split=task.whole,
    )  # fmt: skip
    data = {"data.examples": str(file)}
    first = train(name, tmp_path, tmp_path / "first", **data)
    reverse(builder.data_path, "train")
    reverse(builder.data_path, "validation")
    after = sources.open_task(task, task.whole, str(tmp_path))
    assert [after[index] for index in range(1000)] != images
    # Found by hash, the same run to the last digit of the loss.
    second = train(name, tmp_path, tmp_path / "second", **data)
    for key in ("train/loss", "test/loss", "data/batch_crc"):
        assert second[key] == first[key]
    # A version that lacks an image says so, before anything is trained.
    shutil.rmtree(builder.data_path)
    tfds_fakes.prepare(tmp_path, task.dataset.tfds, {"train": 850, "validation": 210, "test": 8})
    flags = [f"--config.{k}={v}" for k, v in (TINY | data | {"data.root": tmp_path}).items()]
    arguments = ["train", f"vtab/ViT-L_16-i21k-{name}", f"--workdir={tmp_path}/third", *flags]
    assert cli.main(arguments) == 2
    assert not (tmp_path / "third").exists()
