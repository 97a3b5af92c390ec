"""The Vision Transformer as an NNX module: plain, on a ResNet's map, or with axial blocks."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax import config
from vit_jax.models import norms, positions, resnet, variants
from vit_jax.models.dropping import dropout
from vit_jax.models.layers import (
    AttentionPooling,
    EncoderBlock,
    WithHead,
    constrain_batch,
    rematerialize,
    unstack,
)
from vit_jax.models.norms import normalize
from vit_jax.models.patches import patchify
from vit_jax.models.variants import required


class ViT(WithHead):
    """Vision Transformer (ViT, section 3.1), initialized as in Google's released code."""

    block: Callable[..., Any] = EncoderBlock  # makes a layer

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
        patch, width, depth = (
            required(model.patch_size),
            required(model.width),
            required(model.depth),
        )
        self.grid = variants.grid(model, image_size)
        if model.resnet_units is not None:
            self.resnet = resnet.Backbone(model, channels, dtype, rngs=rngs)
            channels = self.resnet.features
        self.embedding = nnx.LinearGeneral(
            (*patch, channels),
            width,
            axis=(-3, -2, -1),
            use_bias="patches" not in model.biasless,
            dtype=dtype,
            rngs=rngs,
        )
        self.token = variants.has_class_token(model)
        if self.token:
            self.cls = nnx.Param(jnp.zeros((1, 1, width), jnp.float32))
        if model.distillation:  # initialized as in DeiT
            near = nnx.initializers.truncated_normal(0.02, dtype=jnp.float32)
            self.distillation = nnx.Param(near(rngs.params(), (1, 1, width)))
        if model.registers:  # initialized as in DINOv2
            normal = nnx.initializers.normal(1e-6, dtype=jnp.float32)
            self.registers = nnx.Param(normal(rngs.params(), (1, model.registers, width)))
        self.learned = model.position.startswith("learned") and model.position_place != "layers"
        if self.learned:
            self.position = positions.Positions(model, self.grid, rngs=rngs)

        if model.relative_bias == "shared":
            self.relative_bias = positions.RelativeBias(model, self.grid, rngs=rngs)
        if model.stem_norm:
            self.stem_norm = norms.create(model, width, rngs=rngs)
        keys = jax.random.split(rngs.params(), depth)
        self.encoder = jax.vmap(
            lambda key: self.block(model, self.grid, dtype, rngs=nnx.Rngs(key))
        )(keys)
        self.encoder_norm = norms.create(model, width, rngs=rngs)
        if model.pooling == "map":
            self.pooling = AttentionPooling(model, dtype, rngs=rngs)
        self.add_head(model, variants.pooled_features(model), rngs=rngs)

    def patches(self, images: jax.Array) -> jax.Array:
        """Returns the patch embeddings (B, P, D) of images (B, H, W, C), in raster order.

        A matrix product on flat patches (ViT, equation 1). As a convolution it is the same, but
        TPUs hold the kernel in another order for that, and copy it and its moments every step.
        """
        x = images if self.model.resnet_units is None else self.resnet(images)
        return self.embedding(patchify(x, required(self.model.patch_size)))

    def place(self, x: jax.Array) -> jax.Array:
        """Returns patch embeddings (B, P, D) with other tokens and positions, (B, N, D)."""
        model = self.model
        # Fixed positions are added before the class token, whose position is zero.
        if model.position == "sincos_2d":
            x = x + positions.sincos_2d(*self.grid, x.shape[-1])[None].astype(x.dtype)
        elif model.position == "sincos_1d":
            x = x + positions.sincos_1d(*x.shape[1:])[None].astype(x.dtype)
        before = [self.cls] if self.token else []
        before += [self.distillation] if model.distillation else []
        before += [self.registers] if model.registers else []
        if before:
            each = [
                jnp.broadcast_to(one[...].astype(x.dtype), (x.shape[0], *one.shape[1:]))
                for one in before
            ]
            x = jnp.concatenate([*each, x], axis=1)
        if self.learned and model.position_place == "stem":
            x = x + self.position().astype(x.dtype)
        return x

    def position_tables(self) -> jax.Array:
        """Returns position embeddings of all patches, (T, P, D): T is L, or 1 if layers share."""
        position, width = self.model.position, required(self.model.width)
        if position == "sincos_2d":
            return positions.sincos_2d(*self.grid, width)[None]
        if position == "sincos_1d":
            return positions.sincos_1d(self.grid[0] * self.grid[1], width)[None]
        if self.model.position_place == "layers":
            learned = jax.vmap(lambda block: block.position()[0])(self.positioned_blocks)
        else:
            learned = self.position()
        return learned[:, variants.prefix_tokens(self.model) :]

    @property
    def positioned_blocks(self) -> Any:
        """The stacked encoder blocks that own positions if every layer has its own."""
        return self.encoder

    def encode(
        self, x: jax.Array, keys: jax.Array | None, capture: bool
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns tokens after all layers and, on request, the weights (L, B, H, N, N) float32."""
        shared = self.model.position_place == "shared"
        depth = required(self.model.depth)
        # Every layer adds the same bias.
        more = {"bias": self.relative_bias()} if self.model.relative_bias == "shared" else {}

        def layer(
            x: jax.Array, scanned: tuple[Any, jax.Array, jax.Array | None]
        ) -> tuple[jax.Array, jax.Array | None]:
            block, share, key = scanned
            x = constrain_batch(x)
            if shared:
                x = x + self.position().astype(x.dtype)
            x, weights = block(x, key, share, capture, **more)
            return constrain_batch(x), weights

        layer = rematerialize(layer, self.model.remat, self.model.unroll)
        share = jnp.arange(depth, dtype=jnp.float32) / max(depth - 1, 1)
        if self.model.unroll < depth:
            return jax.lax.scan(layer, x, (self.encoder, share, keys), unroll=self.model.unroll)
        # A call of its own for every layer: it is traced once, and the compiler casts each slice
        # where it is used instead of keeping a cast copy of the whole stack.
        layer, weights = jax.jit(layer), []
        for i, block in enumerate(unstack(self.encoder, depth, x.dtype)):
            x, weight = layer(x, (block, share[i], None if keys is None else keys[i]))
            weights.append(weight)
        return x, jnp.stack(weights) if capture else None

    def transform(
        self, patches: jax.Array, key: jax.Array | None, capture: bool
    ) -> tuple[jax.Array, jax.Array | None]:
        """Adds positions to patch embeddings (B, P, D), normalizes if asked to, and encodes."""
        first, rest = None, None
        if key is not None:
            keys = jax.random.split(key, 1 + required(self.model.depth))
            first, rest = keys[0], keys[1:]
        x = dropout(self.place(patches), self.model.dropout, first)
        x = normalize(self.stem_norm, x) if self.model.stem_norm else x
        return self.encode(x, rest, capture)

    def pool(self, tokens: jax.Array) -> jax.Array:
        """Pools the tokens of patches (B, P, D) to (B, D) float32."""
        if self.model.pooling == "map":
            return self.pooling(tokens).astype(jnp.float32)
        tokens = tokens.astype(jnp.float32)
        if self.model.pooling == "max":
            return tokens.max(axis=1)
        mean = tokens.mean(axis=1)
        return (mean + tokens.max(axis=1)) / 2 if self.model.pooling == "gap_max" else mean

    def __call__(
        self, images: jax.Array, *, key: jax.Array | None = None, capture: bool = False
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Returns logits (B, K) and intermediates by name; see `Classifier.apply`."""
        x, weights = self.transform(self.patches(images), key, capture)
        late = self.model.norm_place == "pooled"
        tokens = x if late else normalize(self.encoder_norm, x)
        out = {"tokens": tokens}
        if weights is not None:
            out["attention"] = weights
        if self.model.pooling in ("token", "first"):
            # Normalized separately, so that other tokens are not normalized unless used.
            pooled, late = x[:, 0].astype(jnp.float32), True
        elif self.model.pooling == "distilled":
            pooled = jnp.concatenate([tokens[:, 0], tokens[:, 1]], axis=1).astype(jnp.float32)
        else:
            pooled = self.pool(tokens[:, variants.prefix_tokens(self.model) :])
            if self.model.pooling == "token_gap":
                pooled = jnp.concatenate([tokens[:, 0].astype(jnp.float32), pooled], axis=1)
        logits, x = self.classify(normalize(self.encoder_norm, pooled) if late else pooled)
        return logits, out | {"pre_logits": x}
