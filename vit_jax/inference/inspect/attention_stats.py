"""What attention does in images: how far it reaches, and its rollout through all layers."""

import dataclasses

import numpy as np

from vit_jax.inference import loading
from vit_jax.inference.inspect import attention
from vit_jax.inference.inspect.inputs import Pictures
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
    before = variants.prefix_tokens(cfg.model)
    grid = variants.grid(cfg.model, cfg.data.image_size)
    far = distances(grid, variants.covered(cfg.model, cfg.data.image_size), token=before)
    reach, rolled, kept = [], [], []
    for weights in attention.weights(opened, pictures.views):
        reach.append(mean_distance(weights, far, token=before).swapaxes(0, 1))
        rolled.append(attention.output_attention(rollout(weights), cfg))
        few = weights[:, : max(maps - sum(map(len, kept)), 0)]
        kept.append(attention.output_attention(few, cfg).swapaxes(0, 1))
    return Seen(
        distance=np.concatenate(reach),
        rollout=np.concatenate(rolled),
        maps=np.concatenate(kept),
    )


def distances(grid: tuple[int, int], image_size: tuple[int, int], *, token: int) -> np.ndarray:
    """Returns the distance in pixels between all tokens (ViT, figures 7 and 11), (N, N) float32.

    Neighbors on the grid are as far apart as the image is high or wide divided by the rows or
    columns, so that hybrids count in pixels of the image too. Of the class token and registers,
    `token` in number, which come first, all distances are 0.
    """
    rows, columns = np.indices(grid).reshape(2, -1)
    y, x = rows * (image_size[0] / grid[0]), columns * (image_size[1] / grid[1])
    far = np.hypot(y[:, None] - y[None], x[:, None] - x[None])
    return np.pad(far, [(int(token), 0)] * 2).astype(np.float32)


def mean_distance(weights: np.ndarray, far: np.ndarray, *, token: int) -> np.ndarray:
    """Returns the mean distance that each head attends to, (L, B, H) in the units of `far`.

    Of each query it is the distance to every key times the weight on it, summed, and then the mean
    over queries. As the paper's author has it (google-research/vision_transformer#162), the class
    token is no query, and what falls on it as a key counts nothing: the rest is not scaled up. So
    it is with registers.

    Args:
      weights: attention (L, B, H, N, N).
      far: `distances` between the tokens, (N, N).
      token: how many tokens stand before those of the patches.
    """
    queries = far.shape[0] - token
    flat = weights.reshape(*weights.shape[:3], -1)
    return flat @ (far.ravel() / np.float32(queries))


def rollout(weights: np.ndarray) -> np.ndarray:
    """Returns what tokens are made of after all layers (ViT, D.8): (B, N, N) of (L, B, H, N, N).

    The weights of a layer are averaged over its heads, the identity is added for the residual
    connection and rows are divided by their sums; then the layers are multiplied, the last one
    from the left (Abnar and Zuidema 2020; that ViT adds the identity too, its authors said in
    google-research/vision_transformer#18). Rows sum to 1.
    """
    return rollout_layers(weights)[-1]


def rollout_layers(weights: np.ndarray) -> np.ndarray:
    """Returns the rollout up to every layer, (L, B, N, N), of weights (L, B, H, N, N)."""
    identity = np.eye(weights.shape[-1], dtype=weights.dtype)
    rolled, so_far = [], identity
    for layer in weights:
        mixed = layer.mean(axis=1) + identity
        so_far = mixed / mixed.sum(axis=-1, keepdims=True) @ so_far
        rolled.append(so_far)
    return np.stack(rolled)
