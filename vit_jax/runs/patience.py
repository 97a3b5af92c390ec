"""Early stopping: ends a run after some evaluations without a better checkpoint."""

from collections.abc import Mapping
from typing import Any

from vit_jax import config
from vit_jax.checkpoints import record as records
from vit_jax.data import split_roles

LOWEST = 1e300  # JSON has no infinity, which stands for a loss that was not measured


class Patience:
    """Counts evaluations since the best one, by `checkpoint.best`; every commit records it.

    Only the record decides, so that a resumed run stops where an uninterrupted one would.
    """

    def __init__(self, cfg: config.Config) -> None:
        """Raises ConfigError for early stopping without a metric."""
        self.allowed = cfg.checkpoint.patience
        self.metric = split_roles.best_metric(cfg)
        if self.allowed is not None and self.metric is None:
            raise config.ConfigError(
                f"checkpoint.patience={self.allowed}: no metric chooses the best checkpoint; "
                "evaluate a validation split, or set checkpoint.best"
            )
        if self.allowed is not None and cfg.evaluation.every is None:
            raise config.ConfigError(
                f"checkpoint.patience={self.allowed}: evaluation.every=none evaluates once, at the "
                "end; set it to a duration"
            )
        self._best: tuple[float, ...] | None = None
        # Before step 0, so that an evaluation of the initial state counts.
        self._waited, self._step = 0, -1

    def resume(self, recorded: Mapping[str, Any] | None) -> None:
        """Goes on from the `patience` of a commit record."""
        # Scores by another metric, as `checkpoint.best` may change, compare with nothing here.
        if recorded is not None and recorded.get("metric", self.metric) == self.metric:
            # JSON has lists, and scores are compared as tuples.
            self._best = recorded["best"] and tuple(recorded["best"])
            self._waited, self._step = recorded["waited"], recorded["step"]

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.allowed is not None and self._waited >= self.allowed

    def observe(self, step: int, results: Mapping[str, float]) -> None:
        """Counts the results of an evaluation, once for each step."""
        # A resumed run may measure the state it starts from again, which is already counted.
        if self.allowed is None or step <= self._step:
            return
        score = records.score(results, self.metric)
        better = score is not None and (self._best is None or score > self._best)
        self._step, self._waited = step, 0 if better else self._waited + 1
        self._best = score if better else self._best

    @property
    def facts(self) -> dict[str, object]:
        """For a commit record; nothing without early stopping."""
        if self.allowed is None:
            return {}
        best = self._best and [max(value, -LOWEST) for value in self._best]
        count = {"metric": self.metric, "best": best, "waited": self._waited, "step": self._step}
        return {"patience": count}
