"""The durations of a run in steps, and which events are due at a step."""

import dataclasses
from typing import Self

from vit_jax import config
from vit_jax.config import checks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Durations:
    """The durations of a config, in steps; None: never before the last step.

    `first`: whether the state before the first step is evaluated.
    """

    steps: int
    warmup: int
    cooldown: int
    evaluate: int | None
    save: int | None
    first: bool = False

    @classmethod
    def from_config(cls, cfg: config.Config, examples: int) -> Self:
        """Converts durations by an epoch of `examples`; raises ConfigError if they conflict."""

        def steps(duration: config.Duration) -> int:
            return duration.steps(cfg.train.batch_size, examples)

        found = cls(
            steps=steps(cfg.train.duration),
            warmup=steps(cfg.schedule.warmup),
            cooldown=steps(cfg.schedule.cooldown),
            evaluate=cfg.evaluation.every and steps(cfg.evaluation.every),
            save=cfg.checkpoint.every and steps(cfg.checkpoint.every),
            # Training without labels may make published features worse: measured first, to compare.
            first=cfg.init_from is not None and not cfg.needs_labels,
        )
        checks.check_length(cfg, found.steps, found.warmup, found.cooldown)
        checks.check_phases(cfg, found.steps, [steps(phase.until) for phase in cfg.data.phases])
        return found

    @property
    def evaluations(self) -> int:
        """Number of evaluations in a whole run."""
        return self.first + (1 if self.evaluate is None else -(-self.steps // self.evaluate))

    def logs(self, step: int, every: int | None) -> bool:
        """Whether the metrics of a step are written, by `logging.every`."""
        # By default every 50 steps, in runs of under 2,500 steps about 50 times in all.
        return step == self.steps or step % (every or max(1, min(50, self.steps // 50))) == 0

    def evaluates(self, step: int) -> bool:
        """Whether the state after a step is evaluated."""
        if step == self.steps or (step == 0 and self.first):
            return True
        return bool(self.evaluate and step % self.evaluate == 0)

    def saves(self, step: int) -> bool:
        """Whether the state after a step is saved."""
        return step == self.steps or bool(self.save and step % self.save == 0)
