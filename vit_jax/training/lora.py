"""Low-rank adapters (LoRA, Hu et al. 2021): W + alpha / rank A B, with W frozen.

Adapters are parameters of their own, under `lora/` and the path of their matrix. A step keeps them
apart from it (`models.classifier.Adapted`); what is evaluated, exported or loaded is the sum, an
ordinary model.
"""

import math

import jax
import jax.numpy as jnp

from vit_jax import config, models
from vit_jax.config import patterns
from vit_jax.models.classifier import LORA
from vit_jax.training import streams
from vit_jax.utils import tree_utils

ENCODER = ("encoder/*/kernel",)


def shapes(options: config.Lora, model: models.Classifier) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of the adapters: `a` (inputs, rank) and `b` (rank, outputs) of each matrix.

    Those of stacked layers have the layers in front. Raises ConfigError for a pattern that matches
    no matrix of a dense layer.
    """
    assert options.rank is not None
    flat = {n: leaf for n, leaf in tree_utils.flatten(model.shapes()).items() if n in model.dense}
    layers = {name: layers_of(name, leaf.shape) for name, leaf in flat.items()}
    where = [patterns.parse_pattern(text, "lora.where") for text in options.where or ENCODER]
    patterns.check_matches(where, layers, "lora.where")
    for one in where:
        if one.layers is not None:
            raise config.ConfigError(
                f"lora.where={one.text}: adapters are for all layers; leave out the brackets"
            )
    found = {}
    for name in flat:
        if not any(one.fits(name) for one in where):
            continue
        # By its layer: the shape (D, H, d) of a kernel does not say which axes are its inputs.
        inputs, outputs = model.dense[name]
        stack = (layers[name],) if patterns.STACKED.fullmatch(name) else ()
        found[f"{LORA}/{name}/a"] = (*stack, inputs, options.rank)
        found[f"{LORA}/{name}/b"] = (*stack, options.rank, outputs)
    return {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in found.items()}


def initial(options: config.Lora, model: models.Classifier, seed: int) -> models.Params:
    """New adapters: `a` random as in peft, `b` zero, so that at first they add nothing."""
    key = streams.key(seed, streams.LORA)
    flat: dict[str, jax.Array] = {}
    for number, (name, leaf) in enumerate(shapes(options, model).items()):
        # The bound of torch's kaiming_uniform_(a=sqrt(5)), with which peft draws A.
        bound = 1 / math.sqrt(leaf.shape[-2])
        flat[name] = (
            jnp.zeros(leaf.shape, jnp.float32)
            if name.endswith("/b")
            else jax.random.uniform(
                jax.random.fold_in(key, number),
                leaf.shape,
                jnp.float32,
                minval=-bound,
                maxval=bound,
            )
        )
    return tree_utils.nest(flat)


def scaled(options: config.Lora, params: models.Params) -> models.Params:
    """Folds alpha / rank into B, so that the forward pass only adds A B."""

    def one(name: str, leaf: jax.Array) -> jax.Array:
        return leaf * _scale(options) if name.endswith("/b") else leaf

    return params | {LORA: tree_utils.map_named(one, params[LORA])}


def merge(options: config.Lora, params: models.Params) -> models.Params:
    """Adds the adapters under `lora`, if there are any, to their matrices.

    Each sum is in float32 and rounded once: a small adapter would vanish beside a matrix in
    bfloat16.
    """
    if LORA not in params:
        return params
    adapters = tree_utils.flatten(params[LORA])

    def merged(name: str, matrix: jax.Array) -> jax.Array:
        if f"{name}/a" not in adapters:
            return matrix
        a, b = adapters[f"{name}/a"], adapters[f"{name}/b"]
        # HIGHEST, as TPUs round the operands of float32 products to bfloat16 by default.
        added = _scale(options) * jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
        return (matrix.astype(jnp.float32) + added.reshape(matrix.shape)).astype(matrix.dtype)

    own = {name: part for name, part in params.items() if name != LORA}
    return tree_utils.map_named(merged, own)


def _scale(options: config.Lora) -> float:
    return options.alpha / (options.rank or 1)


def layers_of(name: str, shape: tuple[int, ...]) -> int:
    """The number of layers stacked in a parameter, 1 where none are."""
    return shape[0] if patterns.STACKED.fullmatch(name) else 1
