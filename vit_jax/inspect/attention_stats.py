"""Attention statistics of images, computed in one pass."""

import dataclasses

import numpy as np

from vit_jax import loading
from vit_jax.inspect import attention, distance, rollout
from vit_jax.inspect.inputs import Pictures
from vit_jax.models import variants


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """Attention statistics of B images, as float32.

    Attributes:
      distance: (B, L, H), mean attention distance in pixels.
      rollout: (B, rows, columns), attention rollout of the output.
      maps: (some, L, H, rows, columns), attention of the output in every head.
    """

    distance: np.ndarray
    rollout: np.ndarray
    maps: np.ndarray


def look(opened: loading.LoadedModel, pictures: Pictures, *, maps: int) -> Seen:
    """Returns the attention statistics of images, with all maps of the first few.

    Requires a model that passes `attention.check`.
    """
    cfg = opened.config
    token = variants.has_class_token(cfg.model)
    grid = variants.grid(cfg.model, cfg.data.image_size)
    far = distance.between(grid, variants.covered(cfg.model, cfg.data.image_size), token=token)
    distances, rolled, kept = [], [], []
    for weights in attention.weights(opened, pictures.views):
        distances.append(distance.mean_distance(weights, far, token=token).swapaxes(0, 1))
        rolled.append(attention.output_attention(rollout.rollout(weights), cfg))
        few = weights[:, : max(maps - sum(map(len, kept)), 0)]
        kept.append(attention.output_attention(few, cfg).swapaxes(0, 1))
    return Seen(
        distance=np.concatenate(distances),
        rollout=np.concatenate(rolled),
        maps=np.concatenate(kept),
    )
