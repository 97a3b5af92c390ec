"""Datasets of one image file per example, its class in a folder's name or in a list: TFDS's rules.

Where images stay as they are, an example is their file; DTD's splits are lists of files (the first
of its ten), as are those of most sets here.
"""

import array
import csv
import functools
import io
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import cv2
import numpy as np
import PIL.Image
import tensorflow_datasets as tfds

from vit_jax.data import datasets, decoding, image_headers
from vit_jax.data.datasets import Dataset
from vit_jax.data.decoding import BadImage
from vit_jax.data.prepare.archives import FileEntry
from vit_jax.data.prepare.image_listing import Listing
from vit_jax.data.prepare.official import mat
from vit_jax.data.prepare.official.recipe import (
    FORMATS,
    Contents,
    Example,
    Features,
    Recipe,
    as_jpeg,
    check_pixels,
    checked,
    class_numbers,
)
from vit_jax.data.prepare.official.source_files import SourceFiles, any_of
from vit_jax.data.source import DataError

IMAGENET_TRAIN = re.compile(r"(n\d{8})_\d+\.JPEG")
IMAGENET_VALIDATION = re.compile(r"ILSVRC2012_val_(\d{8})\.JPEG")
WORDNET = re.compile(r"n\d{8}")
IMAGENET_QUALITY = 100  # of images that TFDS encodes again, too

DTD_LISTS = {"train": "train1.txt", "validation": "val1.txt", "test": "test1.txt"}

CALTECH_TRAIN, CALTECH_SEED = 30, 1234  # images of a class to train on, as in TFDS

FLOWERS_LABELS, FLOWERS_SPLITS = "imagelabels.mat", "setid.mat"
# As TFDS has them, and the authors name them: many papers swap the first and the last.
FLOWERS_NAMES = {"train": "trnid", "validation": "valid", "test": "tstid"}
FLOWERS_BYTES = 2**20

PETS_LISTS = {"train": "trainval.txt", "test": "test.txt"}
# Damaged images, and images whose suffix is not their format; TFDS encodes them again since version
# 4.0.0, with TensorFlow's quality.
PETS_AGAIN = frozenset({
    "beagle_116", "chihuahua_121", "Abyssinian_5", "Abyssinian_34", "Egyptian_Mau_14",
    "Egyptian_Mau_139", "Egyptian_Mau_145", "Egyptian_Mau_156", "Egyptian_Mau_167",
    "Egyptian_Mau_177", "Egyptian_Mau_186", "Egyptian_Mau_191",
})  # fmt: skip
PETS_QUALITY, PETS_XML_BYTES = 95, 2**16

CARS_LISTS = {"train": "cars_train_annos.mat", "test": "cars_test_annos_withlabels.mat"}
CARS_BYTES = 2**24

SUN_LISTS = {"train": "tr", "validation": "va", "test": "te"}
SUN_PIXELS = 120_000  # maximum per image, as in TFDS

EYES_SPLITS = {"train": None, "validation": "Public", "test": "Private"}
EYES_LISTS = {
    "train": "trainLabels.csv",
    "validation": "retinopathy_solution.csv",
    "test": "retinopathy_solution.csv",
}
EYES_RADIUS, EYES_QUALITY, EYES_BLUR, EYES_MASK = 300, 72, 30, 0.9
EYES_REACH = 30  # pixels; OpenCV cuts a blur of bytes off at three sigma


class ImagenetImages(Sequence[Example]):
    """Examples stored as arrays: 1.3 million take 0.2 GB."""

    def __init__(self) -> None:
        self._listing, self._labels = Listing(), array.array("i")

    def add(self, found: FileEntry, label: int) -> None:
        """Adds an image."""
        self._listing.add(found)
        self._labels.append(label)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Example:  # pyright: ignore[reportIncompatibleMethodOverride]
        found = self._listing[index]
        name = found.path.rpartition("/")[2]
        return Example(name, (found,), {"label": self._labels[index], "file_name": name})


def find_imagenet(files: SourceFiles) -> Contents:
    """Finds the images of both splits in tars, packed or unpacked, or in Kaggle's archive.

    An image is known by its file name alone: `n01440764_10026.JPEG` is a training image of the
    class n01440764, `ILSVRC2012_val_00000293.JPEG` the 293rd validation image, whose class is in
    TFDS's list. A folder that an image lies in must agree.
    """
    classes = class_numbers(datasets.IMAGENET)
    folder = pathlib.Path(str(tfds.core.tfds_path("datasets/imagenet2012")))
    known = (folder / "validation_labels.txt").read_text().split()
    train, validation = ImagenetImages(), ImagenetImages()
    for found in files:
        above, _, name = found.path.rpartition("/")
        if match := IMAGENET_TRAIN.fullmatch(name):
            wordnet, images = match[1], train
            if wordnet not in classes:
                raise DataError(
                    f"{found.path}: {wordnet} is not among the 1,000 classes of ILSVRC2012"
                )
        elif match := IMAGENET_VALIDATION.fullmatch(name):
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
    return Contents({"train": train, "validation": validation})


def encode_imagenet(data: Sequence[bytes], features: Features) -> Features:
    """An image; one of CMYK, or a PNG, becomes an RGB JPEG, as TFDS has them."""
    return {"image": as_jpeg(data[0], IMAGENET_QUALITY)}


def find_in_folders(
    dataset: Dataset,
    suffixes: tuple[str, ...],
    feature: str,
    files: SourceFiles,
    *,
    key: str = "{folder}_{file}",
    name: str = "{folder}/{file}",
    value: str = "{file}",
) -> Contents:
    """Finds `CLASS/FILE`, all in the only split of a dataset.

    `key`, `name` and `value` are the forms of the sort key, of the example's name, and of the
    `feature` that has the file's name.
    """
    labels = class_numbers(dataset)
    if dataset is datasets.IMAGENET_V2:  # whose folders are called by numbers
        labels = {str(label): label for label in labels.values()}
    examples = []
    for found in files:
        above, _, file = found.path.rpartition("/")
        folder = above.rpartition("/")[2]
        if file.endswith(suffixes) and folder in labels:
            own_key, own_name, own_value = (
                form.format(folder=folder, file=file) for form in (key, name, value)
            )
            features = {"label": labels[folder], feature: own_value}
            examples.append(Example(own_name, (found,), features, own_key))
    (split,) = dataset.images
    return Contents({split: examples})


def from_lists(
    files: SourceFiles,
    names: Mapping[str, str],
    lists: Mapping[str, FileEntry],
    read: Callable[[str, FileEntry], Iterable[Example]],
    folder: str = "",
) -> Contents:
    """The examples that `read` yields of each split, of whose list `names` has the name.

    Raises DataError for a list that is missing; `folder` is where it lies, for messages.
    """
    return Contents({
        split: list(read(split, files.require(lists, name, folder + name)))
        for split, name in names.items()
    })  # fmt: skip


def find_caltech101(files: SourceFiles) -> Contents:
    """Finds the images by class, and draws 30 of each for training; the others are the test split.

    By TFDS's rule: seed 1234, class after class, `numpy.random.choice` of the files. TFDS draws
    from the files in the order in which the file system of its machine lists them, which no one
    else can repeat; here they are in the order of their names. So the split is by TFDS's rule and
    the same everywhere, but not the one in TFDS's own copy.
    """
    labels = class_numbers(datasets.CALTECH101)
    classes: dict[str, dict[str, FileEntry]] = {}
    for path, found in files.sort(r"([^/]+/image_\d{4}\.jpg)")[0].items():
        folder, _, file = path.partition("/")
        if folder.lower() in labels:
            classes.setdefault(folder, {})[file] = found
    splits: dict[str, list[Example]] = {"train": [], "test": []}
    random = np.random.RandomState(CALTECH_SEED)
    for name, members in sorted(classes.items()):
        if len(members) < CALTECH_TRAIN:
            raise DataError(
                f"{files.named}: class {name} has {len(members)} images, fewer than the "
                f"{CALTECH_TRAIN} to train on"
            )
        drawn = set(random.choice(sorted(members), CALTECH_TRAIN, replace=False).tolist())
        for file, found in sorted(members.items()):
            features = {"label": labels[name.lower()], "image/file_name": file}
            split = "train" if file in drawn else "test"
            splits[split].append(Example(f"{name}/{file}", (found,), features))
    return Contents(splits)


def find_dtd(files: SourceFiles) -> Contents:
    """Finds the textures of the first of the ten partitions."""
    labels = class_numbers(datasets.DTD)
    lists, images = files.sort(any_of(DTD_LISTS.values()), r"([a-z-]+/[^/]+\.jpg)")

    def read(split: str, found: FileEntry) -> Iterator[Example]:
        for name in files.text(found).split():
            label = labels.get(name.partition("/")[0])
            if label is None:
                raise DataError(f"{found.path}: {name[:60]!r} has a class that DTD does not have")
            if name in images:
                yield Example(name, (images[name],), {"label": label, "file_name": name})

    return from_lists(files, DTD_LISTS if images else {}, lists, read, "dtd/labels/")


def find_sun397(files: SourceFiles) -> Contents:
    """Finds the images in TFDS's lists for the three splits."""
    labels = class_numbers(datasets.SUN397)
    # Names in TFDS's lists, and its classes, begin with a slash.
    (images,) = files.sort(r"SUN397(/[a-z]/.+\.jpg)")
    folder = pathlib.Path(str(tfds.core.tfds_path("image_classification")))
    splits = {}
    for split, short in SUN_LISTS.items():
        names = map(str.strip, (folder / f"sun397_tfds_{short}.txt").read_text().split("\n"))
        splits[split] = [
            Example(
                name,
                (images[name],),
                {"label": labels[name.rpartition("/")[0]], "file_name": name},
            )
            for name in names
            if name in images
        ]
    return Contents(splits)


def find_flowers(files: SourceFiles) -> Contents:
    """Finds the images, their labels and the three splits that `setid.mat` defines."""
    images, tables = files.sort(r"image_(\d{5})\.jpg", any_of((FLOWERS_LABELS, FLOWERS_SPLITS)))
    if not images:
        return Contents({})

    def rows(file: str, names: list[str]) -> dict[str, np.ndarray]:
        found = files.require(tables, file)
        data = files.read(found, FLOWERS_BYTES)
        arrays = mat.load_arrays(data, names, found.path, FLOWERS_BYTES)
        for name, values in arrays.items():
            row = isinstance(values, np.ndarray) and values.ndim == 2 and len(values) == 1
            if not row or not (np.isfinite(values) & (values == np.round(values))).all():
                raise DataError(f"{found.path}: {name} is not a row of whole numbers")
        return {name: values[0].astype(np.int64) for name, values in arrays.items()}

    labels = rows(FLOWERS_LABELS, ["labels"])["labels"]

    def example(number: int) -> Example:
        found = images[f"{number:05d}"]
        if not 1 <= number <= len(labels):
            raise DataError(f"{found.path}: has no label: {FLOWERS_LABELS} has {len(labels):,}")
        # MATLAB counts from 1: images as well as classes.
        label = int(labels[number - 1]) - 1
        if not 0 <= label < datasets.FLOWERS.classes:
            raise DataError(f"{found.path}: label {label + 1} of {datasets.FLOWERS.classes}")
        name = f"image_{number:05d}.jpg"
        return Example(name, (found,), {"label": label, "file_name": name})

    members = rows(FLOWERS_SPLITS, list(FLOWERS_NAMES.values()))
    return Contents({
        split: [example(k) for k in members[name].tolist() if f"{k:05d}" in images]
        for split, name in FLOWERS_NAMES.items()
    })  # fmt: skip


def find_pets(files: SourceFiles) -> Contents:
    """Finds the images of the two lists, each with its trimap and optional bounding box.

    A line of a list has name, class, species and breed.
    """
    lists, images, trimaps, boxes = files.sort(
        any_of(PETS_LISTS.values()),
        *(rf"([A-Za-z_]+_\d+)\.{suffix}" for suffix in ("jpg", "png", "xml")),
    )

    def read(split: str, found: FileEntry) -> Iterator[Example]:
        for number, line in enumerate(files.text(found).splitlines(), start=1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            where = f"{found.path}: line {number}: {line[:60]!r}"
            name = words[0]
            # Three digits at most: int() of a text of thousands raises ValueError.
            if len(words) != 4 or not all(each.isdecimal() and len(each) < 4 for each in words[1:]):
                raise DataError(f"{where} is not NAME and 3 numbers")
            label, species = int(words[1]) - 1, int(words[2]) - 1
            if not (0 <= label < datasets.PETS.classes and species in (0, 1)):
                raise DataError(f"{where} has no such class")
            if name not in images:
                continue
            trimap = files.require(trimaps, name, f"annotations/trimaps/{name}.png")
            entries = [images[name], trimap, *([boxes[name]] if name in boxes else [])]
            features = {"label": label, "species": species, "file_name": f"{name}.jpg"}
            yield Example(f"{name}.jpg", tuple(entries), features)

    return from_lists(files, PETS_LISTS if images else {}, lists, read, "annotations/")


def encode_pet(data: Sequence[bytes], features: Features) -> Features:
    """Image, trimap, and the relative bounding box of the head."""
    image, trimap, *boxes = data
    again = features["file_name"].removesuffix(".jpg") in PETS_AGAIN
    return {
        "image": as_jpeg(image, PETS_QUALITY, again=True) if again else checked(image),
        "segmentation_mask": checked(trimap),
        "head_bbox": _parse_box(boxes[0]) if boxes else tfds.features.BBox(0.0, 0.0, 0.0, 0.0),
    }


def _parse_box(data: bytes) -> tfds.features.BBox:
    """The relative bounding box of the head in a VOC annotation with one object."""
    if len(data) > PETS_XML_BYTES:
        raise BadImage(f"its annotation has {len(data):,} bytes")
    sides = []
    for tag in ("height", "width", "ymin", "xmin", "ymax", "xmax"):
        # By a pattern: an XML parser would expand the entities of a crafted file.
        match = re.search(rf"<{tag}>\s*(\d{{1,6}}(?:\.\d{{1,6}})?)\s*</{tag}>".encode(), data)
        if match is None or (tag in ("height", "width") and not float(match[1])):
            raise BadImage(f"its annotation has no {tag}")
        sides.append(float(match[1]))
    height, width, ymin, xmin, ymax, xmax = sides
    return tfds.features.BBox(ymin / height, xmin / width, ymax / height, xmax / width)


def find_cars(files: SourceFiles) -> Contents:
    """Finds the cars of both lists, each with its bounding box."""
    lists, *images = files.sort(
        any_of(CARS_LISTS.values()), *(rf"cars_{split}/(\d{{5}})\.jpg" for split in CARS_LISTS)
    )
    members = dict(zip(CARS_LISTS, images, strict=True))

    def read(split: str, found: FileEntry) -> Iterator[Example]:
        table = mat.load_arrays(files.read(found), ["annotations"], found.path, CARS_BYTES)
        for name, features in _read_cars(table["annotations"], found.path):
            if name in members[split]:
                yield Example(name, (members[split][name],), features)

    # The list of a split without images need not be there.
    wanted = {split: name for split, name in CARS_LISTS.items() if members[split]}
    return from_lists(files, wanted, lists, read)


def _read_cars(rows: Any, file: str) -> Iterator[tuple[str, Features]]:
    """Yields the name and the features of each car; the box is left, top, right, bottom."""
    for row in rows if isinstance(rows, list) else ():
        *numbers, image = row.values()
        ok = len(numbers) == 5 and all(isinstance(n, np.ndarray) and n.size == 1 for n in numbers)
        if not ok or not isinstance(image, str):
            raise DataError(f"{file}: is not a list of cars")
        *box, label = (float(number.item()) for number in numbers)
        if not 1 <= label <= datasets.CARS.classes:
            raise DataError(f"{file}: {image[:40]}: class {label:g} of {datasets.CARS.classes}")
        name = image.partition(".")[0]
        yield name, {"label": int(label) - 1, "id": name, "bbox": box}


def encode_car(data: Sequence[bytes], features: Features) -> Features:
    """An image, and a bounding box relative to the size in its header."""
    left, top, right, bottom = features["bbox"]
    kind, size = image_headers.read_header(checked(data[0]))
    if size is None:
        raise BadImage(f"is a truncated or damaged {kind or 'file'}")
    height, width = size
    box = tfds.features.BBox(top / height, left / width, bottom / height, right / width)
    return {"image": data[0], "bbox": box}


def find_retinopathy(files: SourceFiles) -> Contents:
    """Finds the images of the three lists; the test images have a public and a private part."""
    lists, images = files.sort(
        any_of(EYES_LISTS.values()), r"((?:train|test)/\d{1,6}_(?:left|right))\.jpeg"
    )

    def read(split: str, found: FileEntry) -> Iterator[Example]:
        usage = EYES_SPLITS[split]
        try:
            rows = list(csv.DictReader(io.StringIO(files.text(found))))
        except csv.Error as error:
            raise DataError(f"{found.path}: is not a table: {error}") from None
        for row in rows:
            if usage is not None and row.get("Usage") != usage:
                continue
            image, level = row.get("image") or "", row.get("level") or ""
            if level not in ("0", "1", "2", "3", "4"):
                raise DataError(f"{found.path}: {image[:40]!r} has no level from 0 to 4")
            file = images.get(f"{'test' if usage else 'train'}/{image}")
            if file is not None:
                features = {"label": int(level), "name": image}
                yield Example(f"{image}.jpeg", (file,), features, image)

    return from_lists(files, EYES_LISTS if images else {}, lists, read)


def encode_tiff(data: Sequence[bytes], features: Features) -> Features:
    """A TIFF, converted to PNG."""
    check_pixels(*decoding.size(data[0]))
    pixels = cv2.imdecode(np.frombuffer(data[0], np.uint8), cv2.IMREAD_COLOR_RGB)
    if pixels is None:
        raise BadImage("is not a valid TIFF")
    return {"image": decoding.encode(pixels)}


def encode_sun397(data: Sequence[bytes], features: Features) -> Features:
    """A JPEG of at most 120,000 pixels, from any format."""
    image = _decode(data[0])
    pixels = image.shape[0] * image.shape[1]
    if pixels > SUN_PIXELS:
        factor = float(np.sqrt(SUN_PIXELS / pixels))
        image = cv2.resize(image, None, fx=factor, fy=factor)
    # At OpenCV's own quality, as in TFDS.
    return {"image": cv2.imencode(".jpg", image)[1].tobytes()}


def encode_retinopathy(data: Sequence[bytes], features: Features) -> Features:
    """An image like B. Graham's, who won the competition: all eyes have the same radius.

    An eye is scaled to a radius of 300 pixels, its local average is taken to gray, and what is
    outside of 90 % of the radius is cut off.
    """
    image = _decode(data[0])
    # In the middle row, the eye is what is brighter than a tenth of the mean.
    across = image[image.shape[0] // 2].sum(axis=1)
    radius = (across > across.mean() / 10).sum() / 2
    factor = float(EYES_RADIUS / (radius if radius >= 1 else image.shape[0] / 2))
    check_pixels(factor * image.shape[0], factor * image.shape[1])
    image = cv2.resize(image, None, fx=factor, fy=factor)
    kept = int(EYES_RADIUS * EYES_MASK)
    # What is beyond the blur's reach of the result only costs time and memory: of an eye without a
    # radius the image is scaled to more pixels than any other has.
    (rows, above), (columns, left) = (_middle(n, kept, EYES_REACH) for n in image.shape[:2])
    image = image[rows, columns]
    average = cv2.GaussianBlur(image, (0, 0), EYES_RADIUS / EYES_BLUR)
    image = cv2.addWeighted(image, 4, average, -4, 128)
    mask = np.zeros(image.shape)
    cv2.circle(mask, (left, above), kept, (1, 1, 1), -1)
    image = image * mask + (1 - mask) * 128
    rows, columns = (slice(max(at - kept, 0), at + kept) for at in (above, left))
    encoded = cv2.imencode(".jpg", image[rows, columns], [cv2.IMWRITE_JPEG_QUALITY, EYES_QUALITY])
    return {"image": encoded[1].tobytes()}


def _middle(size: int, kept: int, reach: int) -> tuple[slice, int]:
    """The pixels of an axis up to `kept + reach` from its middle, and where the middle is there."""
    start = max(size // 2 - kept - reach, 0)
    return slice(start, size // 2 + kept + reach), size // 2 - start


def _decode(data: bytes) -> np.ndarray:
    """BGR pixels; some files called .jpg are in formats that OpenCV may not have."""
    check_pixels(*decoding.size(checked(data)))
    # The flags (3) of TFDS's builders.
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_ANYDEPTH | cv2.IMREAD_COLOR)
    if image is not None:
        return image
    try:
        with PIL.Image.open(io.BytesIO(data), formats=FORMATS) as file:
            return cv2.cvtColor(np.array(file.convert("RGB")), cv2.COLOR_RGB2BGR)
    except decoding.PILLOW_ERRORS as error:
        raise BadImage(f"cannot be decoded: {error}") from None


def _variant_of_imagenet(dataset: Dataset, archive: str, source: str, **forms: str) -> Recipe:
    suffixes = (".jpeg",) if dataset is datasets.IMAGENET_V2 else (".jpg", ".JPEG")
    return Recipe(
        dataset=dataset,
        files=f"{archive} from {source}",
        unpacked=2**34,
        find=functools.partial(find_in_folders, dataset, suffixes, "file_name", **forms),
        downloads=(archive,),
    )


RECIPES = (
    Recipe(
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
    ),
    Recipe(
        dataset=datasets.EUROSAT,
        files="EuroSAT.zip (EuroSAT_RGB.zip) from github.com/phelber/eurosat",
        find=functools.partial(find_in_folders, datasets.EUROSAT, (".jpg",), "filename"),
        downloads=("EuroSAT.zip",),
    ),
    Recipe(
        dataset=datasets.RESISC45,
        files=datasets.RESISC45.files,
        archives=("nwpu-resisc45*.zip", "nwpu-resisc45*.tar*"),
        find=functools.partial(find_in_folders, datasets.RESISC45, (".jpg",), "filename"),
    ),
    Recipe(
        dataset=datasets.UC_MERCED,
        files="UCMerced_LandUse.zip from weegee.vision.ucmerced.edu/datasets/landuse.html",
        find=functools.partial(
            find_in_folders, datasets.UC_MERCED, (".tif",), "filename", key="{file}"
        ),
        encode=encode_tiff,
        downloads=("UCMerced_LandUse.zip",),
    ),
    Recipe(
        dataset=datasets.CALTECH101,
        files="caltech-101.zip, or its 101_ObjectCategories.tar.gz, from doi.org/10.22002/D1.20086",
        archives=("caltech-101*.zip", "caltech101*.zip", "101_objectcategories*.tar*"),
        find=find_caltech101,
        downloads=("caltech-101.zip",),
    ),
    Recipe(
        dataset=datasets.DTD,
        files="dtd-r1.0.1.tar.gz from www.robots.ox.ac.uk/~vgg/data/dtd",
        find=find_dtd,
        downloads=("dtd-r1.0.1.tar.gz",),
    ),
    Recipe(
        dataset=datasets.SUN397,
        files="SUN397.tar.gz from vision.princeton.edu/projects/2010/SUN",
        unpacked=2**36,
        find=find_sun397,
        encode=encode_sun397,
        downloads=("SUN397.tar.gz",),
    ),
    Recipe(
        dataset=datasets.FLOWERS,
        files=f"102flowers.tgz, {FLOWERS_LABELS} and {FLOWERS_SPLITS} from "
        "www.robots.ox.ac.uk/~vgg/data/flowers/102",
        find=find_flowers,
        downloads=("102flowers.tgz", FLOWERS_LABELS, FLOWERS_SPLITS),
    ),
    Recipe(
        dataset=datasets.PETS,
        files="images.tar.gz and annotations.tar.gz from www.robots.ox.ac.uk/~vgg/data/pets",
        find=find_pets,
        encode=encode_pet,
        downloads=("images.tar.gz", "annotations.tar.gz"),
    ),
    Recipe(
        dataset=datasets.CARS,
        files="cars_train.tgz, cars_test.tgz, car_devkit.tgz and cars_test_annos_withlabels.mat "
        "of Stanford's cars",
        find=find_cars,
        encode=encode_car,
        downloads=("cars_train.tgz", "cars_test.tgz", "car_devkit.tgz", CARS_LISTS["test"]),
    ),
    Recipe(
        dataset=datasets.RETINOPATHY,
        files=datasets.RETINOPATHY.files,
        find=find_retinopathy,
        encode=encode_retinopathy,
    ),
    _variant_of_imagenet(
        datasets.IMAGENET_V2,
        "imagenetv2-matched-frequency.tar.gz",
        "huggingface.co/datasets/vaishaal/ImageNetV2",
        value="{folder}/{file}",
    ),
    _variant_of_imagenet(
        datasets.IMAGENET_A,
        "imagenet-a.tar",
        "github.com/hendrycks/natural-adv-examples",
        key="{file}",
        name="{file}",
    ),
    _variant_of_imagenet(
        datasets.IMAGENET_R,
        "imagenet-r.tar",
        "github.com/hendrycks/imagenet-r",
        value="{folder}/{file}",
    ),
    _variant_of_imagenet(
        datasets.IMAGENET_SKETCH,
        "ImageNet-Sketch.zip",
        "github.com/HaohanWang/ImageNet-Sketch",
        key="{folder}/{file}",
        value="{folder}/{file}",
    ),
)
