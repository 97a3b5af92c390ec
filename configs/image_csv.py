"""Images in lists: `--config.data.root=DIR` with DIR/train.csv, DIR/test.csv, perhaps DIR/val.csv.

A list has a header, then a line for each image: its path below DIR, and its class. The recipes are
those of `image_folder`. In those named `multilabel` an image has any number of classes, separated
by `;` or as columns of 0 and 1, the loss is sigmoid, and mean average precision is measured.
"""

import ml_collections

from vit_jax.config import catalog

SIZES = ("", "-32")


def names() -> tuple[str, ...]:
    """Returns the names defined in this file."""
    return tuple(f"image_csv{kind}{size}" for kind in ("", "-multilabel") for size in SIZES)


def get_config(name: str) -> ml_collections.ConfigDict:
    """Returns the config of the run `name`."""
    options = catalog.load(_folder(name))
    options["data"]["source"] = "csv"
    if "multilabel" in name:
        options["data"]["multilabel"] = True
        options["loss"] = {"name": "sigmoid"}
    return ml_collections.ConfigDict(options)


def about(name: str) -> catalog.About:
    """Returns the choices of the recipe."""
    return catalog.about(_folder(name))


def _folder(name: str) -> str:
    return name.replace("image_csv", "image_folder").replace("-multilabel", "")
