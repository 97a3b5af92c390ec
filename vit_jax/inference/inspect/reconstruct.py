"""Shows the predictions of masked patch prediction: original, corrupted and predicted images.

For `drawing.KINDS`: `predict_masked` gives the arrays of an answer, `draw` its figure.
"""

import functools
from typing import Any

import cv2
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from vit_jax import config, models
from vit_jax.inference import loading
from vit_jax.inference.inspect import CannotAnswer
from vit_jax.models import variants
from vit_jax.models.layers import patchify, unpatchify
from vit_jax.models.variants import required
from vit_jax.training import masked_objective, normalization

MASK = (86, 180, 233)  # Okabe and Ito's sky blue, distinct from gray patches
SIDE = 112  # pixels of an image in the figure, at least
DOWN, ACROSS = 6, 3  # rows and columns of images in the figure


def predict_masked(opened: loading.LoadedModel, images: np.ndarray) -> dict[str, np.ndarray]:
    """Returns images with corrupted patches and the predictions of a model.

    `original`, `corrupted` and `predicted` are (B, H, W, C) uint8, cropped to whole patches. For
    patches with the mask token, `corrupted` is 127 and `masked` (B, H, W) is True. `predicted`
    copies uncorrupted patches. `chosen` (B, M) int32 lists the corrupted patches.

    Args:
      opened: a run of masked patch prediction; raises CannotAnswer for others.
      images: (B, H, W, C) uint8, before normalization. Image i gets the corruption of example i in
        evaluation.
    """
    check(opened)
    cfg = opened.config
    found = _predict_masked(loading.create_model(cfg), cfg.data, opened.params, jnp.asarray(images))
    height, width = variants.covered(cfg.model, cfg.data.image_size)
    return {"original": images[:, :height, :width]} | {
        name: np.asarray(value) for name, value in found.items()
    }


def check(opened: loading.LoadedModel) -> None:
    """Raises CannotAnswer for a model without masked patch prediction."""
    if opened.config.masked.target is None:
        raise CannotAnswer(
            "the model predicts no masked patches; train one: vit_jax train masked/digits"
        )


@functools.partial(jax.jit, static_argnums=(0, 1))
def _predict_masked(
    model: models.Classifier, data: config.Data, params: Any, images: jax.Array
) -> dict[str, jax.Array]:
    patch, target = required(model.config.patch_size), required(model.masked.target)
    keys = masked_objective.keys_of_examples(jnp.arange(len(images)))
    corruption = masked_objective.corrupt(keys, model.patches, model.masked)
    outputs = model.predict_masked(
        params, normalization.normalize_pixels(images, data), **corruption
    )
    patches, rows = patchify(images, patch), jnp.arange(len(images))[:, None]
    guess = jnp.round(jnp.clip(masked_objective.predictions(outputs, patch, target, data), 0, 255))
    filled = patches.at[rows, corruption["chosen"]].set(guess.astype(jnp.uint8))
    token = jnp.full_like(patches[:, :1], 127)
    pool = jnp.concatenate([patches, token], axis=1)
    where = corruption["source"] == model.patches
    shown = jnp.broadcast_to(where[:, :, None, None, None], (*where.shape, *patch, 1))

    def whole(x: jax.Array) -> jax.Array:
        return unpatchify(x, variants.covered(model.config, model.image_size))

    return {
        "corrupted": whole(pool[rows, corruption["source"]]),
        "predicted": whole(filled),
        "masked": whole(shown)[..., 0],
        "chosen": corruption["chosen"],
    }


def draw(found: dict[str, np.ndarray]) -> Figure:
    """Draws the result of `predict_masked`: three versions of each image, as many as fit."""
    corrupted = np.array(np.broadcast_to(found["corrupted"], (*found["masked"].shape, 3)))
    corrupted[found["masked"]] = MASK
    triples = [
        np.stack([_large(image) for image in triple])
        for triple in zip(found["original"], corrupted, found["predicted"], strict=True)
    ][: DOWN * ACROSS]
    across = -(-len(triples) // DOWN)
    down = -(-len(triples) // across)
    height, width = triples[0].shape[1:3]
    gap = width // 16
    size = (across * 3.7 + 0.1, down * 1.2 * height / width + 0.4)
    figure = Figure(figsize=size)
    figure.set_layout_engine("constrained", wspace=0.05)
    FigureCanvasAgg(figure)
    for column, axes in enumerate(figure.subplots(1, across, squeeze=False).flat):
        sheet = np.full((down * (height + gap) - gap, 3 * (width + gap) - gap, 3), 255, np.uint8)
        for row, triple in enumerate(triples[column * down : (column + 1) * down]):
            for place, image in enumerate(triple):
                top, left = row * (height + gap), place * (width + gap)
                sheet[top : top + height, left : left + width] = image
        axes.imshow(sheet, interpolation="antialiased")
        axes.set_xticks(
            [width / 2 + place * (width + gap) for place in range(3)],
            ["Original", "Corrupted", "Predicted"],
        )
        axes.set_yticks([])
        axes.tick_params(length=0)
        axes.xaxis.tick_top()
        axes.spines[:].set_visible(False)
    return figure


def _large(image: np.ndarray) -> np.ndarray:
    """Returns an image (H, W, 1 or 3) as RGB, whole pixels repeated to at least SIDE."""
    times = -(-SIDE // min(image.shape[:2]))
    rgb = np.ascontiguousarray(np.broadcast_to(image, (*image.shape[:2], 3)))
    return cv2.resize(rgb, None, fx=times, fy=times, interpolation=cv2.INTER_NEAREST)
