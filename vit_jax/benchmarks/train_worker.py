"""Trains steps on command, in a process of its own: `python -m vit_jax.benchmarks.train_worker`.

Its argument is the work as JSON (`benchmarks.train.Work`). It compiles the step as a run does and
takes one, prints a line of JSON about that, and then answers every line on standard input, a number
of steps, with their seconds, seconds of CPU time and the most memory used so far.
"""

import dataclasses
import json
import resource
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from vit_jax import config, logs, models
from vit_jax.benchmarks.forward import out_of_memory
from vit_jax.runtime import device
from vit_jax.training import optimizers, schedules, sharding, state, step
from vit_jax.training.plan import Plan

EXAMPLES = 1_281_167  # images of an epoch, for the learning rate's schedule


def config_of(work: dict[str, Any]) -> config.Config:
    """Returns the config of a run that does the work, its layers unrolled."""
    chosen = config.Model(variant=work["model"], num_classes=work["classes"], dtype=work["dtype"])
    model = models.complete(chosen)
    depth = model.depth or 1
    model = dataclasses.replace(model, attention=work["attention"], unroll=depth)
    return config.Config(
        model=model,
        data=config.Data(source="synthetic", image_size=(work["size"], work["size"])),
        train=config.Train(batch_size=work["batch"]),
    )


def prepare(cfg: config.Config) -> tuple[Callable[[], Any], dict[str, Any]]:
    """Returns a function that takes one step on the first device, and what is known before it."""
    first = jax.devices()[0]
    mesh = sharding.create_mesh(1, [first])
    network = models.create(cfg.model, image_size=cfg.data.image_size, dtype=cfg.model.dtype)
    tx = optimizers.create(cfg.optimizer, clip_norm=cfg.train.clip_norm)
    plan = Plan.of(cfg, EXAMPLES)
    schedule = schedules.create(
        cfg.schedule, lr=cfg.optimizer.lr, steps=plan.steps, warmup=plan.warmup
    )
    target = state.abstract_state(network, tx, cfg, mesh)
    function = step.create(network, tx, schedule, cfg)
    program = step.compile_step(function, target, cfg, mesh)
    carried = [state.initialize(network, tx, cfg, mesh)]
    drawn = np.random.default_rng(0)
    batch = {
        "image": drawn.integers(0, 256, step.batch_shapes(cfg)["image"].shape, dtype=np.uint8),
        "label": drawn.integers(0, cfg.model.num_classes, cfg.train.batch_size, dtype=np.int32),
    }
    batch = jax.device_put(batch, NamedSharding(mesh, sharding.BATCH))

    def take() -> Any:
        carried[0], metrics = program(carried[0], batch)
        return metrics["loss"]

    facts = {
        "params": sum(leaf.size for leaf in jax.tree.leaves(target["params"])),
        "flops": 3.0 * float(network.flops or 0) * cfg.train.batch_size,
        "platform": first.platform,
        "device": first.device_kind,
        "peak_flops": logs.peak_flops(first.device_kind),
    }
    return take, facts


def peak_memory() -> int:
    """Returns the most bytes the device has held; on a CPU, the process."""
    found = jax.devices()[0].memory_stats() or {}
    return found.get("peak_bytes_in_use", 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def answer(take: Callable[[], Any], steps: int) -> dict[str, float]:
    """Takes steps and returns their seconds, CPU seconds, last loss and the peak memory."""
    began, busy = time.perf_counter(), time.process_time()
    for _ in range(steps):
        loss = take()
    loss = float(loss)  # waits for the device
    seconds, cpu = time.perf_counter() - began, time.process_time() - busy
    return {"seconds": seconds, "cpu": cpu, "loss": loss, "peak": peak_memory()}


def main(work: str) -> None:
    """Answers until standard input ends."""
    device.keep_freed_memory()
    began = time.perf_counter()
    try:
        take, facts = prepare(config_of(json.loads(work)))
        first = answer(take, 1)
    except (config.UserError, jax.errors.JaxRuntimeError) as error:
        kind = "memory" if out_of_memory(error) else "error"
        print(json.dumps({kind: str(error).splitlines()[0]}), flush=True)
        return
    versions = {name: metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax")}
    start = time.perf_counter() - began
    print(json.dumps(facts | first | {"start": start, "versions": versions}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(take, int(line))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
