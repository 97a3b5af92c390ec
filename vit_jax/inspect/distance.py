"""Mean attention distance in pixels (ViT, figures 7 and 11)."""

import numpy as np


def between(grid: tuple[int, int], image_size: tuple[int, int], *, token: bool) -> np.ndarray:
    """Returns the distance in pixels between all tokens, (N, N) float32.

    Grid neighbors are the image height or width divided by the rows or columns apart, so hybrids
    also use image pixels. All distances to a class token, which comes first, are 0.
    """
    rows, columns = np.indices(grid).reshape(2, -1)
    y, x = rows * (image_size[0] / grid[0]), columns * (image_size[1] / grid[1])
    far = np.hypot(y[:, None] - y[None], x[:, None] - x[None])
    return np.pad(far, [(int(token), 0)] * 2).astype(np.float32)


def mean_distance(weights: np.ndarray, far: np.ndarray, *, token: bool) -> np.ndarray:
    """Returns the mean attention distance of each head, (L, B, H) in the units of `far`.

    Each query contributes the sum of distance times weight over all keys; the result is the mean
    over queries. Following the paper's author (google-research/vision_transformer#162), the class
    token is not a query, and weight on it as a key counts 0 without rescaling the rest.

    Args:
      weights: attention (L, B, H, N, N).
      far: `between` the tokens, (N, N).
      token: whether the first token is a class token.
    """
    queries = far.shape[0] - token
    flat = weights.reshape(*weights.shape[:3], -1)
    return flat @ (far.ravel() / np.float32(queries))
