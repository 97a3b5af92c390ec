"""The training loop: data, step, look, evaluate, save, and stop when asked."""

import contextlib
import dataclasses
import os
import signal
import time
import zlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn, Protocol

import jax
import numpy as np

from vit_jax import config, logs, storage, validation
from vit_jax.checkpoints import collectives, manager
from vit_jax.data import prefetch
from vit_jax.progress import Field, Progress
from vit_jax.runtime.goodput import STEP, GoodputLog, Summary, describe
from vit_jax.runtime.phase_timer import PhaseTimer
from vit_jax.training.throughput import Speed

LOGGED = ("loss", "top1", "accuracy", "error", "grad_norm", "lr")  # of what a step returns


class Preempted(config.UserError):
    """The run was asked to stop, has saved its state, and can be resumed."""

    exit_code = 75


class Diverged(config.UserError):
    """The loss or gradient was not finite more often than the config allows."""

    exit_code = 70


class Stop:
    """Notes SIGTERM and SIGINT; the loop asks. A second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: object) -> None:
        if number == signal.SIGINT and self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
        # Not process_count: a signal may come while that waits for the devices, and holds a lock.
        if number == signal.SIGINT and jax.distributed.is_initialized():
            os.kill(os.getpid(), signal.SIGTERM)  # the one that jax passes on to all processes
        logs.log.warning("%s received: saving and stopping", signal.Signals(number).name)

    def __call__(self, step: int | None = None) -> bool:
        """Returns whether to stop; with several processes all learn it at the same `step`."""
        if jax.process_count() == 1:
            return self.signal is not None
        if step is None:
            return False  # between steps the processes cannot agree without a barrier
        from jax.experimental import multihost_utils

        return multihost_utils.reached_preemption_sync_point(step)


class Evaluator(Protocol):
    """Measures parameters; returns None when `stop()` turned true before it was done."""

    def __call__(self, params: Any, *, stop: Callable[[], bool]) -> dict[str, float] | None:
        """Returns named numbers over the whole split."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The durations of a config, in steps."""

    steps: int
    warmup: int
    evaluate: int | None
    save: int | None

    @classmethod
    def of(cls, cfg: config.Config, examples: int) -> "Plan":
        """Returns the plan for an epoch of `examples`; raises ConfigError if it cannot work."""

        def steps(duration: config.Duration) -> int:
            return duration.steps(cfg.train.batch_size, examples)

        plan = cls(
            steps=steps(cfg.train.duration),
            warmup=steps(cfg.schedule.warmup),
            evaluate=cfg.evaluation.every and steps(cfg.evaluation.every),
            save=cfg.checkpoint.every and steps(cfg.checkpoint.every),
        )
        validation.check_length(cfg, plan.steps, plan.warmup)
        return plan

    @property
    def evaluations(self) -> int:
        """How many times a whole run is evaluated."""
        return 1 if self.evaluate is None else -(-self.steps // self.evaluate)

    def evaluates(self, step: int) -> bool:
        """Returns whether the state after a step is evaluated."""
        return step == self.steps or bool(self.evaluate and step % self.evaluate == 0)


@dataclasses.dataclass(kw_only=True)
class Loop:
    """Everything a run needs, made elsewhere; `run` trains from `state` to the end.

    The first of `evaluators` measures the split that may choose the best checkpoint; each is called
    as its metrics are. `splits` is written beside them: what a name stands for. Of evaluators after
    the first, only the main numbers are displayed, except for those in `shown`.
    """

    cfg: config.Config
    plan: Plan
    step: Callable[[Any, dict[str, jax.Array]], tuple[Any, dict[str, jax.Array]]]
    batches: Callable[[int], prefetch.BatchIterator]
    put: Callable[[Mapping[str, np.ndarray]], dict[str, jax.Array]]
    evaluators: Mapping[str, Evaluator]
    parameters: Callable[[Any], Any]
    saver: manager.Manager
    record: Mapping[str, Any]
    metrics: logs.Metrics | None
    progress: Progress
    stop: Stop
    phases: PhaseTimer
    sessions: GoodputLog | None
    mirror: storage.RemoteSync | None
    flops_per_image: float | None
    splits: Mapping[str, str] = dataclasses.field(default_factory=dict)
    shown: Collection[str] = ()
    profile: tuple[int, int] | None = None
    profile_directory: str = ""
    _tracing: bool = dataclasses.field(default=False, init=False)

    def run(
        self, state: Any, start: int, *, evaluated: bool = True
    ) -> tuple[Any, dict[str, float]]:
        """Trains from `start` to the last step.

        A restored state that the plan evaluates, but that was not `evaluated`, is so first.
        Returns the state and the last evaluation. Raises Preempted, Diverged, SaveFailed.
        """
        if self.stop():
            if start:  # restored from there
                raise Preempted(
                    f"stopped at step {start}, which was saved before; resume with the same command"
                )
            self._stop(state, start, None)
        results: dict[str, float] = {}
        if start and not evaluated and self.plan.evaluates(start):
            results = self._evaluate(state, start) or {}
            if self.stop():
                self._stop(state, start, results or None)
            self._save(state, start, results)
        timer, saved_at = logs.Timer(), time.monotonic()
        pending: tuple[int, dict[str, jax.Array], np.ndarray] | None = None
        with contextlib.closing(self.batches(start)) as batches, self.phases(STEP):
            for step in range(start + 1, self.plan.steps + 1):
                self._profile(step)
                began = time.monotonic()
                try:
                    with self.phases("data"):
                        batch = next(batches)
                except prefetch.StoppedError:
                    if pending is not None:
                        self._look(*pending, timer)
                    self._stop(state, step - 1, None)
                timer.wait(time.monotonic() - began)
                state, metrics = self.step(state, self.put(_inputs(batch)))
                # Looking at the step before keeps the device busy while this process waits.
                if pending is not None:
                    self._look(*pending, timer)
                pending = (step, metrics, batch["index"])
                self.saver.poll()

                last = step == self.plan.steps
                stopping = self.stop(step)
                evaluate = self.plan.evaluates(step)
                save = last or (self.plan.save and step % self.plan.save == 0)
                save = save or self._minutes_are_over(step, saved_at)
                if not (stopping or evaluate or save):
                    continue
                self._look(*pending, timer)
                pending = None
                began = time.monotonic()
                fresh = None
                if evaluate and not stopping:
                    fresh = self._evaluate(state, step)
                    results = fresh or results
                    stopping = self.stop() or stopping
                if stopping:
                    self._stop(state, step, fresh)
                if save or self._is_best(fresh):
                    self._save(state, step, fresh)
                    saved_at = time.monotonic()
                timer.pause(time.monotonic() - began)
        self._profile(self.plan.steps + 1)
        if not results:  # resumed after the last step: there was nothing left to train
            results = self._evaluate(state, self.plan.steps) or {}
        self.progress.doing("saving")
        with self.phases("save"):
            self.saver.wait()
        spent = self._spent(self.plan.steps)
        if spent is not None:
            self.progress.say(describe(spent))
        return state, results

    def _look(
        self,
        step: int,
        metrics: dict[str, jax.Array],
        ids: np.ndarray,
        timer: logs.Timer,
    ) -> None:
        """Waits for a step, stops a run that diverges, and logs."""
        timer.steps += 1
        if not bool(metrics["finite"]):
            bad, allowed = int(metrics["bad_steps"]), self.cfg.train.max_bad_steps
            where = (
                f"step {step}: loss {float(metrics['loss']):g}, gradient norm "
                f"{float(metrics['grad_norm']):g} not finite; examples {_few(ids)}"
            )
            if bad > allowed:
                raise Diverged(
                    f"{where}; parameters kept as they were before it; stopped after {bad} such "
                    f"steps, train.max_bad_steps={allowed}. Lower optimizer.lr, clip gradients "
                    "with train.clip_norm=1, or look at these examples"
                )
            logs.log.warning("%s; update skipped (%d of %d allowed)", where, bad, allowed)
        last = step == self.plan.steps
        logged = last or step % self.cfg.logging.every == 0
        # The clock decides only what is shown: metrics are those of an unbroken run.
        if not (logged or self.progress.due(step)):
            return
        rows, steps = self.cfg.train.batch_size, timer.steps
        rate, waiting = timer.lap() if logged else timer.now()
        speed = Speed.measured(rate * rows, waiting, self.flops_per_image)
        loss, epoch = float(metrics["loss"]), step * rows / self.record["examples"]
        if logged:
            self._write(step, metrics, {"train/epoch": epoch, **speed.metrics()}, ids)
        fields = [Field(4, f"epoch {epoch:.1f}"), Field(0, f"loss {loss:.4f}")]
        if logged or steps > 1:  # else it is how fast a run begins
            fields += speed.fields((self.plan.steps - step) * rows)
        self.progress.update(step, fields, final=last)

    def _write(
        self, step: int, metrics: dict[str, jax.Array], others: Mapping[str, float], ids: np.ndarray
    ) -> None:
        """Writes the numbers of a step."""
        values = {f"train/{name}": float(metrics[name]) for name in LOGGED if name in metrics}
        values |= {
            "train/bad_steps": int(metrics["bad_steps"]),
            # Equal numbers mean that the same images were seen in the same order.
            "data/batch_crc": zlib.crc32(ids.tobytes()),
            **others,
        }
        spent = self._spent(step)
        if spent is not None:
            values["speed/goodput"] = spent.goodput
        if self.metrics is not None:
            self.metrics.write(step, values)
        if self.mirror is not None:
            self.mirror.bring()

    def _evaluate(self, state: Any, step: int) -> dict[str, float] | None:
        """Runs every evaluator and logs; None if asked to stop meanwhile."""
        results: dict[str, float] = {}

        def asked() -> bool:
            self.phases.beat()  # asked after every batch
            return self.stop()

        for name, evaluator in self.evaluators.items():
            self.progress.doing(f"evaluating {name}", slow=Progress.MOST_SECONDS)
            with self.phases("evaluate"):
                one = evaluator(self.parameters(state), stop=asked)
            if one is None:
                return None
            results |= {f"{name}/{key}": value for key, value in one.items()}
        self.progress.doing("")
        if self.metrics is not None:
            self.metrics.write(step, {**results, **self.splits})
        further = [name for name in list(self.evaluators)[1:] if name not in self.shown]
        brief = tuple(f"{name}/" for name in further)
        shown = "  ".join(
            f"{key} {value:.4f}"
            for key, value in results.items()
            if "count" not in key
            and (key.endswith(("top1", "shot", "mce")) or not key.startswith(brief))
        )
        self.progress.say(f"step {step}/{self.plan.steps}  {shown}")
        return results

    def _minutes_are_over(self, step: int, saved_at: float) -> bool:
        minutes = self.cfg.checkpoint.minutes
        if minutes is None:
            return False
        over = time.monotonic() - saved_at > 60 * minutes
        if jax.process_count() == 1:
            return over
        # Clocks differ: process 0 decides, now and then, as asking costs a round trip.
        return step % self.cfg.logging.every == 0 and collectives.broadcast_from_main(lambda: over)

    def _is_best(self, results: Mapping[str, float] | None) -> bool:
        return results is not None and self.saver.is_best(_checked(results))

    def _save(self, state: Any, step: int, results: Mapping[str, float] | None) -> None:
        self.progress.doing("saving", slow=Progress.MOST_SECONDS)
        with self.phases("save"):
            if self.mirror is not None:  # a checkpoint has all numbers that led to it
                self.mirror.bring(now=True)
            self.saver.save(step, state, record=self.record, metrics=_checked(results))
        self.progress.doing("")

    def _stop(self, state: Any, step: int, results: Mapping[str, float] | None) -> NoReturn:
        self._save(state, step, results)
        self.progress.doing("saving")
        with self.phases("save"):
            self.saver.wait()
        self._spent(step)
        raise Preempted(f"stopped and saved at step {step}; resume with the same command")

    def _spent(self, step: int) -> Summary | None:
        """Writes down what the time went into so far."""
        self.phases.beat()
        return self.sessions and self.sessions.update(step, self.phases.seconds)

    def _profile(self, step: int) -> None:
        """Starts and stops the profiler around the steps asked for."""
        if self.profile is None:
            return
        first, last = self.profile
        if first <= step <= last and not self._tracing:
            jax.profiler.start_trace(self.profile_directory)
            self._tracing = True
        elif step > last and self._tracing:
            jax.profiler.stop_trace()
            self._tracing = False
            self.progress.say(f"profile of steps {first}:{last} in {self.profile_directory}")


def _inputs(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"image": batch["image"], "label": batch["label"]}


def _checked(results: Mapping[str, float] | None) -> dict[str, float] | None:
    """Returns the first evaluator's metrics, for choosing the best."""
    if results is None:
        return None
    first = next(iter(results)).partition("/")[0] + "/"
    return {key: value for key, value in results.items() if key.startswith(first)}


def _few(ids: np.ndarray, most: int = 16) -> str:
    shown = ", ".join(str(i) for i in ids[:most])
    return f"[{shown}{', ...' if len(ids) > most else ''}]"
