"""Evaluations of a run: during training, and of its best or last checkpoint at the end."""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Self

from vit_jax import config, models
from vit_jax.checkpoints import record as records
from vit_jax.checkpoints.manager import Manager
from vit_jax.checkpoints.record import NEWEST
from vit_jax.data import split_roles
from vit_jax.data.sources import RunSplits
from vit_jax.evaluation.evaluation import Evaluation
from vit_jax.evaluation.runner import Evaluator
from vit_jax.inference import loading
from vit_jax.runs.run_log import RunLog
from vit_jax.runs.session import Session
from vit_jax.runtime import collectives, logs
from vit_jax.runtime.preemption import Preempted
from vit_jax.runtime.progress import Progress
from vit_jax.runtime.run_files import RunFiles
from vit_jax.training.build import Trainer
from vit_jax.training.state import State


@dataclasses.dataclass(frozen=True)
class RunEvaluation:
    """The evaluators of a run.

    Attributes:
      trainer: what is trained.
      evaluation: its evaluators while it trains.
      session: the process.
      at_end: of the test split, if there is one.
    """

    trainer: Trainer
    evaluation: Evaluation
    session: Session
    at_end: "TestEvaluation | None" = None

    @classmethod
    def from_splits(cls, trainer: Trainer, splits: RunSplits, session: Session) -> Self:
        """Creates all evaluators before training, so that a mistake in one ends the run at once."""
        cfg, role = trainer.cfg, split_roles.final(trainer.cfg.data)
        evaluation = Evaluation(
            cfg,
            splits.evaluation,
            splits.classes,
            trainer.model,
            trainer.mesh,
            stop=session.stop,
        )
        if role is None or splits.test is None:
            return cls(trainer, evaluation, session)
        at_end = TestEvaluation(
            role=role,
            evaluator=evaluation.of_split(splits.test, real=True),
            metric=split_roles.best_metric(cfg),
            load=lambda step: loading.load_params(session.workdir / "checkpoints", step, cfg),
        )
        return cls(trainer, evaluation, session, at_end)

    def __call__(self, log: RunLog, step: int, live: State) -> dict[str, float] | None:
        """Runs all evaluators, shows and writes their results; None if a stop cut them short."""
        progress, phases = self.session.progress, self.session.phases

        def begin(name: str) -> None:
            # Each evaluator, and below each batch, is a sign of life for the watchdog.
            phases.beat()
            progress.doing(f"evaluating {name}", slow=Progress.MOST_SECONDS)

        def stop() -> bool:  # asked after every batch
            phases.beat()
            return self.session.stop()

        with phases("evaluate"):
            # With train.ema, these are the averaged parameters.
            params = self.trainer.eval_params(live)
            results = self.evaluation(params, stop=stop, begin=begin)
        progress.doing("")
        if results:  # an objective without labels measures nothing unless features are asked for
            log.results(step, results, self.evaluation)
        return results


@dataclasses.dataclass(frozen=True, kw_only=True)
class TestEvaluation:
    """The test split, evaluated once, after training, on the run's last or best state.

    Attributes:
      role: the split and the name of its metrics.
      evaluator: evaluates parameters on it.
      metric: chooses the best checkpoint, such as `validation/top1`; None: the last state stands.
      load: loads the parameters of a checkpoint by its step.
    """

    role: split_roles.Role
    evaluator: Evaluator
    metric: str | None
    load: Callable[[int], models.Params]

    def __call__(
        self, end: int, params: models.Params, manager: Manager, session: Session, files: RunFiles
    ) -> dict[str, float]:
        """Metrics such as `test/top1`, and the step of the evaluated state, `test/step`.

        All processes call this; `recorded` tells whether it was done before.

        Args:
          end: the last step of the run.
          params: those after it.
          manager: the run's checkpoints, with no save pending.
          session: the process; it may ask to stop.
          files: those of the run, which receive the numbers.

        Raises Preempted if asked to stop meanwhile.
        """
        step, which = end, "the last one"
        # Process 0 decides: all must evaluate the same parameters.
        best = None if self.metric is None else collectives.broadcast_from_main(manager.best_step)
        if best is not None:
            which = f"the best by {self.metric}"
            if best != step:
                step, params = best, self.load(best)
        with session.phases("evaluate"):
            # `beat` returns None. Each batch is progress; the watchdog would end a long evaluation.
            found = self.evaluator(params, stop=lambda: session.phases.beat() or session.stop())
        if found is None:
            raise Preempted(
                f"stopped before the test split was measured, all saved at step {end}; "
                "resume with the same command"
            )
        name = self.role.name
        results = {f"{name}/{key}": value for key, value in found.items()} | {f"{name}/step": step}
        # With its split: `recorded` must not take the results of another one for these.
        files.write(end, {**results, f"{name}/split": self.role.split})
        files.spent(end)
        shown = "  ".join(f"{name}/{k} {v:.4f}" for k, v in found.items() if "count" not in k)
        session.progress.say(
            f"test split {self.role.shown}, measured once, at step {step}, {which}: {shown}"
        )
        return results

    def recorded(self, end: int, files: RunFiles) -> dict[str, float]:
        """The results that were written before, or none; all processes call this.

        A state that has been measured again since, as after an accepted change, has none.
        """
        return collectives.broadcast_from_main(lambda: self._recorded(end, files))

    def _recorded(self, end: int, files: RunFiles) -> dict[str, float]:
        assert files.folder is not None  # in process 0
        file = files.folder / "metrics.jsonl"
        prefix, found = f"{self.role.name}/", {}
        lines = logs.read_metrics(file) if file.exists() else []
        for line in (one for one in lines if one["step"] == end):
            if line.get(f"{prefix}split") == self.role.split:
                found = {k: v for k, v in line.items() if k.startswith(prefix)}
            elif any(k.endswith("/split") and not k.startswith(prefix) for k in line):
                found = {}
        # The line also names the split, which is no number.
        return {k: v for k, v in found.items() if isinstance(v, int | float)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The results of a finished run.

    Attributes:
      workdir: the run directory.
      steps: the last step.
      seconds: duration of this process.
      results: the evaluation of the checkpoint that stands for the run, and the test split's.
      last: the evaluation after the last step.
      checkpoint: which checkpoint stands for the run, and why, as `vit_jax.load` chooses it.
      files: what the run wrote.
      splits: expressions of the measured splits, by the name of their metrics.
    """

    workdir: pathlib.Path
    steps: int
    seconds: float
    results: Mapping[str, float]
    last: Mapping[str, float]
    checkpoint: str
    files: tuple[pathlib.Path, ...]
    splits: Mapping[str, str] = dataclasses.field(default_factory=dict)


def collect_outcome(
    cfg: config.Config,
    steps: int,
    last: Mapping[str, float],
    tested: Mapping[str, float],
    session: Session,
    files: RunFiles,
) -> Outcome:
    """Draws the curves and collects the results.

    `last` is the evaluation after the last step, empty in a run that was complete before; `tested`
    are the results of the test split, if there is one.
    """
    workdir, final = session.workdir, split_roles.final(cfg.data)
    last = last or _evaluation(workdir, NEWEST)[1]
    checkpoint, results = _evaluation(workdir)
    roles = [split_roles.evaluation(cfg.data), *([final] if final else [])]
    written = ["config.json", "metrics.jsonl", "checkpoints"]
    if (folder := files.folder) is not None:
        from vit_jax.pages import curves  # matplotlib is slow to import

        names = [role.name for role in roles]
        curves.draw_curves(folder / "metrics.jsonl", folder / "curves.png", names)
        written.append("curves.png")
    return Outcome(
        workdir=workdir,
        steps=steps,
        seconds=session.age,
        results={**results, **tested},
        last={**last, **tested},
        checkpoint=checkpoint,
        files=tuple(workdir / name for name in written),
        splits={r.name: r.split for r in roles if split_roles.measures_split(cfg)},
    )


def _evaluation(workdir: pathlib.Path, at: str | None = None) -> tuple[str, dict[str, float]]:
    found = collectives.broadcast_from_main(
        lambda: records.find_step(workdir / "checkpoints", at)[1]
    )
    metrics = found["metrics"].items()  # which has None for what was not finite
    return found["selection"], {key: math.nan if one is None else one for key, one in metrics}
