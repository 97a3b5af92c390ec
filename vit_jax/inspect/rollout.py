"""Attention rollout: how much of every token is in every other, through all layers (ViT, D.8)."""

import numpy as np


def rollout(weights: np.ndarray) -> np.ndarray:
    """Returns what each token is made of after all layers, (B, N, N), of (L, B, H, N, N).

    The weights of a layer are averaged over its heads, the identity is added for the residual
    connection and rows are divided by their sums; then the layers are multiplied, the last one
    from the left (Abnar and Zuidema 2020; that ViT adds the identity too, its authors said in
    google-research/vision_transformer#18). Rows sum to 1.
    """
    return layers(weights)[-1]


def layers(weights: np.ndarray) -> np.ndarray:
    """Returns the rollout up to every layer, (L, B, N, N), of weights (L, B, H, N, N)."""
    identity = np.eye(weights.shape[-1], dtype=weights.dtype)
    rolled, so_far = [], identity
    for layer in weights:
        mixed = layer.mean(axis=1) + identity
        so_far = mixed / mixed.sum(axis=-1, keepdims=True) @ so_far
        rolled.append(so_far)
    return np.stack(rolled)
