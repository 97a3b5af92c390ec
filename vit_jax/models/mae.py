"""The decoder of a masked autoencoder (He et al. 2022): from tokens of kept patches to all pixels.

The letters are those of `layers`; of the P patches of an image the encoder has seen K.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax import config
from vit_jax.models import layers, positions, variants
from vit_jax.models.architecture import Params
from vit_jax.models.classifier import Classifier
from vit_jax.models.layers import constrain_batch, normalize
from vit_jax.models.variants import required
from vit_jax.models.vit import Stack, take_rows


class DecoderNetwork(Stack):
    """Mask tokens for the patches not kept, positions, narrow layers, and a layer to pixels."""

    def __init__(
        self,
        model: config.Model,
        features: int,
        prefix: int,
        grid: tuple[int, int],
        outputs: int,
        dtype: jnp.dtype,
        *,
        rngs: nnx.Rngs,
    ):
        self.prefix, self.grid = prefix, grid
        width = required(model.width)

        def linear(inputs: int, outputs: int) -> nnx.Linear:
            return nnx.Linear(
                inputs,
                outputs,
                kernel_init=layers.xavier_uniform,
                dtype=dtype,
                dot_general=layers.dot_general(model),
                rngs=rngs,
            )

        self.embed = linear(features, width)
        # The deviation of MAE's code.
        normal = nnx.initializers.normal(0.02, dtype=jnp.float32)
        self.mask_token = nnx.Param(normal(rngs.params(), (1, 1, width)))
        self.add_layers(model, grid, dtype, rngs=rngs)
        self.norm = layers.create_norm(model, width, rngs=rngs)
        self.pixels = linear(width, outputs)

    def __call__(self, tokens: jax.Array, rank: jax.Array) -> jax.Array:
        """Pixels (B, P, h w C) float32; arguments as in `Decoder.decode`."""
        x, prefix = self.embed(tokens), self.prefix
        mask = jnp.broadcast_to(self.mask_token[...].astype(x.dtype), (len(x), 1, x.shape[2]))
        patches = jnp.concatenate([x[:, prefix:], mask], axis=1)
        # Ranks from K on belong to patches that were not kept; the mask token is row K.
        patches = take_rows(patches, jnp.minimum(rank, patches.shape[1] - 1))
        table = positions.sincos_2d(*self.grid, x.shape[2], whole=False)
        patches = patches + table[None].astype(x.dtype)
        # The tokens before the patches have position zero, as in MAE's code.
        x, _ = self.encode(jnp.concatenate([x[:, :prefix], patches], axis=1), None, False)
        x = normalize(self.norm, x)[:, prefix:]
        return constrain_batch(self.pixels(x).astype(jnp.float32))


@dataclasses.dataclass(frozen=True)
class Decoder(Classifier):
    """A decoder as functions of its parameters, as a classifier is; see `create_decoder`.

    Attributes:
      features: width of the encoder.
      prefix: tokens before its patches, which the decoder's layers see too.
    """

    # The classifier's last field has a default, so a dataclass wants one for these too.
    features: int = 0
    prefix: int = 0

    def _module(self, key: jax.Array) -> nnx.Module:
        height, width = required(self.config.patch_size)
        return DecoderNetwork(
            self.config,
            self.features,
            self.prefix,
            variants.grid(self.config, self.image_size),
            height * width * self.channels,
            self.dtype,
            rngs=nnx.Rngs(key),
        )

    def decode(self, params: Params, tokens: jax.Array, rank: jax.Array) -> jax.Array:
        """The pixels of all patches, (B, P, h w C) float32, each in the order h w C.

        Args:
          params: nested as in `shapes()`.
          tokens: of the encoder, (B, N, D): those before the patches, then of the K kept.
          rank: (B, P) int32, the place of each patch among the tokens of patches; K and above: it
            was not kept.
        """
        return self.bind(params)(tokens, rank)


def create_decoder(encoder: Classifier, options: config.Mae) -> Decoder:
    """The decoder that `options` describe, for an encoder; unrolled if that is."""
    model = encoder.config
    # Only whole unrolling carries over: a part of one depth says nothing about the other.
    whole = (model.unroll or 1) >= required(model.depth)
    return Decoder(
        variants.decoder(model, options, unroll=options.decoder_depth if whole else 1),
        encoder.image_size,
        encoder.channels,
        features=required(model.width),
        prefix=variants.prefix_tokens(model),
    )
