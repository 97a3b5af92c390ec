"""Data sets of an image file for each example, in a folder for each class: their rules by TFDS.

EuroSAT, RESISC45, UC Merced, and DTD, whose splits are lists of files (the first of its ten).
"""

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import cv2
import numpy as np

from vit_jax.data import datasets, decoding
from vit_jax.data.datasets import Dataset
from vit_jax.data.decoding import BadImage
from vit_jax.data.prepare.image_listing import Found
from vit_jax.data.prepare.official import encoded_images
from vit_jax.data.prepare.official.archives import Archives
from vit_jax.data.prepare.official.recipe import Contents, Example, Few, Recipe, class_names
from vit_jax.data.source import DataError

DTD_LISTS = {"train": "train1.txt", "validation": "val1.txt", "test": "test1.txt"}
DTD_IMAGE = re.compile(r"(?:.*/)?([a-z-]+/[^/]+\.jpg)")


def look(
    dataset: Dataset, suffix: str, key: Callable[[str, str], str], archives: Archives
) -> Contents:
    """Finds `CLASS/NAME`, all in the training split; the folder is the class."""
    labels = {name: number for number, name in enumerate(class_names(dataset))}
    examples = []
    for found in archives.files():
        above, _, name = found.path.rpartition("/")
        folder = above.rpartition("/")[2]
        if name.endswith(suffix) and folder in labels:
            values = (name, labels[folder])
            examples.append(Example(key(folder, name), f"{folder}/{name}", (found,), values))
    return Contents({"train": Few(examples)})


def look_for_dtd(archives: Archives) -> Contents:
    """Finds the textures of the first of the ten partitions."""
    labels = {name: number for number, name in enumerate(class_names(datasets.DTD))}
    images: dict[str, Found] = {}
    lists: dict[str, Found] = {}
    for found in archives.files():
        if (name := found.path.rpartition("/")[2]) in DTD_LISTS.values():
            lists[name] = found
        elif match := DTD_IMAGE.fullmatch(found.path):
            images[match[1]] = found
    if not images:
        return Contents({})
    splits = {}
    for split, file in DTD_LISTS.items():
        if file not in lists:
            raise DataError(f"{archives.named}: has images, but lacks dtd/labels/{file}")
        examples = []
        for name in archives.text(lists[file]).split():
            label = labels.get(name.partition("/")[0])
            if label is None:
                raise DataError(
                    f"{lists[file].path}: {name[:60]!r} has a class that DTD does not have"
                )
            if name in images:
                examples.append(Example(name, name, (images[name],), (name, label)))
        splits[split] = Few(examples)
    return Contents(splits)


def encode(feature: str, data: Sequence[bytes], values: tuple[Any, ...]) -> dict[str, Any]:
    """Makes an example; `feature` is the file name."""
    name, label = values
    return {"image": encoded_images.checked(data[0]), "label": label, feature: name}


def encode_tif(data: Sequence[bytes], values: tuple[Any, ...]) -> dict[str, Any]:
    """Makes an example from a TIFF, converted to PNG."""
    name, label = values
    encoded_images.check_pixels(*decoding.size(data[0]))
    pixels = cv2.imdecode(np.frombuffer(data[0], np.uint8), cv2.IMREAD_COLOR_RGB)
    if pixels is None:
        raise BadImage("is not a valid TIFF")
    return {"image": encoded_images.as_png(pixels), "label": label, "filename": name}


def _both(folder: str, name: str) -> str:
    return f"{folder}_{name}"


def _name(folder: str, name: str) -> str:
    return name


RECIPES = (
    Recipe(
        dataset=datasets.EUROSAT.tfds,
        files="EuroSAT.zip (EuroSAT_RGB.zip) from github.com/phelber/eurosat",
        splits=datasets.EUROSAT.images,
        archives=("eurosat*.zip",),
        unpacked=2**30,
        look=functools.partial(look, datasets.EUROSAT, ".jpg", _both),
        encode=functools.partial(encode, "filename"),
        downloads=("EuroSAT.zip",),
    ),
    Recipe(
        dataset=datasets.RESISC45.tfds,
        files=datasets.RESISC45.files,
        splits=datasets.RESISC45.images,
        archives=("nwpu-resisc45*.zip", "nwpu-resisc45*.tar*"),
        unpacked=2**30,
        look=functools.partial(look, datasets.RESISC45, ".jpg", _both),
        encode=functools.partial(encode, "filename"),
    ),
    Recipe(
        dataset=datasets.UC_MERCED.tfds,
        files="UCMerced_LandUse.zip from weegee.vision.ucmerced.edu/datasets/landuse.html",
        splits=datasets.UC_MERCED.images,
        archives=("ucmerced_landuse*.zip",),
        unpacked=2**30,
        look=functools.partial(look, datasets.UC_MERCED, ".tif", _name),
        encode=encode_tif,
        downloads=("UCMerced_LandUse.zip",),
    ),
    Recipe(
        dataset=datasets.DTD.tfds,
        files="dtd-r1.0.1.tar.gz from www.robots.ox.ac.uk/~vgg/data/dtd",
        splits=datasets.DTD.images,
        archives=("dtd-r1.0.1*.tar*",),
        unpacked=2**31,
        look=look_for_dtd,
        encode=functools.partial(encode, "file_name"),
        downloads=("dtd-r1.0.1.tar.gz",),
    ),
)
