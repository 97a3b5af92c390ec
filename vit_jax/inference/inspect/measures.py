"""Attention, features and predictions of a model as arrays; `figures` draws them.

Letters as in `models.layers`. Views are (B, H, W, C) uint8, preprocessed for the model (see
`inputs`) and not yet normalized.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config, models
from vit_jax.inference import loaded_model
from vit_jax.inference.inspect.inputs import Pictures
from vit_jax.models import variants
from vit_jax.models.layers import patchify, unpatchify
from vit_jax.models.variants import required
from vit_jax.training import build, normalization
from vit_jax.training.objectives import mae, masked_patches
from vit_jax.utils import tree_utils

FILTERS = 28  # principal components of filters, as many as the paper shows
COLORS = 3  # principal components of patches, shown as red, green and blue
BYTES = 2**30  # of attention weights per batch; a batch contains at least one image
SPREAD = (1.0, 99.0)  # percentiles of a component that become 0 and 1


class CannotAnswer(config.ConfigError):
    """The model or the given images do not support the requested figure."""


def require(model: config.Model, figure: str) -> None:
    """Raises CannotAnswer for a model that lacks what a figure shows; see `Architecture.lacks`."""
    if reason := models.find_architecture(model).lacks(model, figure):
        raise CannotAnswer(reason)


def require_attention(opened: loaded_model.LoadedModel) -> None:
    """Raises CannotAnswer for a model without attention weights between all its tokens."""
    cfg = opened.config
    require(cfg.model, "attention")
    for name in ("depth", "heads"):
        if getattr(cfg.model, name) is None:
            raise config.ConfigError(f"model.{name}=none: figures of attention need it; set it")
    tokens = opened.model.patches + variants.prefix_tokens(cfg.model)
    shape = (cfg.model.depth, 1, cfg.model.heads, tokens, tokens)
    opened.model.check_intermediate(opened.params, "attention", shape, capture=True)


def require_features(opened: loaded_model.LoadedModel) -> None:
    """Raises CannotAnswer for a model without tokens of patches."""
    cfg = opened.config
    require(cfg.model, "features")
    tokens = opened.model.patches + variants.prefix_tokens(cfg.model)
    opened.model.check_intermediate(opened.params, "tokens", (1, tokens, None))


# Filters and position embeddings


def filter_kernel(opened: loaded_model.LoadedModel) -> np.ndarray:
    """The filters applied to pixels, (h, w, C, D) float32.

    They belong to the patch embedding, or to the first convolution of a hybrid or a ResNet.
    """
    model = opened.config.model
    require(model, "filters")
    path = "/".join(map(str, models.find_architecture(model).filters(model)))
    kernel = tree_utils.flatten(opened.params).get(path)
    if kernel is None or np.ndim(kernel) != 4:
        raise config.ConfigError(
            f"model.architecture={model.architecture}: its filters are {path}; must be the path of "
            "an array (h, w, C, D)"
        )
    return np.asarray(kernel)


def filter_components(filters: np.ndarray, count: int = FILTERS) -> tuple[np.ndarray, np.ndarray]:
    """Principal components of filters (h, w, C, D) and their shares of variance (ViT, figure 7).

    The D filters are points in the space of h x w x C pixels, centered on their mean; the paper
    does not specify centering. Components (n, h, w, C) float32 have length 1, with the sign that
    makes the largest absolute value positive; shares (n,) sum to at most 1.
    """
    points = filters.reshape(-1, filters.shape[-1]).astype(np.float64)
    points = points - points.mean(axis=1, keepdims=True)
    axes, lengths, _ = np.linalg.svd(points, full_matrices=False)
    count = min(count, axes.shape[1])
    axes = axes[:, :count]
    # An SVD leaves the sign open.
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(count)])
    variance = lengths**2
    shares = variance / max(variance.sum(), np.finfo(np.float64).tiny)
    shape = (count, *filters.shape[:-1])
    return axes.T.reshape(shape).astype(np.float32), shares[:count].astype(np.float32)


def position_tables(opened: loaded_model.LoadedModel) -> np.ndarray:
    """Position embeddings of the patches, (T, rows, columns, D) float32.

    T is the number of layers if each has its own table, else 1. Raises CannotAnswer for a model
    without such a table.
    """
    model = opened.config.model
    require(model, "posemb")
    grid = models.grid(model, opened.config.data.image_size)
    tables = np.asarray(build.create_model(opened.config).position_tables(opened.params))
    return tables.reshape(tables.shape[0], *grid, tables.shape[2])


def position_similarity(table: np.ndarray) -> np.ndarray:
    """Cosines between embeddings (rows, columns, D): (rows, columns, rows, columns).

    Tile [r, c] holds the similarity of patch (r, c) to every patch; 0 for embeddings of zeros.
    """
    lengths = np.linalg.norm(table, axis=-1, keepdims=True)
    unit = table / np.maximum(lengths, np.finfo(table.dtype).tiny)
    # Rounding takes cosines of equal rows beyond 1.
    return np.clip(np.einsum("rcd,ijd->rcij", unit, unit, optimize=True), -1.0, 1.0)


# Attention


def attention_weights(
    opened: loaded_model.LoadedModel, views: np.ndarray, *, at_most: int = BYTES
) -> Iterator[np.ndarray]:
    """Yields the attention weights of batches of images, each (L, b, H, N, N) float32.

    Row q of the last two axes contains the weights of query q, which sum to 1; a class token comes
    first. The batches cover all images in order. Views are (B, H, W, C) uint8. A batch has at most
    so many bytes, but at least one image.
    """
    model, cfg = explicit_model(opened.config), opened.config
    size = max(1, min(at_most // bytes_per_image(cfg), len(views)))
    for start in range(0, len(views), size):
        batch = views[start : start + size]
        margin = [(0, size - len(batch)), (0, 0), (0, 0), (0, 0)]  # one size, one compilation
        weights = _attention(model, cfg.data, opened.params, np.pad(batch, margin))
        kept = np.asarray(weights)[:, : len(batch)]
        loaded_model.check_finite(kept)
        yield kept


def explicit_model(cfg: config.Config) -> models.Classifier:
    """The model as a program that returns attention weights in the least memory."""
    # A loop over layers needs one copy less of the weights than an unrolled program.
    model = dataclasses.replace(cfg.model, attention="explicit", remat="none", unroll=1)
    return build.create_model(dataclasses.replace(cfg, model=model))


def bytes_per_image(cfg: config.Config) -> int:
    """Bytes of all attention weights of one image."""
    model = cfg.model
    tokens = math.prod(variants.grid(model, cfg.data.image_size)) + variants.prefix_tokens(model)
    return 4 * required(model.depth) * required(model.heads) * tokens**2


def output_attention(rows: np.ndarray, cfg: config.Config) -> np.ndarray:
    """Attention of the output on patches, (..., rows, columns), for weights (..., N, N).

    This is the row of the class token without its own weight, or of the first token if the head
    reads it; otherwise the mean of the rows of all patches. What registers get is left out.
    """
    before = variants.prefix_tokens(cfg.model)
    alone = variants.reads_one_token(cfg.model)
    onto = rows[..., 0, before:] if alone else rows[..., before:, before:].mean(axis=-2)
    return onto.reshape(*onto.shape[:-1], *variants.grid(cfg.model, cfg.data.image_size))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _attention(
    model: models.Classifier, data: config.Data, params: models.Params, batch: jax.Array
) -> jax.Array:
    _, out = model.apply(
        params, normalization.normalize_pixels(jnp.asarray(batch), data), capture=True
    )
    return out["attention"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionStats:
    """Attention statistics of B images, as float32.

    Attributes:
      distance: (B, L, H), mean attention distance in pixels.
      rollout: (B, rows, columns), attention rollout of the output.
      maps: (some, L, H, rows, columns), attention of the output in every head.
    """

    distance: np.ndarray
    rollout: np.ndarray
    maps: np.ndarray


def attention_stats(
    opened: loaded_model.LoadedModel, pictures: Pictures, *, maps: int
) -> AttentionStats:
    """Attention statistics of images, with maps of the first few.

    Raises CannotAnswer for a model without attention weights between all its tokens.
    """
    cfg = opened.config
    require_attention(opened)
    prefix, far = variants.prefix_tokens(cfg.model), _token_distances(cfg)
    reach, rolled, kept = [], [], []
    for weights in attention_weights(opened, pictures.views):
        reach.append(mean_distance(weights, far, prefix=prefix).swapaxes(0, 1))
        rolled.append(output_attention(rollout(weights), cfg))
        # Of the first images only; the other statistics go through all of them.
        few = weights[:, : max(maps - sum(map(len, kept)), 0)]
        kept.append(output_attention(few, cfg).swapaxes(0, 1))
    return AttentionStats(
        distance=np.concatenate(reach), rollout=np.concatenate(rolled), maps=np.concatenate(kept)
    )


def _token_distances(cfg: config.Config) -> np.ndarray:
    """`distances` between the tokens of a model."""
    size = variants.covered(cfg.model, cfg.data.image_size)
    prefix = variants.prefix_tokens(cfg.model)
    return distances(variants.grid(cfg.model, cfg.data.image_size), size, prefix=prefix)


def uniform_distance(cfg: config.Config) -> float:
    """`mean_distance` of attention that is the same on all tokens of a model."""
    far = _token_distances(cfg)
    queries = len(far) - variants.prefix_tokens(cfg.model)
    return float(far.sum(dtype=np.float64) / (len(far) * queries))


def distances(grid: tuple[int, int], image_size: tuple[int, int], *, prefix: int) -> np.ndarray:
    """Distance in pixels between all tokens (ViT, figures 7 and 11), (N, N) float32.

    Neighbors on the grid are as far apart as the image is high or wide divided by the rows or
    columns, so that hybrids count in pixels of the image too. Of the class token and registers,
    `prefix` in number, which come first, all distances are 0.
    """
    rows, columns = np.indices(grid).reshape(2, -1)
    y, x = rows * (image_size[0] / grid[0]), columns * (image_size[1] / grid[1])
    far = np.hypot(y[:, None] - y[None], x[:, None] - x[None])
    return np.pad(far, [(int(prefix), 0)] * 2).astype(np.float32)


def mean_distance(weights: np.ndarray, far: np.ndarray, *, prefix: int) -> np.ndarray:
    """Mean distance that each head attends to, (L, B, H) in the units of `far`.

    Of each query it is the distance to every key times the weight on it, summed, and then the mean
    over queries. As the paper's author has it (google-research/vision_transformer#162), the class
    token is no query, and what falls on it as a key counts nothing: the rest is not scaled up. So
    it is with registers. Weights are (L, B, H, N, N), `far` the `distances` (N, N) between tokens,
    of which `prefix` precede the patches.
    """
    queries = far.shape[0] - prefix
    # One product over queries and keys; distances of the tokens before the patches are 0.
    flat = weights.reshape(*weights.shape[:3], -1)
    return flat @ (far.ravel() / np.float32(queries))


def rollout(weights: np.ndarray) -> np.ndarray:
    """Attention rollout (ViT, D.8), (B, N, N), of weights (L, B, H, N, N).

    The weights of a layer are averaged over its heads, the identity is added for the residual
    connection and rows are divided by their sums; then the layers are multiplied, the last one
    from the left (Abnar and Zuidema 2020; that ViT adds the identity too, its authors said in
    google-research/vision_transformer#18). Rows sum to 1.
    """
    return rollout_layers(weights)[-1]


def rollout_layers(weights: np.ndarray) -> np.ndarray:
    """The rollout up to every layer, (L, B, N, N), of weights (L, B, H, N, N)."""
    identity = np.eye(weights.shape[-1], dtype=weights.dtype)
    rolled, so_far = [], identity
    for layer in weights:
        mixed = layer.mean(axis=1) + identity
        so_far = mixed / mixed.sum(axis=-1, keepdims=True) @ so_far
        rolled.append(so_far)
    return np.stack(rolled)


# Features of patches


def patch_features(opened: loaded_model.LoadedModel, views: np.ndarray) -> np.ndarray:
    """Features of every patch, the input of pooling, (B, rows, columns, D) float32.

    Raises CannotAnswer for a model without tokens of patches.
    """
    cfg = opened.config
    require_features(opened)
    height, width = variants.grid(cfg.model, cfg.data.image_size)
    found = opened.features(views, "tokens")[:, variants.prefix_tokens(cfg.model) :]
    loaded_model.check_finite(found)
    return found.reshape(len(found), height, width, found.shape[-1])


class Palette(NamedTuple):
    """Colors of patches: the first principal components of some as red, green and blue.

    Attributes:
      mean: (D,) float64, of the patches.
      directions: (D, COLORS) float64, of length 1, or 0 where there are fewer dimensions; positive
        for the patch farthest from the mean.
      shares: (COLORS,) float64, of the variance.
      low, high: (COLORS,), components that become 0 and 1.
    """

    mean: np.ndarray
    directions: np.ndarray
    shares: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def components(self, features: np.ndarray) -> np.ndarray:
        """The components of any features (..., D), (..., COLORS) float64."""
        patches = features.reshape(-1, features.shape[-1]).astype(np.float64) - self.mean
        return (patches @ self.directions).reshape(*features.shape[:-1], -1)

    def colors(self, features: np.ndarray) -> np.ndarray:
        """The colors of any features (..., D), (..., COLORS) from 0 to 1."""
        wide = self.high - self.low > 0
        scaled = (self.components(features) - self.low) / np.where(wide, self.high - self.low, 1.0)
        # A constant component says nothing: the middle.
        return np.where(wide, np.clip(scaled, 0.0, 1.0), 0.5)


def create_palette(features: np.ndarray) -> Palette:
    """The palette that stretches the colors of these patches (..., D), by SPREAD."""
    patches = features.reshape(-1, features.shape[-1]).astype(np.float64)
    mean = patches.mean(axis=0)
    patches = patches - mean
    values, directions = np.linalg.eigh(patches.T @ patches)  # ascending; D x D, however many rows
    values, directions = values[::-1][:COLORS], directions[:, ::-1][:, :COLORS]
    projected = patches @ directions
    farthest = projected[np.abs(projected).argmax(axis=0), np.arange(projected.shape[1])]
    # An eigenvector's sign is arbitrary; fixed, colors do not flip from one run to the next.
    directions = directions * np.where(farthest < 0, -1.0, 1.0)
    missing = COLORS - directions.shape[1]
    directions = np.pad(directions, [(0, 0), (0, missing)])
    total = np.square(patches).sum()
    # Rounding can make an eigenvalue of zero negative.
    shares = np.pad(np.maximum(values, 0.0), (0, missing)) / (total if total > 0 else 1.0)
    low, high = np.percentile(patches @ directions, SPREAD, axis=0)
    return Palette(mean, directions, shares, low, high)


def mutual_matches(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of patches that are each other's most similar, and their cosines.

    Features of both images are (rows, columns, D).

    Returns:
      (n, 4) int64, row and column in the first and in the second image, the most similar first;
      and (n,) float64. n is at least 1.
    """
    one, other = (unit_rows(image) for image in (first, second))
    cosines = one @ other.T
    forward, backward = cosines.argmax(axis=1), cosines.argmax(axis=0)
    mutual = np.flatnonzero(backward[forward] == np.arange(len(one)))
    values = cosines[mutual, forward[mutual]]
    order = np.argsort(-values, kind="stable")
    mutual = mutual[order]
    here = np.stack(np.divmod(mutual, first.shape[1]), axis=1)
    there = np.stack(np.divmod(forward[mutual], second.shape[1]), axis=1)
    return np.concatenate([here, there], axis=1), values[order]


def unit_rows(image: np.ndarray) -> np.ndarray:
    """Features of an image (..., D) as rows of length 1, (n, D) float64."""
    patches = image.reshape(-1, image.shape[-1]).astype(np.float64)
    lengths = np.linalg.norm(patches, axis=1, keepdims=True)
    return patches / np.maximum(lengths, np.finfo(np.float64).tiny)


# Masked patch prediction


def predict_masked(opened: loaded_model.LoadedModel, images: np.ndarray) -> dict[str, np.ndarray]:
    """Predictions of a model trained on masked patches, by name.

    `original`, `corrupted` and `predicted` are (B, H, W, C) like the images, cropped to whole
    patches. For patches with the mask token, `corrupted` is 127, of 16 bits 32767, and `masked`
    (B, H, W) is True. `predicted` copies uncorrupted patches. `indices` (B, M) int32 lists the
    corrupted patches.

    Args:
      opened: a run of masked patch prediction or a masked autoencoder; raises CannotAnswer for
        others.
      images: (B, H, W, C) uint8 or uint16, before normalization. Image i gets the corruption of
        example i in evaluation.
    """
    require_masked(opened)
    cfg = opened.config
    arguments = build.create_model(cfg), cfg.data, opened.params, jnp.asarray(images)
    found = _predict_masked(*arguments) if cfg.mae is None else _reconstruct(cfg.mae, *arguments)
    if not found.pop("finite"):
        raise loaded_model.NotFinite
    height, width = variants.covered(cfg.model, cfg.data.image_size)
    return {"original": images[:, :height, :width]} | {
        name: np.asarray(value) for name, value in found.items()
    }


def require_masked(opened: loaded_model.LoadedModel) -> None:
    """Raises CannotAnswer for a model that was not trained on masked patches."""
    if not (opened.config.masked or opened.config.mae):
        raise CannotAnswer(
            "the model predicts no masked patches; train one: vit_jax train masked/digits"
        )


@functools.partial(jax.jit, static_argnums=(0, 1))
def _predict_masked(
    model: models.Classifier, data: config.Data, params: models.Params, images: jax.Array
) -> dict[str, jax.Array]:
    patch, masked = required(model.config.patch_size), required(model.masked)
    target = masked.target
    keys = masked_patches.keys_of_examples(jnp.arange(len(images)))
    corruption = masked_patches.corrupt(keys, model.patches, masked)
    outputs = model.predict_masked(
        params,
        normalization.normalize_pixels(images, data),
        corruption["source"],
        corruption["masked"],
    )
    patches, rows = patchify(images, patch), jnp.arange(len(images))[:, None]
    guess = jnp.round(jnp.clip(masked_patches.predictions(outputs, patch, target, data), 0, 255))
    filled = patches.at[rows, corruption["masked"]].set(guess.astype(jnp.uint8))
    token = jnp.full_like(patches[:, :1], 127)
    # In `source`, the number after the last patch stands for the mask token.
    pool = jnp.concatenate([patches, token], axis=1)
    where = corruption["source"] == model.patches
    shown = pool[rows, corruption["source"]]
    return _unpatched(model, shown, filled, where) | {
        "indices": corruption["masked"],
        "finite": jnp.isfinite(outputs).all(),
    }


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _reconstruct(
    options: config.Mae,
    model: models.Classifier,
    data: config.Data,
    params: models.Params,
    images: jax.Array,
) -> dict[str, jax.Array]:
    """As `_predict_masked`; normalized pixels are scaled back by the image's mean and std."""
    patch = required(model.config.patch_size)
    rank = mae.ranks(masked_patches.keys_of_examples(jnp.arange(len(images))), model.patches)
    pixels = normalization.normalize_pixels(images, data)
    guess = mae.reconstruct(model, options, params, pixels, rank)
    _, mean, std = mae.targets(pixels, patch, norm_pix=options.norm_pix)
    patches = patchify(images, patch)
    painted = masked_patches.predictions(guess * std + mean, patch, "pixels", data)
    kept = variants.kept_patches(options, model.patches)
    where = (rank >= kept)[:, :, None, None, None]
    white = jnp.iinfo(images.dtype).max
    rounded = jnp.round(jnp.clip(painted, 0, white)).astype(images.dtype)
    shown = jnp.where(where, jnp.full_like(patches, white // 2), patches)
    filled = jnp.where(where, rounded, patches)
    return _unpatched(model, shown, filled, rank >= kept) | {
        "indices": jnp.argsort(rank, axis=1)[:, kept:],
        "finite": jnp.isfinite(guess).all(),
    }


def _unpatched(
    model: models.Classifier, corrupted: jax.Array, predicted: jax.Array, masked: jax.Array
) -> dict[str, jax.Array]:
    """As images by name: patches (B, P, h, w, C), and which are masked, (B, P) bool."""
    size = variants.covered(model.config, model.image_size)
    pixels = jnp.broadcast_to(masked[:, :, None, None, None], (*corrupted.shape[:-1], 1))
    return {
        "corrupted": unpatchify(corrupted, size),
        "predicted": unpatchify(predicted, size),
        "masked": unpatchify(pixels, size)[..., 0],
    }
