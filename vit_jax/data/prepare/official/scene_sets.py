"""Datasets of rendered and driven scenes: CLEVR, KITTI and DMLab."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.proto import tf_example_pb2

from vit_jax.data import datasets, image_headers
from vit_jax.data.decoding import BadImage
from vit_jax.data.prepare import tfrecords
from vit_jax.data.prepare.archives import FileEntry
from vit_jax.data.prepare.official.recipe import Contents, Example, Features, Recipe, checked
from vit_jax.data.prepare.official.source_files import SourceFiles, any_of
from vit_jax.data.source import DataError

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
KITTI_LISTS = ("train_rand.txt", "train_mapping.txt")
KITTI_PERCENT, KITTI_SEED = 10, 123  # share of videos for test and for validation, as in TFDS
KITTI_COLUMNS = 15
DMLAB_RECORD = 2**22  # bytes


def find_clevr(files: SourceFiles) -> Contents:
    """Finds the scenes of the two splits that have objects; the test split has none."""
    tables, *images = files.sort(
        r"CLEVR_(train|val)_scenes\.json",
        *(rf"(CLEVR_{short}_\d{{6}}\.png)" for short in CLEVR_SPLITS.values()),
    )
    splits = {}
    for (split, short), members in zip(CLEVR_SPLITS.items(), images, strict=True):
        if not members:
            continue
        table = files.require(tables, short, f"scenes/CLEVR_{short}_scenes.json")
        scenes = _clevr_scenes(files, table)
        examples = []
        for name, found in sorted(members.items()):
            if name not in scenes:
                raise DataError(f"{table.path}: lacks {name}")
            examples.append(Example(name, (found,), {"file_name": name, "objects": scenes[name]}))
        splits[split] = examples
    return Contents(splits)


def find_kitti(files: SourceFiles) -> Contents:
    """Finds the training images, split by video as in TFDS; the others have no labels."""
    images, labels, lists = files.sort(
        r"training/image_2/(\d{6})\.png", r"training/label_2/(\d{6})\.txt", any_of(KITTI_LISTS)
    )
    if not images:
        return Contents({})
    order, mapping = (
        files.text(files.require(lists, name, f"mapping/{name} of devkit_object.zip"))
        for name in KITTI_LISTS
    )
    splits = {}
    for split, numbers in _kitti_splits(order, mapping).items():
        splits[split] = []
        for number in (f"{one:06d}" for one in numbers):
            # With --partial, images may be missing.
            if number not in images:
                continue
            label = files.require(labels, number, f"training/label_2/{number}.txt")
            name = f"{number}.png"
            example = Example(name, (images[number], label), {"image/file_name": name})
            splits[split].append(example)
    return Contents(splits)


def encode_kitti(data: Sequence[bytes], features: Features) -> Features:
    """Image and objects; TFDS measures bounding boxes from the bottom."""
    image, labels = checked(data[0]), data[1]
    kind, size = image_headers.read_header(image)
    if kind != "PNG" or size is None:
        raise BadImage("is not a PNG")
    height, width = size
    objects = []
    try:
        for row in csv.reader(io.StringIO(labels.decode()), delimiter=" "):
            if row and row[0] != "DontCare":
                objects.append(_kitti_object(row, height, width))
    except (ValueError, ZeroDivisionError, csv.Error) as error:
        raise BadImage(f"its labels are damaged: {error}") from None
    return {"image": image, "objects": objects}


def _clevr_scenes(files: SourceFiles, found: FileEntry) -> dict[str, list[Features]]:
    """The objects of each image by file name."""
    try:
        scenes = json.loads(files.read(found, CLEVR_BYTES))["scenes"]
        return {
            scene["image_filename"]: [
                {name: one[name] for name in CLEVR_VALUES} for one in scene["objects"]
            ]
            for scene in scenes
        }
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{found.path}: is not the CLEVR scene table: {error}") from None


def _kitti_splits(order: str, mapping: str) -> dict[str, list[int]]:
    """Image numbers by split; all images of a video are in the same split.

    `order` lists the line of each image in `mapping`; the second word of a line is the video.
    """
    try:
        lines = [line.split() for line in mapping.splitlines()]
        videos: dict[str, list[int]] = {}
        for number, line in enumerate(order.split(",")):
            videos.setdefault(lines[int(line) - 1][1], []).append(number)
        # Three splits need a video each.
        if len(videos) < 3:
            raise ValueError
    except (ValueError, IndexError):
        raise DataError(f"{KITTI_LISTS[0]}: is not the file from KITTI's devkit") from None
    each = max(1, KITTI_PERCENT * len(videos) // 100)
    # In the order of TFDS's draws: the test videos of all, then those for validation of the rest.
    draw = np.random.RandomState(KITTI_SEED)
    test = set(draw.choice(sorted(videos), each, replace=False).tolist())
    validation = set(draw.choice(sorted(videos.keys() - test), each, replace=False).tolist())
    splits: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
    for name, numbers in videos.items():
        split = "test" if name in test else "validation" if name in validation else "train"
        splits[split] += numbers
    return splits


def _kitti_object(row: list[str], height: int, width: int) -> Features:
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


def find_dmlab(files: SourceFiles) -> Contents:
    """Finds the records of the three splits in TFRecord files."""
    names = ("train", "validation", "test")
    sorted_ = files.sort(*(rf"(dmlab-{name}\.tfrecord[^/]*)" for name in names))
    splits = {}
    for split, members in zip(names, sorted_, strict=True):
        splits[split] = []
        for found in members.values():
            # The names are in the records themselves, so listing reads all of them.
            for span, record in read_records(files, found):
                name = str(_dmlab_features(record)["filename"], "utf-8", "replace")
                splits[split].append(Example(name, (span,), {}))
    return Contents(splits)


def encode_dmlab(data: Sequence[bytes], features: Features) -> Features:
    """The same values in another file format."""
    return _dmlab_features(data[0])


def read_records(files: SourceFiles, found: FileEntry) -> Iterator[tuple[FileEntry, bytes]]:
    """Yields the records of a TFRecord file, each with its location."""
    with files.opened(found) as (plain, file):
        end = plain.offset + found.size
        for at, record in tfrecords.read_records(file, found.path, most=DMLAB_RECORD, end=end):
            yield plain._replace(offset=at, size=len(record)), record


def _dmlab_features(data: bytes) -> Features:
    """Image, name and label of a record."""
    example: Any = tf_example_pb2.Example()  # pyright: ignore[reportAttributeAccessIssue]
    try:
        example.ParseFromString(data)
        feature = example.features.feature
        (image,) = feature["image"].bytes_list.value
        (name,) = feature["filename"].bytes_list.value
        (label,) = feature["label"].int64_list.value
    except Exception as error:  # protobuf's own, or ValueError
        raise DataError(f"a record is not from DMLab: {type(error).__name__}") from None
    return {"image": image, "filename": name, "label": label}


RECIPES = (
    Recipe(
        # As in task_adaptation; 3.1.0 only adds questions about the images.
        dataset=datasets.CLEVR,
        version="3.0.0",
        files="CLEVR_v1.0.zip from cs.stanford.edu/people/jcjohns/clevr",
        unpacked=2**36,
        find=find_clevr,
        downloads=("CLEVR_v1.0.zip",),
    ),
    Recipe(
        dataset=datasets.KITTI,
        files="data_object_image_2.zip, data_object_label_2.zip and devkit_object.zip from "
        "www.cvlibs.net/datasets/kitti",
        unpacked=2**36,
        find=find_kitti,
        encode=encode_kitti,
        downloads=("data_object_image_2.zip", "data_object_label_2.zip", "devkit_object.zip"),
    ),
    Recipe(
        dataset=datasets.DMLAB,
        files="dmlab.tar.gz from storage.googleapis.com/dmlab-vtab/dmlab.tar.gz",
        unpacked=2**33,
        find=find_dmlab,
        encode=encode_dmlab,
        downloads=("dmlab.tar.gz",),
    ),
)
