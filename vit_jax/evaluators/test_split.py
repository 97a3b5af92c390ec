"""The test split, measured once, after training, on the run's final or best state."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

from vit_jax import logs
from vit_jax.checkpoints import collectives, manager
from vit_jax.data.split_roles import Role
from vit_jax.training import loop


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
    evaluator: loop.Evaluator
    steps: int
    metric: str | None
    load: Callable[[int], Any]

    def __call__(
        self,
        params: Any,
        saver: manager.Manager,
        *,
        metrics: logs.Metrics | None,
        file: pathlib.Path | None,
        stop: Callable[[], bool],
        say: Callable[[str], None],
    ) -> dict[str, float]:
        """Returns metrics such as `test/top1`, and the step of the measured state, `test/step`.

        Reads an earlier result of the run instead of measuring it again. All processes call this.

        Args:
          params: those after the last step.
          saver: checkpoint manager of the run, with no save pending.
          metrics: receives the numbers; only in process 0.
          file: the metrics.jsonl behind it; only in process 0.
          stop: asked after every batch.
          say: shows a line.

        Raises Preempted if asked to stop meanwhile.
        """
        known = collectives.broadcast_from_main(
            lambda: {} if file is None else self._recorded(file)
        )
        if known:
            return known
        step, chosen = self.steps, "the last one"
        best = None if self.metric is None else collectives.broadcast_from_main(saver.best_step)
        if best is not None:
            chosen = f"the best by {self.metric}"
            if best != step:
                step, params = best, self.load(best)
        found = self.evaluator(params, stop=stop)
        if found is None:
            raise loop.Preempted(
                f"stopped before the test split was measured, all saved at step {self.steps}; "
                "resume with the same command"
            )
        name = self.test.name
        results = {f"{name}/{key}": value for key, value in found.items()} | {f"{name}/step": step}
        if metrics is not None:
            metrics.write(self.steps, {**results, f"{name}/split": self.test.split})
        shown = "  ".join(f"{name}/{k} {v:.4f}" for k, v in found.items() if "count" not in k)
        say(f"test split {self.test.shown}, measured once, at step {step}, {chosen}: {shown}")
        return results

    def _recorded(self, file: pathlib.Path) -> dict[str, float]:
        """Returns this split's metrics after the last step in a metrics.jsonl, or nothing."""
        prefix, found = f"{self.test.name}/", {}
        for line in logs.read_metrics(file) if file.exists() else ():
            if line["step"] == self.steps and line.get(f"{prefix}split") == self.test.split:
                found = {k: v for k, v in line.items() if k.startswith(prefix)}
        return {k: v for k, v in found.items() if isinstance(v, int | float)}
