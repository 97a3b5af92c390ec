"""What a model trained by masked patch prediction makes of images: original, corrupted, filled in.

For `drawing.KINDS`: `fill_in` gives the arrays of an answer, `draw` its figure.
"""

import functools
from typing import Any

import cv2
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from vit_jax import config, loading, models
from vit_jax.inspect import CannotAnswer
from vit_jax.models import variants
from vit_jax.models.patches import patchify, unpatchify
from vit_jax.models.variants import required
from vit_jax.training import masked_objective, step

MASK = (86, 180, 233)  # Okabe and Ito's sky blue: no gray, as masked patches often are
SIDE = 112  # pixels of an image in the figure, at least
DOWN, ACROSS = 6, 3  # images below each other and beside each other in the figure


def fill_in(opened: loading.LoadedModel, images: np.ndarray) -> dict[str, np.ndarray]:
    """Returns images with corrupted patches, and with what a model predicts of these.

    `original`, `corrupted` and `predicted` are (B, H, W, C) uint8, of the pixels in whole patches;
    where the mask token stands, `corrupted` is 127, and `masked` (B, H, W) bool True. Patches that
    were not corrupted are predicted as they are. `chosen` (B, M) int32 are those that were.

    Args:
      opened: a run of masked patch prediction; raises CannotAnswer for others.
      images: (B, H, W, C) uint8, as the model sees them before normalization. The first of them
        is corrupted as the first of a split is in evaluation, and so on.
    """
    check(opened)
    cfg = opened.config
    found = _fill_in(loading.create_model(cfg), cfg.data, opened.params, jnp.asarray(images))
    height, width = variants.covered(cfg.model, cfg.data.image_size)
    return {"original": images[:, :height, :width]} | {
        name: np.asarray(value) for name, value in found.items()
    }


def check(opened: loading.LoadedModel) -> None:
    """Raises CannotAnswer for a model that does not fill in patches."""
    if opened.config.masked.target is None:
        raise CannotAnswer("the model fills in no patches; train one: vit_jax train masked/digits")


@functools.partial(jax.jit, static_argnums=(0, 1))
def _fill_in(
    model: models.Classifier, data: config.Data, params: Any, images: jax.Array
) -> dict[str, jax.Array]:
    patch, target = required(model.config.patch_size), required(model.masked.target)
    keys = masked_objective.keys_of_examples(jnp.arange(len(images)))
    corruption = masked_objective.corrupt(keys, model.patches, model.masked)
    outputs = model.fill_in(params, step.normalize_pixels(images, data), **corruption)
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
    """Returns a figure of what `fill_in` found: each image thrice, as many as fit."""
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
