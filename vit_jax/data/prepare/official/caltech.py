"""Caltech-101: 30 training images per class; the others are the test split.

Which 30 is drawn by TFDS's rule: seed 1234, class after class, `numpy.random.choice` of the files.
TFDS draws from the files in the order in which the file system of its machine lists them, which no
one else can repeat; here they are in the order of their names. So the split is by TFDS's rule and
the same everywhere, but not the one in TFDS's own copy.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from vit_jax.data import datasets
from vit_jax.data.prepare.image_listing import Found
from vit_jax.data.prepare.official import encoded_images
from vit_jax.data.prepare.official.archives import Archives
from vit_jax.data.prepare.official.recipe import Contents, Example, Few, Recipe, class_names
from vit_jax.data.source import DataError

IMAGE = re.compile(r"(?:.*/)?([^/]+)/(image_\d{4}\.jpg)")
TRAIN, SEED = 30, 1234  # images of a class, as TFDS has them


def look(archives: Archives) -> Contents:
    """Finds the images by class, and samples the training split."""
    labels = {name: number for number, name in enumerate(class_names(datasets.CALTECH101))}
    classes: dict[str, dict[str, Found]] = {}
    for found in archives.files():
        match = IMAGE.fullmatch(found.path)
        if match and match[1].lower() in labels:
            classes.setdefault(match[1], {})[match[2]] = found
    splits: dict[str, list[Example]] = {"train": [], "test": []}
    draw = np.random.RandomState(SEED)
    for name, files in sorted(classes.items()):
        if len(files) < TRAIN:
            raise DataError(
                f"{archives.named}: class {name} has {len(files)} images, fewer than the {TRAIN} "
                "to train on"
            )
        chosen = set(draw.choice(sorted(files), TRAIN, replace=False).tolist())
        for file, found in sorted(files.items()):
            key = f"{name}/{file}"
            example = Example(key, key, (found,), (file, labels[name.lower()]))
            splits["train" if file in chosen else "test"].append(example)
    return Contents({split: Few(examples) for split, examples in splits.items()})


def encode(data: Sequence[bytes], values: tuple[Any, ...]) -> dict[str, Any]:
    """Makes an example."""
    name, label = values
    return {"image": encoded_images.checked(data[0]), "label": label, "image/file_name": name}


RECIPE = Recipe(
    dataset=datasets.CALTECH101.tfds,
    files="caltech-101.zip, or its 101_ObjectCategories.tar.gz, from doi.org/10.22002/D1.20086",
    splits=datasets.CALTECH101.images,
    archives=("caltech-101*.zip", "caltech101*.zip", "101_objectcategories*.tar*"),
    unpacked=2**29,
    look=look,
    encode=encode,
    downloads=("caltech-101.zip",),
)
