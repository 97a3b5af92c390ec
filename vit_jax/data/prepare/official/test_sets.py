"""Test sets: ImageNet-V2, -A, -R and -Sketch; and Stanford Cars, for few-shot evaluation."""

import functools
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import PIL.Image
import tensorflow_datasets as tfds

from vit_jax.data import datasets
from vit_jax.data.decoding import BadImage
from vit_jax.data.prepare.image_listing import Found
from vit_jax.data.prepare.official import encoded_images, mat
from vit_jax.data.prepare.official.archives import Archives
from vit_jax.data.prepare.official.recipe import Contents, Example, Few, Recipe, class_names
from vit_jax.data.source import DataError

NUMBERED = re.compile(r"(?:.*/)?(\d{1,3})/([^/]+\.jpeg)")
NAMED = re.compile(r"(?:.*/)?(n\d{8})/([^/]+\.(?:jpg|JPEG))")
CAR = re.compile(r"(?:.*/)?cars_(train|test)/(\d{5})\.jpg")
CAR_LISTS = {"train": "cars_train_annos.mat", "test": "cars_test_annos_withlabels.mat"}
CAR_BYTES = 2**24

Name = Callable[[str, str], str]


def look(pattern: re.Pattern[str], key: Name, name: Name, archives: Archives) -> Contents:
    """Finds images in folders of ImageNet's classes, by WordNet id or by number."""
    labels = {one: number for number, one in enumerate(class_names(datasets.IMAGENET))}
    labels |= {str(number): number for number in range(1000)}
    examples = []
    for found in archives.files():
        match = pattern.fullmatch(found.path)
        if match and match[1] in labels:
            values = (name(match[1], match[2]), labels[match[1]])
            examples.append(Example(key(match[1], match[2]), values[0], (found,), values))
    return Contents({"test": Few(examples)})


def look_for_cars(archives: Archives) -> Contents:
    """Finds the cars of both lists, each with its bounding box."""
    images: dict[str, dict[str, Found]] = {split: {} for split in CAR_LISTS}
    lists: dict[str, Found] = {}
    for found in archives.files():
        if match := CAR.fullmatch(found.path):
            images[match[1]][match[2]] = found
        elif (file := found.path.rpartition("/")[2]) in CAR_LISTS.values():
            lists[file] = found
    splits = {}
    for split, file in CAR_LISTS.items():
        if not images[split]:
            continue
        if file not in lists:
            raise DataError(f"{archives.named}: has images, but lacks {file}")
        rows = mat.load(archives.read(lists[file]), ["annotations"], file, CAR_BYTES)
        examples = []
        for row in _cars(rows["annotations"], file):
            name = row[-1].partition(".")[0]
            if name in images[split]:
                examples.append(Example(name, name, (images[split][name],), (name, *row[:-1])))
        splits[split] = Few(examples)
    return Contents(splits)


def encode(data: Sequence[bytes], values: tuple[Any, ...]) -> dict[str, Any]:
    """Makes an example."""
    name, label = values
    return {"image": encoded_images.checked(data[0]), "label": label, "file_name": name}


def encode_car(data: Sequence[bytes], values: tuple[Any, ...]) -> dict[str, Any]:
    """Makes an example; bounding boxes are relative to the image size in the header."""
    name, left, top, right, bottom, label = values
    image = io.BytesIO(encoded_images.checked(data[0]))
    try:
        with PIL.Image.open(image, formats=encoded_images.FORMATS) as opened:
            width, height = opened.size
    except (OSError, ValueError, SyntaxError, PIL.Image.DecompressionBombError) as error:
        raise BadImage(f"cannot be read: {error}") from None
    box = tfds.features.BBox(top / height, left / width, bottom / height, right / width)
    return {"image": data[0], "label": label, "bbox": box, "id": name}


def _cars(rows: Any, named: str) -> list[tuple[float, float, float, float, int, str]]:
    """Returns left, top, right, bottom, zero-based class and file name of every row."""
    found = []
    for row in rows if isinstance(rows, list) else ():
        *numbers, file = row.values()
        ok = len(numbers) == 5 and all(isinstance(n, np.ndarray) and n.size == 1 for n in numbers)
        if not ok or not isinstance(file, str):
            raise DataError(f"{named}: is not a list of cars")
        *box, label = (float(number.item()) for number in numbers)
        if not 1 <= label <= datasets.CARS.classes:
            raise DataError(f"{named}: {file[:40]}: class {label:g} of {datasets.CARS.classes}")
        found.append((*box, int(label) - 1, file))
    return found


def _both(folder: str, file: str) -> str:
    return f"{folder}/{file}"


def _joined(folder: str, file: str) -> str:
    return f"{folder}_{file}"


def _file(folder: str, file: str) -> str:
    return file


def _variant(
    dataset: datasets.Dataset, archive: str, source: str, images: int, names: tuple[Name, Name]
) -> Recipe:
    numbered = dataset is datasets.IMAGENET_V2
    stem = archive.partition(".")[0].lower()
    return Recipe(
        dataset=dataset.tfds,
        files=f"{archive} from {source}",
        splits={"test": images},
        archives=(f"{stem}*.tar*", f"{stem}*.zip"),
        unpacked=2**34,
        look=functools.partial(look, NUMBERED if numbered else NAMED, *names),
        encode=encode,
        downloads=(archive,),
    )


RECIPES = (
    _variant(
        datasets.IMAGENET_V2,
        "imagenetv2-matched-frequency.tar.gz",
        "huggingface.co/datasets/vaishaal/ImageNetV2",
        10_000,
        (_joined, _both),
    ),
    _variant(
        datasets.IMAGENET_A,
        "imagenet-a.tar",
        "github.com/hendrycks/natural-adv-examples",
        7_500,
        (_file, _file),
    ),
    _variant(
        datasets.IMAGENET_R,
        "imagenet-r.tar",
        "github.com/hendrycks/imagenet-r",
        30_000,
        (_joined, _both),
    ),
    _variant(
        datasets.IMAGENET_SKETCH,
        "ImageNet-Sketch.zip",
        "github.com/HaohanWang/ImageNet-Sketch",
        50_889,
        (_both, _both),
    ),
    Recipe(
        dataset=datasets.CARS.tfds,
        files="cars_train.tgz, cars_test.tgz, car_devkit.tgz and cars_test_annos_withlabels.mat "
        "of Stanford's cars",
        splits={"train": 8_144, "test": 8_041},
        archives=("cars_train*.tgz", "cars_test*.tgz", "car_devkit*.tgz"),
        unpacked=2**31,
        look=look_for_cars,
        encode=encode_car,
        downloads=(
            "cars_train.tgz",
            "cars_test.tgz",
            "car_devkit.tgz",
            "cars_test_annos_withlabels.mat",
        ),
    ),
)
