"""ImageNet (ILSVRC2012) from the tars, packed or unpacked, or from Kaggle's archive.

An image is known by its file name alone: `n01440764_10026.JPEG` is a training image of the class
n01440764, `ILSVRC2012_val_00000293.JPEG` the 293rd validation image, whose class is in TFDS's list.
A folder that an image lies in must agree.
"""

import pathlib
import re
from collections.abc import Sequence

import numpy as np
import tensorflow_datasets as tfds

from vit_jax.data import datasets
from vit_jax.data.prepare.archives import FileEntry
from vit_jax.data.prepare.image_listing import Listing
from vit_jax.data.prepare.official.recipe import (
    Contents,
    Example,
    Features,
    Recipe,
    as_jpeg,
    class_numbers,
)
from vit_jax.data.prepare.official.source_files import SourceFiles
from vit_jax.data.source import DataError

TRAIN = re.compile(r"(n\d{8})_\d+\.JPEG")
VALIDATION = re.compile(r"ILSVRC2012_val_(\d{8})\.JPEG")
WORDNET = re.compile(r"n\d{8}")
CMYK_QUALITY = 100  # for images that TFDS encodes again, too


class Images(Sequence[Example]):
    """Examples stored as arrays: 1.3 million take 0.2 GB."""

    def __init__(self) -> None:
        self._listing = Listing()
        self._labels: list[int] = []

    def add(self, found: FileEntry, label: int) -> None:
        """Adds an image."""
        self._listing.add(found)
        self._labels.append(label)

    def close(self) -> None:
        """Makes the examples readable; none can be added afterwards."""
        self._listing.close()
        self._table = np.array(self._labels, np.int32)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Example:  # pyright: ignore[reportIncompatibleMethodOverride]
        found = self._listing[index]
        name = found.path.rpartition("/")[2]
        return Example(name, (found,), {"label": int(self._table[index]), "file_name": name})


def find_imagenet(files: SourceFiles) -> Contents:
    """Finds the images of both splits, each with its class."""
    classes = class_numbers(datasets.IMAGENET)
    folder = pathlib.Path(str(tfds.core.tfds_path("datasets/imagenet2012")))
    known = (folder / "validation_labels.txt").read_text().split()
    train, validation = Images(), Images()
    for found in files:
        above, _, name = found.path.rpartition("/")
        if match := TRAIN.fullmatch(name):
            wordnet, images = match[1], train
            if wordnet not in classes:
                raise DataError(
                    f"{found.path}: {wordnet} is not among the 1,000 classes of ILSVRC2012"
                )
        elif match := VALIDATION.fullmatch(name):
            number, images = int(match[1]), validation
            if not 1 <= number <= len(known):
                raise DataError(
                    f"{found.path}: is not among the {len(known):,} images with a label"
                )
            wordnet = known[number - 1]
        else:
            continue
        above = above.rpartition("/")[2]
        if WORDNET.fullmatch(above) and above != wordnet:
            raise DataError(f"{found.path}: is in the folder {above}, but is an image of {wordnet}")
        images.add(found, classes[wordnet])
    train.close()
    validation.close()
    return Contents({"train": train, "validation": validation})


def encode_imagenet(data: Sequence[bytes], features: Features) -> Features:
    """An image; one of CMYK, or a PNG, becomes an RGB JPEG, as TFDS has them."""
    return {"image": as_jpeg(data[0], CMYK_QUALITY)}


RECIPE = Recipe(
    dataset=datasets.IMAGENET,
    files=datasets.IMAGENET.files,
    archives=(
        "ilsvrc2012_img_train.tar",  # not the tar with the dogs of task 3
        "ilsvrc2012_img_val.tar",
        "n[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9].tar",
        "imagenet-object-localization-challenge.zip",
        "imagenet_object_localization*.tar.gz",
        "imagenet_object_localization*.tar",
    ),
    unpacked=2**38,
    find=find_imagenet,
    encode=encode_imagenet,
)
