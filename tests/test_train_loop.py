"""The loop's decisions: its step, saver and evaluators only note what is asked of them."""

import functools
import signal
import time
import types
import zlib

import jax
import numpy as np
import pytest

import runs
from vit_jax import train_loop
from vit_jax.checkpoints import manager
from vit_jax.data import prefetch, split_roles
from vit_jax.evaluation import evaluation
from vit_jax.runs import evaluating, patience, resume, run_log, saving
from vit_jax.runtime import preemption, progress, watchdog
from vit_jax.training import durations


class Batches:
    """Endless batches of two examples, two new ones for each step, until none comes any more."""

    def __init__(self, start, gives_up_after=None):
        self.taken, self.closed, self._last = start, False, gives_up_after

    def __iter__(self):
        return self

    def __next__(self):
        if self.taken == self._last:
            raise prefetch.StoppedError
        self.taken += 1
        return {"image": np.zeros((2, 1)), "label": np.zeros(2), "index": examples(self.taken)}

    def close(self):
        self.closed = True


def examples(step):
    return np.array([2 * step, 2 * step + 1])


def top1(metrics):
    """The first top-1 that the loop hands to the checkpoints, whatever its split is called."""
    found = [value for key, value in (metrics or {}).items() if key.endswith("/top1")]
    return found[0] if found else -1.0


class Saver:
    """Begins saves, and finds out only in `wait` that the one of step `fails` has failed."""

    def __init__(self, fails=None):
        self.saved, self._fails, self._best, self._pending = [], fails, -1.0, None

    def is_best(self, metrics):
        return top1(metrics) > self._best

    def save(self, step, state, *, record, metrics):
        self.wait()
        assert state == step
        self._best = max(self._best, top1(metrics))
        self.record = record
        self.saved.append((step, metrics))
        self._pending = step

    def poll(self):
        pass

    def wait(self):
        pending, self._pending = self._pending, None
        if pending is not None and pending == self._fails:
            raise manager.SaveFailed(f"step {pending} was not saved")


class Files:
    """Keeps what is written."""

    def __init__(self):
        self.lines = []

    def write(self, step, values):
        self.lines.append((step, dict(values)))

    def sync(self, *, now=False):
        pass

    def spent(self, step):
        return None


class Clock:
    """A clock that is moved by hand."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def scores(values, name="top1"):
    """An evaluator with these results, one after another."""
    left = iter(values)
    return lambda params, *, stop: {name: next(left)}


class Run:
    """A loop of `steps` with the hooks of a run, whose parts can be replaced before `run`."""

    def __init__(self, cfg, durations, step, evaluators, saver, stop):
        self.cfg, self.durations, self.step = cfg, durations, step
        self.evaluators, self.saver, self.stop = evaluators, saver, stop
        self.batches, self.metrics = Batches, Files()
        self.progress, self.phases = progress.Progress(active=False), None
        self.parameters = lambda state: state

    def run(self, state, start, *, evaluated=True):
        files = self.metrics
        session = runs.session(None, stop=self.stop, phases=self.phases, progress=self.progress)
        trainer = types.SimpleNamespace(
            cfg=self.cfg, durations=self.durations, examples=200, flops_at=lambda step: 1.0,
            steps_left=lambda step: self.durations.steps - step,
            put=lambda batch: batch, gather=lambda ids: ids,
            eval_params=lambda state: self.parameters(state),
            objective=types.SimpleNamespace(shown=(), measures=(), warning=lambda found: None),
        )  # fmt: skip
        log = run_log.RunLog(trainer, session, files)
        evaluation = evaluating.RunEvaluation(trainer, Evaluation(self.evaluators), session)
        stopping = patience.Patience(self.cfg)
        live, self.end, last = train_loop.run_steps(
            trainer,
            resume.Start(state, start, {}, restored=start > 0, evaluated=evaluated),
            None if start == self.durations.steps else self.step,
            self.durations.steps,
            load=self.batches,
            teacher_params="teacher",
            evaluate=functools.partial(evaluation, log),
            log=log,
            saver=saving.Saver(self.saver, trainer, {"examples": 200}, session, files, stopping),
            patience=stopping,
            profiler=run_log.Profiler(None, self.durations.steps, session),
            session=session,
        )
        return live, last


class Evaluation:
    """Evaluators of a run whose evaluation split is called test."""

    role = split_roles.Role("test", "test[:9]", "test")
    brief = ()
    __call__ = evaluation.Evaluation.__call__

    def __init__(self, evaluators):
        self.evaluators = evaluators


def make(
    *, evaluators, saver=None, steps=12, evaluate=2, save=5, first=False, stop=None, bad=(),
    **sections,
):  # fmt: skip
    """A loop of 12 steps that evaluates after every second and saves after every fifth."""

    def step(state, batch, teacher_params):
        assert teacher_params == "teacher"
        state += 1
        count = sum(number <= state for number in bad)
        finite = state not in bad
        loss = 1.0 / state if finite else float("nan")
        return state, {
            "loss": loss, "grad_norm": 1.0, "lr": 0.1, "finite": finite, "bad_steps": count,
        }  # fmt: skip

    cfg = runs.configure(**({"logging": {"every": 4, "tensorboard": False}} | sections))
    found = durations.Durations(
        steps=steps, warmup=0, cooldown=0, evaluate=evaluate, save=save, first=first
    )
    return Run(cfg, found, step, evaluators, saver or Saver(), stop or preemption.Stop())


def saves(made):
    return [(step, metrics and top1(metrics)) for step, metrics in made.saver.saved]


@pytest.mark.parametrize("ended", [False, True])
def test_the_log_reads_a_step_that_has_ended_or_while_the_next_one_runs(ended):
    made, events = make(evaluators={}, steps=3, evaluate=None), []
    inner = made.step

    class Metrics(dict):
        def __getitem__(self, name):
            if name == "finite":
                events.append(f"{self['state']} read")
            return super().__getitem__(name)

    def step(state, *inputs):
        events.append(f"{state + 1} begins")
        state, metrics = inner(state, *inputs)
        if ended:  # when its call returns, as on a CPU
            metrics["loss"] = jax.block_until_ready(jax.numpy.float32(metrics["loss"]))
        return state, Metrics(metrics | {"state": state})

    made.step = step
    made.run(0, 0)
    order = list(dict.fromkeys(events))
    if ended:
        assert order == ["1 begins", "1 read", "2 begins", "2 read", "3 begins", "3 read"]
    else:
        assert order == ["1 begins", "2 begins", "1 read", "3 begins", "2 read", "3 read"]


def test_the_best_of_evaluations_between_saves_is_saved_too():
    made = make(evaluators={"test": scores([0.1, 0.4, 0.3, 0.2, 0.35, 0.4])})
    _, results = made.run(0, 0)
    assert saves(made) == [(2, 0.1), (4, 0.4), (5, None), (10, 0.35), (12, 0.4)]
    assert results == {"test/top1": 0.4}


def test_the_last_state_is_evaluated_and_saved_with_its_numbers():
    made = make(evaluators={"test": scores([0.5])}, steps=4, evaluate=None, save=None)
    assert made.run(0, 0)[1] == {"test/top1": 0.5}
    assert saves(made) == [(4, 0.5)]


def test_all_evaluators_are_given_what_was_gathered_once():
    given, gathered = [], []
    first, second = (
        lambda params, *, stop, name=name: given.append((name, params)) or {"top1": 0.5}
        for name in ("test", "val")
    )
    made = make(evaluators={"test": first, "val": second}, steps=4)
    made.parameters = lambda state: gathered.append(state) or f"of {state}"
    made.run(0, 0)
    assert gathered == [2, 4]
    assert given == [(name, f"of {step}") for step in (2, 4) for name in ("test", "val")]


def test_a_resumed_run_reads_on_where_it_stopped():
    made, opened, seen = make(evaluators={"test": scores([0.5])}, steps=8), [], []
    step = made.step
    made.batches = lambda start: opened.append(Batches(start)) or opened[-1]
    made.step = lambda *given: seen.append(given[1]["index"].tolist()) or step(*given)
    made.run(6, 6)
    assert seen == [examples(7).tolist(), examples(8).tolist()]
    assert [(one.taken, one.closed) for one in opened] == [(8, True)]


def test_the_first_evaluator_chooses_the_best():
    others = {"one": scores([0.5, 0.3], "top1"), "two": scores([0.1, 0.9], "top1")}
    made = make(evaluators=others, steps=4, save=None)
    made.run(0, 0)
    assert saves(made) == [(2, 0.5), (4, 0.3)]  # 2 as the best, 4 as the last
    written = [values for _, values in made.metrics.lines if "two/top1" in values]
    assert [values["two/top1"] for values in written] == [0.1, 0.9]


def test_a_save_that_fails_at_a_stop_is_not_reported_as_saved():
    stop = preemption.Stop()
    made = make(evaluators={"test": scores([])}, saver=Saver(fails=3), stop=stop, evaluate=None)
    inner = made.step

    def step(state, *inputs):
        if state == 2:
            stop.signal = signal.SIGTERM
        return inner(state, *inputs)

    made.step = step
    with pytest.raises(manager.SaveFailed, match="step 3 was not saved"):
        made.run(0, 0)
    assert saves(made) == [(3, None)]


def test_the_last_save_of_a_run_is_waited_for():
    made = make(evaluators={"test": scores([0.1])}, saver=Saver(fails=4), steps=4, evaluate=None)
    with pytest.raises(manager.SaveFailed, match="step 4 was not saved"):
        made.run(0, 0)


@pytest.mark.parametrize(("begun", "saved"), [(0, 2), (8, 8)], ids=["trained", "restored"])
def test_a_stop_while_an_evaluation_ends_keeps_its_numbers(begun, saved):
    def evaluator(params, *, stop):
        made.stop.signal = signal.SIGTERM  # comes after its last batch
        return {"top1": 0.75}

    made = make(evaluators={"test": evaluator}, stop=preemption.Stop())
    with pytest.raises(preemption.Preempted, match=f"stopped and saved at step {saved};"):
        made.run(begun, begun, evaluated=not begun)
    assert saves(made) == [(saved, 0.75)]


def test_an_evaluation_cut_short_by_a_stop_has_no_numbers():
    stop = preemption.Stop()

    def first(params, *, stop):
        return {"top1": 0.5}

    def second(params, *, stop):
        made.stop.signal = signal.SIGTERM
        assert stop()

    made = make(
        evaluators={"test": first, "other": second}, stop=stop,
        checkpoint={"best": "top1", "patience": 1},
    )  # fmt: skip
    with pytest.raises(preemption.Preempted, match="stopped and saved at step 2;"):
        made.run(0, 0)
    assert saves(made) == [(2, None)]
    # Nor is it one without a better checkpoint: the resumed run would end here.
    count = {"metric": "test/top1", "best": None, "waited": 0, "step": -1}
    assert made.saver.record["patience"] == count
    assert [step for step, values in made.metrics.lines if "test/top1" in values] == []


def test_a_restored_state_is_evaluated_if_it_was_not():
    made = make(evaluators={"test": scores([0.6, 0.1, 0.2])})
    made.run(8, 8, evaluated=False)
    assert saves(made) == [(8, 0.6), (10, 0.1), (12, 0.2)]
    made = make(evaluators={"test": scores([0.1, 0.2])})
    made.run(8, 8, evaluated=True)
    assert saves(made) == [(10, 0.1), (12, 0.2)]
    made = make(evaluators={"test": scores([])})  # nothing was left to train or measure
    assert made.run(12, 12, evaluated=True)[1] == {}
    made = make(evaluators={"test": scores([0.3])})
    assert made.run(12, 12, evaluated=False)[1] == {"test/top1": 0.3}


def test_weights_that_learn_on_are_measured_first_and_a_worse_state_is_called_so(caplog):
    made = make(
        evaluators={"test": scores([0.6, 0.5, 0.7])}, first=True, evaluate=6, save=None,
        checkpoint={"best": "top1"}, logging={"every": 6, "tensorboard": False},
    )  # fmt: skip
    made.progress = Shown()
    made.run(0, 0, evaluated=False)
    assert saves(made) == [(0, 0.6), (12, 0.7)]
    (line,) = [one.getMessage() for one in caplog.records if "worse" in one.getMessage()]
    assert line == (
        "step 6: test/top1 0.5000 is worse than the 0.6000 of the weights this run started from"
    )
    shown = [made.progress.updates[step][0][-1] for step in (1, 6, 7)]
    assert shown == [f"test {now}, at first 0.600" for now in ("0.600", "0.600", "0.500")]
    made = make(
        evaluators={"test": scores([0.6, 0.5])}, evaluate=6, save=None, checkpoint={"best": "top1"}
    )
    made.run(0, 0)  # nothing was measured first
    assert len([one for one in caplog.records if "worse" in one.getMessage()]) == 1
    made = make(evaluators={"test": scores([0.7])}, first=True, evaluate=None, save=None)
    made.run(0, 0, evaluated=True)  # stopped after the first evaluation
    assert saves(made) == [(12, 0.7)]


def test_metrics_are_written_by_steps_and_after_the_last():
    made = make(evaluators={"test": scores([0.5])}, steps=10, evaluate=None, save=None)
    made.run(0, 0)
    assert made.metrics.lines.pop() == (10, {"test/top1": 0.5, "test/split": "test[:9]"})
    written = dict(made.metrics.lines)
    assert list(written) == [4, 8, 10]
    for step, values in written.items():
        assert values["train/loss"] == 1 / step
        assert values["data/batch_crc"] == zlib.crc32(examples(step).tobytes())
    assert written[8]["train/epoch"] == 8 * 32 / 200
    page = (runs.ROOT / "docs" / "configs.md").read_text()
    assert [key for key in written[8] if f"`{key}`" not in page] == []


class Shown(progress.Progress):
    """Wants to show every step."""

    def __init__(self):
        super().__init__(active=False)
        self.updates = {}

    def due(self, step):
        return True

    def update(self, step, fields, *, final=False):
        self.updates[step] = [field.text for field in fields], final


def test_what_is_shown_by_the_clock_changes_nothing_that_is_written(monkeypatch):
    clock = Clock(monkeypatch)
    made = make(evaluators={"test": scores([0.5])}, steps=10, evaluate=None)
    made.progress, inner = Shown(), made.step

    def step(state, *inputs):  # a second more each time, from 1 s on
        clock.now += state + 1
        return inner(state, *inputs)

    made.step = step
    made.run(0, 0)
    # A step is looked at when the one after it has been begun.
    seconds = [1 + 2 + 3 + 4 + 5, 6 + 7 + 8 + 9]
    speeds = [values["speed/images_per_second"] for _, values in made.metrics.lines[:2]]
    assert speeds == pytest.approx([4 * 32 / s for s in seconds])
    assert [step for step, _ in made.metrics.lines] == [4, 8, 10, 10]
    assert list(made.progress.updates) == list(range(1, 11))
    # The first at once; how fast it is cannot be told from it.
    assert made.progress.updates[1] == (["epoch 0.2", "loss 1.0000"], False)
    texts, final = made.progress.updates[10]
    assert texts[:2] == ["epoch 1.6", "loss 0.1000"]
    assert texts[-1] == "ETA 0s"
    assert final


@pytest.mark.parametrize("start", [0, 2], ids=["new", "resumed, and evaluated first"])
def test_speed_counts_neither_evaluation_nor_saves(start, monkeypatch):
    clock = Clock(monkeypatch)

    def after(seconds, function):
        def slow(*arguments, **keywords):
            clock.now += seconds
            return function(*arguments, **keywords)

        return slow

    made = make(evaluators={"test": after(100.0, scores([0.5] * 6))})
    made.step, made.saver.save = after(1.5, made.step), after(70.0, made.saver.save)
    monkeypatch.setattr(Batches, "__next__", after(0.5, Batches.__next__))
    made.run(start, start, evaluated=start == 0)
    speeds = [values for _, values in made.metrics.lines if "data/wait_share" in values]
    assert [values["data/wait_share"] for values in speeds] == [0.25] * 3
    assert [values["speed/images_per_second"] for values in speeds] == [16.0] * 3


def test_saves_by_the_clock_are_so_long_after_the_save_before(monkeypatch):
    clock = Clock(monkeypatch)
    checkpoint = {"every": None, "minutes": 1.0}
    made = make(evaluators={"test": scores([0.5])}, evaluate=None, save=None, checkpoint=checkpoint)
    inner = made.step

    def step(state, *inputs):
        clock.now += 25.0
        return inner(state, *inputs)

    made.step = step
    made.run(0, 0)
    assert [step for step, _ in made.saver.saved] == [3, 6, 9, 12]


def test_a_save_that_has_failed_ends_the_run_at_the_next_step():
    class Failing(Saver):
        def poll(self):
            self.wait()

    made = make(evaluators={"test": scores([])}, saver=Failing(fails=5), evaluate=None)
    opened = Batches(0)
    made.batches = lambda start: opened
    with pytest.raises(manager.SaveFailed, match="step 5 was not saved"):
        made.run(0, 0)
    assert [step for step, _ in made.saver.saved] == [5]
    assert opened.taken == 6


def test_without_data_the_run_stops_at_the_last_step_and_has_looked_at_it():
    logging = {"every": 1, "tensorboard": False}
    made = make(evaluators={"test": scores([])}, evaluate=None, logging=logging)
    opened = Batches(0, gives_up_after=3)
    made.batches = lambda start: opened
    with pytest.raises(preemption.Preempted, match="stopped and saved at step 3;"):
        made.run(0, 0)
    assert saves(made) == [(3, None)]
    assert [step for step, _ in made.metrics.lines] == [1, 2, 3]
    assert opened.closed


def test_a_stop_before_the_first_step():
    stop = preemption.Stop()
    stop.signal = signal.SIGTERM
    made = make(evaluators={"test": scores([])}, stop=stop)
    with pytest.raises(preemption.Preempted, match="stopped and saved at step 0;"):
        made.run(0, 0)
    assert saves(made) == [(0, None)]
    made = make(evaluators={"test": scores([])}, stop=stop)
    with pytest.raises(preemption.Preempted, match="stopped and saved at step 8;"):
        made.run(8, 8)
    assert saves(made) == []


def test_an_evaluation_that_gets_on_is_not_stuck():
    clock = [0.0]
    idle = []

    def evaluator(params, *, stop):
        for _ in range(3):
            clock[0] += 50.0
            idle.append(made.phases.now)
            stop()
        return {"top1": 0.5}

    made = make(evaluators={"test": evaluator}, steps=2)
    made.phases = watchdog.PhaseTimer("start", lambda: clock[0])
    made.run(0, 0)
    assert idle == [("evaluate", 50.0)] * 3


def test_a_second_ctrl_c_interrupts():
    with preemption.Stop() as stop:
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert stop()
        assert stop.signal == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize(("allowed", "ends_at"), [(0, 3), (1, 7), (2, None)])
def test_steps_that_are_not_finite_end_the_run_beyond_the_budget(allowed, ends_at, caplog):
    train = {"max_bad_steps": allowed}
    made = make(evaluators={"test": scores([0.1] * 6)}, bad=(3, 7), train=train)
    if ends_at is None:
        made.run(0, 0)
    else:
        line = rf"^step {ends_at}: loss nan, .* examples \[.*, train.max_bad_steps={allowed}\. "
        with pytest.raises(run_log.Diverged, match=line) as caught:
            made.run(0, 0)
        assert caught.value.exit_code == 70
        assert all(step < ends_at for step, _ in made.saver.saved)
    assert sum("update skipped" in message for message in caplog.messages) == allowed
