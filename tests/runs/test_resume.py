"""Stop anywhere, resume, and be bit-identical to the run that was never stopped."""

import json
import os
import random
import shutil
import signal
from unittest import mock

import pytest

import runs
from vit_jax import config, train_loop
from vit_jax.evaluation import evaluators
from vit_jax.runs import directory, resume
from vit_jax.runtime import preemption
from vit_jax.training import run_config

ONE_STEP = {"train": {"duration": "1 steps"}, "schedule": {"warmup": 0}}


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    """The unbroken run, in this process on eight simulated devices."""
    workdir = tmp_path_factory.mktemp("oracle") / "run"
    outcome = train_loop.train(runs.configure(), workdir)
    assert outcome.steps == runs.STEPS == len(runs.trace(workdir))
    return workdir


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run's directory, for what is refused before a step."""
    workdir = tmp_path_factory.mktemp("finished") / "run"
    with runs.untrained(), runs.on_one_device():
        train_loop.train(runs.configure(**ONE_STEP), workdir)
    return workdir


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"data": "other"}, "data.root: the training examples (fingerprint other) are not"),
        ({"plugins": {"mine": "2", "new": "1"}}, "--plugins: mine changed since step 1;"),
        ({"teacher": "2"}, "objective.teacher: its parameters are not"),
        ({"teacher": "2", "config": {"objective": {"name": "distillation", "teacher": "b"}}}, ""),
    ],
)
def test_a_run_is_compared_with_one_of_the_same_data_plug_ins_and_teacher(
    finished, monkeypatch, changes, said
):
    """Options differ between them, and with them what is used."""
    record = resume.records.find_step(finished / "checkpoints")[1]
    record |= {"plugins": {"mine": "1", "old": "1"}, "teacher": "1"}
    monkeypatch.setattr(resume.records, "find_step", lambda *given: (1, record))
    options = record["config"] | changes.pop("config", {})
    facts = record | {"plugins": {"mine": "1"}, "config": options} | changes
    if not said:
        resume.check_alike(finished, facts)
        return
    with pytest.raises(config.ConfigError) as caught:
        resume.check_alike(finished, facts)
    assert str(caught.value).startswith(f"cannot be compared with {finished}: {said}")
    assert str(caught.value).endswith(", or choose another --workdir")


@pytest.mark.slow
def test_stop_at_random_steps_and_resume(oracle, tmp_path, monkeypatch):
    rng = random.Random(2026)
    for trial in range(3):
        workdir = tmp_path / str(trial)
        stops = sorted(rng.sample(range(1, runs.STEPS), 3))
        runs.train_in_parts(monkeypatch, runs.configure(), workdir, *stops)
        runs.assert_equal_runs(workdir, oracle)
    assert preemption.Preempted.exit_code == 75


@pytest.mark.slow
def test_an_evaluation_that_a_signal_kept_off_is_made_up_for(oracle, tmp_path, monkeypatch):
    workdir = tmp_path / "run"

    def interrupted(self, params, *, stop):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop()

    with monkeypatch.context() as patch:
        patch.setattr(evaluators.Means, "__call__", interrupted)
        # The first time after step 10, the second when it is made up for.
        for _ in range(2):  # the second time, it was saved before
            with pytest.raises(preemption.Preempted, match="stopped and saved at step 10;"):
                train_loop.train(runs.configure(), workdir)
    with runs.stopping_at(monkeypatch, 12), pytest.raises(preemption.Preempted):
        train_loop.train(runs.configure(), workdir)
    commit = json.loads((workdir / "checkpoints/00000010/commit.json").read_text())
    assert commit["commit"]["metrics"]["test/top1"] == runs.trace(oracle, "test/top1")[10]
    train_loop.train(runs.configure(), workdir)
    runs.assert_equal_runs(workdir, oracle)


@pytest.mark.slow
def test_loader_and_speed_options_may_change_on_resume(oracle, tmp_path, monkeypatch):
    workdir = tmp_path / "run"
    with runs.stopping_at(monkeypatch, 12), pytest.raises(preemption.Preempted):
        train_loop.train(runs.configure(), workdir)
    changes = {"data.threads": "1", "data.prefetch": "1", "checkpoint.keep": "1"}
    train_loop.train(directory.reconcile(workdir, None, changes), workdir)
    runs.assert_equal_runs(workdir, oracle)


def test_another_config_is_refused(finished):
    with pytest.raises(config.ConfigError) as caught:
        directory.reconcile(finished, None, {"optimizer.lr": "0.1", "data.threads": "1"})
    assert str(caught.value) == (
        f"--workdir={finished}: holds another run (optimizer.lr: 0.001 -> 0.1); "
        "resume it without these changes, or choose another --workdir; "
        "--accept=config resumes with the change"
    )
    with pytest.raises(config.ConfigError, match="holds another run .*model.width: 16 -> 64"):
        directory.reconcile(finished, run_config.resolve("digits", {}), {})


def test_an_edited_config_is_refused(finished, tmp_path):
    workdir = shutil.copytree(finished, tmp_path / "run")
    file = workdir / "config.json"
    before = file.read_text()
    file.write_text(before.replace('"lr": 0.001', '"lr": 0.003'))
    with pytest.raises(config.ConfigError) as caught:
        directory.reconcile(workdir, None, {})
    assert str(caught.value) == (
        f"--workdir={workdir}: config.json is not that of step 1 (optimizer.lr: 0.001 -> 0.003); "
        "undo the edit, or choose another --workdir; --accept=config resumes with the change"
    )
    assert directory.reconcile(workdir, None, {}, accept=["config"]).optimizer.lr == 0.003
    # The name of its config, and any option that decides no result, resume as ever.
    same = runs.configure(**ONE_STEP)
    assert directory.reconcile(workdir, same, {}).optimizer.lr == 0.001
    file.write_text(before.replace('"threads": 2', '"threads": 3'))
    assert directory.reconcile(workdir, None, {}).data.threads == 3
    file.unlink()
    assert directory.reconcile(workdir, None, {}).model.num_classes == 10
    file.symlink_to(file)  # neither missing nor readable
    with pytest.raises(config.ConfigError, match="unreadable: .*Too many levels .*has a copy"):
        directory.reconcile(workdir, None, {})
    with pytest.raises(config.ConfigError, match="^--accept=lr: must be among config, data, plu"):
        directory.reconcile(workdir, None, {}, accept=["lr"])


FACTS = {
    "config": config.to_dict(runs.configure()), "data": "a", "classes": ["0"], "versions": {},
    "measured": {},
}  # fmt: skip
RECORD = FACTS | {"step": 20, "metrics": {}, "examples": 200}


def restored(record, seal, accept=()):
    """Restores a checkpoint with this record; returns what was said."""
    said = []
    session = mock.Mock(progress=mock.Mock(say=said.append))
    saver = mock.Mock(restore=lambda target, avoid: ({}, record))
    files = mock.Mock(suspects=list)
    start = resume.restore(saver, {}, seal, session, files, accept=accept)
    return said, start.facts


@pytest.mark.parametrize(
    ("part", "key", "line"),
    [
        ("config", "config", r"the options are not those of step 20 \(optimizer.lr: 0.001 -> 0.1"),
        ("data", "data", r"data.root: the training examples \(fingerprint b\) .* with \(a\)"),
        ("data", "measured", r"data.root: the examples of test \(fingerprint b\) are not those m"),
        ("teacher", "teacher", "objective.teacher: its parameters are not those"),
        ("teacher", "teacher_model", "objective.teacher: its model or preprocessing are not those"),
        ("teacher", "teacher_size", "objective.teacher: its height and width are not those"),
        ("plugins", "plugins", "--plugins: mine changed since step 20; restore it, or"),
    ],
)
def test_every_part_of_the_seal_is_compared(part, key, line):
    facts = FACTS | dict.fromkeys(("teacher", "teacher_model", "teacher_size"), "a")
    facts |= {"plugins": {"mine": "a"}, "versions": {"jax": "1"}, "measured": {"test": "a"}}
    record = RECORD | facts
    other = config.to_dict(runs.configure(optimizer={"lr": 0.1}))
    changed = {"config": other, "plugins": {"mine": "b"}, "measured": {"test": "b"}}.get(key, "b")
    assert restored(record, facts) == (["resuming from step 20"], facts)
    with pytest.raises(config.ConfigError, match=line) as caught:
        restored(record, facts | {key: changed})
    assert f"; --accept={part} resumes with the change" in str(caught.value)
    accepted = facts | {key: changed, "versions": {"jax": "2"}}
    (first, second, _), kept = restored(record, accepted, accept=[part])
    assert first.startswith("accepted: ")
    assert second == "jax is 2 here; the checkpoint was written with 1"
    assert [text.partition(":")[0] for text in kept["changes"]] == ["step 20"]
    # A checkpoint of a version that recorded less.
    kept = ("config", "data", "classes", "step", "metrics", "examples")
    older = {name: record[name] for name in kept}
    assert restored(older, facts)[0] == ["resuming from step 20"]


def test_a_record_has_the_size_at_which_a_teacher_sees():
    trainer = mock.Mock(cfg=runs.configure(), mesh=mock.Mock(shape={}))
    teacher = mock.Mock(**{"teacher.model.image_size": (4, 6)})
    splits = mock.MagicMock(classes=("0",), test=None)
    assert resume.facts(trainer, splits, teacher)["teacher_size"] == [4, 6]


def test_a_checkpoint_that_today_would_be_measured_otherwise_is_measured_again():
    session, files = mock.Mock(), mock.Mock(suspects=list)

    def evaluated(accept=(), **record):
        kept = RECORD | {"metrics": {"test/top1": 0.5}} | record
        saver = mock.Mock(restore=lambda target, avoid: ({}, kept))
        return resume.restore(saver, {}, FACTS, session, files, accept=accept).evaluated

    assert evaluated()
    assert evaluated(changes=["step 10: optimizer.lr"])
    assert not evaluated(accept=["data"], data="b")
    assert not evaluated(metrics={})
    other = config.to_dict(runs.configure(evaluation={"metrics": ("f1",)}))
    assert not evaluated(config=other)
    # Its record would go on to say by which metric the best checkpoint was chosen.
    assert not evaluated(config=config.to_dict(runs.configure(checkpoint={"best": "loss"})))
    with pytest.raises(config.ConfigError, match="^data.train_split: the classes are not those"):
        evaluated(classes=["1"])


def test_other_images_of_the_evaluation_split_begin_a_new_comparison():
    files, kept = mock.Mock(suspects=list), RECORD | {"metrics": {}, "patience": {"waited": 1}}
    for compared in (True, False):
        saver = mock.Mock(restore=lambda target, avoid: ({}, kept))
        saver.compares.return_value = compared
        found = resume.restore(saver, {}, FACTS, mock.Mock(), files, accept=())
        assert found.patience == (kept["patience"] if compared else None)


def test_a_step_that_failed_twice_is_avoided_where_another_is_there():
    said = []
    session = mock.Mock(progress=mock.Mock(say=said.append))
    files = mock.Mock(suspects=lambda: [20])
    for found in (10, 20, None):
        one = None if found is None else ({}, RECORD | {"step": found})
        saver = mock.Mock(restore=lambda target, avoid, one=one: one)
        resume.restore(saver, {}, FACTS, session, files)
    failed = "the run has failed twice after step 20; "
    assert said == [
        failed + "trying an older checkpoint", "resuming from step 10",
        failed + "there is no older checkpoint", "resuming from step 20",
        failed + "there is no older checkpoint",
    ]  # fmt: skip


def test_a_plug_in_that_changed_or_is_new_is_named():
    now = FACTS | {"plugins": {"a": "2", "b": "1", "c": "1"}}
    with pytest.raises(config.ConfigError, match="^--plugins: a, c changed since step 20; restore"):
        restored(RECORD | {"plugins": {"a": "1", "b": "1"}}, now)


def test_a_new_run_begins_with_the_weights_it_names(monkeypatch):
    given = ({"params": 1}, ["a note"], None)
    monkeypatch.setattr(resume.loading, "initial_params", lambda *arguments: given)
    monkeypatch.setattr(resume.state, "begin_with", lambda *arguments: arguments)
    said, cfg = [], runs.configure(init_from="there.npz")
    parts = {"trainable": "all", "objective": "own", "optimizer": "adam"}
    trainer = mock.Mock(cfg=cfg, init_state=lambda: "new", **parts)
    session = mock.Mock(progress=mock.Mock(say=said.append))
    start = resume.begin(trainer, ("0",), {}, session)
    assert start.state == ("new", {"params": 1}, *parts.values())
    assert (start.step, start.restored) == (0, False)
    assert said == ["starts from there.npz", "  a note"]


@pytest.mark.usefixtures("one_device")
def test_other_data_is_refused(finished, tmp_path, monkeypatch):
    from vit_jax.data import sources

    monkeypatch.setattr(sources.Digits, "fingerprint", lambda self: "0123456789abcdef")
    kept = (finished / "config.json").read_text()
    with pytest.raises(config.ConfigError, match="0123456789abcdef.* not those this run started"):
        train_loop.train(directory.reconcile(finished, None, {"data.threads": "1"}), finished)
    # Without the options that were refused, the same command resumes.
    assert (finished / "config.json").read_text() == kept


def test_empty_and_foreign_workdirs(tmp_path):
    with pytest.raises(config.ConfigError, match="holds no run to resume"):
        directory.reconcile(tmp_path, None, {})
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(config.ConfigError, match="config.json is unreadable"):
        directory.reconcile(tmp_path, None, {})
