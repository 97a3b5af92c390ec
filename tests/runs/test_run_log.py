"""What a run says and writes of its steps: speed, warnings, results."""

import json
import time
import types

import numpy as np
import pytest

import runs
from vit_jax import config
from vit_jax.runs import run_log
from vit_jax.runtime import progress, watchdog
from vit_jax.training import durations


class Files:
    """Keeps what is written."""

    def __init__(self):
        self.lines = []

    def write(self, step, values):
        self.lines.append(values)

    def sync(self):
        pass

    def spent(self, step):
        return None


def trainer(measures=(), warning=lambda found: None, **given):
    """A trainer as far as its log looks at it."""
    objective = types.SimpleNamespace(shown=(), measures=measures, warning=warning)
    usual = {"cfg": runs.configure(), "examples": 200, "durations": None, "objective": objective}
    usual |= {"flops_at": lambda step: 1.0, "steps_left": lambda step: 9.0}
    usual |= {"gather": lambda ids: ids}
    return types.SimpleNamespace(**usual | given)


def test_throughput_is_of_training_alone(monkeypatch):
    """Evaluations and waits before it began are no part; each line has a window of its own."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    cfg = runs.configure(train={"batch_size": 30}, logging={"every": 3})
    phases = types.SimpleNamespace(seconds={"data": 7.0})
    session = runs.session(None, phases=phases, progress=progress.Progress(active=False))
    length = durations.Durations(steps=6, warmup=0, cooldown=0, evaluate=None, save=None)
    log = run_log.RunLog(trainer(cfg=cfg, durations=length), session, files := Files())
    metrics = {"loss": np.float32(0.5), "finite": True, "bad_steps": 0}
    for first in (1, 4):
        for number in range(first, first + 3):
            phases.seconds["data"] += 1.0
            now[0] += 2.0
            log.dispatched(number, metrics, np.arange(3))
        with log.paused():
            now[0] += 4.0
        now[0] += 5.0
    one, other = files.lines
    assert one["train/epoch"] == pytest.approx(0.45)
    assert one["speed/images_per_second"] == pytest.approx(3 * 30 / 6)
    assert one["data/wait_share"] == pytest.approx(3 / 6)
    assert other["speed/images_per_second"] == pytest.approx(3 * 30 / 11)
    assert other["data/wait_share"] == pytest.approx(3 / 11)


def test_what_was_not_finite_is_named(monkeypatch):
    log = types.SimpleNamespace(_cfg=runs.configure(optimizer={"name": "sgd"}))
    metrics = {"finite": False, "bad_steps": 1, "lr": np.float32(0.5), "grad_norm": 2.0}
    for loss, line in (
        (np.nan, "^step 3: loss nan, gradient norm 2 not finite; examples"),
        (1.0, "^step 3: update of optimizer.name=sgd at learning rate 0.5 not finite; examples"),
    ):
        with pytest.raises(run_log.Diverged, match=line):
            run_log.RunLog.check_step(log, 3, metrics | {"loss": loss}, np.arange(2))
    monkeypatch.setattr("jax.process_count", lambda: 2)
    with pytest.raises(run_log.Diverged, match=r"; examples \[0, 1\] of process 0; parameters"):
        run_log.RunLog.check_step(log, 3, metrics | {"loss": np.nan}, np.arange(2))


def test_a_resumed_run_knows_where_it_began(tmp_path, monkeypatch):
    values, shown = {0: 0.5, 500: 0.7, 600: None, 900: 0.8}, []  # None: it was not finite
    lines = [json.dumps({"step": step, "test/top1": value}) for step, value in values.items()]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    files = types.SimpleNamespace(folder=tmp_path, begin=lambda step, age: None)
    display = progress.Progress(active=False)
    monkeypatch.setattr(display, "due", lambda step: True)
    monkeypatch.setattr(display, "update", lambda step, fields, final: shown.append(fields[-1]))
    phases = watchdog.PhaseTimer("start", time.monotonic)
    session = runs.session(None, phases=phases, progress=display)
    cfg = runs.configure(checkpoint={"best": "top1"}, logging={"every": 100})
    length = durations.Durations(
        steps=1000, warmup=0, cooldown=0, evaluate=None, save=None, first=True
    )
    log = run_log.RunLog(trainer(cfg=cfg, durations=length), session, files)
    log.begin(600, complete=False)  # 900 was lost with its checkpoint
    metrics = {"loss": np.float32(0.5), "finite": True, "bad_steps": 0}
    log.dispatched(651, metrics, np.arange(3))  # which is not written
    log.flush()
    assert [field.text for field in shown] == ["test 0.700, at first 0.500"]


def test_what_an_objective_warns_of_is_said_once_until_it_is_over(caplog):
    answers = {1.0: None, 0.1: ("images are alike", False), 0.0: ("all are one", True)}
    made = trainer(("std",), lambda found: answers[found["std"]])
    log = run_log.RunLog(made, runs.session(None, phases=None, progress=None), Files())
    for step, value in enumerate((0.1, 0.1, 1.0, 0.1), start=1):
        log._warn(step, {"std": value})
    said = [one.message for one in caplog.records if one.levelname == "WARNING"]
    assert said == ["step 1: images are alike", "step 4: images are alike"]
    with pytest.raises(run_log.Collapsed, match="step 5: all are one"):
        log._warn(5, {"std": 0.0})


def test_speed_is_shared_by_devices(monkeypatch):
    monkeypatch.setattr(run_log.logs, "peak_flops", lambda kind: 1000.0)
    monkeypatch.setattr(run_log.jax, "device_count", lambda: 4)
    speed = run_log.Speed.measured(20.0, 0.25, 60.0)
    assert speed.metrics() == {
        "data/wait_share": 0.25, "speed/images_per_second": 20.0,
        "speed/images_per_second_per_device": 5.0, "speed/mfu": 0.3,
    }  # fmt: skip
    assert run_log.Speed.measured(20.0, 0.25, None).mfu is None


def test_a_slow_run_has_a_speed():
    shown = [field.text for field in run_log.Speed(0.914, 2, 0.0, None).fields(100.0)]
    assert shown == ["0.91 img/s", "0.46/device", "data wait 0%", "ETA 1m49s"]


@pytest.mark.parametrize(("steps", "fits"), [((1, 9), True), ((0, 3), False), ((4, 3), False),
                                             ((3, 10), False), (5, False), ((2,), False),
                                             ((1.5, 2), False)])  # fmt: skip
def test_a_profile_is_of_steps_of_the_run(steps, fits, tmp_path):
    session = runs.session(tmp_path)
    if fits:
        run_log.Profiler(steps, 9, session)
        return
    with pytest.raises(config.ConfigError, match="must be FIRST:LAST within steps 1 to 9"):
        run_log.Profiler(steps, 9, session)


def test_counts_are_written_but_not_shown():
    said, phases = [], types.SimpleNamespace(seconds={"data": 0.0})
    shown = types.SimpleNamespace(say=said.append)
    session = runs.session(None, phases=phases, progress=shown)
    made = trainer(durations=types.SimpleNamespace(steps=9))
    log = run_log.RunLog(made, session, files := Files())
    role = types.SimpleNamespace(name="test", split="test[:9]")
    results = {"test/top1": 0.5, "test/count": 9.0}
    log.results(3, results, types.SimpleNamespace(role=role, brief=()))
    assert said == ["step 3/9  test/top1 0.5000"]
    assert files.lines == [{**results, "test/split": "test[:9]"}]
