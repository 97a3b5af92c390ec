"""The Vision Transformer as an NNX module, and `Classifier`, the functions the rest calls.

Outside this file a model is a plain nested dict of float32 arrays and a `Classifier` that knows
what to do with it; the module exists only while a function is traced.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax import config, trees
from vit_jax.models.layers import EncoderBlock, constrain_batch, dropout, normalise, sincos_2d
from vit_jax.models.variants import known

Params = dict[str, Any]

# What the backward pass may keep of a layer; everything else it computes again.
REMAT_POLICIES = {
    "full": None,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


class ParameterError(config.UserError):
    """A tree of parameters that does not belong to the model it is given to."""


class ViT(nnx.Module):
    """Vision Transformer (ViT, section 3.1), initialised as in Google's released code."""

    def __init__(
        self,
        model: config.Model,
        image_size: tuple[int, int],
        channels: int,
        dtype: jnp.dtype,
        *,
        rngs: nnx.Rngs,
    ):
        self.model = model
        patch, width = known(model.patch_size), known(model.width)
        self.grid = (image_size[0] // patch[0], image_size[1] // patch[1])
        self.embedding = nnx.Conv(
            channels,
            width,
            kernel_size=patch,
            strides=patch,
            padding="VALID",
            dtype=dtype,
            rngs=rngs,
        )
        tokens = self.grid[0] * self.grid[1]
        if model.pooling == "token":
            self.cls = nnx.Param(jnp.zeros((1, 1, width)))
            tokens += 1
        if model.position == "learned_1d":
            normal = nnx.initializers.normal(0.02)
            self.pos_embedding = nnx.Param(normal(rngs.params(), (1, tokens, width)))

        def block(key: jax.Array) -> EncoderBlock:
            return EncoderBlock(model, dtype, rngs=nnx.Rngs(key))

        self.encoder = jax.vmap(block)(jax.random.split(rngs.params(), known(model.depth)))
        self.encoder_norm = nnx.LayerNorm(width, epsilon=model.norm_epsilon, rngs=rngs)
        # From here on float32: a thousandth of the arithmetic, and every digit of the logits.
        features = width
        if model.representation_size is not None:
            self.pre_logits = nnx.Linear(features, model.representation_size, rngs=rngs)
            features = model.representation_size
        self.head = nnx.Linear(
            features,
            known(model.num_classes),
            kernel_init=nnx.initializers.zeros,
            bias_init=nnx.initializers.constant(model.head_bias),
            rngs=rngs,
        )

    def embed(self, images: jax.Array) -> jax.Array:
        """Returns patch embeddings with class token and positions, (B, N, D), of (B, H, W, C)."""
        x = self.embedding(images)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        if self.model.position == "sincos_2d":  # before the class token, whose position is zero
            x = x + sincos_2d(*self.grid, x.shape[-1])[None].astype(x.dtype)
        if self.model.pooling == "token":
            cls = jnp.broadcast_to(self.cls[...].astype(x.dtype), (x.shape[0], 1, x.shape[2]))
            x = jnp.concatenate([cls, x], axis=1)
        if self.model.position == "learned_1d":
            x = x + self.pos_embedding[...].astype(x.dtype)
        return x

    def encode(
        self, x: jax.Array, keys: jax.Array | None, capture: bool
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns tokens after all layers and, on request, the weights (L, B, H, N, N) float32."""

        def layer(
            x: jax.Array, scanned: tuple[EncoderBlock, jax.Array | None]
        ) -> tuple[jax.Array, jax.Array | None]:
            block, key = scanned
            x, weights = block(constrain_batch(x), key, capture)
            return constrain_batch(x), weights

        if self.model.remat != "none":
            # Inside a loop nothing can be shared between the passes, so the barrier would only
            # cost; unrolled, the compiler would share it all and undo the rematerialisation.
            layer = jax.checkpoint(
                layer,
                policy=REMAT_POLICIES[self.model.remat],
                prevent_cse=self.model.unroll > 1,
            )
        return jax.lax.scan(layer, x, (self.encoder, keys), unroll=self.model.unroll)

    def __call__(
        self, images: jax.Array, *, key: jax.Array | None = None, capture: bool = False
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Returns logits (B, K) and intermediates by name; see `Classifier.apply`."""
        first, rest = None, None
        if key is not None:
            keys = jax.random.split(key, 1 + known(self.model.depth))
            first, rest = keys[0], keys[1:]
        x = dropout(self.embed(images), self.model.dropout, first)
        x, weights = self.encode(x, rest, capture)
        tokens = normalise(self.encoder_norm, x)
        out = {"tokens": tokens}
        if weights is not None:
            out["attention"] = weights
        tokens = tokens.astype(jnp.float32)
        x = tokens[:, 0] if self.model.pooling == "token" else tokens.mean(axis=1)
        x = constrain_batch(x)
        if self.model.representation_size is not None:
            x = jnp.tanh(self.pre_logits(x))
        return self.head(x), out | {"pre_logits": x}


@dataclasses.dataclass(frozen=True)
class Classifier:
    """A Vision Transformer as functions of its parameters; made by `create`.

    Equal and hashable by its fields, so it may be a static argument of `jax.jit`.
    """

    config: config.Model
    image_size: tuple[int, int]
    channels: int
    dtype: str

    def _module(self, key: jax.Array) -> ViT:
        return ViT(
            self.config,
            self.image_size,
            self.channels,
            jnp.dtype(self.dtype),
            rngs=nnx.Rngs(key),
        )

    def init(self, key: jax.Array) -> Params:
        """Returns new float32 parameters, nested by name; works under `jit` and `eval_shape`."""
        return nnx.to_pure_dict(nnx.state(self._module(key), nnx.Param))

    @functools.cached_property
    def _abstract(self) -> tuple[Any, Params]:
        """The module's structure, and the shapes and types of its parameters by name."""
        module = nnx.eval_shape(lambda: self._module(jax.random.key(0)))
        shapes = nnx.to_pure_dict(nnx.state(module, nnx.Param))
        # Rebuilt, so that they never remember the mesh that happened to be set on the first call.
        plain = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), shapes)
        return nnx.graphdef(module), plain

    def shapes(self) -> Params:
        """Returns the parameters' ShapeDtypeStructs, nested by name; allocates nothing."""
        return jax.tree.map(lambda leaf: leaf, self._abstract[1])

    def bind(self, params: Params) -> ViT:
        """Returns the module that holds `params`.

        Raises ParameterError, in one line with every difference, unless names, shapes and types
        are exactly those of `shapes()`.
        """
        graphdef, shapes = self._abstract
        wrong = differences(trees.flatten(shapes), trees.flatten(params))
        if wrong:
            raise ParameterError(f"parameters do not fit the model: {'; '.join(wrong)}")
        # nnx.merge goes by position alone; with equal names the order is equal too.
        return nnx.merge(graphdef, trees.nest(trees.flatten(params)))

    def apply(
        self,
        params: Params,
        images: jax.Array,
        *,
        key: jax.Array | None = None,
        capture: bool = False,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Returns logits (B, K) float32 and intermediates by name.

        Intermediates: `tokens` (B, N, D) after the last LayerNorm in the compute type, class token
        first where there is one; `pre_logits` (B, D or R) float32, what the head sees; and with
        `capture`, `attention` (L, B, H, N, N) float32, always from the explicit attention. Under
        `jit` those not used cost nothing.

        Args:
          params: float32 arrays nested as in `shapes()`; raises ParameterError otherwise.
          images: (B, H, W, C) floats in [-1, 1].
          key: dropout key; None means no dropout.
          capture: whether to return the attention weights.
        """
        expected = (*self.image_size, self.channels)
        if images.ndim != 4 or images.shape[1:] != expected:
            raise ValueError(
                f"images are {images.shape}; the model takes (B, H, W, C) of {expected}"
            )
        if not jnp.issubdtype(images.dtype, jnp.floating):
            raise ValueError(f"images are {images.dtype}; the model takes floats in [-1, 1]")
        if self.config.attention == "cudnn" and jax.default_backend() != "gpu":
            raise config.ConfigError(
                f"model.attention=cudnn: needs an NVIDIA GPU, this is {jax.default_backend()}; "
                "set explicit"
            )
        return self.bind(params)(images, key=key, capture=capture)

    @property
    def num_params(self) -> int:
        """The number of parameters."""
        return trees.count(self._abstract[1])

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the forward pass of one image, matrix products only."""
        model, (height, width) = self.config, self.image_size
        d, m, k = known(model.width), known(model.mlp_dim), known(model.num_classes)
        patch_height, patch_width = known(model.patch_size)
        patches = (height // patch_height) * (width // patch_width)
        n = patches + (model.pooling == "token")
        patch = height * width * self.channels * d
        block = 4 * n * d * d + 2 * n * n * d + 2 * n * d * m
        r = model.representation_size
        head = d * k if r is None else d * r + r * k
        return patch + known(model.depth) * block + head


def create(
    model: config.Model,
    *,
    image_size: tuple[int, int],
    channels: int = 3,
    dtype: str = "float32",
) -> Classifier:
    """Returns the classifier that a complete `model` describes.

    Args:
      model: sizes filled in (`variants.complete`) and num_classes set.
      image_size: height and width in pixels, multiples of the patch's.
      channels: 1 or 3.
      dtype: compute type, `float32` or `bfloat16`; parameters are float32 either way.

    Raises ConfigError for sizes that are missing or do not fit each other.
    """
    config.check(
        config.Config(model=model, data=config.Data(image_size=image_size, channels=channels))
    )
    if model.num_classes is None:
        raise config.ConfigError("model.num_classes=none: not known; set the number of classes")
    if model.attention == "cudnn" and dtype != "bfloat16":
        raise config.ConfigError(
            "model.attention=cudnn: needs model.dtype=bfloat16; set it, or explicit"
        )
    return Classifier(model, image_size, channels, dtype)


def differences(expected: dict[str, Any], given: dict[str, Any]) -> list[str]:
    """Returns what is wrong with `given`, a phrase for each array; empty if nothing is.

    Both are flat, by name; arrays or ShapeDtypeStructs.
    """

    def form(leaf: Any) -> str:
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            return type(leaf).__name__
        return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"

    wrong = []
    for name, leaf in expected.items():
        if name not in given:
            wrong.append(f"{name} is missing")
        elif form(given[name]) != form(leaf):
            wrong.append(f"{name} is {form(given[name])}, not {form(leaf)}")
    return wrong + [f"{name} is unknown" for name in given if name not in expected]
