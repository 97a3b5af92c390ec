"""Attention weights of a model, computed in batches of bounded size."""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config, models
from vit_jax.inference import loading
from vit_jax.inference.inspect import CannotAnswer
from vit_jax.models import variants
from vit_jax.models.variants import required
from vit_jax.training import normalization

BYTES = 2**30  # of attention weights per batch; a batch contains at least one image


def weights(
    opened: loading.LoadedModel, views: np.ndarray, *, at_most: int = BYTES
) -> Iterator[np.ndarray]:
    """Yields the attention weights of batches of images, each (L, b, H, N, N) float32.

    Row q of the last two axes contains the weights of query q, which sum to 1; a class token comes
    first. The batches cover all images in order.

    Args:
      opened: a model that passes `check`.
      views: (B, H, W, C) uint8, preprocessed for the model (see `inputs`).
      at_most: bytes per batch; a batch contains at least one image.
    """
    # A loop over layers needs one copy less of the weights than an unrolled program.
    model = dataclasses.replace(opened.config.model, attention="explicit", remat="none", unroll=1)
    cfg = dataclasses.replace(opened.config, model=model)
    size = max(1, min(at_most // bytes_per_image(cfg), len(views)))
    for start in range(0, len(views), size):
        batch = views[start : start + size]
        margin = [
            (0, size - len(batch)),
            (0, 0),
            (0, 0),
            (0, 0),
        ]  # equal sizes need one compilation
        found = _captured(loading.create_model(cfg), cfg.data, opened.params, np.pad(batch, margin))
        yield np.asarray(found)[:, : len(batch)]


def check(model: config.Model) -> None:
    """Raises CannotAnswer for a model without attention weights between all its tokens."""
    if reason := models.family(model).lacks(model, "attention"):
        raise CannotAnswer(reason)


def bytes_per_image(cfg: config.Config) -> int:
    """Returns the bytes of all attention weights of one image."""
    model = cfg.model
    tokens = math.prod(variants.grid(model, cfg.data.image_size)) + variants.prefix_tokens(model)
    return 4 * required(model.depth) * required(model.heads) * tokens**2


def output_attention(rows: np.ndarray, cfg: config.Config) -> np.ndarray:
    """Returns the attention of the output on patches, (..., rows, columns), of weights (..., N, N).

    This is the row of the class token without its own weight, or of the first token if the head
    reads it; otherwise the mean of the rows of all patches. What registers get is left out.
    """
    before = variants.prefix_tokens(cfg.model)
    alone = variants.reads_one_token(cfg.model)
    seen = rows[..., 0, before:] if alone else rows[..., before:, before:].mean(axis=-2)
    return seen.reshape(*seen.shape[:-1], *variants.grid(cfg.model, cfg.data.image_size))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _captured(
    model: models.Classifier, data: config.Data, params: Any, batch: jax.Array
) -> jax.Array:
    _, out = model.apply(
        params, normalization.normalize_pixels(jnp.asarray(batch), data), capture=True
    )
    return out["attention"]
