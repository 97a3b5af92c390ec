"""The implementations of attention, compared."""

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
        # A loss on the encoder's output: every layer has a gradient, without a head.
        grad = jax.jit(jax.grad(lambda p: jnp.mean(network.apply(p, images)[1]["tokens"] ** 2)))
        return lambda: jax.block_until_ready(grad(params))

    passes = {kind: make(kind) for kind in kinds}
    for one in passes.values():
        one()
    what = f"ViT-Ti/16, {size} px, batch {batch}, {dtype}"
    results = turns.take(passes, rounds=15)
    return turns.Compared(work=what, unit="images", amount=batch, results=results)
