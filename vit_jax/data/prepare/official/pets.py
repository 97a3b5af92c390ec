"""Oxford-IIIT Pets: images, two lists, trimaps, and bounding boxes of heads."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow_datasets as tfds

from vit_jax.data import datasets
from vit_jax.data.decoding import BadImage
from vit_jax.data.prepare.image_listing import Found
from vit_jax.data.prepare.official import encoded_images
from vit_jax.data.prepare.official.archives import Archives
from vit_jax.data.prepare.official.recipe import Contents, Example, Few, Place, Recipe
from vit_jax.data.source import DataError

LISTS = {"train": "trainval.txt", "test": "test.txt"}
FILE = re.compile(r"(?:.*/)?([A-Za-z_]+_\d+)\.(jpg|png|xml)")
KINDS = {"jpg": "images", "png": "trimaps", "xml": "xmls"}
# Damaged images, and images whose suffix is not their format; TFDS encodes them again since version
# 4.0.0, with TensorFlow's quality.
AGAIN = frozenset({
    "beagle_116", "chihuahua_121", "Abyssinian_5", "Abyssinian_34", "Egyptian_Mau_14",
    "Egyptian_Mau_139", "Egyptian_Mau_145", "Egyptian_Mau_156", "Egyptian_Mau_167",
    "Egyptian_Mau_177", "Egyptian_Mau_186", "Egyptian_Mau_191",
})  # fmt: skip
QUALITY = 95
XML_BYTES = 2**16


def look(archives: Archives) -> Contents:
    """Finds the images of the two lists, each with its trimap and optional bounding box."""
    files: dict[str, dict[str, Found]] = {kind: {} for kind in KINDS}
    lists: dict[str, Found] = {}
    for found in archives.files():
        if (name := found.path.rpartition("/")[2]) in LISTS.values():
            lists[name] = found
        elif match := FILE.fullmatch(found.path):
            files[match[2]][match[1]] = found
    if not files["jpg"]:
        return Contents({})
    splits = {}
    for split, name in LISTS.items():
        if name not in lists:
            raise DataError(f"{archives.named}: has images, but lacks annotations/{name}")
        splits[split] = Few(list(_examples(archives, lists[name], files)))
    return Contents(splits)


def encode(data: Sequence[bytes], values: tuple[Any, ...]) -> dict[str, Any]:
    """Makes an example."""
    name, label, species = values
    image, trimap, *boxes = data
    return {
        "image": _again(image) if name in AGAIN else encoded_images.checked(image),
        "label": label,
        "species": species,
        "file_name": f"{name}.jpg",
        "segmentation_mask": encoded_images.checked(trimap),
        "head_bbox": _box(boxes[0]) if boxes else tfds.features.BBox(0.0, 0.0, 0.0, 0.0),
    }


def _examples(
    archives: Archives, found: Found, files: dict[str, dict[str, Found]]
) -> Iterator[Example]:
    """Yields the available images of a list; a line has name, class, species and breed."""
    for number, line in enumerate(archives.text(found).splitlines(), start=1):
        parts = line.split()
        if not parts or parts[0].startswith("#"):
            continue
        name = parts[0]
        if len(parts) != 4 or not all(each.isdecimal() and len(each) < 4 for each in parts[1:]):
            raise DataError(f"{found.path}: line {number}: {line[:60]!r} is not NAME and 3 numbers")
        label, species = int(parts[1]) - 1, int(parts[2]) - 1
        if not (0 <= label < datasets.PETS.classes and species in (0, 1)):
            raise DataError(f"{found.path}: line {number}: {line[:60]!r} has no such class")
        if name not in files["jpg"]:
            continue
        if name not in files["png"]:
            raise DataError(f"{archives.named}: lacks annotations/trimaps/{name}.png")
        places: list[Place] = [files["jpg"][name], files["png"][name]]
        places += [files["xml"][name]] if name in files["xml"] else []
        yield Example(f"{name}.jpg", f"{name}.jpg", tuple(places), (name, label, species))


def _again(image: bytes) -> bytes:
    return encoded_images.as_jpeg(image, QUALITY, again=True)


def _box(data: bytes) -> tfds.features.BBox:
    """Returns the relative bounding box of the head from a VOC annotation with one object."""
    if len(data) > XML_BYTES:
        raise BadImage(f"its annotation has {len(data):,} bytes")
    sides = []
    for tag in ("height", "width", "ymin", "xmin", "ymax", "xmax"):
        match = re.search(rf"<{tag}>\s*(\d{{1,6}}(?:\.\d{{1,6}})?)\s*</{tag}>".encode(), data)
        if match is None or (tag in ("height", "width") and not float(match[1])):
            raise BadImage(f"its annotation has no {tag}")
        sides.append(float(match[1]))
    height, width, ymin, xmin, ymax, xmax = sides
    return tfds.features.BBox(ymin / height, xmin / width, ymax / height, xmax / width)


RECIPE = Recipe(
    dataset=datasets.PETS.tfds,
    files="images.tar.gz and annotations.tar.gz from www.robots.ox.ac.uk/~vgg/data/pets",
    splits=datasets.PETS.images,
    archives=("images*.tar*", "annotations*.tar*"),
    unpacked=2**31,
    look=look,
    encode=encode,
    downloads=("images.tar.gz", "annotations.tar.gz"),
)
