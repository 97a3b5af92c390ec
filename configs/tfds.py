"""Any TFDS dataset prepared as array_record: `--config.data.name=cifar10`, no TensorFlow needed.

The recipes of `image_folder`: `tfds` is ViT-S/16 at 224 pixels, `tfds-32` a small ViT with 4-pixel
patches for small images. Splits are TFDS's own: `--config.data.train_split='train[:99%]'`. With
`--config.data.eval_split='train[99%:]' --config.data.test_split=test` the held-out images choose.
"""

import ml_collections

from vit_jax.config import catalog

RUNS = {"tfds": "image_folder", "tfds-32": "image_folder-32"}


def get_config(name: str) -> ml_collections.ConfigDict:
    """The config of the run `name`."""
    return catalog.derive(RUNS[name], {"data.source": "tfds", "data.name": "cifar10"})


def about(name: str) -> catalog.About:
    """The choices of the recipe."""
    return catalog.about(RUNS[name])
