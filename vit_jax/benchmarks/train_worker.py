"""Trains steps on command, in a process of its own: `python -m vit_jax.benchmarks.train_worker`.

Its argument is a `benchmarks.train.StepWork` as JSON. It compiles the step as a run does and takes
one, prints a line of JSON about that, and then answers every line on standard input, a number
of steps, with their seconds, seconds of CPU time and the most memory used so far.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from vit_jax import config, models
from vit_jax.benchmarks import step_timing
from vit_jax.runtime import device, logs
from vit_jax.training import sharding
from vit_jax.training.build import build

EXAMPLES = 1_281_167  # images of an epoch, for the learning rate's schedule


def config_from_work(work: dict[str, Any]) -> config.Config:
    """The config of a run that does the work."""
    options = {name: work[name] for name in ("dtype", "attention", "remat")}
    model = models.complete(
        config.Model(variant=work["model"], num_classes=work["classes"], **options)
    )
    objective, clipping = config.Objective(), {}
    if work["objective"] == "mae":
        objective = config.Mae(name="mae")
    elif work["objective"] == "dino":  # whose code clips too
        objective, clipping = config.Dino(name="dino"), {"clip_norm": 3.0, "clip_by": "parameter"}
    return config.Config(
        model=model,
        data=config.Data(source="synthetic", image_size=(work["size"], work["size"])),
        train=config.Train(batch_size=work["batch"], **clipping),
        objective=objective,
    )


def prepare(cfg: config.Config) -> tuple[Callable[[], jax.Array], dict[str, object]]:
    """A function that takes one step on the first device, and facts about it."""
    first = jax.devices()[0]
    trainer = build(cfg, EXAMPLES, devices=[first])
    program, carried = trainer.compile_step(), [trainer.init_state()]
    drawn = np.random.default_rng(0)
    batch = {
        name: drawn.integers(
            0, cfg.model.num_classes if name == "label" else 256, shape.shape, dtype=shape.dtype
        )
        for name, shape in trainer.batch_shapes.items()
    }
    batch = jax.device_put(batch, NamedSharding(trainer.mesh, sharding.BATCH))

    # The step donates its state, so each call goes on with what the last one returned.
    def take() -> jax.Array:
        carried[0], metrics = program(carried[0], batch, None)
        return metrics["loss"]

    facts = {
        "params": sum(leaf.size for leaf in jax.tree.leaves(trainer.state_shapes["params"])),
        "flops": (trainer.flops_per_image or 0.0) * cfg.train.batch_size,
        "platform": first.platform,
        "device": first.device_kind,
        "peak_flops": logs.peak_flops(first.device_kind),
    }
    return take, facts


if __name__ == "__main__":
    # Before jax starts its threads, as in a run.
    device.step_by_step()
    step_timing.serve(
        lambda: prepare(config_from_work(json.loads(sys.argv[1]))),
        peak=step_timing.jax_peak,
        packages=("jax", "jaxlib", "flax", "optax"),
        failures=(config.UserError, jax.errors.JaxRuntimeError),
        out_of_memory=step_timing.jax_out_of_memory,
    )
