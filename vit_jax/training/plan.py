"""The durations of a run, in steps."""

import dataclasses

from vit_jax import config
from vit_jax.config import checks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The durations of a config, in steps."""

    steps: int
    warmup: int
    cooldown: int
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
            cooldown=steps(cfg.schedule.cooldown),
            evaluate=cfg.evaluation.every and steps(cfg.evaluation.every),
            save=cfg.checkpoint.every and steps(cfg.checkpoint.every),
        )
        checks.check_length(cfg, plan.steps, plan.warmup, plan.cooldown)
        return plan

    def logs(self, step: int, every: int | None) -> bool:
        """Returns whether the metrics of a step are written, by `logging.every`."""
        return step == self.steps or step % (every or max(1, min(50, self.steps // 50))) == 0

    @property
    def evaluations(self) -> int:
        """How many times a whole run is evaluated."""
        return 1 if self.evaluate is None else -(-self.steps // self.evaluate)

    def evaluates(self, step: int) -> bool:
        """Returns whether the state after a step is evaluated."""
        return step == self.steps or bool(self.evaluate and step % self.evaluate == 0)

    def saves(self, step: int) -> bool:
        """Returns whether the state after a step is saved."""
        return step == self.steps or bool(self.save and step % self.save == 0)
