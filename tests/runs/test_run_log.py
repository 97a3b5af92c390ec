"""A run that waits for its data says so, sends bytes, and does not wait for its device."""

import threading
import time

import numpy as np
import pytest

import runs
from vit_jax import train_loop
from vit_jax.data import sources
from vit_jax.runs import run_log
from vit_jax.training.build import Trainer

pytestmark = pytest.mark.usefixtures("one_device")
DATA = {"threads": 1, "prefetch": 1}


@pytest.mark.slow
def test_the_share_of_waiting_is_that_of_a_slow_source(tmp_path, monkeypatch):
    fast = train_loop.train(
        runs.configure(data=DATA, train={"duration": "6 steps"}), tmp_path / "fast"
    )
    assert fast.steps == 6
    original = sources.Digits.__getitem__

    def slow(self, index):
        # As a thread of the loader: evaluation, which reads here too, is no waiting of a step.
        if threading.current_thread() is not threading.main_thread() and len(self) == 200:
            time.sleep(0.01)
        return original(self, index)

    monkeypatch.setattr(sources.Digits, "__getitem__", slow)
    train_loop.train(runs.configure(data=DATA, train={"duration": "6 steps"}), tmp_path / "slow")
    shares = [runs.trace(tmp_path / name, "data/wait_share") for name in ("fast", "slow")]
    for share in shares:
        assert all(0 <= value <= 1 for value in share.values())
    # A batch of 32 takes 0.32 s to read; a step takes a few hundredths, less the compiled one.
    fast_share, slow_share = (np.median(list(share.values())) for share in shares)
    assert slow_share > 0.7
    assert fast_share < slow_share - 0.1


@pytest.mark.slow
def test_batches_travel_as_bytes_and_a_step_is_looked_at_after_the_next(tmp_path, monkeypatch):
    events, kinds = [], set()
    compile_step, put, check = Trainer.compile_step, Trainer.put, run_log.RunLog.check_step

    def late(self, number, *arguments):
        events.append(f"look {number}")
        return check(self, number, *arguments)

    def compiled(self):
        step = compile_step(self)
        return lambda *inputs: events.append("step") or step(*inputs)

    def record(self, batch):
        sent = put(self, batch)
        kinds.update((name, array.dtype.name) for name, array in sent.items())
        assert all(array.dtype == batch[name].dtype for name, array in sent.items())
        return sent

    monkeypatch.setattr(Trainer, "compile_step", compiled)
    monkeypatch.setattr(Trainer, "put", record)
    monkeypatch.setattr(run_log.RunLog, "check_step", late)
    quiet = {"evaluation": {"every": None}, "checkpoint": {"every": None}}
    train_loop.train(runs.configure(train={"duration": "5 steps"}, **quiet), tmp_path / "run")
    # One step is always under way while the one before it is looked at.
    assert events == ["step", "step", "look 1", "step", "look 2", "step", "look 3", "step",
                      "look 4", "look 5"]  # fmt: skip
    assert kinds == {("image", "uint8"), ("label", "int32")}
