"""ImageNet (ILSVRC2012) from the tars, packed or unpacked, or from Kaggle's archive.

An image is known by its file name alone: `n01440764_10026.JPEG` is a training image of the class
n01440764, `ILSVRC2012_val_00000293.JPEG` the 293rd validation image. The class of a validation
image is said by, in this order, the devkit, Kaggle's LOC_val_solution.csv, and TFDS's own list;
a folder that it lies in must agree.
"""

import csv
import functools
import io
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from vit_jax.data import datasets
from vit_jax.data.prepare.image_listing import FileEntry, Listing
from vit_jax.data.prepare.official import mat
from vit_jax.data.prepare.official.archives import Archives
from vit_jax.data.prepare.official.recipe import Contents, Example, Recipe, as_jpeg
from vit_jax.data.source import DataError

TRAIN = re.compile(r"(n\d{8})_\d+\.JPEG")
VALIDATION = re.compile(r"ILSVRC2012_val_(\d{8})\.JPEG")
WORDNET = re.compile(r"n\d{8}")
IMAGES = datasets.IMAGENET.images["validation"]
TRUTH, META, SOLUTION = (
    "ILSVRC2012_validation_ground_truth.txt",
    "meta.mat",
    "LOC_val_solution.csv",
)
META_BYTES = 2**24
CMYK_QUALITY = 100  # for images that TFDS encodes again, too


class Images:
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

    def __getitem__(self, index: int) -> Example:
        found = self._listing.found(index)
        name = found.path.rpartition("/")[2]
        return Example(name, name, (found,), (name, int(self._table[index])))

    def keys(self) -> Iterator[str]:
        """Yields the name of every file."""
        return (self._listing.path(at).rpartition("/")[2] for at in range(len(self)))

    def sizes(self) -> np.ndarray:
        """The bytes of every image (N,), int64."""
        return self._listing.sizes()


def find_imagenet(archives: Archives) -> Contents:
    """Finds the images of both splits, each with its class."""
    classes = {name: number for number, name in enumerate(_classes())}
    train, validation = Images(), Images()
    waiting: list[tuple[FileEntry, int]] = []
    others: dict[str, FileEntry] = {}
    for found in archives.files():
        above, _, name = found.path.rpartition("/")
        if match := TRAIN.fullmatch(name):
            train.add(found, _train_class(found, above, match[1], classes))
        elif match := VALIDATION.fullmatch(name):
            waiting.append((found, int(match[1])))
        elif name in (TRUTH, META, SOLUTION):
            others[name] = found
    if waiting:
        labels = _validation_classes(archives, others, classes)
        for found, number in waiting:
            validation.add(found, _validation_class(found, number, labels, classes))
    train.close()
    validation.close()
    return Contents({"train": train, "validation": validation})


def encode_imagenet(data: Sequence[bytes], values: tuple[Any, ...]) -> dict[str, Any]:
    """An example; a CMYK image or a PNG becomes an RGB JPEG, as TFDS has them."""
    name, label = values
    return {
        "image": as_jpeg(data[0], CMYK_QUALITY),
        "label": label,
        "file_name": name,
    }


RECIPE = Recipe(
    dataset=datasets.IMAGENET,
    files=datasets.IMAGENET.files,
    archives=(
        "ilsvrc2012_img_train.tar",  # not the tar with the dogs of task 3
        "ilsvrc2012_img_val.tar",
        "ilsvrc2012_devkit_t12*.tar.gz",
        "ilsvrc2012_devkit_t12*.tar",
        "n[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9].tar",
        "imagenet-object-localization-challenge.zip",
        "imagenet_object_localization*.tar.gz",
        "imagenet_object_localization*.tar",
    ),
    unpacked=2**38,
    find=find_imagenet,
    encode=encode_imagenet,
)


@functools.cache
def _classes() -> tuple[str, ...]:
    """The WordNet ids of the classes in the order of the labels."""
    return _lines("labels.txt")


def _lines(name: str) -> tuple[str, ...]:
    folder = pathlib.Path(str(tfds.core.tfds_path("datasets/imagenet2012")))
    return tuple((folder / name).read_text().split())


def _train_class(found: FileEntry, above: str, wordnet: str, classes: dict[str, int]) -> int:
    folder = above.rpartition("/")[2]
    if WORDNET.fullmatch(folder) and folder != wordnet:
        raise DataError(
            f"{found.path}: an image of {wordnet} by its name, in the folder of {folder}"
        )
    if wordnet not in classes:
        raise DataError(f"{found.path}: {wordnet} is not among the 1,000 classes of ILSVRC2012")
    return classes[wordnet]


def _validation_class(
    found: FileEntry, number: int, labels: Sequence[int], classes: dict[str, int]
) -> int:
    if not 1 <= number <= len(labels):
        raise DataError(f"{found.path}: is not among the {len(labels):,} images with a label")
    label = labels[number - 1]
    folder = found.path.rpartition("/")[0].rpartition("/")[2]
    if WORDNET.fullmatch(folder) and classes.get(folder) != label:
        raise DataError(
            f"{found.path}: is in the folder {folder}, but is an image of {_classes()[label]}"
        )
    return label


def _validation_classes(
    archives: Archives, others: dict[str, FileEntry], classes: dict[str, int]
) -> list[int]:
    """The class of every validation image, indexed by the number in its name minus 1."""
    known = [classes[name] for name in _lines("validation_labels.txt")]
    if TRUTH in others:
        if META not in others:
            raise DataError(
                f"{archives.named}: has {TRUTH}, but not {META} of the same devkit, which says "
                "what its numbers mean"
            )
        found, source = _classes_from_devkit(archives, others[TRUTH], others[META], classes), TRUTH
    elif SOLUTION in others:
        found, source = _classes_from_kaggle(archives, others[SOLUTION], classes), SOLUTION
    else:
        return known
    wrong = sum(a != b for a, b in zip(found, known, strict=False))
    if wrong or len(found) != len(known):
        raise DataError(
            f"{archives.named}: {source} differs from the labels of ILSVRC2012's validation images "
            f"in {wrong:,} of {len(found):,} lines; it is from another year, or damaged"
        )
    return found


def _classes_from_devkit(
    archives: Archives, truth: FileEntry, meta: FileEntry, classes: dict[str, int]
) -> list[int]:
    """Classes from the devkit: one number per line, and the table of class numbers."""
    table = mat.load_arrays(archives.read(meta), ["synsets"], meta.path, META_BYTES)["synsets"]
    try:
        meaning = {int(row["ILSVRC2012_ID"].item()): classes.get(row["WNID"]) for row in table}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise DataError(f"{meta.path}: is not the devkit's table of classes") from None
    found = []
    for line, text in enumerate(archives.text(truth).split(), start=1):
        label = meaning.get(int(text)) if text.isdecimal() and len(text) < 5 else None
        if label is None:
            raise DataError(f"{truth.path}: line {line}: {text[:20]} is not a class of ILSVRC2012")
        found.append(label)
    return found


def _classes_from_kaggle(
    archives: Archives, solution: FileEntry, classes: dict[str, int]
) -> list[int]:
    """Classes from Kaggle's table of images with objects of a single class."""
    found: dict[int, int] = {}
    for row in csv.reader(io.StringIO(archives.text(solution))):
        match = VALIDATION.fullmatch(f"{row[0]}.JPEG") if len(row) == 2 else None
        if match is None:
            continue
        name = row[1].partition(" ")[0]
        if name not in classes:
            raise DataError(f"{solution.path}: {row[0]}: {name[:20]} is not a class of ILSVRC2012")
        found[int(match[1])] = classes[name]
    if sorted(found) != list(range(1, IMAGES + 1)):
        raise DataError(f"{solution.path}: has {len(found):,} images, not {IMAGES:,}")
    return [found[number] for number in range(1, IMAGES + 1)]
