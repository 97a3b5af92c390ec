"""Initial values of encoders whose authors draw them differently from Google's code.

timm    timm's ViT and DINOv2: normal(0.02), tokens normal(1e-6), the patch embedding as PyTorch's
        convolutions: uniform between -1 and 1 over the root of its inputs, its bias too
deit    DeiT, DINO and DINOv3: the same with tokens normal(0.02)
mae     MAE: Xavier's uniform, with queries, keys and values as one matrix; tokens normal(0.02)
beit    BEiT and EVA: as DeiT, and what a layer adds to its input is divided by the root of twice
        its number, from 1; a head of normal(2e-5)
mimetic Google's, with attention as in trained ViTs (Trockman & Kolter 2023): a head's query times
        its key is near 0.7 (Z + I), all values times the projection near 0.4 (Z - I), where Z is
        normal(1/sqrt(D)) and I the identity

Sources: timm 1.0.31 (vision_transformer, deit, beit, eva), facebookresearch/mae (models_mae.py,
main_finetune.py). What they call a truncated normal is cut at 2, a hundred deviations, so a
normal is the same. Biases are zero; norms, positions, LayerScale and relative biases stay.
"""

import math
import re
import zlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from vit_jax import config
from vit_jax.models.architecture import Params
from vit_jax.utils import tree_utils

Shape = tuple[int, ...]
STANDARD = 0.02  # deviation that all these authors have in common


class Style(NamedTuple):
    """Where the initial values of different authors differ."""

    tokens: float  # deviation of class and register tokens
    head: float  # deviation of the head's kernel
    xavier: bool = False  # kernels of all but the head
    falling: bool = False  # what a layer adds gets smaller with its number


STYLES = {
    "timm": Style(tokens=1e-6, head=STANDARD),
    "deit": Style(tokens=STANDARD, head=STANDARD),
    "mae": Style(tokens=STANDARD, head=2e-5, xavier=True),
    "beit": Style(tokens=STANDARD, head=2e-5, falling=True),
}
TOKENS = re.compile("cls|registers|distillation")
HEADS = re.compile("head(_dist)?/kernel")
DENSE = re.compile("(encoder|pooling|pre_logits)/.*kernel")
LAST = re.compile("encoder/.*(out|fc2)/kernel")  # of a branch
QUERY = re.compile("encoder/.*attention/query/kernel")


def redraw(model: config.Model, params: Params, key: jax.Array) -> Params:
    """Redraws the parameters of an encoder as the authors named by `model.init` do.

    Args:
      model: complete options.
      params: nested by name, as Google's code draws them.
      key: for all arrays; each folds in its name.
    """
    if model.init == "google":
        return params
    flat = tree_utils.flatten(params)
    if model.init == "mimetic":
        return tree_utils.nest(flat | _mimetic(flat, key))
    style = STYLES[model.init]
    for name, leaf in flat.items():
        # By name, so that an array's draw does not depend on which others the model has.
        draw = _initializer(name, style, flat)
        if draw is not None:
            # crc32, as Python's own hash of a string differs between processes.
            flat[name] = draw(jax.random.fold_in(key, zlib.crc32(name.encode())), leaf.shape)
    return tree_utils.nest(flat)


Draw = Callable[[jax.Array, Shape], jax.Array]


def _initializer(name: str, style: Style, flat: dict[str, jax.Array]) -> Draw | None:
    """The initializer of a parameter, or None to keep its value."""
    if TOKENS.fullmatch(name):
        return _normal(style.tokens)
    if HEADS.fullmatch(name):
        return _normal(style.head)
    if name == "pooling/probe":
        # The deviation of timm's AttentionPoolLatent.
        return _normal(flat[name].shape[-1] ** -0.5)
    if name.startswith("embedding/"):
        shape = flat["embedding/kernel"].shape
        inputs = math.prod(shape[:-1])
        # MAE draws this kernel as that of a dense layer, and leaves PyTorch's bias.
        xavier = style.xavier and name.endswith("kernel")
        return _uniform(math.sqrt(6 / (inputs + shape[-1])) if xavier else inputs**-0.5)
    # In Google's code those of the MLP begin as normal(1e-6).
    if re.fullmatch("encoder/.*(mlp|attention)/.*bias", name) and "norm" not in name:
        return lambda key, shape: jnp.zeros(shape, jnp.float32)
    if not DENSE.fullmatch(name):
        return None
    if style.xavier:
        return _uniform(math.sqrt(6 / sum(_fans(name, flat[name].shape))))
    return _falling if style.falling and LAST.fullmatch(name) else _normal(STANDARD)


def _mimetic(flat: dict[str, jax.Array], key: jax.Array) -> dict[str, jax.Array]:
    """Queries, keys, values and projections of an encoder's layers, by name."""
    found: dict[str, jax.Array] = {}
    for name in filter(QUERY.fullmatch, flat):
        depth, width, heads, size = flat[name].shape
        place = name.removesuffix("query/kernel")
        own = jax.random.fold_in(key, zlib.crc32(place.encode()))
        first, second = jax.random.split(own)
        # The best matrices of rank d for a head, and of full rank for all heads together:
        # (L, H, D, d) and (L, H, d, D), then (L, D, H d) and (L, H d, D).
        query, keys = _factors(first, (depth, heads), width, 0.7, 0.7, rank=size)
        value, out = _factors(second, (depth,), width, 0.4, -0.4, rank=heads * size)
        found |= {
            f"{place}query/kernel": jnp.swapaxes(query, 1, 2),
            f"{place}key/kernel": jnp.transpose(keys, (0, 3, 1, 2)),
            f"{place}value/kernel": value.reshape(depth, width, heads, size),
            f"{place}out/kernel": out.reshape(depth, heads, size, width),
        }
    return found


def _factors(
    key: jax.Array, shape: tuple[int, ...], width: int, noise: float, identity: float, rank: int
) -> tuple[jax.Array, jax.Array]:
    """Matrices (*shape, D, rank) and (*shape, rank, D) whose product is near noise Z + identity I.

    The nearest product of that rank, by a singular value decomposition halved between both.
    """

    def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        z = jax.random.normal(key, (width, width), jnp.float32) / math.sqrt(width)
        left, values, right = jnp.linalg.svd(noise * z + identity * jnp.eye(width))
        root = jnp.sqrt(values[:rank])
        return left[:, :rank] * root[None], root[:, None] * right[:rank]

    # One after another: of ViT-L, all at once would take gigabytes.
    made = jax.lax.map(one, jax.random.split(key, math.prod(shape)))
    left, right = (x.reshape(*shape, *x.shape[1:]) for x in made)
    return left, right


def _fans(name: str, shape: Shape) -> tuple[int, int]:
    """Inputs and outputs of a dense layer; queries, keys and values count as one."""
    if re.search("(query|key|value)/kernel", name):
        return shape[-3], 3 * shape[-3]
    if name.endswith("out/kernel"):
        return shape[-3] * shape[-2], shape[-1]
    return shape[-2], shape[-1]


def _normal(deviation: float) -> Draw:
    return lambda key, shape: deviation * jax.random.normal(key, shape, jnp.float32)


def _uniform(bound: float) -> Draw:
    return lambda key, shape: jax.random.uniform(
        key, shape, jnp.float32, minval=-bound, maxval=bound
    )


def _falling(key: jax.Array, shape: Shape) -> jax.Array:
    """Kernels of stacked layers, that of layer l divided by sqrt(2 l): BEiT's fix_init_weight."""
    depth = jnp.arange(1, shape[0] + 1, dtype=jnp.float32).reshape(-1, *(1,) * (len(shape) - 1))
    return STANDARD * jax.random.normal(key, shape, jnp.float32) / jnp.sqrt(2 * depth)
