"""Principal components of the filters of the first linear layer (ViT, figure 7)."""

import numpy as np

from vit_jax import models
from vit_jax.inference import loading
from vit_jax.inference.inspect import CannotAnswer

COUNT = 28  # as many as the paper shows


def kernel(opened: loading.LoadedModel) -> np.ndarray:
    """Returns the filters applied to pixels, (h, w, C, D) float32.

    These belong to the patch embedding, or to the first convolution of a hybrid or a ResNet.
    """
    model = opened.config.model
    family = models.family(model)
    if reason := family.lacks(model, "filters"):
        raise CannotAnswer(reason)
    found = opened.params
    for name in family.filters(model):
        found = found[name]
    return np.asarray(found)


def components(filters: np.ndarray, count: int = COUNT) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first principal components of filters (h, w, C, D) and their shares of variance.

    The D filters are points in the space of h x w x C pixels, centered on their mean; the paper
    does not specify centering. Components (n, h, w, C) float32 have length 1, with the sign that
    makes the largest absolute value positive; shares (n,) sum to at most 1.
    """
    points = filters.reshape(-1, filters.shape[-1]).astype(np.float64)
    points = points - points.mean(axis=1, keepdims=True)
    axes, lengths, _ = np.linalg.svd(points, full_matrices=False)
    count = min(count, axes.shape[1])
    axes = axes[:, :count]
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(count)])
    variance = lengths**2
    shares = variance / max(variance.sum(), np.finfo(np.float64).tiny)
    shape = (count, *filters.shape[:-1])
    return axes.T.reshape(shape).astype(np.float32), shares[:count].astype(np.float32)
