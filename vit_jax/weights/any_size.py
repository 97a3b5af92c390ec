"""A network as a function of images of any height and width, from the parameters of one size."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config, models
from vit_jax.utils import tree_utils
from vit_jax.weights import finetune_init, mapping


class AnySize(models.Classifier):
    """A classifier whose `apply` takes images of other sizes too, multiples of its patches.

    Position embeddings are resized as in fine-tuning; rotary ones are those of the size. Each size
    is a program of its own under `jit`.
    """

    def apply(
        self,
        params: models.Params,
        images: jax.Array,
        *,
        key: jax.Array | None = None,
        capture: bool = False,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Returns what `Classifier.apply` does; raises ConfigError for a size that cannot be."""
        target = _at(self, (images.shape[1], images.shape[2]))
        matrices = _matrices(self, target.image_size)

        def one(name: str, leaf: jax.Array) -> jax.Array:
            if name not in matrices:
                return leaf
            return jnp.einsum("mn,...nd->...md", matrices[name], leaf, precision="highest")

        resized = tree_utils.map_named(one, params) if matrices else params
        return target.apply(resized, images, key=key, capture=capture)


def of(model: models.Classifier) -> AnySize:
    """Returns a classifier as one of any size."""
    values = {field.name: getattr(model, field.name) for field in dataclasses.fields(model)}
    return AnySize(**values)


@functools.cache
def _at(model: AnySize, size: tuple[int, int]) -> models.Classifier:
    """Returns the classifier of the same network for images of one size."""
    return models.create(
        model.config,
        image_size=size,
        channels=model.channels,
        dtype=model.dtype,
        masked=model.masked,
    )


@functools.cache
def _matrices(model: AnySize, size: tuple[int, int]) -> dict[str, np.ndarray]:
    """Returns what to multiply tables of positions (..., n, D) with, (m, n) float32 by name."""
    target = _at(model, size)
    mine, others = (tree_utils.flatten(one.shapes()) for one in (model, target))
    facts = mapping.Facts(
        model=model.config, data=config.Data(image_size=model.image_size), classes=(), fresh={}
    )
    found = {}
    for name, leaf in mine.items():
        if "position/" in name and leaf.ndim > 1:
            rows = np.eye(leaf.shape[-2])
            matrix, _ = finetune_init.positions(name, rows, facts, target)
            if not np.array_equal(matrix, rows):  # as many patches may be another grid
                found[name] = matrix.astype(np.float32)
        elif leaf.shape != others[name].shape:
            raise config.ConfigError(
                f"data.aspect=native: {name} of model.architecture={model.config.architecture} is "
                "of one image size; set data.aspect=fixed"
            )
    return found
