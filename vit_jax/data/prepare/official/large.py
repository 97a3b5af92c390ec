"""SUN397, Diabetic Retinopathy and DMLab, which TFDS resizes, enhances and unpacks."""

import csv
import io
import pathlib
import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import cv2
import numpy as np
import PIL.Image
import tensorflow_datasets as tfds
from tensorflow_datasets.proto import tf_example_pb2

from vit_jax.data import datasets, decoding
from vit_jax.data.decoding import BadImage
from vit_jax.data.prepare.image_listing import Found
from vit_jax.data.prepare.official import encoded_images
from vit_jax.data.prepare.official.archives import Archives
from vit_jax.data.prepare.official.recipe import Contents, Example, Few, Recipe, Span, class_names
from vit_jax.data.source import DataError

SUN_IMAGE = re.compile(r"(?:.*/)?SUN397(/[a-z]/.+\.jpg)")
SUN_LISTS = {"train": "tr", "validation": "va", "test": "te"}
SUN_PIXELS = 120_000  # maximum per image, as in TFDS
EYES_IMAGE = re.compile(r"(?:.*/)?((?:train|test)/\d{1,6}_(?:left|right))\.jpeg")
EYES_SPLITS = {"train": None, "validation": "Public", "test": "Private"}
EYES_LISTS = ("trainLabels.csv", "retinopathy_solution.csv")
EYES_RADIUS, EYES_QUALITY, EYES_BLUR, EYES_MASK = 300, 72, 30, 0.9
DMLAB_FILE = re.compile(r"(?:.*/)?dmlab-(train|validation|test)\.tfrecord[^/]*")
DMLAB_RECORD = 2**22


def look_for_sun397(archives: Archives) -> Contents:
    """Finds the images in TFDS's lists for the three splits."""
    labels = {name: number for number, name in enumerate(class_names(datasets.SUN397))}
    images: dict[str, Found] = {}
    for found in archives.files():
        if match := SUN_IMAGE.fullmatch(found.path):
            images[match[1]] = found
    folder = pathlib.Path(str(tfds.core.tfds_path("image_classification")))
    splits = {}
    for split, short in SUN_LISTS.items():
        names = (folder / f"sun397_tfds_{short}.txt").read_text().split("\n")
        splits[split] = Few(
            [
                Example(name, name, (images[name],), (name, labels[name.rpartition("/")[0]]))
                for name in map(str.strip, names)
                if name in images
            ]
        )
    return Contents(splits)


def look_for_retinopathy(archives: Archives) -> Contents:
    """Finds the images of the three lists; the test images have a public and a private part."""
    images: dict[str, Found] = {}
    lists: dict[str, Found] = {}
    for found in archives.files():
        if (name := found.path.rpartition("/")[2]) in EYES_LISTS:
            lists[name] = found
        elif match := EYES_IMAGE.fullmatch(found.path):
            images[match[1]] = found
    if not images:
        return Contents({})
    splits = {}
    for split, usage in EYES_SPLITS.items():
        name = EYES_LISTS[usage is not None]
        if name not in lists:
            raise DataError(f"{archives.named}: has images, but lacks {name}")
        examples = []
        for row in csv.DictReader(io.StringIO(archives.text(lists[name]))):
            if usage is not None and row.get("Usage") != usage:
                continue
            image, level = row.get("image") or "", row.get("level") or ""
            if level not in ("0", "1", "2", "3", "4"):
                raise DataError(f"{lists[name].path}: {image[:40]!r} has no level from 0 to 4")
            found = images.get(f"{'test' if usage else 'train'}/{image}")
            if found is not None:
                examples.append(Example(image, f"{image}.jpeg", (found,), (image, int(level))))
        splits[split] = Few(examples)
    return Contents(splits)


def look_for_dmlab(archives: Archives) -> Contents:
    """Finds the records of the three splits in TFRecord files."""
    splits: dict[str, list[Example]] = {"train": [], "validation": [], "test": []}
    for found in archives.files():
        if match := DMLAB_FILE.fullmatch(found.path):
            for span, data in _records(archives, found):
                name = str(_dmlab_features(data)["filename"], "utf-8", "replace")
                splits[match[1]].append(Example(name, name, (span,), ()))
    return Contents({split: Few(examples) for split, examples in splits.items()})


def encode_sun397(data: Sequence[bytes], values: tuple[Any, ...]) -> dict[str, Any]:
    """Makes an example: a JPEG of at most 120,000 pixels from any format."""
    name, label = values
    image = _decoded(data[0])
    pixels = image.shape[0] * image.shape[1]
    if pixels > SUN_PIXELS:
        factor = float(np.sqrt(SUN_PIXELS / pixels))
        image = cv2.resize(image, None, fx=factor, fy=factor)
    return {"image": cv2.imencode(".jpg", image)[1].tobytes(), "label": label, "file_name": name}


def encode_retinopathy(data: Sequence[bytes], values: tuple[Any, ...]) -> dict[str, Any]:
    """Makes an example like B. Graham, who won the competition: all eyes have the same radius.

    An eye is scaled to a radius of 300 pixels, its local average is taken to gray, and what is
    outside of 90 % of the radius is cut off.
    """
    name, label = values
    image = _decoded(data[0])
    across = image[image.shape[0] // 2].sum(axis=1)
    radius = (across > across.mean() / 10).sum() / 2
    factor = float(EYES_RADIUS / (radius if radius >= 1 else image.shape[0] / 2))
    encoded_images.check_pixels(factor * image.shape[0], factor * image.shape[1])
    image = cv2.resize(image, None, fx=factor, fy=factor)
    average = cv2.GaussianBlur(image, (0, 0), EYES_RADIUS / EYES_BLUR)
    image = cv2.addWeighted(image, 4, average, -4, 128)
    kept, (height, width) = int(EYES_RADIUS * EYES_MASK), image.shape[:2]
    mask = np.zeros(image.shape)
    cv2.circle(mask, (width // 2, height // 2), kept, (1, 1, 1), -1)
    image = image * mask + (1 - mask) * 128
    rows = slice(max(height // 2 - kept, 0), min(height // 2 + kept, height))
    columns = slice(max(width // 2 - kept, 0), min(width // 2 + kept, width))
    encoded = cv2.imencode(".jpg", image[rows, columns], [cv2.IMWRITE_JPEG_QUALITY, EYES_QUALITY])
    return {"image": encoded[1].tobytes(), "label": label, "name": name}


def encode_dmlab(data: Sequence[bytes], values: tuple[Any, ...]) -> dict[str, Any]:
    """Makes an example: the same values in another file format."""
    return _dmlab_features(data[0])


def _decoded(data: bytes) -> np.ndarray:
    """Returns BGR pixels; some files called .jpg are in formats that OpenCV may not have."""
    encoded_images.check_pixels(*decoding.size(encoded_images.checked(data)))
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_ANYDEPTH | cv2.IMREAD_COLOR)
    if image is not None:
        return image
    try:
        with PIL.Image.open(io.BytesIO(data), formats=encoded_images.FORMATS) as file:
            return cv2.cvtColor(np.array(file.convert("RGB")), cv2.COLOR_RGB2BGR)
    except (OSError, ValueError, SyntaxError, PIL.Image.DecompressionBombError) as error:
        raise BadImage(f"cannot be decoded: {error}") from None


def _records(archives: Archives, found: Found) -> Iterator[tuple[Span, bytes]]:
    """Yields the records of a TFRecord file, each with its location."""
    with archives.opened(found) as (path, start, file):
        at, end = start, start + found.size
        while at < end:
            file.seek(at)
            head = file.read(12)
            length = struct.unpack("<Q", head[:8])[0] if len(head) == 12 else DMLAB_RECORD + 1
            if length > DMLAB_RECORD or at + 16 + length > end:
                raise DataError(f"{found.path}: is damaged or truncated at byte {at - start}")
            yield Span(str(path), at + 12, length), file.read(length)
            at += 16 + length


def _dmlab_features(data: bytes) -> dict[str, Any]:
    """Returns image, name and label of a record."""
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
        dataset=datasets.SUN397.tfds,
        files="SUN397.tar.gz from vision.princeton.edu/projects/2010/SUN",
        splits=datasets.SUN397.images,
        archives=("sun397*.tar*",),
        unpacked=2**36,
        look=look_for_sun397,
        encode=encode_sun397,
        downloads=("SUN397.tar.gz",),
    ),
    Recipe(
        dataset=datasets.RETINOPATHY.tfds,
        files=datasets.RETINOPATHY.files,
        splits=datasets.RETINOPATHY.images,
        archives=(),
        unpacked=0,
        look=look_for_retinopathy,
        encode=encode_retinopathy,
    ),
    Recipe(
        dataset=datasets.DMLAB.tfds,
        files="dmlab.tar.gz from storage.googleapis.com/dmlab-vtab/dmlab.tar.gz",
        splits=datasets.DMLAB.images,
        archives=("dmlab*.tar*",),
        unpacked=2**33,
        look=look_for_dmlab,
        encode=encode_dmlab,
        downloads=("dmlab.tar.gz",),
    ),
)
