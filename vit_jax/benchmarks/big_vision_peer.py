"""The peer of `train_worker`: the same step by big_vision's model, from a checkout of big_vision.

It takes the same work and answers the same lines. Its arguments are the work and the checkout. The
step is that of big_vision's trainer with Adam: no norms are logged, the state is donated.
"""

import json
import sys

import step_timing


def prepare(work):
    """A function that takes one step, and facts about it."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from big_vision.models import vit  # pyright: ignore[reportMissingImports]

    # Without the suffix: dtype_mm applies to matrix products only, as our bfloat16_matmul does.
    model = vit.Model(
        num_classes=work["classes"],
        patch_size=(work["patch"], work["patch"]),
        width=work["width"],
        depth=work["depth"],
        mlp_dim=work["mlp_dim"],
        num_heads=work["heads"],
        pool_type="tok",
        dtype_mm=work["dtype"].removesuffix("_matmul"),
    )
    drawn = np.random.default_rng(0)
    shape = (work["batch"], work["size"], work["size"], 3)
    pixels = jax.device_put(drawn.integers(0, 256, shape, dtype=np.uint8))
    labels = jax.device_put(drawn.integers(0, work["classes"], work["batch"], dtype=np.int32))
    tx = optax.adam(1e-3)

    def create():
        params = model.init(jax.random.key(0), jnp.zeros(shape))["params"]
        return params, tx.init(params)

    def loss_of(params, images):
        logits, _ = model.apply({"params": params}, images)
        logits = logits.astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def step(state, images):
        params, moments = state
        images = images.astype(jnp.float32) / 127.5 - 1
        loss, gradient = jax.value_and_grad(loss_of)(params, images)
        updates, moments = tx.update(gradient, moments, params)
        return (optax.apply_updates(params, updates), moments), loss

    carried = [jax.jit(create)()]
    program = jax.jit(step, donate_argnums=0)

    def take():
        carried[0], loss = program(carried[0], pixels)
        return loss

    return take, {"params": sum(leaf.size for leaf in jax.tree.leaves(carried[0][0]))}


def load():
    """Imports the model."""
    from big_vision.models import vit  # noqa: F401  # pyright: ignore[reportMissingImports]


if __name__ == "__main__":
    work, checkout = sys.argv[1:]
    sys.path.insert(0, checkout)
    step_timing.serve(
        lambda: prepare(json.loads(work)),
        peak=step_timing.jax_peak,
        packages=("jax", "flax", "optax"),
        failures=(Exception,),
        out_of_memory=step_timing.jax_out_of_memory,
        load=load,
    )
