"""When a run saves, where, and how long it has run."""

import contextlib
import time
import types
from unittest.mock import Mock, call

import pytest

import pages
import runs
from vit_jax.runs import preview, saving
from vit_jax.runs import session as sessions
from vit_jax.runs.session import Session
from vit_jax.runtime import distributed, locking, preemption


def session(tmp_path, **given):
    return Session(workdir=tmp_path, stop=None, phases=None, progress=None, **given)


def test_checkpoints_are_those_of_the_run_and_of_its_lease(tmp_path, monkeypatch):
    made, cfg = {}, runs.configure(checkpoint={"keep": 3, "best": "top1"})
    monkeypatch.setattr(
        saving, "Manager", lambda folder, **given: made.update(given, folder=folder) or made
    )
    mine = session(tmp_path, check_lease=lambda: None)
    assert saving.open_manager(cfg, mine).thing is made
    assert made == {
        "folder": tmp_path / "checkpoints", "keep": 3, "best": "test/top1",
        "check_lease": mine.check_lease,
    }  # fmt: skip


def test_the_age_of_a_process(tmp_path, monkeypatch):
    one = session(tmp_path, began=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: 107.5)
    assert one.age == 7.5


@pytest.mark.parametrize(
    ("minutes", "passed", "over"), [(None, 1e9, False), (2, 120.0, False), (2, 120.5, True)]
)
def test_a_run_saves_once_its_minutes_are_over(minutes, passed, over, monkeypatch):
    one = object.__new__(saving.Saver)
    one._cfg = runs.configure(checkpoint={"minutes": minutes})
    one._durations = types.SimpleNamespace(saves=lambda step: False)
    one._saved_at = 50.0
    monkeypatch.setattr(time, "monotonic", lambda: 50.0 + passed)
    assert one.due(3) == over


@pytest.mark.parametrize("first", [True, False])
def test_process_0_says_now_and_then_whether_minutes_are_over(first, monkeypatch):
    """Clocks differ; to ask at every step would cost."""
    one, asked = object.__new__(saving.Saver), []
    one._cfg = runs.configure(checkpoint={"minutes": 2}, logging={"every": 5})
    logs = lambda step, every: step % every == 0  # noqa: E731
    one._durations = types.SimpleNamespace(saves=lambda step: False, logs=logs)
    one._saved_at = time.monotonic() - 1000
    monkeypatch.setattr(saving.jax, "process_count", lambda: 2)

    def broadcast(make):
        asked.append(make())
        return first

    monkeypatch.setattr(saving.collectives, "broadcast_from_main", broadcast)
    assert [step for step in range(1, 11) if one.due(step)] == ([5, 10] if first else [])
    assert asked == [True, True]


def test_a_checkpoint_has_all_numbers_that_led_to_it():
    one, done = object.__new__(saving.Saver), Mock()
    one._progress, one._manager, one._files = Mock(), done.manager, done.files
    one._phases = lambda name: contextlib.nullcontext()
    one._facts, one._patience = {"seed": 3}, types.SimpleNamespace(facts={"best": 0.5})
    one.save(7, "state", {"top1": 0.5})
    assert done.mock_calls == [
        call.files.sync(now=True),
        call.manager.save(7, "state", record={"seed": 3, "best": 0.5}, metrics={"top1": 0.5}),
    ]
    assert one.step == 7


@pytest.mark.parametrize(
    ("chosen", "workers", "unroll", "lines"),
    [
        (None, 3, None, ["set for this machine: data.workers=3, model.unroll=12"]),
        (None, 3, 2, ["set for this machine: data.workers=3"]),
        (None, 0, None, []),
        (2, 2, None, []),
    ],
)
def test_a_preview_says_what_is_set_for_this_machine(chosen, workers, unroll, lines, monkeypatch):
    monkeypatch.setattr(preview.pipeline, "loader_processes", lambda data: workers)
    cfg = runs.configure(data={"workers": chosen}, model={"unroll": unroll})
    model = types.SimpleNamespace(config=types.SimpleNamespace(unroll=12))
    assert preview._of_machine(types.SimpleNamespace(cfg=cfg, model=model)) == lines


def test_a_run_has_done_the_steps_of_its_newest_checkpoint(tmp_path):
    assert preview._steps_done(tmp_path) is None
    for step in (10, 20, 30):
        pages.write_record(tmp_path, step)
        assert preview._steps_done(tmp_path) == step


def test_the_lease_of_a_run_is_checked_by_its_session(tmp_path, monkeypatch):
    joined = []
    monkeypatch.setattr(
        distributed, "initialize", lambda directory, limits: joined.append(directory)
    )
    for refusal in (None, "in use"):
        lease = lambda: None  # noqa: E731
        attempt = contextlib.nullcontext((refusal, lease))
        monkeypatch.setattr(locking, "attempt", lambda *_, attempt=attempt, **__: attempt)
        cfg, stop = runs.configure(), preemption.Stop(holding=False)
        if refusal is None:
            with sessions._open(cfg, tmp_path, stop) as one:
                assert one.check_lease is lease
        else:
            with pytest.raises(locking.InUse, match="in use"), sessions._open(cfg, tmp_path, stop):
                pass
    assert joined == [tmp_path, None]  # another run's directory stays as it is


def test_a_compilation_is_shown_at_once_and_timed(tmp_path, monkeypatch):
    done, clock = [], iter((10.0, 12.5, 12.5))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    one = Session(
        workdir=tmp_path,
        stop=None,
        phases=lambda name: contextlib.nullcontext(done.append(name)),
        progress=types.SimpleNamespace(doing=lambda *given, **more: done.append((given, more)),
                                       say=done.append),
        began=0.0,
    )  # fmt: skip
    with one.compiling():
        pass
    assert done == [
        (("compiling the step",), {"slow": 0.0}), "compile",
        "step compiled in 2.5 s, ready after 12.5 s",
    ]  # fmt: skip


def test_a_preview_counts_classes_and_parameters(tmp_path):
    rows = dict(preview.preview(runs.configure(train={"class_weights": "balanced"}), tmp_path))
    assert rows["model"].split()[1].startswith("parameters")
    cfg = runs.configure(train={"batch_size": 48, "accumulation": 2})
    shown = dict(preview.preview(cfg, tmp_path))["devices"]
    assert shown == "8 x cpu, 3 images each at a time"
    assert rows["evaluation"] == "test[:100]: 100 images, 3 times"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("knn", "evaluation"), [((), "none"), (("self",), "knn, 3 times")])
def test_a_preview_says_what_is_measured_without_labels(knn, evaluation, tmp_path):
    dino = {"name": "dino", "local_views": 0, "prototypes": 8, "head_hidden": 4}
    others = {"checkpoint": {"best": None}, "train": {"ema": None}}
    others["data"] = {"train_crop": "inception"}
    cfg = runs.configure(objective=dino, evaluation={"knn": knn}, **others)
    rows = preview.preview(cfg, tmp_path)
    assert dict(rows)["evaluation"] == evaluation
    unmeasured = [text for label, text in rows if label == "note" and "is not measured" in text]
    assert bool(unmeasured) == (not knn)


@pytest.mark.parametrize(
    ("number", "holding", "error"),
    [
        (None, False, KeyboardInterrupt),  # not a signal's
        (2, False, preemption.Preempted),
        (2, True, KeyboardInterrupt),  # the second Ctrl-C, while a state is saved
    ],
)
def test_a_signal_before_there_is_a_state_stops(number, holding, error, tmp_path, monkeypatch):
    @contextlib.contextmanager
    def interrupted(cfg, workdir, stop):
        stop.signal, stop.holding = number, holding
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(sessions, "_open", interrupted)
    with pytest.raises(error), sessions.open_session(runs.configure(), tmp_path):
        pass


def test_processes_compare_facts_in_the_directory_of_their_run(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(distributed, "check_consistency", lambda *given: asked.append(given))
    session(tmp_path, began=time.monotonic()).compare(config="abc", code="def")
    ((where, facts),) = asked
    assert where == tmp_path
    assert facts.items() >= {"config": "abc", "code": "def"}.items()
    assert facts.keys() == {"config", "code", "host", "seconds"}
