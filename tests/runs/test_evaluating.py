"""The test split, measured once, at the end; and the best checkpoint, which validation chose."""

import contextlib
import io
import json
import shutil
import types

import cv2
import numpy as np
import pytest

import runs
import vit_jax
from vit_jax import cli
from vit_jax.data import folders
from vit_jax.data.split_roles import Role
from vit_jax.evaluation import evaluators
from vit_jax.runs import evaluating
from vit_jax.runtime import logs, preemption
from vit_jax.training import build

TEST = Role("test", "test[:9]", "test")


def create(evaluator, **changes):
    fields = {
        "role": TEST, "evaluator": evaluator, "metric": "validation/top1",
        "load": lambda step: f"parameters of step {step}",
    }  # fmt: skip
    return evaluating.TestEvaluation(**fields | changes)


def measured(one, tmp_path, best, said):
    """Calls it like a run of 20 steps whose best checkpoint is at step `best`."""
    session = runs.session(tmp_path)
    session.progress.say = said.append
    with session.open_files(runs.configure()) as files:
        files.open(runs.configure())
        saver = types.SimpleNamespace(best_step=lambda: best)
        return one(20, "the last parameters", saver, session, files)


@pytest.mark.parametrize(
    ("metric", "best", "params", "step", "chosen"),
    [
        ("validation/top1", 10, "parameters of step 10", 10, "the best by validation/top1"),
        ("validation/top1", 20, "the last parameters", 20, "the best by validation/top1"),
        ("validation/top1", None, "the last parameters", 20, "the last one"),  # none was finite
        (None, 10, "the last parameters", 20, "the last one"),
    ],
)
def test_which_state_is_measured_and_only_once(tmp_path, metric, best, params, step, chosen):
    seen, said = [], []

    def evaluator(given, *, stop):
        seen.append(given)
        return {"top1": 0.75, "count": 9}

    one = create(evaluator, metric=metric)
    expected = {"test/top1": 0.75, "test/count": 9, "test/step": step}
    assert measured(one, tmp_path, best, said) == expected
    assert seen == [params]
    assert said == [
        f"test split `test` (`test[:9]`), measured once, at step {step}, {chosen}: test/top1 0.7500"
    ]
    (line,) = logs.read_metrics(tmp_path / "metrics.jsonl")
    assert line == {"step": 20, **expected, "test/split": "test[:9]"}
    with runs.session(tmp_path).open_files(runs.configure()) as files:
        assert one.recorded(20, files) == expected  # when resumed after the end


def test_results_are_those_of_the_last_step_and_of_this_split(tmp_path):
    lines = [
        {"step": 10, "test/top1": 0.1, "test/split": "test[:9]"},
        {"step": 20, "test/top1": 0.2, "test/split": "test[:9]", "train/loss": 3.0},
        {"step": 20, "test/top1": 0.3, "test/split": "test[:5]"},
        {"step": 20, "train/loss": 3.0},
        {"step": 30, "test/top1": 0.4, "test/split": "test[:9]"},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    files = types.SimpleNamespace(folder=tmp_path)
    assert create(None).recorded(20, files) == {"test/top1": 0.2}
    assert create(None).recorded(15, files) == {}


def test_a_state_that_was_measured_again_has_no_results_of_the_test_split(tmp_path):
    """As after an accepted change of the images: those of the test split may be others too."""
    lines = [
        {"step": 20, "val/top1": 0.1, "val/split": "val"},
        {"step": 20, "test/top1": 0.2, "test/split": "test[:9]"},
        {"step": 20, "val/top1": 0.3, "val/split": "val"},
    ]
    files = types.SimpleNamespace(folder=tmp_path)
    for count, expected in ((2, {"test/top1": 0.2}), (3, {})):
        text = "".join(json.dumps(one) + "\n" for one in lines[:count])
        (tmp_path / "metrics.jsonl").write_text(text)
        assert create(None).recorded(20, files) == expected


def test_a_stop_meanwhile_leaves_it_to_be_measured(tmp_path):
    answers = [None, {"top1": 0.5}]
    one = create(lambda params, *, stop: answers.pop(0), metric=None)
    with pytest.raises(preemption.Preempted, match="before the test split was measured, all saved"):
        measured(one, tmp_path, None, [])
    assert measured(one, tmp_path, None, [])["test/top1"] == 0.5


COLORS = {"blue": (20, 30, 200), "red": (200, 30, 20)}
OPTIONS = {
    "model.patch_size": "4", "model.width": "8", "model.depth": "1", "model.mlp_dim": "8",
    "model.heads": "2", "model.unroll": "1", "data.image_size": "8", "data.threads": "1",
    "train.batch_size": "8", "train.duration": "12 steps", "schedule.warmup": "2 steps",
    "evaluation.every": "4 steps", "checkpoint.every": "6 steps", "checkpoint.keep": "1",
    "checkpoint.minutes": "none", "logging.tensorboard": "false",
}  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    random, images = np.random.default_rng(0), tmp_path_factory.mktemp("final") / "images"
    for split, count in (("train", 8), ("val", 4), ("test", 5)):
        for name, color in COLORS.items():
            for number in range(count):
                file = images / split / name / f"{number}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                image = random.normal(color, 60, (20, 30, 3)).clip(0, 255).astype(np.uint8)
                assert cv2.imwrite(str(file), image[:, :, ::-1])
    return images


@pytest.fixture(scope="module")
def run(root):
    """A run of 12 steps whose best validation score is at step 8, and the images it has read."""
    read, get = [], folders.Folder.__getitem__

    def spy(self, index):
        read.append(self.name(index).removeprefix(f"{root}/").partition("/")[0])
        return get(self, index)

    scores = iter([0.5, 0.875, 0.25])
    evaluate = evaluators.Means.__call__

    def scored(self, params, *, stop):
        results = evaluate(self, params, stop=stop)
        return results if results["count"] == 10 else results | {"top1": next(scores)}

    workdir, said = root.parent / "run", io.StringIO()
    flags = [f"--config.{key}={value}" for key, value in OPTIONS.items()]
    flags += [f"--config.data.root={root}", f"--workdir={workdir}"]
    with (
        pytest.MonkeyPatch.context() as patched,
        runs.on_one_device(),
        contextlib.redirect_stderr(said),
    ):
        patched.setattr(folders.Folder, "__getitem__", spy)
        patched.setattr(evaluators.Means, "__call__", scored)
        assert cli.main(["train", "image_folder-32", *flags]) == 0
    return types.SimpleNamespace(workdir=workdir, read=read, said=said.getvalue())


@pytest.mark.slow  # so are the other tests of this run
@pytest.mark.usefixtures("one_device")
def test_in_a_folder_validation_chooses_and_test_is_measured_once(run):
    """Which images are read, in order; a better validation score in the middle of the run."""
    workdir, read = run.workdir, run.read
    assert (
        "the test split `test` is measured once, at the end, on the best checkpoint by val/top1"
        in run.said
    )
    said = "test split `test`, measured once, at step 8, the best by val/top1: test/top1 "
    assert said in run.said
    assert read.count("test") == 10
    assert set(read[: read.index("test")]) == {"train", "val"}
    assert set(read[read.index("test") :]) == {"test"}  # nothing is chosen or trained after it
    lines = logs.read_metrics(workdir / "metrics.jsonl")
    assert [line["step"] for line in lines if "val/top1" in line] == [4, 8, 12]
    assert all(line["val/split"] == "val" for line in lines if "val/top1" in line)
    (tested,) = [line for line in lines if "test/top1" in line]
    assert (tested["step"], tested["test/step"], tested["test/count"]) == (12, 8, 10)
    stored = json.loads((workdir / "config.json").read_text())["data"]
    assert (stored["eval_split"], stored["test_split"]) == ("val", "test")
    commit = json.loads((workdir / "checkpoints/00000008/commit.json").read_text())["commit"]
    assert (commit["best"], commit["metrics"]["val/top1"]) == ("val/top1", 0.875)
    # The result equals that of evaluating the best checkpoint.
    test = {"data.eval_split": "test", "data.test_split": "none"}
    again = vit_jax.evaluate(workdir, test)
    assert again["step"] == 8
    for key in ("test/top1", "test/count", "test/loss"):
        assert again[key] == pytest.approx(tested[key], rel=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_a_finished_run_repeated_does_nothing(run, monkeypatch, capsys):
    """A finished run that is repeated compiles, reads, measures and counts nothing again."""

    def refuse(*_, **__):
        raise AssertionError("there is nothing to do")

    workdir = run.workdir
    before = {p: p.read_bytes() for p in workdir.rglob("*") if p.suffix in (".json", ".jsonl")}
    monkeypatch.setattr(build.Trainer, "compile_program", refuse)
    monkeypatch.setattr(evaluators.Means, "__call__", refuse)
    monkeypatch.setattr(build.Trainer, "load", refuse)
    assert cli.main(["train", f"--workdir={workdir}"]) == 0
    result, said = capsys.readouterr()
    # What is printed is of one checkpoint, and says which.
    assert "step 8, the best by val/top1 (0.8750); the newest is step 12" in result
    assert "0.8750" in result.partition("val/top1")[2].splitlines()[0]
    assert "test/top1" in result
    assert "restart" not in said
    assert "nothing is left to train or to measure" in said
    assert all(path.read_bytes() == content for path, content in before.items())


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_test_images_that_were_accepted_as_others_are_measured_again(root, run, tmp_path):
    """All of one color now: the results of the images before would stand beside them."""
    images, workdir = tmp_path / "images", shutil.copytree(run.workdir, tmp_path / "run")
    shutil.copytree(root, images)
    shutil.rmtree(images / "test/red")
    options = {**OPTIONS, "data.root": str(images)}
    again = vit_jax.train("image_folder-32", workdir, options, accept=["data"])
    assert again.results["test/count"] == 5
    assert again.results["test/step"] == 12  # the only one that was measured since


def test_a_test_split_that_cannot_be_opened_is_said_at_the_start(root, tmp_path, capsys):
    flags = [f"--config.{key}={value}" for key, value in OPTIONS.items()]
    flags += [f"--config.data.root={root}", f"--workdir={tmp_path}/run"]
    for split, line in {
        "tset": "data.test_split=tset: no such folder in data.root=",
        "val": "data.test_split=val: has images of data.eval_split=val; name a split of its own",
    }.items():
        arguments = ["train", "image_folder-32", *flags, f"--config.data.test_split={split}"]
        assert cli.main(arguments) == 2
        assert capsys.readouterr().err.startswith(f"vit_jax: {line}")
        assert not (tmp_path / "run").exists()
