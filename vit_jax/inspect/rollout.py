"""Attention rollout: the contribution of every token to every other (ViT, D.8)."""

import numpy as np


def rollout(weights: np.ndarray) -> np.ndarray:
    """Returns the rollout after all layers, (B, N, N), of weights (L, B, H, N, N).

    Averages the weights of each layer over its heads, adds the identity for the residual
    connection, normalizes the rows, and multiplies the layers, the last one on the left (Abnar and
    Zuidema 2020; ViT's authors confirm the identity in google-research/vision_transformer#18). Rows
    sum to 1.
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
