"""How alike the position embeddings of patches are (ViT, figures 7 and 10)."""

import jax
import numpy as np

from vit_jax import loading
from vit_jax.inspect import CannotAnswer
from vit_jax.models import positions, variants
from vit_jax.models.variants import required


def tables(opened: loading.LoadedModel) -> np.ndarray:
    """Returns the embedding of every patch, (T, rows, columns, D) float32, in raster order.

    T is the number of layers where each has its own, else 1; the class token's is left out.
    Raises CannotAnswer for a model that has no such table.
    """
    model, grid = (
        opened.config.model,
        variants.grid(opened.config.model, opened.config.data.image_size),
    )
    if model.architecture in ("resnet", "axial_resnet"):
        raise CannotAnswer("a ResNet has no position embedding")
    if model.position == "none":
        raise CannotAnswer("the model has no position embedding (model.position=none)")
    if model.position == "relative":
        raise CannotAnswer(
            "the model embeds no positions, only how far they are apart (model.position=relative)"
        )
    if model.position.startswith("sincos"):
        width, patches = required(model.width), grid[0] * grid[1]
        fixed = (
            positions.sincos_2d(*grid, width)
            if model.position == "sincos_2d"
            else positions.sincos_1d(patches, width)
        )
        return np.asarray(fixed).reshape(1, *grid, width)
    module = loading.create_model(opened.config).bind(opened.params)
    if model.position_place == "layers":
        blocks = module.encoder.row if model.architecture == "axial_vit" else module.encoder
        learned = jax.vmap(lambda block: block.position()[0])(blocks)
    else:
        learned = module.position()
    patches = np.asarray(learned)[:, int(variants.has_class_token(model)) :]
    return patches.reshape(patches.shape[0], *grid, patches.shape[2])


def similarity(table: np.ndarray) -> np.ndarray:
    """Returns cosines between embeddings (rows, columns, D): (rows, columns, rows, columns).

    Tile [r, c] holds the similarity of patch (r, c) to every patch; 0 for embeddings of zeros.
    """
    lengths = np.linalg.norm(table, axis=-1, keepdims=True)
    unit = table / np.maximum(lengths, np.finfo(table.dtype).tiny)
    return np.clip(np.einsum("rcd,ijd->rcij", unit, unit, optimize=True), -1.0, 1.0)
