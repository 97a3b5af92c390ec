"""Learning rates over the steps of a run."""

import typing
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax import config
from vit_jax.config import components


def create_schedule(
    schedule: config.Schedule, *, lr: float, steps: int, warmup: int, cooldown: int = 0
) -> optax.Schedule:
    """`step -> learning rate`: a linear warm-up from 0, the decay, a linear cooldown to 0.

    The cooldown multiplies the decay, as in Scaling Vision Transformers (Zhai et al. 2021). The
    decay's progress counts from the end of the warm-up, as in the released code; the drops of
    `step` are at shares of the whole run. Step 0 is the first update; a run without warm-up starts
    at `lr`.
    """
    if schedule.name not in components.built_in("schedule"):
        own = components.make(schedule, "schedule.name", lr=lr, steps=steps, warmup=warmup)
        if callable(own):
            own = components.guarded("schedule.name", schedule.name)(own)
        rate = jax.eval_shape(own, jnp.float32(0)) if callable(own) else None
        if getattr(rate, "shape", None) != ():
            raise config.ConfigError(
                f"schedule.name={schedule.name}: must return a function of the step that returns "
                "the learning rate, a scalar"
            )
        return _of_float(typing.cast(optax.Schedule, own))
    decay = _decay(schedule, lr, steps, warmup)
    if warmup:
        decay = optax.join_schedules([optax.linear_schedule(0.0, lr, warmup), decay], [warmup])
    # Multiplied last: the rate before the cooldown does not depend on the length of the run.
    if isinstance(schedule, config.Cooled):
        decay = _cooled(decay, steps, cooldown)
    return _of_float(decay)


def half_cosine(start: float, end: float, steps: int) -> optax.Schedule:
    """`step -> value`: half a cosine from `start` at step 0 to `end` after the last of `steps`."""
    return _of_float(
        lambda step: end + (start - end) * 0.5 * (1 + jnp.cos(jnp.pi * step / max(steps, 1)))
    )


def _decay(schedule: config.Schedule, lr: float, steps: int, warmup: int) -> optax.Schedule:
    # At least 1: a run that only warms up would divide by 0.
    rest = max(steps - warmup, 1)
    match schedule:
        case config.Falling(name="cosine", end=end):
            # optax's alpha is the end as a share of the start.
            return optax.cosine_decay_schedule(lr, rest, alpha=end / lr)
        case config.Falling(end=end):
            return optax.linear_schedule(lr, end, rest)
        case config.StepSchedule(drops=drops):
            return _staircase(lr, [share * steps - warmup for share in drops])
        case config.ReciprocalSqrt(timescale=timescale):
            return _reciprocal_sqrt(lr, timescale)
        case _:
            return optax.constant_schedule(lr)


def _of_float(schedule: optax.Schedule) -> optax.Schedule:
    """Casts the step to float32 first, as optax mixes it with floats.

    float32 holds every step up to 16 million.
    """
    return lambda step: schedule(jnp.asarray(step, jnp.float32))


def _cooled(decay: optax.Schedule, steps: int, cooldown: int) -> optax.Schedule:
    """Multiplies a schedule by a linear fall to 0 over the last steps, of which there may be none.

    Steps before it have the same bits in runs of every length and cooldown, as these numbers are
    hidden from the compiler: it simplifies by their values, and rounds other programs otherwise.
    """
    numbers = np.array([steps, cooldown] if cooldown else [np.inf, 1], np.float32)

    def schedule(step: jax.typing.ArrayLike) -> jax.Array:
        end, length = jax.lax.optimization_barrier(numbers)
        return jnp.multiply(decay(step), jnp.clip((end - step) / length, 0.0, 1.0))

    return schedule


def _reciprocal_sqrt(lr: float, timescale: float) -> optax.Schedule:
    return lambda step: lr * jax.lax.rsqrt(1.0 + step / timescale)


def _staircase(lr: float, drops: Sequence[float]) -> optax.Schedule:
    """The constant lr, divided by 10 from each step of `drops` on (Big Transfer, section 3.3)."""

    def schedule(step: jax.typing.ArrayLike) -> jax.Array:
        # Both count from the end of the warm-up, where `join_schedules` restarts the steps.
        passed = jnp.asarray(step) >= jnp.asarray(drops, jnp.float32)
        return lr * 0.1 ** jnp.sum(passed, dtype=jnp.float32)

    return schedule
