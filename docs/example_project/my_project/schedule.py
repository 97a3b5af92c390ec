"""A learning rate schedule: `--config.schedule.name=triangle --config.schedule.peak=0.3`."""

import optax

import vit_jax


@vit_jax.register("schedule", "triangle")
def triangle(*, lr, steps, warmup, peak: float = 0.5):
    """Rises to a share of the run, then falls to 0; `warmup` (in steps) is left out on purpose."""
    top = max(round(peak * steps), 1)
    up = optax.linear_schedule(0.1 * lr, lr, top)
    return optax.join_schedules([up, optax.linear_schedule(lr, 0.0, max(steps - top, 1))], [top])
