"""Oxford 102 Flowers: images, labels and the three splits that `setid.mat` defines."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from vit_jax.data import datasets
from vit_jax.data.prepare.image_listing import Found
from vit_jax.data.prepare.official import encoded_images, mat
from vit_jax.data.prepare.official.archives import Archives
from vit_jax.data.prepare.official.recipe import Contents, Example, Few, Recipe
from vit_jax.data.source import DataError

IMAGE = re.compile(r"(?:.*/)?image_(\d{5})\.jpg")
LABELS, SPLITS = "imagelabels.mat", "setid.mat"
# As TFDS has them, and the authors name them: many papers swap the first and the last.
NAMES = {"train": "trnid", "validation": "valid", "test": "tstid"}
MAT_BYTES = 2**20


def look(archives: Archives) -> Contents:
    """Finds the images of the three splits."""
    images: dict[int, Found] = {}
    tables: dict[str, Found] = {}
    for found in archives.files():
        if match := IMAGE.fullmatch(found.path):
            images[int(match[1])] = found
        elif (name := found.path.rpartition("/")[2]) in (LABELS, SPLITS):
            tables[name] = found
    if not images:
        return Contents({})
    for name in (LABELS, SPLITS):
        if name not in tables:
            raise DataError(f"{archives.named}: has images, but lacks {name}")
    labels = _table(archives, tables[LABELS], ["labels"])["labels"]
    splits = {}
    for split, numbers in _table(archives, tables[SPLITS], list(NAMES.values())).items():
        splits[split] = [
            _example(images[number], number, labels)
            for number in numbers.tolist()
            if number in images
        ]
    return Contents({name: Few(splits[split]) for name, split in NAMES.items()})


def encode(data: Sequence[bytes], values: tuple[Any, ...]) -> dict[str, Any]:
    """Makes an example."""
    name, label = values
    return {"image": encoded_images.checked(data[0]), "label": label, "file_name": name}


def _table(archives: Archives, found: Found, names: list[str]) -> dict[str, np.ndarray]:
    """Returns rows of whole numbers."""
    tables = mat.load(archives.read(found, MAT_BYTES), names, found.path, MAT_BYTES)
    for name, table in tables.items():
        row = isinstance(table, np.ndarray) and table.ndim == 2 and len(table) == 1
        if not row or not (table == np.round(table)).all():
            raise DataError(f"{found.path}: {name} is not a row of whole numbers")
    return {name: table[0].astype(np.int64) for name, table in tables.items()}


def _example(found: Found, number: int, labels: np.ndarray) -> Example:
    if not 1 <= number <= len(labels):
        raise DataError(f"{found.path}: has no label: {LABELS} has {len(labels):,}")
    label = int(labels[number - 1]) - 1
    if not 0 <= label < datasets.FLOWERS.classes:
        raise DataError(f"{found.path}: label {label + 1} of {datasets.FLOWERS.classes}")
    name = f"image_{number:05d}.jpg"
    return Example(name, name, (found,), (name, label))


RECIPE = Recipe(
    dataset=datasets.FLOWERS.tfds,
    files=f"102flowers.tgz, {LABELS} and {SPLITS} from www.robots.ox.ac.uk/~vgg/data/flowers/102",
    splits=datasets.FLOWERS.images,
    archives=("102flowers*.tgz", "102flowers*.tar*"),
    unpacked=2**30,
    look=look,
    encode=encode,
    downloads=("102flowers.tgz", LABELS, SPLITS),
)
