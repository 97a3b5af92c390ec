"""Features of patches: their principal components as colors, and matches between two images."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from vit_jax import models
from vit_jax.inference import loading
from vit_jax.inference.inspect import CannotAnswer
from vit_jax.models import variants
from vit_jax.training import normalization

SPREAD = (1.0, 99.0)  # percentiles of a component that become 0 and 1


def of(opened: loading.LoadedModel, views: np.ndarray) -> np.ndarray:
    """Returns the features of every patch, (B, rows, columns, D) float32.

    They are the encoder's output, as pooling sees it, without other tokens.

    Args:
      opened: a model.
      views: (B, H, W, C) uint8, preprocessed for the model (see `inputs`).

    Raises CannotAnswer for a model without tokens of patches.
    """
    cfg = opened.config
    if reason := models.family(cfg.model).lacks(cfg.model, "features"):
        raise CannotAnswer(reason)
    height, width = variants.grid(cfg.model, cfg.data.image_size)
    batch = normalization.normalize_pixels(jnp.asarray(views), cfg.data)
    found = opened.features_of(batch, "tokens")[:, variants.prefix_tokens(cfg.model) :]
    return found.reshape(len(found), height, width, found.shape[-1])


def components(features: np.ndarray, count: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first principal components of all patches, and their shares of the variance.

    Args:
      features: (B, rows, columns, D).
      count: of components; fewer dimensions leave the last ones 0.

    Returns:
      (B, rows, columns, count) float64, each positive for the patch farthest from the mean; and
      (count,) float64.
    """
    axes = principal_axes(features, count)
    return axes.project(features), axes.shares


class Axes(NamedTuple):
    """Directions of the greatest variance of patches.

    Attributes:
      mean: (D,) float64, of the patches.
      directions: (D, count) float64, of length 1, or 0 where there are fewer dimensions.
      shares: (count,) of the variance.
    """

    mean: np.ndarray
    directions: np.ndarray
    shares: np.ndarray

    def project(self, features: np.ndarray) -> np.ndarray:
        """Returns the components of any features (..., D), (..., count) float64."""
        patches = features.reshape(-1, features.shape[-1]).astype(np.float64) - self.mean
        return (patches @ self.directions).reshape(*features.shape[:-1], -1)


def principal_axes(features: np.ndarray, count: int = 3) -> Axes:
    """Returns the axes of the first principal components; arguments as for `components`."""
    patches = features.reshape(-1, features.shape[-1]).astype(np.float64)
    mean = patches.mean(axis=0)
    patches = patches - mean
    values, directions = np.linalg.eigh(patches.T @ patches)  # ascending; D x D, however many rows
    values, directions = values[::-1][:count], directions[:, ::-1][:, :count]
    projected = patches @ directions
    farthest = projected[np.abs(projected).argmax(axis=0), np.arange(projected.shape[1])]
    directions = directions * np.where(farthest < 0, -1.0, 1.0)
    missing = count - directions.shape[1]
    total = np.square(patches).sum()
    shares = np.pad(np.maximum(values, 0.0), (0, missing)) / (total if total > 0 else 1.0)
    return Axes(mean, np.pad(directions, [(0, 0), (0, missing)]), shares)


def colors(projected: np.ndarray) -> np.ndarray:
    """Returns three components (B, rows, columns, 3) as colors from 0 to 1.

    Red is the first. Each is stretched over all images, from one percentile of SPREAD to the other.
    """
    return stretched(projected, *spread(projected))


def spread(projected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the values of each component (..., 3) that become 0 and 1, (3,) each."""
    low, high = np.percentile(projected, SPREAD, axis=tuple(range(projected.ndim - 1)))
    return low, high


def stretched(projected: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Returns components (..., 3) as colors from 0 at `low` to 1 at `high`."""
    wide = high - low > 0
    scaled = (projected - low) / np.where(wide, high - low, 1.0)
    return np.where(wide, np.clip(scaled, 0.0, 1.0), 0.5)


def matches(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pairs of patches that are each other's most similar, and their cosines.

    Args:
      first: features of an image, (rows, columns, D).
      second: those of another.

    Returns:
      (n, 4) int64, row and column in the first and in the second image, the most similar first;
      and (n,) float64. n is at least 1.
    """
    one, other = (unit(image) for image in (first, second))
    cosines = one @ other.T
    forward, backward = cosines.argmax(axis=1), cosines.argmax(axis=0)
    mutual = np.flatnonzero(backward[forward] == np.arange(len(one)))
    values = cosines[mutual, forward[mutual]]
    order = np.argsort(-values, kind="stable")
    mutual = mutual[order]
    here = np.stack(np.divmod(mutual, first.shape[1]), axis=1)
    there = np.stack(np.divmod(forward[mutual], second.shape[1]), axis=1)
    return np.concatenate([here, there], axis=1), values[order]


def unit(image: np.ndarray) -> np.ndarray:
    """Returns the features of an image (..., D) as rows of length 1, (n, D) float64."""
    patches = image.reshape(-1, image.shape[-1]).astype(np.float64)
    lengths = np.linalg.norm(patches, axis=1, keepdims=True)
    return patches / np.maximum(lengths, np.finfo(np.float64).tiny)
