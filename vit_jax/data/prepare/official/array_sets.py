"""Datasets stored as arrays: SVHN, SmallNORB, dSprites and PatchCamelyon; images become PNG.

They come as MATLAB files, in SmallNORB's own format, as a numpy archive and as HDF5.
"""

import contextlib
import functools
import importlib.util
import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from vit_jax.config import UserError
from vit_jax.data import datasets
from vit_jax.data.prepare.image_listing import FileEntry
from vit_jax.data.prepare.official import mat
from vit_jax.data.prepare.official.archives import Archives, NeedsUnpackingError
from vit_jax.data.prepare.official.recipe import (
    Contents,
    Recipe,
    Rows,
    as_png,
    blocks,
    cache_name,
)
from vit_jax.data.source import DataError
from vit_jax.weights import readers

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

SPRITES = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64"
# The arrays of the .npz, and their shapes for an image.
SPRITES_PARTS = {"imgs": (64, 64), "latents_classes": (6,), "latents_values": (6,)}
SPRITES_LARGEST = 100  # of the factors, which are angles and shares
SPRITES_LABELS = ("shape", "scale", "orientation", "x_position", "y_position")
CAMELYON_FILES = {"train": "train", "validation": "valid", "test": "test"}
CAMELYON = "camelyonpatch_level_2_split_{}_{}.h5"
SPRITES_MOST, CAMELYON_MOST = (
    max(dataset.images.values()) for dataset in (datasets.DSPRITES, datasets.CAMELYON)
)
PIXELS = ("u1",)
WHOLE = tuple(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8))
NUMBERS = (*WHOLE, "f4", "f8")
MOST_CHUNK = 2**28  # bytes of a part of an HDF5 file, which is unpacked at once


def find_svhn(archives: Archives) -> Contents:
    """Finds the cropped digits, except the split `extra`, which the paper does not use."""
    files = archives.by_name(SVHN_FILES.values())
    splits = {}
    for split, name in SVHN_FILES.items():
        if name not in files:
            continue
        found = files[name]
        arrays = mat.load_arrays(archives.read(found, SVHN_BYTES), ["X", "y"], name, SVHN_BYTES)
        images, labels = np.asarray(arrays["X"]), np.asarray(arrays["y"]).reshape(-1)
        whole = images.shape == (32, 32, 3, len(labels)) and images.dtype == np.uint8
        if not whole or not np.isin(labels, range(1, 11)).all():
            raise DataError(f"{name}: X and y are not SVHN's images and digits 1 to 10")
        # MATLAB's order: rows first, then columns, colors and images.
        path = archives.spill(cache_name(found), functools.partial(blocks, images.T))
        columns = [labels.astype(np.int64) % 10]
        splits[split] = Rows(str(path), 0, 3072, columns, f"{split}_{{:06d}}".format)
    return Contents(splits)


def find_smallnorb(archives: Archives) -> Contents:
    """Finds the pairs of gray images with category, pose and lighting."""
    names = [name.format(kind) for name in NORB_FILES.values() for kind in ("dat", "cat", "info")]
    files = archives.by_name(names)
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
    """An example."""
    name, label = values
    pixels = np.frombuffer(data[0], np.uint8).reshape(3, 32, 32).transpose(2, 1, 0)
    return {
        "image": as_png(np.ascontiguousarray(pixels)),
        "label": label,
        "id": name,
    }


def encode_smallnorb(data: Sequence[bytes], values: tuple[Any, ...]) -> dict[str, Any]:
    """An example."""
    left, right = np.frombuffer(data[0], np.uint8).reshape(2, 96, 96, 1)
    found = dict(zip(NORB_LABELS, values[1:], strict=True))
    return found | {"image": as_png(left), "image2": as_png(right)}


def _norb_header(
    archives: Archives, found: FileEntry
) -> tuple[tuple[int, ...], np.dtype, tuple[Any, int]]:
    """Shape, dtype and location of an array in SmallNORB's format.

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


def _norb(archives: Archives, found: FileEntry) -> np.ndarray:
    shape, kind, _ = _norb_header(archives, found)
    data = archives.read(found)
    array = np.frombuffer(data[len(data) - kind.itemsize * math.prod(shape) :], kind)
    return array.reshape(shape).astype(np.int64)


def find_dsprites(archives: Archives) -> Contents:
    """Finds the shapes: in the authors' .npz, or in their HDF5 file."""
    (files,) = archives.sort(rf"({SPRITES}\.(?:hdf5|npz/\w+\.npy))")
    npz = {name: files.get(f"{SPRITES}.npz/{name}.npy") for name in SPRITES_PARTS}
    if npz["imgs"]:
        path, start, spec = _npy(archives, npz["imgs"], PIXELS)
        classes, values = (
            _npy_values(archives, npz[name], name, kinds)
            for name, kinds in (("latents_classes", WHOLE), ("latents_values", NUMBERS))
        )
        images = spec.shape[0]
    elif found := files.get(f"{SPRITES}.hdf5"):
        start = 0
        with _hdf5(archives, found) as file:
            pixels = _array(file, "imgs", SPRITES_PARTS["imgs"], PIXELS, SPRITES_MOST)
            classes = _array(file, "latents/classes", (6,), WHOLE, SPRITES_MOST)[()]
            values = _array(file, "latents/values", (6,), NUMBERS, SPRITES_MOST)[()]
            path = archives.spill(cache_name(found), functools.partial(blocks, pixels))
        images = len(pixels)
    else:
        return Contents({})
    if not len(classes) == len(values) == images:
        raise DataError(f"{archives.named}: has other numbers of labels than of images")
    if not (np.abs(values) < SPRITES_LARGEST).all():
        raise DataError(f"{archives.named}: has labels that are not dSprites'")
    columns = [*classes.astype(np.int64).T[1:], *values.astype(np.float32).T[1:]]
    return Contents({"train": Rows(str(path), start, 64 * 64, columns, "{:06d}".format)})


def find_camelyon(archives: Archives) -> Contents:
    """Finds the tissue patches and their tumor labels."""
    names = {CAMELYON.format(split, kind) for split in CAMELYON_FILES.values() for kind in "xy"}
    files = archives.by_name(names)
    splits = {}
    for split, short in CAMELYON_FILES.items():
        pixels, labels = (CAMELYON.format(short, kind) for kind in "xy")
        if pixels not in files:
            continue
        if labels not in files:
            raise DataError(f"{archives.named}: lacks {labels}.gz")
        with _hdf5(archives, files[labels]) as file:
            label = _array(file, "y", (1, 1, 1), WHOLE, CAMELYON_MOST)[()].reshape(-1)
            if not np.isin(label, (0, 1)).all():
                raise DataError(f"{labels}: has labels other than 0 and 1")
        with _hdf5(archives, files[pixels]) as file:
            images = _array(file, "x", (96, 96, 3), PIXELS, CAMELYON_MOST)
            if len(images) != len(label):
                raise DataError(f"{pixels}: has {len(images):,} images for {len(label):,} labels")
            path = archives.spill(cache_name(files[pixels]), functools.partial(blocks, images))
        name = f"{short}_{{}}".format
        splits[split] = Rows(str(path), 0, 96 * 96 * 3, [label.astype(np.int64)], name, name)
    return Contents(splits)


def encode_dsprites(data: Sequence[bytes], values: tuple[Any, ...]) -> dict[str, Any]:
    """An example."""
    pixels = np.frombuffer(data[0], np.uint8).reshape(64, 64, 1)
    names = [f"{kind}_{name}" for kind in ("label", "value") for name in SPRITES_LABELS]
    return {"image": as_png(pixels)} | dict(zip(names, values[1:], strict=True))


def encode_camelyon(data: Sequence[bytes], values: tuple[Any, ...]) -> dict[str, Any]:
    """An example."""
    name, label = values
    pixels = np.frombuffer(data[0], np.uint8).reshape(96, 96, 3)
    return {"image": as_png(pixels), "label": label, "id": name}


def _npy(
    archives: Archives, found: FileEntry, kinds: tuple[str, ...]
) -> tuple[Any, int, readers.ArraySpec]:
    """The file with an array of the .npz, where its values begin, and what they are.

    What the header says is compared with the length of the file before it is used; it is not
    evaluated, as numpy does.
    """
    part = SPRITES_PARTS[found.path.rpartition("/")[2].removesuffix(".npy")]
    with archives.opened(found) as (path, start, file):
        try:
            length, spec, fortran = readers.npy_header(found.path, file)
        except (ValueError, TypeError, readers.WeightsError):
            raise DataError(f"{found.path}: is no array, or a damaged one") from None
    shape = " x ".join(map(str, spec.shape))
    if spec.shape[1:] != part or spec.dtype.str[1:] not in kinds or fortran:
        raise DataError(f"{found.path}: is not dSprites': {shape} values of type {spec.dtype}")
    if length + spec.nbytes != found.size or spec.shape[0] > SPRITES_MOST:
        raise DataError(f"{found.path}: has {found.size:,} bytes for {shape} values")
    return path, start + length, spec


def _npy_values(
    archives: Archives, found: FileEntry | None, name: str, kinds: tuple[str, ...]
) -> np.ndarray:
    """The six factors of each image."""
    if found is None:
        raise DataError(f"{archives.named}: {SPRITES}.npz lacks {name}")
    path, start, spec = _npy(archives, found, kinds)
    return np.fromfile(path, spec.dtype, math.prod(spec.shape), offset=start).reshape(spec.shape)


@contextlib.contextmanager
def _hdf5(archives: Archives, found: FileEntry) -> Iterator[Any]:
    """Opens an HDF5 file; raises DataError for one that is damaged, here or where it is read."""
    if importlib.util.find_spec("h5py") is None:
        raise DataError(f"{found.path}: reading HDF5 requires h5py: pip install 'vit_jax[prepare]'")
    import h5py  # pyright: ignore[reportMissingImports]

    try:
        with h5py.File(archives.alone(found), "r") as file:
            yield file
    except (UserError, NeedsUnpackingError):
        raise
    except Exception as error:  # of h5py, for damages: eight kinds have been seen
        reason = str(error).partition("\n")[0][:200]
        raise DataError(
            f"{found.path}: is not a valid HDF5 file: {reason}; download it again"
        ) from None


def _array(file: Any, name: str, part: tuple[int, ...], kinds: tuple[str, ...], most: int) -> Any:
    """An array of an HDF5 file, unread: of up to `most` images, of the shape `part` each.

    Raises DataError where it is another one, or lies outside of the file.
    """
    import h5py  # pyright: ignore[reportMissingImports]

    place = file
    for step in name.split("/"):
        if not isinstance(place.get(step, getlink=True), h5py.HardLink):
            raise DataError(f"{file.filename}: {name} is missing, or a link to elsewhere")
        place = place[step]
    if not isinstance(place, h5py.Dataset) or place.is_virtual or place.external:
        raise DataError(f"{name}: is no array, or outside of the file")
    fits = place.shape is not None and place.shape[1:] == part and place.shape[0] <= most
    if not fits or place.dtype.str[1:] not in kinds:
        raise DataError(f"{name}: has the shape {place.shape} and the type {place.dtype}")
    if place.chunks and math.prod(place.chunks) * place.dtype.itemsize > MOST_CHUNK:
        raise DataError(f"{name}: has parts of {place.chunks}, which take too much memory")
    return place


RECIPES = (
    Recipe(
        dataset=datasets.SVHN,
        files="train_32x32.mat and test_32x32.mat from ufldl.stanford.edu/housenumbers",
        archives=(),
        unpacked=2**29,
        find=find_svhn,
        encode=encode_svhn,
        downloads=tuple(SVHN_FILES.values()),
    ),
    Recipe(
        dataset=datasets.SMALLNORB,
        files="the six smallnorb-5x*.mat.gz from cs.nyu.edu/~ylclab/data/norb-v1.0-small",
        archives=("smallnorb-5x*.mat.gz",),
        unpacked=2**30,
        find=find_smallnorb,
        encode=encode_smallnorb,
        downloads=tuple(
            f"{name.format(kind)}.gz"
            for name in NORB_FILES.values()
            for kind in ("dat", "cat", "info")
        ),
    ),
    Recipe(
        dataset=datasets.DSPRITES,
        files=f"{SPRITES}.npz (or .hdf5, which requires h5py) from "
        "github.com/google-deepmind/dsprites-dataset",
        archives=(f"{SPRITES}.npz",),
        unpacked=2**32,
        find=find_dsprites,
        encode=encode_dsprites,
        downloads=(f"{SPRITES}.hdf5",),
    ),
    Recipe(
        dataset=datasets.CAMELYON,
        files="the six camelyonpatch_level_2_split_*.h5.gz from zenodo.org/record/2546921 (they "
        "take h5py)",
        archives=("camelyonpatch_level_2_split_*.h5.gz",),
        unpacked=2**34,
        find=find_camelyon,
        encode=encode_camelyon,
        downloads=tuple(
            f"{CAMELYON.format(split, kind)}.gz"
            for split in CAMELYON_FILES.values()
            for kind in "xy"
        ),
    ),
)
