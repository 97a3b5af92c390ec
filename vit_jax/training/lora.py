"""Low-rank adapters (LoRA, Hu et al. 2021): W + alpha / rank A B, with W frozen.

Adapters are parameters of their own, under `lora/` and the path of their matrix, and the model
never sees them: it gets the sums. So what is evaluated, exported or loaded is an ordinary model.
"""

import math

import jax
import jax.numpy as jnp

from vit_jax import config, models, tree_utils
from vit_jax.config import patterns
from vit_jax.training import optimizers

PART = "lora"  # the part of the parameters that holds adapters
ENCODER = ("encoder/*/kernel",)
STREAM = 6  # of keys folded into the seed's; see `mixup.STREAM`


def shapes(options: config.Lora, matrices: models.Params) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the adapters' shapes: `a` (inputs, rank) and `b` (rank, outputs) of each matrix.

    Those of stacked layers have the layers in front. Raises ConfigError for a pattern that matches
    no matrix.

    Args:
      options: of the run, with a rank.
      matrices: the model's parameters or their shapes.
    """
    assert options.rank is not None
    flat = {name: leaf for name, leaf in tree_utils.flatten(matrices).items() if is_matrix(name)}
    layers = {name: layers_of(name, leaf.shape) for name, leaf in flat.items()}
    chosen = [patterns.parse(text, "lora.where") for text in options.where or ENCODER]
    patterns.check_matches(chosen, layers, "lora.where")
    for one in chosen:
        if one.layers is not None:
            raise config.ConfigError(
                f"lora.where={one.text}: adapters are for all layers; leave out the brackets"
            )
    found = {}
    for name, leaf in flat.items():
        if not any(one.fits(name) for one in chosen):
            continue
        stack, inputs, outputs = _sizes(name, leaf.shape)
        found[f"{PART}/{name}/a"] = (*stack, inputs, options.rank)
        found[f"{PART}/{name}/b"] = (*stack, options.rank, outputs)
    return {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in found.items()}


def initial(options: config.Lora, matrices: models.Params, seed: int) -> models.Params:
    """Returns new adapters: `a` random as in peft, `b` zero, so that at first they add nothing."""
    key = jax.random.fold_in(jax.random.key(seed), STREAM)
    flat: dict[str, jax.Array] = {}
    for number, (name, leaf) in enumerate(shapes(options, matrices).items()):
        bound = 1 / math.sqrt(leaf.shape[-2])
        flat[name] = (
            jnp.zeros(leaf.shape)
            if name.endswith("/b")
            else jax.random.uniform(
                jax.random.fold_in(key, number), leaf.shape, minval=-bound, maxval=bound
            )
        )
    return tree_utils.nest(flat)


def merge(options: config.Lora, params: models.Params, *, apart: bool = False) -> models.Params:
    """Returns the model's parameters: every matrix with what its adapter adds.

    Args:
      options: of the run.
      params: parameters of the model and, under `lora`, the adapters; unchanged without them.
      apart: one layer after the other: where the network is unrolled, no gradient of a matrix then
        outlives its layer.
    """
    if PART not in params:
        return params
    adapters = tree_utils.flatten(params[PART])
    scale = options.alpha / (options.rank or 1)

    def merged(name: str, matrix: jax.Array) -> jax.Array:
        if f"{name}/a" not in adapters:
            return matrix
        a, b = adapters[f"{name}/a"], adapters[f"{name}/b"]
        if not (apart and patterns.STACKED.fullmatch(name)):
            return _sum(matrix, a, b, scale)
        return jnp.stack([_sum(*parts, scale) for parts in zip(matrix, a, b, strict=True)])

    own = {name: part for name, part in params.items() if name != PART}
    return tree_utils.map_named(merged, own)


def _sum(matrix: jax.Array, a: jax.Array, b: jax.Array, scale: float) -> jax.Array:
    """Returns a matrix and what its adapter adds, rounded once.

    A small adapter would vanish beside a matrix in bfloat16.
    """
    added = scale * jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
    return (matrix.astype(jnp.float32) + added.reshape(matrix.shape)).astype(matrix.dtype)


def layers_of(name: str, shape: tuple[int, ...]) -> int:
    """Returns the number of layers stacked in a parameter, 1 where none are."""
    return shape[0] if patterns.STACKED.fullmatch(name) else 1


def is_matrix(name: str) -> bool:
    """Returns whether a parameter is a matrix of the model, no part of an adapter."""
    return name.endswith("/kernel")


def _sizes(name: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int, int]:
    """Returns the stacked layers, inputs and outputs of a kernel."""
    stack = shape[:1] if patterns.STACKED.fullmatch(name) else ()
    axes = shape[len(stack) :]
    split = 1 if optimizers.HEADS_LAST.fullmatch(name) else len(axes) - 1
    return stack, math.prod(axes[:split]), math.prod(axes[split:])
