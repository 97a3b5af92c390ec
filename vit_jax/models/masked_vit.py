"""Masked patch prediction (ViT, appendix B.1.2): a mask token, a head on corrupted patches."""

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax import config
from vit_jax.models import masking
from vit_jax.models.axial import AxialViT
from vit_jax.models.layers import constrain_batch
from vit_jax.models.norms import normalize
from vit_jax.models.positions import normal
from vit_jax.models.variants import required
from vit_jax.models.vit import ViT


class MaskedViT(ViT):
    """A Vision Transformer that predicts masked patches instead of classes."""

    def __init__(
        self,
        model: config.Model,
        image_size: tuple[int, int],
        channels: int,
        dtype: jnp.dtype,
        masked: config.Masked,
        *,
        rngs: nnx.Rngs,
    ):
        self.outputs = masking.outputs(masked, required(model.patch_size), channels)
        super().__init__(model, image_size, channels, dtype, rngs=rngs)

    def add_head(self, model: config.Model, features: int, *, rngs: nnx.Rngs) -> None:
        """Makes the mask token and the prediction head, zero-initialized as other heads are."""
        features = required(model.width)  # of patches, which nothing pools
        self.mask_token = nnx.Param(normal(rngs.params(), (1, 1, features)))
        self.prediction = nnx.Linear(
            features, self.outputs, kernel_init=nnx.initializers.zeros, rngs=rngs
        )

    def classify(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns logits of no classes, (B, 0), and x (B, D) itself, which few-shot takes."""
        return x[:, :0], x

    def predict_masked(
        self, images: jax.Array, source: jax.Array, chosen: jax.Array, key: jax.Array | None
    ) -> jax.Array:
        """Returns the predictions for corrupted patches; see `Classifier.predict_masked`.

        Embeddings are corrupted before positions are added, so mask tokens keep their positions.
        """
        x = self.patches(images)
        token = jnp.broadcast_to(self.mask_token[...].astype(x.dtype), (len(x), 1, x.shape[2]))
        patches = take(jnp.concatenate([x, token], axis=1), source)
        tokens, _ = self.transform(patches, key, False)
        tokens = normalize(self.encoder_norm, tokens)[:, -x.shape[1] :]  # the patches only
        seen = constrain_batch(take(tokens, chosen).astype(jnp.float32))
        return constrain_batch(self.prediction(seen))


class MaskedAxialViT(MaskedViT, AxialViT):
    """An AxialViT that predicts masked patches."""


def take(x: jax.Array, index: jax.Array) -> jax.Array:
    """Returns rows of x (B, N, D) by index (B, M) int32, (B, M, D), exactly.

    Computed as a product with a one-hot matrix: the gradient is a product too, while the gradient
    of indexing sums in a nondeterministic order on GPUs; and sharding by images needs no
    communication. It takes 0.3 % of the arithmetic of ViT-B/16.
    """
    chex.assert_rank([x, index], [3, 2])
    chosen = jax.nn.one_hot(index, x.shape[1], dtype=x.dtype)
    return jnp.einsum("bmn,bnd->bmd", chosen, x, precision=jax.lax.Precision.HIGHEST)
