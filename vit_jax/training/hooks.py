"""What a run does around its steps: logs, evaluates, saves, and profiles."""

import dataclasses
import time
import zlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import jax
import numpy as np

from vit_jax import config
from vit_jax.checkpoints import manager
from vit_jax.runtime import collectives, logs
from vit_jax.runtime.preemption import Preempted
from vit_jax.runtime.progress import Field, Progress
from vit_jax.runtime.run_files import RunFiles
from vit_jax.runtime.session import Session
from vit_jax.training.loop import Hook, Moment
from vit_jax.training.plan import Plan
from vit_jax.training.throughput import Speed

# Of the metrics of a step.
LOGGED = ("loss", "top1", "accuracy", "error", "distillation", "grad_norm", "lr")


class Diverged(config.UserError):
    """The loss or gradient was not finite more often than the config allows."""

    exit_code = 70
    from_state = True


class Evaluator(Protocol):
    """Measures parameters; returns None when `stop()` turned true before it was done."""

    def __call__(self, params: Any, *, stop: Callable[[], bool]) -> dict[str, float] | None:
        """Returns named numbers over the whole split."""
        ...


class Log(Hook):
    """Shows and writes the metrics of steps, and ends a run that diverges.

    A step is looked at after the next one has been dispatched, which keeps the devices busy.
    """

    def __init__(
        self,
        cfg: config.Config,
        plan: Plan,
        session: Session,
        files: RunFiles,
        examples: int,
        flops_per_image: float | None,
    ) -> None:
        """Takes the size of an epoch in examples, and the FLOPs of training on one image."""
        self._cfg, self._plan, self._files = cfg, plan, files
        self._progress, self._phases = session.progress, session.phases
        self._examples, self._flops = examples, flops_per_image
        self._pending: tuple[int, Mapping[str, jax.Array], np.ndarray] | None = None
        self._timer: logs.Timer | None = None
        self._paused: float | None = None

    def before(self, step: int) -> None:
        """Leaves the time of other hooks out of the speed."""
        if self._timer is None:
            self._timer = logs.Timer()  # begins after what a resumed run evaluates first
        elif self._paused is not None:
            self._timer.pause(time.monotonic() - self._paused)
        self._paused = None
        self._waited = self._phases.seconds["data"]

    def dispatched(
        self, step: int, metrics: Mapping[str, jax.Array], batch: Mapping[str, np.ndarray]
    ) -> None:
        """Looks at the step before; raises Diverged."""
        assert self._timer is not None
        self._timer.wait(self._phases.seconds["data"] - self._waited)
        self._look()
        self._pending = step, metrics, batch["index"]

    def after(self, moment: Moment, *, due: bool) -> None:
        """Looks at the last step; raises Diverged."""
        self._look()
        self._paused = time.monotonic()

    def _look(self) -> None:
        if self._pending is None:
            return
        (step, metrics, ids), self._pending = self._pending, None
        assert self._timer is not None
        self._timer.steps += 1
        self._check(step, metrics, ids)
        last = step == self._plan.steps
        logged = self._plan.logs(step, self._cfg.logging.every)
        # The clock decides only what is shown: metrics are those of an unbroken run.
        if not (logged or self._progress.due(step)):
            return
        rows, steps = self._cfg.train.batch_size, self._timer.steps
        rate, waiting = self._timer.lap() if logged else self._timer.now()
        speed = Speed.measured(rate * rows, waiting, self._flops)
        loss, epoch = float(metrics["loss"]), step * rows / self._examples
        if logged:
            self._write(step, metrics, {"train/epoch": epoch, **speed.metrics()}, ids)
        fields = [Field(4, f"epoch {epoch:.1f}"), Field(0, f"loss {loss:.4f}")]
        if logged or steps > 1:  # else it is how fast a run begins
            fields += speed.fields((self._plan.steps - step) * rows)
        self._progress.update(step, fields, final=last)

    def _check(self, step: int, metrics: Mapping[str, jax.Array], ids: np.ndarray) -> None:
        """Waits for a step; warns of one that is not finite, and raises Diverged at the limit."""
        if bool(metrics["finite"]):
            return
        bad, allowed = int(metrics["bad_steps"]), self._cfg.train.max_bad_steps
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

    def _write(
        self,
        step: int,
        metrics: Mapping[str, jax.Array],
        others: Mapping[str, float],
        ids: np.ndarray,
    ) -> None:
        values = {f"train/{name}": float(metrics[name]) for name in LOGGED if name in metrics}
        values |= {
            "train/bad_steps": int(metrics["bad_steps"]),
            # Equal numbers mean that the same images were seen in the same order.
            "data/batch_crc": zlib.crc32(ids.tobytes()),
            **others,
        }
        spent = self._files.spent(step)
        if spent is not None:
            values["speed/goodput"] = spent.goodput
        self._files.write(step, values)
        self._files.sync()


class Evaluate(Hook):
    """Runs every evaluator, and shows and writes its results.

    The first one measures the split that may choose the best checkpoint.
    """

    def __init__(
        self,
        plan: Plan,
        session: Session,
        files: RunFiles,
        evaluators: Mapping[str, Evaluator],
        *,
        parameters: Callable[[Any], Any],
        named: Collection[str] = (),
        splits: Mapping[str, str] | None = None,
    ) -> None:
        """Takes the evaluators.

        Args:
          plan: tells when to evaluate.
          session: the process.
          files: receive the results.
          evaluators: by the name that their results begin with.
          parameters: returns what is evaluated of a state.
          named: evaluators whose results are shown whole; of others except the first, the main
            ones are.
          splits: texts to write beside the results.
        """
        self._plan, self._files, self._parameters = plan, files, parameters
        self._progress, self._phases, self._stop = session.progress, session.phases, session.stop
        self._evaluators, self._splits = evaluators, splits or {}
        self._brief = tuple(f"{name}/" for name in list(evaluators)[1:] if name not in named)

    def due(self, step: int) -> bool:
        """Returns whether the state after a step is evaluated."""
        return self._plan.evaluates(step)

    def after(self, moment: Moment, *, due: bool) -> None:
        """Sets the results of the state; a stop meanwhile leaves them out."""
        if due and not moment.stopping:
            moment.results = self._evaluate(moment)
            moment.stopping = self._stop()

    def _evaluate(self, moment: Moment) -> dict[str, float] | None:
        results: dict[str, float] = {}

        def asked() -> bool:
            self._phases.beat()  # asked after every batch
            return self._stop()

        with self._phases("evaluate"):
            params = self._parameters(moment.state)
        for name, evaluator in self._evaluators.items():
            self._progress.doing(f"evaluating {name}", slow=Progress.MOST_SECONDS)
            with self._phases("evaluate"):
                one = evaluator(params, stop=asked)
            if one is None:
                return None
            results |= {f"{name}/{key}": value for key, value in one.items()}
        self._progress.doing("")
        self._files.write(moment.step, {**results, **self._splits})
        shown = "  ".join(
            f"{key} {value:.4f}"
            for key, value in results.items()
            if "count" not in key
            and (key.endswith(("top1", "shot", "mce")) or not key.startswith(self._brief))
        )
        self._progress.say(f"step {moment.step}/{self._plan.steps}  {shown}")
        return results


class Save(Hook):
    """Saves states when they are due, the best ones, and the last one of a run that stops."""

    def __init__(
        self,
        cfg: config.Config,
        plan: Plan,
        session: Session,
        files: RunFiles,
        saver: manager.Manager,
        record: Mapping[str, Any],
    ) -> None:
        """Takes the facts to record with every checkpoint."""
        self._cfg, self._plan, self._files = cfg, plan, files
        self._progress, self._phases = session.progress, session.phases
        self._saver, self._record = saver, record
        self._saved_at = time.monotonic()

    def dispatched(
        self, step: int, metrics: Mapping[str, jax.Array], batch: Mapping[str, np.ndarray]
    ) -> None:
        """Raises SaveFailed if a save in the background failed."""
        self._saver.poll()

    def due(self, step: int) -> bool:
        """Returns whether the state after a step is saved."""
        return self._plan.saves(step) or self._minutes_are_over(step)

    def after(self, moment: Moment, *, due: bool) -> None:
        """Saves; raises Preempted after the last save of a run that stops."""
        if moment.stopping:
            self._preempt(moment)
        if moment.restored:  # saved already, perhaps without its evaluation
            due = moment.results is not None and not moment.measured
        if due or (moment.results is not None and self._saver.is_best(moment.results)):
            self._save(moment)

    def end(self) -> None:
        """Waits for the last save; raises SaveFailed."""
        self._progress.doing("saving")
        with self._phases("save"):
            self._saver.wait()

    def _preempt(self, moment: Moment) -> None:
        if moment.restored and moment.results is None:
            raise Preempted(
                f"stopped at step {moment.step}, which was saved before; resume with the same "
                "command"
            )
        self._save(moment)
        self.end()
        self._files.spent(moment.step)
        raise Preempted(f"stopped and saved at step {moment.step}; resume with the same command")

    def _save(self, moment: Moment) -> None:
        self._progress.doing("saving", slow=Progress.MOST_SECONDS)
        with self._phases("save"):
            self._files.sync(now=True)  # a checkpoint has all numbers that led to it
            metrics = moment.results
            self._saver.save(moment.step, moment.state, record=self._record, metrics=metrics)
        self._progress.doing("")
        self._saved_at = time.monotonic()

    def _minutes_are_over(self, step: int) -> bool:
        minutes = self._cfg.checkpoint.minutes
        if minutes is None:
            return False
        over = time.monotonic() - self._saved_at > 60 * minutes
        if jax.process_count() == 1:
            return over
        # Clocks differ: process 0 decides, now and then, as asking costs a round trip.
        asked = self._plan.logs(step, self._cfg.logging.every)
        return asked and collectives.broadcast_from_main(lambda: over)


@dataclasses.dataclass
class Profile(Hook):
    """Writes a profiler trace of the steps `first` to `last` to a folder."""

    first: int
    last: int
    folder: str
    say: Callable[[str], None]
    _tracing: bool = dataclasses.field(default=False, init=False)

    def before(self, step: int) -> None:
        """Starts and stops the profiler."""
        if self.first <= step <= self.last and not self._tracing:
            jax.profiler.start_trace(self.folder)
            self._tracing = True
        elif step > self.last:
            self.end()

    def end(self) -> None:
        """Stops the profiler."""
        if self._tracing:
            jax.profiler.stop_trace()
            self._tracing = False
            self.say(f"profile of steps {self.first}:{self.last} in {self.folder}")


def _few(ids: np.ndarray, most: int = 16) -> str:
    shown = ", ".join(str(i) for i in ids[:most])
    return f"[{shown}{', ...' if len(ids) > most else ''}]"
