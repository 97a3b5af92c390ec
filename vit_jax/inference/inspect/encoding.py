"""Encodes attention weights compactly for a web page: compressed bytes instead of floats."""

import base64
import zlib

import numpy as np


def pack(weights: np.ndarray, rolled: np.ndarray) -> str:
    """Returns weights (L, H, N, N) and their rollout (L, N, N) as base64 of deflated bytes.

    The rollout follows the heads as an additional head. The data are the maxima of all rows,
    float32 (L, H + 1, N), then the rows, uint8 (L, H + 1, N, N): a weight w becomes
    255 sqrt(w / maximum), rounded, which preserves small weights. Decoded weights are within 1/250
    of the maximum.
    """
    heads = np.concatenate([weights, rolled[:, None]], axis=1)
    maxima = heads.max(axis=-1)
    share = heads / np.maximum(maxima, np.finfo(np.float32).tiny)[..., None]
    rows = np.rint(255 * np.sqrt(share)).astype(np.uint8)
    return _text(maxima.astype("<f4").tobytes() + rows.tobytes())


def pack_cosines(cosines: np.ndarray) -> str:
    """Returns numbers in [-1, 1] as base64 of deflated bytes, uint8: 0 is -1, 254 is 1."""
    return _text(np.rint(127 * (cosines + 1)).astype(np.uint8).tobytes())


def pack_vectors(vectors: np.ndarray) -> str:
    """Returns numbers in [-1, 1] as base64 of deflated bytes, little-endian int16: 32767 is 1."""
    return _text(np.rint(32767 * vectors).astype("<i2").tobytes())


def pack_colors(colors: np.ndarray) -> str:
    """Returns numbers from 0 to 1 as base64 of deflated bytes, uint8: 255 is 1."""
    return _text(np.rint(255 * colors).astype(np.uint8).tobytes())


def _text(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content, 6)).decode()
