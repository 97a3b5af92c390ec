"""Similarity of the position embeddings of patches (ViT, figures 7 and 10)."""

import numpy as np

from vit_jax import models
from vit_jax.inference import loading
from vit_jax.inference.inspect import CannotAnswer


def tables(opened: loading.LoadedModel) -> np.ndarray:
    """Returns the embedding of every patch, (T, rows, columns, D) float32, in raster order.

    T is the number of layers if each has its own table, else 1. Omits the class token. Raises
    CannotAnswer for a model without such a table.
    """
    model = opened.config.model
    if reason := models.family(model).lacks(model, "posemb"):
        raise CannotAnswer(reason)
    grid = models.grid(model, opened.config.data.image_size)
    tables = np.asarray(loading.create_model(opened.config).bind(opened.params).position_tables())
    return tables.reshape(tables.shape[0], *grid, tables.shape[2])


def similarity(table: np.ndarray) -> np.ndarray:
    """Returns cosines between embeddings (rows, columns, D): (rows, columns, rows, columns).

    Tile [r, c] holds the similarity of patch (r, c) to every patch; 0 for embeddings of zeros.
    """
    lengths = np.linalg.norm(table, axis=-1, keepdims=True)
    unit = table / np.maximum(lengths, np.finfo(table.dtype).tiny)
    return np.clip(np.einsum("rcd,ijd->rcij", unit, unit, optimize=True), -1.0, 1.0)
