"""Benchmarks of attention implementations and of start-up time."""

import pathlib
import sys
import tempfile
from collections.abc import Callable

import jax
import jax.numpy as jnp

from vit_jax import config, models
from vit_jax.benchmarks import turns


def attention() -> turns.Compared:
    """A training pass of ViT-Ti/16 with every `model.attention` that runs on this backend."""
    backend = jax.default_backend()
    kinds = ["explicit", "xla"] + (["cudnn"] if backend == "gpu" else [])
    dtype, size, batch = ("float32", 112, 8) if backend == "cpu" else ("bfloat16", 224, 256)
    images = jax.random.uniform(jax.random.key(1), (batch, size, size, 3), minval=-1.0)

    def make(kind: str) -> Callable[[], object]:
        cfg = config.Model(variant="ViT-Ti/16", num_classes=1000, unroll=12, attention=kind)
        model = models.complete(cfg)
        network = models.create(model, image_size=(size, size), channels=3, dtype=dtype)
        params = jax.jit(network.init)(jax.random.key(0))
        grad = jax.jit(jax.grad(lambda p: jnp.mean(network.apply(p, images)[1]["tokens"] ** 2)))
        return lambda: jax.block_until_ready(grad(params))

    passes = {kind: make(kind) for kind in kinds}
    for one in passes.values():
        one()
    what = f"ViT-Ti/16, {size} px, batch {batch}, {dtype}"
    results = turns.take(passes, rounds=15)
    return turns.Compared(work=what, unit="images", amount=batch, results=results)


def startup() -> turns.Compared:
    """Import, --help and the first training step on digits, compared with a bare Python."""
    python = [sys.executable]
    with tempfile.TemporaryDirectory() as folder:
        first_step = (
            "-m", "vit_jax", "train", "digits", f"--workdir={pathlib.Path(folder) / 'run'}",
            "--config.train.duration=1 steps", "--config.schedule.warmup=0 steps",
        )  # fmt: skip
        commands = {
            "vit_jax train digits, one step": first_step,
            "import vit_jax": ("-c", "import vit_jax"),
            "vit_jax --help": ("-m", "vit_jax", "--help"),
            "vit_jax list": ("-m", "vit_jax", "list"),
            "import jax": ("-c", "import jax"),
            "python (bare)": ("-c", ""),
        }
        programs = {
            name: lambda command=command: turns.run([*python, *command])
            for name, command in commands.items()
        }
        results = turns.take(programs, rounds=1)
    return turns.Compared(work="start", unit="starts", amount=1, results=results)
