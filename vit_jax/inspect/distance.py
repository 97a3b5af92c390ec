"""How far attention reaches: its mean distance in pixels (ViT, figures 7 and 11)."""

import numpy as np


def between(grid: tuple[int, int], image_size: tuple[int, int], *, token: bool) -> np.ndarray:
    """Returns the distance in pixels between all tokens, (N, N) float32.

    Neighbors on the grid are as far apart as the image is high or wide divided by the rows or
    columns, so that hybrids count in pixels of the image too. Of a class token, which comes first,
    all distances are 0.
    """
    rows, columns = np.indices(grid).reshape(2, -1)
    y, x = rows * (image_size[0] / grid[0]), columns * (image_size[1] / grid[1])
    far = np.hypot(y[:, None] - y[None], x[:, None] - x[None])
    return np.pad(far, [(int(token), 0)] * 2).astype(np.float32)


def mean_distance(weights: np.ndarray, far: np.ndarray, *, token: bool) -> np.ndarray:
    """Returns the mean distance that each head attends to, (L, B, H) in the units of `far`.

    Of each query it is the distance to every key times the weight on it, summed, and then the mean
    over queries. As the paper's author has it (google-research/vision_transformer#162), the class
    token is no query, and what falls on it as a key counts nothing: the rest is not scaled up.

    Args:
      weights: attention (L, B, H, N, N).
      far: `between` the tokens, (N, N).
      token: whether the first token is a class token.
    """
    queries = far.shape[0] - token
    flat = weights.reshape(*weights.shape[:3], -1)
    return flat @ (far.ravel() / np.float32(queries))
