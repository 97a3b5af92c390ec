"""Shows and writes the metrics of steps, the results of evaluations, and a profile."""

import contextlib
import math
import time
import zlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import jax
import numpy as np

from vit_jax import config
from vit_jax.checkpoints import record as records
from vit_jax.data import split_roles
from vit_jax.evaluation.evaluation import Evaluation
from vit_jax.runs.session import Session
from vit_jax.runtime import goodput, logs
from vit_jax.runtime.progress import Field
from vit_jax.runtime.run_files import RunFiles
from vit_jax.training.build import Trainer
from vit_jax.utils import storage
from vit_jax.utils.messages import rounded

UNLOGGED = ("finite", "bad_steps")  # metrics of a step that are not logged as numbers


class Diverged(config.UserError):
    """The loss or gradient was not finite more often than the config allows."""

    exit_code = 70
    from_state = True


class Collapsed(config.UserError):
    """Training would go on, but its features no longer tell images apart."""

    exit_code = 78
    from_state = True


class RunLog:
    """Shows and writes metrics, and ends a run that diverges or collapses.

    The metrics of a step are read after the next one has been dispatched: reading waits for the
    devices, which would then have nothing to do.
    """

    def __init__(self, trainer: Trainer, session: Session, files: RunFiles) -> None:
        self._trainer, self._session, self._files = trainer, session, files
        self._cfg, self._durations = trainer.cfg, trainer.durations
        self._progress, self._phases = session.progress, session.phases
        if trainer.flops_at(1) is None:
            name = self._cfg.model.architecture
            logs.log.info("model.architecture=%s: counts no FLOPs; no MFU", name)
        # A step, its metrics and example numbers, and those of all hosts if it is logged.
        self._pending: (
            tuple[int, Mapping[str, jax.Array], np.ndarray, np.ndarray | jax.Array | None] | None
        ) = None
        self._first, self._warned = 0, False
        self._metric = split_roles.knn_metric(self._cfg) or split_roles.best_metric(self._cfg)
        self._began: Mapping[str, float] = {}  # the evaluation before the first step, if any
        self._newest: Mapping[str, float] = {}
        self.start()

    def begin(self, step: int, *, complete: bool) -> None:
        """Shows the run from a step on; a complete run does not count as another session."""
        self._first = step
        self._resume_results()
        self._progress.begin(self._durations.steps, step)
        if complete:
            self._progress.say("nothing is left to train or to measure")
        else:
            self._files.begin(step, age=self._session.age)

    def start(self) -> None:
        """Starts a window in which throughput is measured."""
        self._window, self._paused, self._steps = time.monotonic(), 0.0, 0
        self._waited = self._phases.seconds["data"]

    def dispatched(self, step: int, metrics: Mapping[str, jax.Array], ids: np.ndarray) -> None:
        """Takes the metrics of a step that may still run; raises Diverged for the one before."""
        self.flush()
        logged = self._durations.logs(step, self._cfg.logging.every)
        # Not in `flush`: some hosts flush before, others after they dispatch the next step.
        self._pending = step, metrics, ids, self._trainer.gather(ids) if logged else None
        # On a CPU the call of a step returns when it has ended: read later, the time of this step
        # would count as that of the next, and the last one's as none.
        if getattr(metrics["loss"], "is_ready", bool)():  # not in the type of jax.Array
            self.flush()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Flushes, and excludes the time in the `with` statement from throughput."""
        self.flush()
        # After the flush: waiting for the last step is training, not the pause.
        began = time.monotonic()
        yield
        self._paused += time.monotonic() - began

    def flush(self) -> None:
        """Waits for the last step, shows and writes its metrics; raises Diverged."""
        if self._pending is None:
            return
        (step, metrics, ids, batch), self._pending = self._pending, None
        self._steps += 1
        self.check_step(step, metrics, ids)
        logged = batch is not None
        # The clock decides only what is shown; the files are those of an uninterrupted run.
        if not (logged or self._progress.due(step)):
            return
        rows, steps = self._cfg.train.batch_size, self._steps
        seconds = max(time.monotonic() - self._window - self._paused, 1e-9)
        waiting = min((self._phases.seconds["data"] - self._waited) / seconds, 1.0)
        # FLOPs of this step's phase: the run's mean would give small images too high an MFU.
        speed = Speed.measured(steps / seconds * rows, waiting, self._trainer.flops_at(step))
        # Only logged lines begin a new window: those that the clock shows must not shorten it.
        if logged:
            self.start()
        loss, epoch = float(metrics["loss"]), step * rows / self._trainer.examples
        if batch is not None:
            self._write(step, metrics, {"train/epoch": epoch, **speed.metrics()}, batch)
        fields = [Field(4, f"epoch {epoch:.1f}"), Field(0, f"loss {loss:.4f}")]
        if logged or steps > 1:  # the first step alone would measure the startup
            fields += speed.fields(self._trainer.steps_left(step) * rows)
        fields += [
            Field(3, f"{name.replace('_', ' ')} {float(metrics[name]):.3g}")
            for name in self._trainer.objective.shown
        ]
        if self._metric and self._metric in self._began:
            name = self._metric.removesuffix("/top1").rpartition("/")[2]
            now, began = (one[self._metric] for one in (self._newest, self._began))
            fields.append(Field(3, f"{name} {now:.3f}, at first {began:.3f}"))
        if logged:
            self._warn(step, metrics)
        self._progress.update(step, fields, final=step == self._durations.steps)

    def results(self, step: int, results: Mapping[str, float], evaluation: Evaluation) -> None:
        """Shows and writes the results of an evaluation, by `evaluator/measure`."""
        role = evaluation.role
        self._files.write(step, {**results, f"{role.name}/split": role.split})
        # Of further sets, the main results alone fit into a line.
        beside = tuple(f"{name}/" for name in evaluation.brief)
        shown = "  ".join(
            f"{key} {value:.4f}"
            for key, value in results.items()
            if "count" not in key
            and (key.endswith(("top1", "shot", "mce")) or not key.startswith(beside))
        )
        self._progress.say(f"step {step}/{self._durations.steps}  {shown}")
        self._compare(step, results)

    def _compare(self, step: int, results: Mapping[str, float]) -> None:
        """Warns if a run is worse than the weights it started from."""
        metric = self._metric
        if metric is None or metric not in results:
            return
        self._newest = results
        if step == 0:
            self._began = results
        began, now = (records.score(one, metric) for one in (self._began, results))
        if began is not None and now is not None and now < began:
            logs.log.warning(
                "step %d: %s %.4f is worse than the %.4f of the weights this run started from",
                step, metric, results[metric], self._began[metric],
            )  # fmt: skip

    def _resume_results(self) -> None:
        if not self._durations.first or (folder := self._files.folder) is None:
            return
        file = folder / "metrics.jsonl"
        for line in logs.read_metrics(file) if file.exists() else ():
            # Later lines are of steps that this process will do again.
            if line["step"] <= self._first and records.score(line, self._metric) is not None:
                self._newest = line
                self._began = line if line["step"] == 0 else self._began

    def stop(self, step: int) -> None:
        """Writes the time spent by phase when a run stops early, if it took any step."""
        if step > self._first:
            self._files.spent(step)

    def end(self, step: int) -> None:
        """Shows and writes the time that the whole run spent by phase, up to this step."""
        if spent := self._files.spent(step):
            self._progress.say(goodput.describe_sessions(spent))

    def check_step(self, step: int, metrics: Mapping[str, jax.Array], ids: np.ndarray) -> None:
        """Waits for a step; warns of one that is not finite, and raises Diverged at the limit."""
        # This waits for the step.
        if bool(metrics["finite"]):
            return
        bad, allowed = int(metrics["bad_steps"]), self._cfg.train.max_bad_steps
        few = f"{', '.join(map(str, ids[:16]))}{', ...' if len(ids) > 16 else ''}"
        loss, norm, rate = (float(metrics[name]) for name in ("loss", "grad_norm", "lr"))
        what = f"loss {loss:g}, gradient norm {norm:g}"
        # Finite gradients and a bad update: that is a plug-in's optimizer or schedule.
        if math.isfinite(loss) and math.isfinite(norm):
            name = self._cfg.optimizer.name
            what = f"update of optimizer.name={name} at learning rate {rate:g}"
        # Each process knows its own share of a batch, and says so itself.
        own = f" of process {jax.process_index()}" if jax.process_count() > 1 else ""
        where = f"step {step}: {what} not finite; examples [{few}]{own}"
        if bad > allowed:
            raise Diverged(
                f"{where}; parameters kept as they were before it; stopped after {bad} such "
                f"steps, train.max_bad_steps={allowed}. Lower optimizer.lr, clip gradients "
                "with train.clip_norm=1, or look at these examples"
            )
        logs.log.warning("%s; update skipped (%d of %d allowed)", where, bad, allowed)

    def _warn(self, step: int, metrics: Mapping[str, jax.Array]) -> None:
        """Logs the objective's warning once; raises Collapsed if it ends the run."""
        objective = self._trainer.objective
        found = objective.warning({name: float(metrics[name]) for name in objective.measures})
        if found is None:
            # The next time counts as new, after steps without a warning.
            self._warned = False
            return
        text, ends = found
        if ends:
            raise Collapsed(f"step {step}: {text}")
        if not self._warned:
            logs.log.warning("step %d: %s", step, text)
        self._warned = True

    def _write(
        self,
        step: int,
        metrics: Mapping[str, jax.Array],
        others: Mapping[str, float],
        ids: np.ndarray | jax.Array,
    ) -> None:
        named = [name for name in metrics if name not in UNLOGGED]
        values = {f"train/{name}": float(metrics[name]) for name in named}
        values |= {
            # An integer, as it counts; a float would be written as 3.0.
            "train/bad_steps": int(metrics["bad_steps"]),
            # Equal numbers mean that the same images were seen in the same order.
            "data/batch_crc": zlib.crc32(np.asarray(ids, np.int64).tobytes()),
            **others,
        }
        spent = self._files.spent(step)
        if spent is not None:
            values["speed/goodput"] = spent.goodput
        self._files.write(step, values)
        self._files.sync()


class Speed(NamedTuple):
    """Throughput of a stretch of steps.

    Attributes:
      images: per second, on all devices.
      devices: their number.
      waiting: share of time spent waiting for data.
      mfu: FLOP/s as a share of the devices' peak; None if either is unknown.
    """

    images: float
    devices: int
    waiting: float
    mfu: float | None

    @classmethod
    def measured(cls, images: float, waiting: float, flops_per_image: float | None) -> "Speed":
        """The speed on this run's devices, for a rate in images per second."""
        devices, peak = jax.device_count(), logs.peak_flops(jax.devices()[0].device_kind)
        mfu = images * flops_per_image / (peak * devices) if peak and flops_per_image else None
        return cls(images, devices, waiting, mfu)

    def metrics(self) -> dict[str, float]:
        """As written to metrics.jsonl."""
        values = {
            "data/wait_share": self.waiting,
            "speed/images_per_second": self.images,
            "speed/images_per_second_per_device": self.images / self.devices,
        }
        return values if self.mfu is None else values | {"speed/mfu": self.mfu}

    def fields(self, images_left: float) -> list[Field]:
        """As shown, with the time that the rest of the run will take."""
        return [
            Field(2, f"{rounded(self.images)} img/s"),
            Field(7, f"{rounded(self.images / self.devices)}/device"),
            Field(6, f"data wait {self.waiting:.0%}"),
            *([] if self.mfu is None else [Field(5, f"MFU {self.mfu:.1%}")]),
            Field(1, f"ETA {logs.duration(images_left / self.images)}"),
        ]


class Profiler:
    """Traces the steps FIRST to LAST to a folder of the run directory; without steps, nothing."""

    def __init__(self, steps: tuple[int, int] | None, last: int, session: Session) -> None:
        """`steps`: the first and last one to trace; `last`: that of the run. Raises ConfigError."""
        self._first, self._last = 0, -1
        self._session = session
        self._tracing = False
        if steps is None:
            return
        match steps:
            case int(first), int(final) if 1 <= first <= final <= last:
                self._first, self._last = first, final
            case _:  # from Python, of any type
                shown = ":".join(map(str, steps)) if isinstance(steps, tuple) else steps
                raise config.ConfigError(
                    f"--profile={shown}: must be FIRST:LAST within steps 1 to {last}"
                )
        if storage.is_remote(session.workdir):
            raise config.ConfigError(
                f"--profile: needs a --workdir on a disk, not {session.workdir}"
            )

    def before(self, step: int) -> None:
        """Starts or stops the trace before a step."""
        # A run that resumes within these steps traces the rest of them.
        if self._first <= step <= self._last and not self._tracing:
            jax.profiler.start_trace(self._session.workdir / "profile")
            self._tracing = True
        elif step > self._last:
            self.end()

    def end(self) -> None:
        """Stops the trace."""
        if self._tracing:
            jax.profiler.stop_trace()
            self._tracing = False
            folder = self._session.workdir / "profile"
            self._session.progress.say(f"profile of steps {self._first}:{self._last} in {folder}")
