"""Masked autoencoding (He et al. 2022, MAE): the pixels of patches that the encoder did not see.

The encoder computes on the kept patches alone, so an image costs a fraction of a supervised one; a
decoder with mask tokens in place of the others predicts all pixels, and the loss counts those of
the patches left out. Every image keeps the same number, so it weighs the same on any device and in
any microbatch.

Letters as in `models.layers`; h w are height and width of a patch, K of an image's patches are
kept.
"""

import jax
import jax.numpy as jnp

from vit_jax import config, models
from vit_jax.config import components
from vit_jax.models import mae as decoders
from vit_jax.models import variants
from vit_jax.models.classifier import OBJECTIVE
from vit_jax.models.layers import patchify
from vit_jax.models.variants import required
from vit_jax.training import normalization
from vit_jax.training.objectives.masked_patches import keys
from vit_jax.training.objectives.objective import Batch, Inputs, Objective, Setup

EPSILON = 1e-6  # of the variance of a patch, as in MAE's code


@components.register("objective", "mae")
class MaskedAutoencoder(Objective):
    """The mean squared error of the pixels predicted for masked patches."""

    needs_labels = False

    def __init__(
        self,
        setup: Setup,
        mask_ratio: float,
        norm_pix: bool,
        decoder_width: int,
        decoder_depth: int,
        decoder_heads: int,
    ) -> None:
        del mask_ratio, norm_pix, decoder_width, decoder_depth, decoder_heads
        super().__init__(setup)
        self.options = required(setup.cfg.mae)  # these arguments, as one
        self.decoder = decoders.create_decoder(self.model, self.options)

    def init(self, key: jax.Array) -> models.Params:
        """A new decoder."""
        return self.decoder.init(key)

    def prepare(self, batch: Batch, step: jax.Array) -> Batch:
        """Draws the patches that each image keeps: `rank`, as `ranks` has it."""
        drawn = keys(self.cfg.seed, step, self.cfg.train.batch_size)
        return batch | {"rank": ranks(drawn, self.model.patches)}

    def forward(self, params: models.Params, batch: Batch, inputs: Inputs) -> jax.Array:
        """The loss of each image, (B,) float32."""
        pixels = normalization.normalize_pixels(batch["image"], self.cfg.data)
        rank = batch["rank"]
        guess = reconstruct(self.model, self.options, params, pixels, rank, key=inputs.key)
        return losses(self.model, self.options, guess, pixels, rank)

    def loss(self, outputs: jax.Array, inputs: Inputs) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The mean over images, and no measures."""
        return jnp.mean(outputs), {}

    def flops(self, passes: float) -> float | None:
        """FLOPs of the encoder on kept patches, and of the decoder."""
        model = self.model
        forward = variants.flops(model.config, model.image_size, model.channels, self.options)
        return None if forward is None else passes * forward


def ranks(keys: jax.Array, patches: int) -> jax.Array:
    """The place of each patch in a random order, (B, P) int32; the first K are kept.

    Args:
      keys: (B,), one for each image, which alone determines its order.
      patches: P, of an image.
    """
    return jax.vmap(lambda key: jax.random.permutation(key, patches).astype(jnp.int32))(keys)


def reconstruct(
    model: models.Classifier,
    options: config.Mae,
    params: models.Params,
    pixels: jax.Array,
    rank: jax.Array,
    *,
    key: jax.Array | None = None,
) -> jax.Array:
    """The predicted pixels of all patches, (B, P, h w C) float32, as `targets` has them.

    Args:
      model: the encoder.
      options: of the objective.
      params: the encoder's, and the decoder's under `objective`.
      pixels: (B, H, W, C) float32, normalized.
      rank: (B, P) int32, as from `ranks`.
      key: of dropout in the encoder, or None.
    """
    # Ranks are a permutation, which sorting inverts: patches in their random order.
    kept = jnp.argsort(rank, axis=1)[:, : variants.kept_patches(options, model.patches)]
    tokens = model.encode_kept(params, pixels, kept.astype(jnp.int32), key=key)
    return decoders.create_decoder(model, options).decode(params[OBJECTIVE], tokens, rank)


def losses(
    model: models.Classifier,
    options: config.Mae,
    guess: jax.Array,
    pixels: jax.Array,
    rank: jax.Array,
) -> jax.Array:
    """The mean squared error over the masked patches of each image, (B,) float32.

    Args:
      model: the encoder.
      options: of the objective.
      guess: (B, P, h w C) float32, as from `reconstruct`.
      pixels: (B, H, W, C) float32, normalized.
      rank: (B, P) int32, as from `ranks`.
    """
    wanted, _, _ = targets(pixels, required(model.config.patch_size), norm_pix=options.norm_pix)
    each = jnp.mean(jnp.square(guess - wanted), axis=-1)
    kept = variants.kept_patches(options, model.patches)
    return jnp.sum(jnp.where(rank >= kept, each, 0), axis=1) / (model.patches - kept)


def targets(
    pixels: jax.Array, patch: tuple[int, int], *, norm_pix: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The pixels to predict, (B, P, h w C) float32, and mean and deviation (B, P, 1) taken away.

    Args:
      pixels: (B, H, W, C) float32, normalized.
      patch: height and width.
      norm_pix: whether the pixels of a patch are normalized by its mean and unbiased variance.
    """
    patches = patchify(pixels, patch).astype(jnp.float32)
    patches = patches.reshape(*patches.shape[:2], -1)
    mean, std = jnp.zeros_like(patches[..., :1]), jnp.ones_like(patches[..., :1])
    if norm_pix:
        mean = jnp.mean(patches, axis=-1, keepdims=True)
        # ddof=1 is torch.var's default, so MAE's.
        std = jnp.sqrt(jnp.var(patches, axis=-1, keepdims=True, ddof=1) + EPSILON)
    return (patches - mean) / std, mean, std
