"""CLEVR and KITTI: images of scenes with all their objects."""

import csv
import io
import json
import re
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from vit_jax.data import datasets
from vit_jax.data.decoding import BadImage
from vit_jax.data.prepare.image_listing import Found
from vit_jax.data.prepare.official import encoded_images
from vit_jax.data.prepare.official.archives import Archives
from vit_jax.data.prepare.official.recipe import Contents, Example, Few, Recipe
from vit_jax.data.source import DataError

CLEVR_IMAGE = re.compile(r"(?:.*/)?CLEVR_(train|val)_(\d{6})\.png")
CLEVR_SCENES = re.compile(r"(?:.*/)?CLEVR_(train|val)_scenes\.json")
CLEVR_SPLITS = {"train": "train", "validation": "val"}
CLEVR_BYTES = 2**29  # limit for the scene table
CLEVR_VALUES = (
    "color",
    "material",
    "shape",
    "size",
    "rotation",
    "pixel_coords",
    "3d_coords",
)
KITTI_FILE = re.compile(r"(?:.*/)?training/(image_2|label_2)/(\d{6})\.(png|txt)")
KITTI_LISTS = ("train_rand.txt", "train_mapping.txt")
KITTI_PERCENT, KITTI_SEED = 10, 123  # share of videos for test and for validation, as in TFDS
KITTI_COLUMNS = 15
PNG_HEAD = 24


def look_for_clevr(archives: Archives) -> Contents:
    """Finds the scenes of the two splits that have objects; the test split has none."""
    images: dict[str, dict[str, Found]] = {name: {} for name in CLEVR_SPLITS.values()}
    tables: dict[str, Found] = {}
    for found in archives.files():
        if match := CLEVR_IMAGE.fullmatch(found.path):
            images[match[1]][found.path.rpartition("/")[2]] = found
        elif match := CLEVR_SCENES.fullmatch(found.path):
            tables[match[1]] = found
    splits = {}
    for split, short in CLEVR_SPLITS.items():
        if not images[short]:
            continue
        if short not in tables:
            raise DataError(f"{archives.named}: lacks scenes/CLEVR_{short}_scenes.json")
        scenes = _clevr_scenes(archives, tables[short])
        examples = []
        for name, found in sorted(images[short].items()):
            if name not in scenes:
                raise DataError(f"{tables[short].path}: lacks {name}")
            examples.append(Example(name, name, (found,), (name, scenes[name])))
        splits[split] = Few(examples)
    return Contents(splits)


def look_for_kitti(archives: Archives) -> Contents:
    """Finds the training images, split by video as in TFDS; the others have no labels."""
    files: dict[str, dict[int, Found]] = {"image_2": {}, "label_2": {}}
    lists: dict[str, Found] = {}
    for found in archives.files():
        if match := KITTI_FILE.fullmatch(found.path):
            files[match[1]][int(match[2])] = found
        elif (name := found.path.rpartition("/")[2]) in KITTI_LISTS:
            lists[name] = found
    if not files["image_2"]:
        return Contents({})
    for name in KITTI_LISTS:
        if name not in lists:
            raise DataError(f"{archives.named}: lacks mapping/{name} of devkit_object.zip")
    splits = {}
    for split, numbers in _kitti_splits(
        *(archives.text(lists[name]) for name in KITTI_LISTS)
    ).items():
        examples = []
        for number in numbers:
            if number not in files["image_2"]:
                continue
            if number not in files["label_2"]:
                raise DataError(f"{archives.named}: lacks training/label_2/{number:06d}.txt")
            name = f"{number:06d}.png"
            places = files["image_2"][number], files["label_2"][number]
            examples.append(Example(name, name, places, (name,)))
        splits[split] = Few(examples)
    return Contents(splits)


def encode_clevr(data: Sequence[bytes], values: tuple[Any, ...]) -> dict[str, Any]:
    """Makes an example."""
    name, scene = values
    objects = [dict(zip(CLEVR_VALUES, one, strict=True)) for one in scene]
    return {"image": encoded_images.checked(data[0]), "file_name": name, "objects": objects}


def encode_kitti(data: Sequence[bytes], values: tuple[Any, ...]) -> dict[str, Any]:
    """Makes an example; TFDS measures bounding boxes from the bottom."""
    image, labels = encoded_images.checked(data[0]), data[1]
    if image[12:16] != b"IHDR" or len(image) < PNG_HEAD:
        raise BadImage("is not a PNG")
    width, height = struct.unpack_from(">II", image, 16)
    objects = []
    try:
        for row in csv.reader(io.StringIO(labels.decode()), delimiter=" "):
            if row and row[0] != "DontCare":
                objects.append(_kitti_object(row, height, width))
    except (ValueError, ZeroDivisionError, csv.Error) as error:
        raise BadImage(f"its labels are damaged: {error}") from None
    return {"image": image, "image/file_name": values[0], "objects": objects}


def _clevr_scenes(archives: Archives, found: Found) -> dict[str, tuple[tuple[Any, ...], ...]]:
    """Returns the objects of each image by file name."""
    try:
        scenes = json.loads(archives.read(found, CLEVR_BYTES))["scenes"]
        return {
            scene["image_filename"]: tuple(
                tuple(tuple(v) if isinstance(v := one[name], list) else v for name in CLEVR_VALUES)
                for one in scene["objects"]
            )
            for scene in scenes
        }
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{found.path}: is not the CLEVR scene table: {error}") from None


def _kitti_splits(order: str, mapping: str) -> dict[str, list[int]]:
    """Returns image numbers by split; all images of a video are in the same split.

    `order` lists the line of each image in `mapping`; the second word of a line is the video.
    """
    try:
        lines = [line.split() for line in mapping.splitlines()]
        videos: dict[str, list[int]] = {}
        for number, line in enumerate(order.split(",")):
            videos.setdefault(lines[int(line) - 1][1], []).append(number)
    except (ValueError, IndexError):
        raise DataError(f"{KITTI_LISTS[0]}: is not the file from KITTI's devkit") from None
    each = max(1, KITTI_PERCENT * len(videos) // 100)
    draw = np.random.RandomState(KITTI_SEED)
    test = set(draw.choice(sorted(videos), each, replace=False).tolist())
    validation = set(draw.choice(sorted(videos.keys() - test), each, replace=False).tolist())
    splits: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
    for name, numbers in videos.items():
        split = "test" if name in test else "validation" if name in validation else "train"
        splits[split] += numbers
    return splits


def _kitti_object(row: list[str], height: int, width: int) -> dict[str, Any]:
    kind, *numbers = row
    if len(row) != KITTI_COLUMNS:
        raise ValueError(f"{len(row)} columns, not {KITTI_COLUMNS}")
    truncated, _, alpha, left, top, right, bottom, *rest = map(float, numbers)
    return {
        "type": kind,
        "truncated": truncated,
        "occluded": int(numbers[1]),
        "alpha": alpha,
        "bbox": tfds.features.BBox(
            ymin=(height - bottom) / height,
            ymax=(height - top) / height,
            xmin=left / width,
            xmax=right / width,
        ),
        "dimensions": rest[:3],
        "location": rest[3:6],
        "rotation_y": rest[6],
    }


RECIPES = (
    Recipe(
        # As in task_adaptation; 3.1.0 only adds questions about the images.
        dataset=datasets.CLEVR.tfds,
        version="3.0.0",
        files="CLEVR_v1.0.zip from cs.stanford.edu/people/jcjohns/clevr",
        splits=datasets.CLEVR.images,
        archives=("clevr_v1.0*.zip",),
        unpacked=2**36,
        look=look_for_clevr,
        encode=encode_clevr,
        downloads=("CLEVR_v1.0.zip",),
    ),
    Recipe(
        dataset=datasets.KITTI.tfds,
        files="data_object_image_2.zip, data_object_label_2.zip and devkit_object.zip from "
        "www.cvlibs.net/datasets/kitti",
        splits=datasets.KITTI.images,
        archives=("data_object_image_2*.zip", "data_object_label_2*.zip", "devkit_object*.zip"),
        unpacked=2**36,
        look=look_for_kitti,
        encode=encode_kitti,
        downloads=("data_object_image_2.zip", "data_object_label_2.zip", "devkit_object.zip"),
    ),
)
