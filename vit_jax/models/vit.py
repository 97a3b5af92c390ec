"""The Vision Transformer: on patches of the image or of a ResNet's map, with any kind of layer.

The letters are those of `layers`.
"""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax import config
from vit_jax.models import layers, positions, resnet, variants
from vit_jax.models.layers import constrain_batch, dropout, normalize
from vit_jax.models.positions import Sequences
from vit_jax.models.variants import required

Block = Callable[..., tuple[jax.Array, jax.Array | None]]  # a layer: tokens and weights


class Stack(nnx.Module):
    """Layers stacked on one leading axis, so that a scan compiles one, whatever the depth."""

    block: Callable[..., Any] = layers.EncoderBlock
    position: Callable[..., jax.Array]  # where layers add it (`model.position_place`)
    relative_bias: Callable[[], jax.Array]  # where they share it

    def add_layers(
        self, model: config.Model, grid: tuple[int, int], dtype: jnp.dtype, *, rngs: nnx.Rngs
    ) -> None:
        """Creates the layers, `model.depth` of them."""
        self.model = model
        keys = jax.random.split(rngs.params(), required(model.depth))
        # vmap stacks what the layers hold, so that creating them compiles one, too.
        self.encoder = jax.vmap(lambda key: self.block(model, grid, dtype, rngs=nnx.Rngs(key)))(
            keys
        )

    def encode(
        self,
        x: jax.Array,
        keys: jax.Array | None,
        capture: bool,
        sequences: Sequences | None = None,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Tokens after all layers, and intermediates of the layers by name.

        `attention` (L, B, H, N, N) float32 on request; with `model.pooled_layers`, `first`
        (L, B, D) in the compute dtype, the first token after each layer.
        """
        shared = self.model.position_place == "shared"
        depth = required(self.model.depth)
        # One table, made once and added in every layer.
        also = {"bias": self.relative_bias()} if self.model.relative_bias == "shared" else {}
        also |= {} if sequences is None else {"sequences": sequences}

        def layer(
            x: jax.Array, scanned: tuple[Block, jax.Array, jax.Array | None]
        ) -> tuple[jax.Array, dict[str, jax.Array]]:
            block, share, key = scanned
            x = constrain_batch(x)
            if shared:
                x = x + self.position(sequences).astype(x.dtype)
            x, weights = block(x, key, share, capture, **also)
            left = {} if weights is None else {"attention": weights}
            left |= {"first": x[:, 0]} if self.model.pooled_layers > 1 else {}
            return constrain_batch(x), left

        unroll = self.model.unroll or 1
        layer = layers.rematerialize(layer, self.model.remat, unroll)
        # Linear from 0 to the full rate (Huang et al. 2016, section 3).
        share = jnp.arange(depth, dtype=jnp.float32) / max(depth - 1, 1)
        # Keys of None have no leaves: the scan passes None on to every layer.
        if unroll < depth:
            return jax.lax.scan(layer, x, (self.encoder, share, keys), unroll=unroll)
        # A call of its own for every layer: it is traced once, and the compiler casts each slice
        # where it is used instead of keeping a cast copy of the whole stack.
        layer, left = jax.jit(layer), []
        for i, block in enumerate(layers.unstack(self.encoder, depth, x.dtype)):
            x, block = layers.finish_gradients(x, block)
            x, one = layer(x, (block, share[i], None if keys is None else keys[i]))
            left.append(one)
        return x, jax.tree.map(lambda *parts: jnp.stack(parts), *left)


class ViT(Stack, layers.WithHead):
    """Vision Transformer (ViT, section 3.1), initialized as in Google's released code."""

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
        patch, width = required(model.patch_size), required(model.width)
        self.grid = variants.grid(model, image_size)
        if model.resnet_units is not None:
            self.resnet = resnet.Backbone(model, channels, dtype, rngs=rngs)
            channels = self.resnet.features
        # Every layer takes the next key of `rngs`: moving one changes the draws of all after it.
        # The embedding's kernel is lecun_normal, flax's default, as that of Google's convolution.
        self.embedding = nnx.LinearGeneral(
            (*patch, channels),
            width,
            axis=(-3, -2, -1),
            use_bias="patches" not in model.biasless,
            dtype=dtype,
            dot_general=layers.dot_general(model),
            rngs=rngs,
        )
        self.token = variants.has_class_token(model)
        if self.token:  # begins at zero, as in Google's code
            self.cls = nnx.Param(jnp.zeros((1, 1, width), jnp.float32))
        if model.distillation:  # initialized as in DeiT
            normal = nnx.initializers.truncated_normal(0.02, dtype=jnp.float32)
            self.distillation = nnx.Param(normal(rngs.params(), (1, 1, width)))
        if model.registers:  # initialized as in DINOv2
            normal = nnx.initializers.normal(1e-6, dtype=jnp.float32)
            self.registers = nnx.Param(normal(rngs.params(), (1, model.registers, width)))
        self.learned = model.position.startswith("learned") and model.position_place != "layers"
        if self.learned:
            self.position = positions.Positions(model, self.grid, rngs=rngs)

        if model.relative_bias == "shared":
            self.relative_bias = positions.RelativeBias(model, self.grid, rngs=rngs)
        if model.patch_norm:
            self.patch_norm = layers.create_norm(model, width, rngs=rngs)
        if model.stem_norm:
            self.stem_norm = layers.create_norm(model, width, rngs=rngs)
        self.add_layers(model, self.grid, dtype, rngs=rngs)
        if model.norm_place != "none":
            self.encoder_norm = layers.create_norm(model, width, rngs=rngs)
        if model.pooling == "map":
            self.pooling = layers.AttentionPooling(model, dtype, rngs=rngs)
        self.add_head(model, variants.pooled_features(model), rngs=rngs)

    def __call__(
        self,
        images: jax.Array,
        *,
        key: jax.Array | None = None,
        capture: bool = False,
        grids: jax.Array | None = None,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Logits (B, K) and intermediates by name; see `Classifier.apply`.

        With `grids`, images are patches as of `Classifier.apply_sequences`.
        """
        if grids is None:
            return self.classify_patches(self.patches(images), key, capture)
        sequences = Sequences.from_grids(grids, images.shape[1])
        return self.classify_patches(self.embed(images), key, capture, sequences)

    def encode_masked(
        self, images: jax.Array, masked: jax.Array, token: jax.Array, key: jax.Array | None
    ) -> dict[str, jax.Array]:
        """Intermediates of images with masked patches; see `Classifier.encode_masked`."""
        x = self.patches(images)
        # Before positions are added, so a masked patch keeps its place.
        return self.classify_patches(jnp.where(masked[..., None], token.astype(x.dtype), x), key)[1]

    def classify_patches(
        self,
        patches: jax.Array,
        key: jax.Array | None,
        capture: bool = False,
        sequences: Sequences | None = None,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Logits (B, K) and intermediates by name, of patch embeddings (B, P, D)."""
        x, left = self.transform(patches, key, capture, sequences=sequences)
        late = self.model.norm_place == "pooled"
        tokens = x if late else self.normalize_last(x)
        firsts = left.pop("first", None)
        out = {"tokens": tokens, **left}
        if firsts is not None:
            # (layers, B, D) to (B, layers D), the last layer last, as DINOv2 joins them.
            firsts = firsts[-self.model.pooled_layers :].astype(jnp.float32)
            pooled = jnp.concatenate(list(self.normalize_last(firsts)), axis=1)
            if self.model.pooling == "token_gap":
                pooled = jnp.concatenate([pooled, self.pool(tokens, sequences)], axis=1)
        elif self.model.pooling in ("token", "first"):
            # Normalized separately, so that other tokens are not normalized unless used.
            pooled, late = x[:, 0].astype(jnp.float32), True
        elif self.model.pooling == "distilled":
            # (B, 2 D): `classify` parts them again for the two heads.
            pooled = jnp.concatenate([tokens[:, 0], tokens[:, 1]], axis=1).astype(jnp.float32)
        else:
            pooled = self.pool(tokens, sequences)
            if self.model.pooling == "token_gap":
                pooled = jnp.concatenate([tokens[:, 0].astype(jnp.float32), pooled], axis=1)
        logits, x = self.classify(self.normalize_last(pooled) if late else pooled)
        return logits, out | {"pre_logits": x}

    def normalize_last(self, x: jax.Array) -> jax.Array:
        """Applies the norm after the last layer, if there is one."""
        return x if self.model.norm_place == "none" else normalize(self.encoder_norm, x)

    def patches(self, images: jax.Array) -> jax.Array:
        """Patch embeddings (B, P, D) of images (B, H, W, C), in raster order.

        A matrix product on flat patches (ViT, equation 1). A convolution computes the same, but
        TPUs hold its kernel in another order, and would copy it and its moments every step.
        """
        x = images if self.model.resnet_units is None else self.resnet(images)
        return self.embed(layers.patchify(x, required(self.model.patch_size)))

    def embed(self, patches: jax.Array) -> jax.Array:
        """Embeddings (B, P, D) of patches (B, P, h, w, C)."""
        x = self.embedding(patches)
        return normalize(self.patch_norm, x) if self.model.patch_norm else x

    def encode_kept(self, images: jax.Array, kept: jax.Array, key: jax.Array | None) -> jax.Array:
        """Normalized tokens of some of the patches; see `Classifier.encode_kept`."""
        x, _ = self.transform(self.patches(images), key, False, kept)
        return self.normalize_last(x)

    def transform(
        self,
        patches: jax.Array,
        key: jax.Array | None,
        capture: bool,
        kept: jax.Array | None = None,
        sequences: Sequences | None = None,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Tokens (B, N, D) after all layers, before the final norm, for embeddings (B, P, D).

        Returns the intermediates of `encode` too.
        With `kept` (B, K) int32, no layer sees other patches than these; with `sequences`, none
        attends to the padding.
        """
        first, rest = None, None
        if key is not None:
            keys = jax.random.split(key, 1 + required(self.model.depth))
            first, rest = keys[0], keys[1:]
        x = self.add_positions(patches, sequences)
        # Positions were added before, so a patch that stays keeps its own.
        if kept is not None:
            prefix = variants.prefix_tokens(self.model)
            before = jnp.broadcast_to(jnp.arange(prefix, dtype=kept.dtype), (len(kept), prefix))
            x = take_rows(x, jnp.concatenate([before, kept + prefix], axis=1))
        # Dropout, then the norm: the order of timm's pos_drop and norm_pre.
        x = dropout(x, self.model.dropout, first)
        x = normalize(self.stem_norm, x) if self.model.stem_norm else x
        return self.encode(x, rest, capture, sequences)

    def add_positions(self, x: jax.Array, sequences: Sequences | None = None) -> jax.Array:
        """Adds positions and the tokens before the patches: (B, P, D) to (B, N, D)."""
        model = self.model
        # Fixed positions are added before the class token joins, whose position is zero.
        table = positions.fixed(model.position, self.grid, x.shape[-1], sequences)
        x = x if table is None else x + table.astype(x.dtype)
        prefix = [self.cls] if self.token else []
        prefix += [self.distillation] if model.distillation else []
        prefix += [self.registers] if model.registers else []
        if prefix:
            tokens = [
                jnp.broadcast_to(token[...].astype(x.dtype), (x.shape[0], *token.shape[1:]))
                for token in prefix
            ]
            x = jnp.concatenate([*tokens, x], axis=1)
        if self.learned and model.position_place == "stem":
            x = x + self.position(sequences).astype(x.dtype)
        return x

    def pool(self, tokens: jax.Array, sequences: Sequences | None = None) -> jax.Array:
        """Pools tokens (B, N, D), of patches but not of padding, to (B, D) float32."""
        if self.model.pooling == "map":
            return self.pooling(tokens, sequences).astype(jnp.float32)
        tokens = tokens[:, variants.prefix_tokens(self.model) :].astype(jnp.float32)
        if sequences is None:
            mask, mean = None, tokens.mean(axis=1)
        else:
            mask = sequences.mask[:, :, None]
            lengths = sequences.lengths[:, None].astype(jnp.float32)
            mean = jnp.sum(tokens, axis=1, where=mask) / lengths
        if self.model.pooling not in ("max", "gap_max"):
            return mean
        # By index. The gradient of `max` goes to the tokens equal to it: to none, and is NaN, where
        # a fused program computes them again and rounds otherwise.
        kept = tokens if mask is None else jnp.where(mask, tokens, -jnp.inf)
        first = jnp.argmax(kept, axis=1, keepdims=True)
        index = jnp.arange(tokens.shape[1], dtype=first.dtype)[None, :, None]
        largest = jnp.sum(tokens, axis=1, where=index == first)
        return largest if self.model.pooling == "max" else (mean + largest) / 2

    def position_tables(self) -> jax.Array:
        """Position embeddings of the patches, (T, P, D): T is L, or 1 if all layers share one."""
        # Fixed tables hold patches alone; rows of other tokens precede them in learned ones.
        table = positions.fixed(self.model.position, self.grid, required(self.model.width))
        if table is not None:
            return table
        if self.model.position_place == "layers":
            tables = jax.vmap(lambda block: block.position()[0])(self.positioned_blocks)
        else:
            tables = self.position()
        return tables[:, variants.prefix_tokens(self.model) :]

    @property
    def positioned_blocks(self) -> Any:
        """The stacked encoder blocks that own positions if every layer has its own."""
        return self.encoder


class MaskedViT(ViT):
    """Masked patch prediction (ViT, appendix B.1.2): a mask token, and a head on its patches."""

    def __init__(
        self,
        model: config.Model,
        image_size: tuple[int, int],
        channels: int,
        dtype: jnp.dtype,
        masked: config.MaskedPatches,
        *,
        rngs: nnx.Rngs,
    ):
        # Before the rest is made, which calls `add_head`.
        self.outputs = variants.masked_outputs(masked, required(model.patch_size), channels)
        super().__init__(model, image_size, channels, dtype, rngs=rngs)

    def add_head(self, model: config.Model, features: int, *, rngs: nnx.Rngs) -> None:
        """Creates the mask token and the prediction head, zero-initialized as other heads are."""
        self.has_head = False  # of classes
        features = required(model.width)  # of patches, which nothing pools
        self.mask_token = nnx.Param(positions.normal(rngs.params(), (1, 1, features)))
        self.prediction = nnx.Linear(
            features, self.outputs, kernel_init=nnx.initializers.zeros, rngs=rngs
        )

    def predict_masked(
        self, images: jax.Array, source: jax.Array, masked: jax.Array, key: jax.Array | None
    ) -> jax.Array:
        """Predictions for the masked patches; see `Classifier.predict_masked`.

        Embeddings are corrupted before positions are added, so mask tokens keep their positions.
        """
        x = self.patches(images)
        token = jnp.broadcast_to(self.mask_token[...].astype(x.dtype), (len(x), 1, x.shape[2]))
        # Row P, after those of the patches, is the mask token.
        corrupted = take_rows(jnp.concatenate([x, token], axis=1), source)
        tokens, _ = self.transform(corrupted, key, False)
        tokens = self.normalize_last(tokens)[:, -x.shape[1] :]  # the patches only
        rows = constrain_batch(take_rows(tokens, masked).astype(jnp.float32))
        return constrain_batch(self.prediction(rows))


def take_rows(x: jax.Array, index: jax.Array) -> jax.Array:
    """Exact rows (B, M, D) of x (B, N, D) by index (B, M) int32.

    A product with a one-hot matrix: its gradient is a product too, while the gradient of indexing
    sums in a nondeterministic order on GPUs; and sharding by images needs no communication. It
    takes 0.3 % of the arithmetic of ViT-B/16.
    """
    chex.assert_rank([x, index], [3, 2])
    one_hot = jax.nn.one_hot(index, x.shape[1], dtype=x.dtype)
    return jnp.einsum("bmn,bnd->bmd", one_hot, x, precision=jax.lax.Precision.HIGHEST)
