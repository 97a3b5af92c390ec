"""Learning rates over the steps of a run."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from vit_jax import config
from vit_jax.config import components
from vit_jax.training.plan import Plan

COOLED = ("constant", "rsqrt")  # the decays that do not end by themselves


def of(cfg: config.Config, plan: Plan) -> optax.Schedule:
    """Returns `step -> learning rate` of a run."""
    return create(
        cfg.schedule,
        lr=cfg.optimizer.lr,
        steps=plan.steps,
        warmup=plan.warmup,
        cooldown=plan.cooldown,
    )


def create(
    schedule: config.Schedule, *, lr: float, steps: int, warmup: int, cooldown: int = 0
) -> optax.Schedule:
    """Returns `step -> learning rate`: a linear warm-up from 0, the decay, a linear cooldown to 0.

    The cooldown multiplies the decay, as in Scaling Vision Transformers (Zhai et al. 2021). The
    decay's progress counts from the end of the warm-up, as in the released code; the drops of
    `step` are at shares of the whole run. Step 0 is the first update; a run without warm-up starts
    at `lr`.
    """
    if not components.is_built_in("schedule", schedule.decay):
        own: optax.Schedule = components.make(
            "schedule", schedule.decay, "schedule.decay", lr=lr, steps=steps, warmup=warmup
        )
        rate = jax.eval_shape(own, jnp.float32(0)) if callable(own) else None
        if getattr(rate, "shape", None) != ():
            raise config.ConfigError(
                f"schedule.decay={schedule.decay}: must return a function of the step that returns "
                "the learning rate, a scalar"
            )
        return _of_float(own)
    rest = max(steps - warmup, 1)
    if schedule.decay == "cosine":
        decay = optax.cosine_decay_schedule(lr, rest, alpha=schedule.end / lr)
    elif schedule.decay == "linear":
        decay = optax.linear_schedule(lr, schedule.end, rest)
    elif schedule.decay == "step":
        decay = _staircase(lr, [share * steps - warmup for share in schedule.drops])
    elif schedule.decay == "constant":
        decay = optax.constant_schedule(lr)
    else:
        decay = _reciprocal_sqrt(lr, schedule.timescale)
    if warmup:
        decay = optax.join_schedules([optax.linear_schedule(0.0, lr, warmup), decay], [warmup])
    if cooldown and schedule.decay in COOLED:
        decay = _cooled(decay, steps, cooldown)
    return _of_float(decay)


def _of_float(schedule: optax.Schedule) -> optax.Schedule:
    """Returns the schedule as a function of a float32 step, as optax mixes the step with floats.

    float32 holds every step up to 16 million.
    """
    return lambda step: schedule(jnp.asarray(step, jnp.float32))


def _cooled(decay: optax.Schedule, steps: int, cooldown: int) -> optax.Schedule:
    """Returns a schedule that falls to 0 over the last steps."""
    return lambda step: decay(step) * jnp.clip((steps - step) / cooldown, 0.0, 1.0)


def _reciprocal_sqrt(lr: float, timescale: float) -> optax.Schedule:
    """Returns lr / sqrt(1 + step / timescale)."""
    return lambda step: lr * jax.lax.rsqrt(1.0 + step / timescale)


def _staircase(lr: float, drops: Sequence[float]) -> optax.Schedule:
    """Returns lr, divided by 10 from each step of `drops` on (Big Transfer, section 3.3)."""

    def schedule(step: Any) -> jax.Array:
        passed = jnp.asarray(step) >= jnp.asarray(drops, jnp.float32)
        return lr * 0.1 ** jnp.sum(passed, dtype=jnp.float32)

    return schedule
