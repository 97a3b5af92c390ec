"""The test split, measured once, after training, on the run's final or best state."""

import dataclasses
from collections.abc import Callable
from typing import Any

from vit_jax.checkpoints import manager
from vit_jax.data.split_roles import Role
from vit_jax.runtime import collectives, logs
from vit_jax.runtime.preemption import Preempted
from vit_jax.runtime.run_files import RunFiles
from vit_jax.runtime.session import Session
from vit_jax.training.hooks import Evaluator


@dataclasses.dataclass(frozen=True, kw_only=True)
class Final:
    """Everything needed to measure a test split.

    Attributes:
      test: the split.
      evaluator: evaluates parameters on it.
      steps: total steps of the run.
      metric: selects the best checkpoint, such as `validation/top1`; None: the last state.
      load: returns the parameters of a checkpoint by its step.
    """

    test: Role
    evaluator: Evaluator
    steps: int
    metric: str | None
    load: Callable[[int], Any]

    def __call__(
        self,
        params: Any,
        saver: manager.Manager,
        session: Session,
        files: RunFiles,
    ) -> dict[str, float]:
        """Returns metrics such as `test/top1`, and the step of the measured state, `test/step`.

        All processes call this; `recorded` tells whether it was done before.

        Args:
          params: those after the last step.
          saver: checkpoint manager of the run, with no save pending.
          session: the process; it may ask to stop.
          files: those of the run, which receive the numbers.

        Raises Preempted if asked to stop meanwhile.
        """
        step, chosen = self.steps, "the last one"
        best = None if self.metric is None else collectives.broadcast_from_main(saver.best_step)
        if best is not None:
            chosen = f"the best by {self.metric}"
            if best != step:
                step, params = best, self.load(best)
        with session.phases("evaluate"):
            found = self.evaluator(params, stop=lambda: session.phases.beat() or session.stop())
        if found is None:
            raise Preempted(
                f"stopped before the test split was measured, all saved at step {self.steps}; "
                "resume with the same command"
            )
        name = self.test.name
        results = {f"{name}/{key}": value for key, value in found.items()} | {f"{name}/step": step}
        files.write(self.steps, {**results, f"{name}/split": self.test.split})
        files.spent(self.steps)
        shown = "  ".join(f"{name}/{k} {v:.4f}" for k, v in found.items() if "count" not in k)
        session.progress.say(
            f"test split {self.test.shown}, measured once, at step {step}, {chosen}: {shown}"
        )
        return results

    def recorded(self, files: RunFiles) -> dict[str, float]:
        """Returns what an earlier process has measured and written; all processes call this."""
        return collectives.broadcast_from_main(lambda: self._recorded(files))

    def _recorded(self, files: RunFiles) -> dict[str, float]:
        assert files.folder is not None  # in process 0
        file = files.folder / "metrics.jsonl"
        prefix, found = f"{self.test.name}/", {}
        for line in logs.read_metrics(file) if file.exists() else ():
            if line["step"] == self.steps and line.get(f"{prefix}split") == self.test.split:
                found = {k: v for k, v in line.items() if k.startswith(prefix)}
        return {k: v for k, v in found.items() if isinstance(v, int | float)}
