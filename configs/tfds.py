"""Any TFDS dataset prepared as array_record: `--config.data.name=cifar10`, no TensorFlow needed.

The recipes of `image_folder`: `tfds` is ViT-S/16 at 224 pixels, `tfds-32` a small ViT with 4-pixel
patches for small images. Splits are TFDS's own: `--config.data.train_split='train[:99%]'`. With
`--config.data.eval_split='train[99%:]' --config.data.test_split=test` the held-out images choose.
"""

import ml_collections

from vit_jax.config import catalog


def names() -> tuple[str, ...]:
    """Returns the names defined in this file."""
    return ("tfds", "tfds-32")


def get_config(name: str) -> ml_collections.ConfigDict:
    """Returns the config of the run `name`."""
    options = catalog.load(name.replace("tfds", "image_folder"))
    options["data"] |= {"source": "tfds", "name": "cifar10"}
    return ml_collections.ConfigDict(options)


def about(name: str) -> catalog.About:
    """Returns the choices of the recipe."""
    return catalog.about(name.replace("tfds", "image_folder"))
