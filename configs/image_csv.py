"""Images in lists: `--config.data.root=DIR` with DIR/train.csv, DIR/test.csv, perhaps DIR/val.csv.

A list has a header, then a line for each image: its path below DIR, and its class. The recipes are
those of `image_folder`. In those named `multilabel` an image has any number of classes, separated
by `;` or as columns of 0 and 1, the loss is sigmoid, and mean average precision is measured.
"""

import ml_collections

from vit_jax.config import catalog

RUNS = {
    "image_csv": "image_folder",
    "image_csv-32": "image_folder-32",
    "image_csv-multilabel": "image_folder",
    "image_csv-multilabel-32": "image_folder-32",
}
MULTILABEL = {"data.multilabel": True, "loss.name": "sigmoid"}


def get_config(name: str) -> ml_collections.ConfigDict:
    """The config of the run `name`."""
    changes = {"data.source": "csv"} | (MULTILABEL if "multilabel" in name else {})
    return catalog.derive(RUNS[name], changes)


def about(name: str) -> catalog.About:
    """The choices of the recipe."""
    return catalog.about(RUNS[name])
