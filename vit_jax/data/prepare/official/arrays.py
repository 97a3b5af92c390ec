"""SVHN in MATLAB files and SmallNORB in its own format, converted to PNG images."""

import functools
import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from vit_jax.data import datasets
from vit_jax.data.prepare.image_listing import Found
from vit_jax.data.prepare.official import encoded_images, mat
from vit_jax.data.prepare.official.archives import Archives
from vit_jax.data.prepare.official.recipe import Contents, Recipe
from vit_jax.data.prepare.official.rows import Rows, blocks, by_name, named
from vit_jax.data.source import DataError

SVHN_FILES = {"train": "train_32x32.mat", "test": "test_32x32.mat"}
SVHN_BYTES = 2**29
NORB_FILES = {
    "train": "smallnorb-5x46789x9x18x6x2x96x96-training-{}.mat",
    "test": "smallnorb-5x01235x9x18x6x2x96x96-testing-{}.mat",
}
NORB_TYPES = {0x1E3D4C55: np.dtype(np.uint8), 0x1E3D4C54: np.dtype("<i4")}
NORB_LABELS = (
    "label_category",
    "instance",
    "label_elevation",
    "label_azimuth",
    "label_lighting",
)


def look_for_svhn(archives: Archives) -> Contents:
    """Finds the cropped digits, except the split `extra`, which the paper does not use."""
    files = by_name(archives, SVHN_FILES.values())
    splits = {}
    for split, name in SVHN_FILES.items():
        if name not in files:
            continue
        found = files[name]
        arrays = mat.load(archives.read(found, SVHN_BYTES), ["X", "y"], name, SVHN_BYTES)
        images, labels = np.asarray(arrays["X"]), np.asarray(arrays["y"]).reshape(-1)
        whole = images.shape == (32, 32, 3, len(labels)) and images.dtype == np.uint8
        if not whole or not np.isin(labels, range(1, 11)).all():
            raise DataError(f"{name}: X and y are not SVHN's images and digits 1 to 10")
        # MATLAB's order: rows first, then columns, colors and images.
        path = archives.spill(named(found), functools.partial(blocks, images.T))
        columns = [labels.astype(np.int64) % 10]
        splits[split] = Rows(str(path), 0, 3072, columns, f"{split}_{{:06d}}".format)
    return Contents(splits)


def look_for_smallnorb(archives: Archives) -> Contents:
    """Finds the pairs of gray images with category, pose and lighting."""
    names = [name.format(kind) for name in NORB_FILES.values() for kind in ("dat", "cat", "info")]
    files = by_name(archives, names)
    splits = {}
    for split, name in NORB_FILES.items():
        if name.format("dat") not in files:
            continue
        for kind in ("cat", "info"):
            if name.format(kind) not in files:
                raise DataError(f"{archives.named}: lacks {name.format(kind)}.gz")
        shape, kind, (path, start) = _norb_header(archives, files[name.format("dat")])
        category, info = (_norb(archives, files[name.format(k)]) for k in ("cat", "info"))
        if shape[1:] != (2, 96, 96) or kind != np.uint8:
            raise DataError(f"{name.format('dat')}: is not an array of image pairs: {shape}")
        if category.shape != shape[:1] or info.shape != (shape[0], 4):
            raise DataError(f"{name.format('info')}: has {info.shape} labels for {shape[0]} images")
        instance, elevation, azimuth, light = info.T
        columns = [category, instance, elevation, azimuth // 2, light]
        splits[split] = Rows(str(path), start, 2 * 96 * 96, columns, f"{split}_{{:05d}}".format)
    return Contents(splits)


def encode_svhn(data: Sequence[bytes], values: tuple[Any, ...]) -> dict[str, Any]:
    """Makes an example."""
    name, label = values
    pixels = np.frombuffer(data[0], np.uint8).reshape(3, 32, 32).transpose(2, 1, 0)
    return {
        "image": encoded_images.as_png(np.ascontiguousarray(pixels)),
        "label": label,
        "id": name,
    }


def encode_smallnorb(data: Sequence[bytes], values: tuple[Any, ...]) -> dict[str, Any]:
    """Makes an example."""
    left, right = np.frombuffer(data[0], np.uint8).reshape(2, 96, 96, 1)
    found = dict(zip(NORB_LABELS, values[1:], strict=True))
    return found | {"image": encoded_images.as_png(left), "image2": encoded_images.as_png(right)}


def _norb_header(
    archives: Archives, found: Found
) -> tuple[tuple[int, ...], np.dtype, tuple[Any, int]]:
    """Returns shape, dtype and location of an array in SmallNORB's format.

    A magic number says the type, then come the number of axes and at least three lengths, int32.
    """
    with archives.opened(found) as (path, start, file):
        head = file.read(8 + 4 * 8)
    try:
        magic, axes = struct.unpack_from("<ii", head)
        kind = NORB_TYPES[magic]
        shape = struct.unpack_from(f"<{axes if 0 < axes <= 8 else 9}i", head, 8)
        start += 8 + 4 * max(3, axes)
        if min(shape) < 1 or found.size != 8 + 4 * max(3, axes) + kind.itemsize * math.prod(shape):
            raise ValueError
    except (struct.error, KeyError, ValueError):
        raise DataError(f"{found.path}: is not a SmallNORB array, or is truncated") from None
    return shape, kind, (path, start)


def _norb(archives: Archives, found: Found) -> np.ndarray:
    shape, kind, _ = _norb_header(archives, found)
    data = archives.read(found)
    array = np.frombuffer(data[len(data) - kind.itemsize * math.prod(shape) :], kind)
    return array.reshape(shape).astype(np.int64)


RECIPES = (
    Recipe(
        dataset=datasets.SVHN.tfds,
        files="train_32x32.mat and test_32x32.mat from ufldl.stanford.edu/housenumbers",
        splits=datasets.SVHN.images,
        archives=(),
        unpacked=2**29,
        look=look_for_svhn,
        encode=encode_svhn,
        downloads=tuple(SVHN_FILES.values()),
    ),
    Recipe(
        dataset=datasets.SMALLNORB.tfds,
        files="the six smallnorb-5x*.mat.gz from cs.nyu.edu/~ylclab/data/norb-v1.0-small",
        splits=datasets.SMALLNORB.images,
        archives=("smallnorb-5x*.mat.gz",),
        unpacked=2**30,
        look=look_for_smallnorb,
        encode=encode_smallnorb,
        downloads=tuple(
            f"{name.format(kind)}.gz"
            for name in NORB_FILES.values()
            for kind in ("dat", "cat", "info")
        ),
    ),
)
