"""The parts a Vision Transformer is built from.

Letters, here and in every other file:

    B batch     H W C  image height, width and channels, always in the order B H W C
    N tokens    D      width of a token       L  layers, stacked on one leading axis
    H heads     d      width of a head, D/H   M  hidden width of the MLP
    K classes   R      width of the layer before the head

Modules hold parameters only, in float32; a dropout key is an argument, and None means no dropout.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec

from vit_jax import config
from vit_jax.models import norms, positions
from vit_jax.models.attention import Attention, xavier_uniform
from vit_jax.models.dropping import drop_path, dropout
from vit_jax.models.gated_mlp import SwiGlu
from vit_jax.models.layer_scale import LayerScale
from vit_jax.models.norms import normalize
from vit_jax.models.variants import prefix_tokens, required

M = TypeVar("M", bound=nnx.Module)
F = TypeVar("F", bound=Callable[..., Any])

BATCH_AXES = ("data", "zero", "fsdp")


# What the backward pass may keep of a layer; everything else it computes again.
_named = jax.checkpoint_policies.save_only_these_names("convolution", "dropout")
_either = jax.checkpoint_policies.save_from_both_policies
REMAT_POLICIES = {
    "full": None,
    "dots": _either(jax.checkpoint_policies.dots_saveable, _named),
    "dots_no_batch": _either(jax.checkpoint_policies.dots_with_no_batch_dims_saveable, _named),
}


def rematerialize(layer: F, kind: str, unroll: int) -> F:
    """Returns the body of a scan with what `model.remat` says its backward pass computes again."""
    if kind in ("none", "attention"):  # Attention itself sees to that
        return layer
    # Inside a loop nothing can be shared between the passes, so the barrier would only cost;
    # unrolled, the compiler would share it all and undo the rematerialization.
    again = jax.checkpoint(layer, policy=REMAT_POLICIES[kind], prevent_cse=unroll > 1)
    return again  # pyright: ignore[reportReturnType]


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _apart(
    stacked: jax.Array, depth: int, dtype: jnp.dtype, held: jnp.dtype
) -> tuple[jax.Array, ...]:
    """Returns the slices of a stacked parameter, of type `held`, that layers use in `dtype`.

    Their gradients, which are exact in that type, are put together in it: put together in float32,
    as would be derived automatically, they cost the step twice the bytes to write and read.
    """
    return tuple(stacked[i] for i in range(depth))


def _apart_forward(
    stacked: jax.Array, depth: int, dtype: jnp.dtype, held: jnp.dtype
) -> tuple[Any, None]:
    return _apart(stacked, depth, dtype, held), None


def _apart_backward(
    depth: int, dtype: jnp.dtype, held: jnp.dtype, _: None, slices: Any
) -> tuple[jax.Array]:
    return (jnp.stack([one.astype(dtype) for one in slices]).astype(held),)


_apart.defvjp(_apart_forward, _apart_backward)


def unstack(layers: M, depth: int, dtype: jnp.dtype) -> list[M]:
    """Returns stacked layers, all but whose norms and logits compute in `dtype`, one by one."""

    def slices(path: tuple[Any, ...], leaf: jax.Array) -> tuple[jax.Array, ...]:
        name = jax.tree_util.keystr(path)
        exact = "norm" in name or "relative_bias" in name
        return _apart(leaf, depth, leaf.dtype if exact else dtype, leaf.dtype)

    leaves, structure = jax.tree_util.tree_flatten_with_path(layers)
    each = [slices(path, leaf) for path, leaf in leaves]
    return [jax.tree.unflatten(structure, [leaf[i] for leaf in each]) for i in range(depth)]


def constrain_batch(x: jax.Array) -> jax.Array:
    """Returns x split over the mesh by its first axis only; unchanged where no mesh is set.

    Without it the partitioner may split the width of a scanned encoder instead of its batch, at
    several times the memory.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(BATCH_AXES))


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu_tanh": functools.partial(nnx.gelu, approximate=True),
    "gelu_erf": functools.partial(nnx.gelu, approximate=False),
    "gelu_quick": lambda x: x * nnx.sigmoid(1.702 * x),
    "silu": nnx.silu,
    "relu": nnx.relu,
    "tanh": jnp.tanh,
}


class Mlp(nnx.Module):
    """Two dense layers with an activation between them."""

    def __init__(self, model: config.Model, dtype: jnp.dtype, *, rngs: nnx.Rngs):
        gelu = model.activation == "gelu"
        self.activation = f"gelu_{model.gelu}" if gelu else model.activation
        self.rate = model.dropout
        linear = functools.partial(
            nnx.Linear,
            kernel_init=xavier_uniform,
            bias_init=nnx.initializers.normal(1e-6),
            use_bias="mlp" not in model.biasless,
            dtype=dtype,
            rngs=rngs,
        )
        self.fc1 = linear(required(model.width), required(model.mlp_dim))
        self.inner = "mlp" in model.sub_norm
        if self.inner:
            self.sub_norm = norms.create(model, required(model.mlp_dim), rngs=rngs)
        self.fc2 = linear(required(model.mlp_dim), required(model.width))

    def __call__(self, x: jax.Array, key: jax.Array | None) -> jax.Array:
        """Returns (B, N, D) for (B, N, D), with dropout after the activation."""
        x = dropout(ACTIVATIONS[self.activation](self.fc1(x)), self.rate, key)
        return self.fc2(normalize(self.sub_norm, x) if self.inner else x)


class EncoderBlock(nnx.Module):
    """Pre-norm attention and MLP, each added to its input (ViT, equations 2 and 3)."""

    def __init__(
        self,
        model: config.Model,
        grid: tuple[int, int],
        dtype: jnp.dtype,
        *,
        rngs: nnx.Rngs,
    ):
        width, self.rate, self.paths = required(model.width), model.dropout, model.stochastic_depth
        tokens = grid[0] * grid[1] + prefix_tokens(model)
        self.positioned = model.position_place == "layers"
        if self.positioned:
            self.position = positions.Positions(model, grid, rngs=rngs)
        self.norm1 = norms.create(model, width, rngs=rngs)
        relative = tokens if model.position == "relative" else None
        self.attention = Attention(model, dtype, grid=grid, tokens=relative, rngs=rngs)
        self.norm2 = norms.create(model, width, rngs=rngs)
        self.mlp = (SwiGlu if model.mlp == "swiglu" else Mlp)(model, dtype, rngs=rngs)
        self.scaled = model.layer_scale is not None
        if model.layer_scale is not None:
            self.scale1 = LayerScale(width, model.layer_scale)
            self.scale2 = LayerScale(width, model.layer_scale)

    def __call__(
        self,
        x: jax.Array,
        key: jax.Array | None,
        share: jax.Array,
        capture: bool = False,
        bias: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns the tokens (B, N, D) and, on request, the weights (B, H, N, N) float32.

        Dropout falls on the three dense outputs of a block (ViT, appendix B.1): the attention's
        projection and both layers of the MLP; never on the attention weights.

        Args:
          x: (B, N, D).
          key: dropout key, or None.
          share: of the full rate of stochastic depth, 0 in the first layer and 1 in the last.
          capture: whether to return the weights.
          bias: added to the logits of attention, (H, N, N) float32, or None.
        """
        keys = (None,) * 5 if key is None else jax.random.split(key, 5)
        if self.positioned:
            x = x + self.position().astype(x.dtype)
        y, weights = self.attend(normalize(self.norm1, x), capture, bias)
        y = self.scale1(y) if self.scaled else y
        x = x + self._drop_path(dropout(y, self.rate, keys[0]), share, keys[3])
        y = self.mlp(normalize(self.norm2, x), keys[1])
        y = self.scale2(y) if self.scaled else y
        return x + self._drop_path(dropout(y, self.rate, keys[2]), share, keys[4]), weights

    def attend(
        self, x: jax.Array, capture: bool, bias: jax.Array | None
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns what tokens x (B, N, D) attend to and, on request, the weights."""
        return self.attention(x, bias=bias, capture=capture)

    def _drop_path(self, branch: jax.Array, share: jax.Array, key: jax.Array | None) -> jax.Array:
        return drop_path(branch, self.paths * share, key) if self.paths else branch


class AttentionPooling(nnx.Module):
    """A learned query that attends to all tokens, and an MLP (Zhai et al. 2022; big_vision)."""

    def __init__(self, model: config.Model, dtype: jnp.dtype, *, rngs: nnx.Rngs):
        # Which are of the layers.
        model = dataclasses.replace(model, biasless=(), qk_norm=False, sub_norm=())
        width = required(model.width)
        self.probe = nnx.Param(xavier_uniform(rngs.params(), (1, 1, width), jnp.float32))
        self.attention = Attention(model, dtype, rngs=rngs)
        self.norm = norms.create(model, width, rngs=rngs)
        self.mlp = Mlp(model, dtype, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Returns (B, D) for tokens (B, N, D), in their type."""
        probe = self.probe[...].astype(tokens.dtype)
        probe = jnp.broadcast_to(probe, (tokens.shape[0], 1, tokens.shape[2]))
        x, _ = self.attention(probe, to=tokens)
        return (x + self.mlp(normalize(self.norm, x), None))[:, 0]


class WithHead(nnx.Module):
    """A network that ends in an optional dense layer and a zero-initialized linear one.

    Both compute in float32: a thousandth of the arithmetic, and every digit of the logits.
    """

    def add_head(self, model: config.Model, features: int, *, rngs: nnx.Rngs) -> None:
        """Makes the layers for what the head sees, (B, features)."""
        self.represents = model.representation_size is not None
        self.twice = model.pooling == "distilled"
        features = features // 2 if self.twice else features
        self.representation_activation = model.representation_activation
        if model.representation_size is not None:
            self.pre_logits = nnx.Linear(features, model.representation_size, rngs=rngs)
            features = model.representation_size
        linear = functools.partial(
            nnx.Linear,
            features,
            required(model.num_classes),
            kernel_init=nnx.initializers.zeros,
            bias_init=nnx.initializers.constant(model.head_bias),
            use_bias="head" not in model.biasless,
            rngs=rngs,
        )
        self.head = linear()
        if self.twice:
            self.head_dist = linear()

    def classify(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns logits (B, K) and what the last layer sees, for x (B, features) float32."""
        x = constrain_batch(x)
        if self.represents:
            x = ACTIVATIONS[self.representation_activation](self.pre_logits(x))
        if self.twice:  # a head for each half: DeiT's for class and for distillation token
            one, other = jnp.split(x, 2, axis=1)
            return (self.head(one) + self.head_dist(other)) / 2, x
        return self.head(x), x
