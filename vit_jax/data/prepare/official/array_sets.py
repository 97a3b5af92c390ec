"""Datasets of arrays, whose images become PNG: CIFAR, SVHN, SmallNORB, dSprites, PatchCamelyon.

They come as records of bytes or pickles, as MATLAB files, in SmallNORB's own format, as a numpy
archive, and as HDF5.
"""

import contextlib
import functools
import importlib.util
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax.config import UserError
from vit_jax.data import datasets, decoding
from vit_jax.data.datasets import Dataset
from vit_jax.data.prepare.archives import FileEntry
from vit_jax.data.prepare.official import mat, pickles
from vit_jax.data.prepare.official.recipe import (
    Contents,
    Features,
    Recipe,
    Rows,
    encode_pixels,
    spill_pixels,
)
from vit_jax.data.prepare.official.source_files import NeedsUnpackingError, SourceFiles
from vit_jax.data.source import DataError
from vit_jax.utils import npy

# Kinds of numbers in a file.
PIXELS = ("u1",)
WHOLE = tuple(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8))
NUMBERS = (*WHOLE, "f4", "f8")
MOST_CHUNK = 2**28  # bytes of a part of an HDF5 file, which is unpacked at once


class CifarLabel(NamedTuple):
    """A label: its feature, how its lists and files begin, the file that names its classes."""

    feature: str
    prefix: str
    names: str
    classes: int


class CifarFiles(NamedTuple):
    """The files of a CIFAR dataset by split, its labels in the order of a binary record.

    A file is called `NAME.bin` in the binary archive and `NAME` in the Python one, where `meta` is
    the pickle with the names of the classes. A binary record is a byte for each label, then the
    red, the green and the blue values of 32 x 32 pixels.
    """

    dataset: Dataset
    splits: Mapping[str, tuple[str, ...]]
    meta: str
    labels: tuple[CifarLabel, ...]


CIFAR10 = CifarFiles(
    datasets.CIFAR10,
    {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)},
    "batches.meta",
    (CifarLabel("label", "", "batches.meta.txt", 10),),
)
CIFAR100 = CifarFiles(
    datasets.CIFAR100,
    {"train": ("train",), "test": ("test",)},
    "meta",
    (
        CifarLabel("coarse_label", "coarse_", "coarse_label_names.txt", 20),
        CifarLabel("label", "fine_", "fine_label_names.txt", 100),
    ),
)
CIFAR_PIXELS = 3 * 32 * 32
CIFAR_BYTES = 2**28  # of a file; CIFAR-100's training images are 155 MB as a pickle


def find_cifar(layout: CifarFiles, files: SourceFiles) -> Contents:
    """Finds the images of both splits in their order, and the names of the classes."""
    stems = [stem for names in layout.splits.values() for stem in names]
    wanted = {layout.meta, *stems, *(f"{stem}.bin" for stem in stems)}
    found = files.by_name(wanted | {label.names for label in layout.labels})
    splits = {}
    for split, names in layout.splits.items():
        # The binary archive takes precedence.
        origin = [found.get(f"{stem}.bin") or found.get(stem) for stem in names]
        origin = [each for each in origin if each is not None]
        if not origin:
            continue
        records = np.concatenate([_cifar_records(layout, files, each) for each in origin])
        columns = {}
        for number, label in enumerate(layout.labels):
            columns[label.feature] = records[:, number]
            if (most := int(records[:, number].max(initial=0))) >= label.classes:
                raise DataError(
                    f"{origin[0].path}: has {label.feature} {most}, of {label.classes} classes; "
                    "download it again"
                )
        pixels = spill_pixels(files, origin, records[:, len(columns) :], CIFAR_PIXELS)
        splits[split] = Rows(pixels, columns, f"{split}_{{:05d}}", named="id")
    return Contents(splits, _cifar_names(layout, files, found) if splits else {})


def _cifar_records(layout: CifarFiles, files: SourceFiles, found: FileEntry) -> np.ndarray:
    """The records (N, labels + pixels) of a file, uint8."""
    data, size = files.read(found, CIFAR_BYTES), len(layout.labels) + CIFAR_PIXELS
    if found.path.endswith(".bin"):
        if len(data) % size:
            raise DataError(f"{found.path}: has {len(data):,} bytes, not a multiple of {size:,}")
        return np.frombuffer(data, np.uint8).reshape(-1, size)
    values = pickles.load_dictionary(data, found.path)
    try:
        labels = [np.array(values[f"{each.prefix}labels"], np.uint8) for each in layout.labels]
        pixels = np.array(values["data"], np.uint8)
        if pixels.shape != (len(labels[0]), CIFAR_PIXELS):
            raise ValueError(f"{pixels.shape} values")
        return np.column_stack([*labels, pixels])
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{found.path}: is not a batch of CIFAR images: {error}") from None


def _cifar_names(
    layout: CifarFiles, files: SourceFiles, found: Mapping[str, FileEntry]
) -> dict[str, Sequence[str]]:
    meta = {}
    if layout.meta in found:
        meta = pickles.load_dictionary(files.read(found[layout.meta]), layout.meta)
    names: dict[str, Sequence[str]] = {}
    for label in layout.labels:
        listed = meta.get(f"{label.prefix}label_names")
        if label.names in found:
            listed = files.text(found[label.names]).split()
        if not isinstance(listed, list) or len(set(map(str, listed))) != label.classes:
            raise DataError(
                f"{files.named}: lacks the {label.classes} class names, in {label.names} or "
                f"{layout.meta}"
            )
        names[label.feature] = [str(name) for name in listed]
    return names


SVHN_FILES = {"train": "train_32x32.mat", "test": "test_32x32.mat"}
SVHN_BYTES = 2**29


def find_svhn(files: SourceFiles) -> Contents:
    """Finds the cropped digits, except the split `extra`, which the paper does not use."""
    found = files.by_name(SVHN_FILES.values())
    splits = {}
    for split, name in SVHN_FILES.items():
        if name not in found:
            continue
        data = files.read(found[name], SVHN_BYTES)
        arrays = mat.load_arrays(data, ["X", "y"], name, SVHN_BYTES)
        images, labels = np.asarray(arrays["X"]), np.asarray(arrays["y"]).reshape(-1)
        whole = images.shape == (32, 32, 3, len(labels)) and images.dtype == np.uint8
        if not whole or not np.isin(labels, range(1, 11)).all():
            raise DataError(f"{name}: X and y are not SVHN's images and digits 1 to 10")
        # In MATLAB's order, the last axis is the images, and rows vary fastest.
        pixels = spill_pixels(files, [found[name]], images.T, 32 * 32 * 3)
        # SVHN labels the digit 0 as 10, MATLAB's arrays starting at 1.
        columns = {"label": labels.astype(np.int64) % 10}
        splits[split] = Rows(pixels, columns, f"{split}_{{:06d}}", named="id")
    return Contents(splits)


NORB_FILES = {
    "train": "smallnorb-5x46789x9x18x6x2x96x96-training-{}.mat",
    "test": "smallnorb-5x01235x9x18x6x2x96x96-testing-{}.mat",
}
NORB_KINDS = ("dat", "cat", "info")
NORB_TYPES = {0x1E3D4C55: np.dtype(np.uint8), 0x1E3D4C54: np.dtype("<i4")}
NORB_POSE = ("instance", "label_elevation", "label_azimuth", "label_lighting")


def find_smallnorb(files: SourceFiles) -> Contents:
    """Finds the pairs of gray images with category, pose and lighting."""
    names = [name.format(kind) for name in NORB_FILES.values() for kind in NORB_KINDS]
    found = files.by_name(names)
    splits = {}
    for split, name in NORB_FILES.items():
        if name.format("dat") not in found:
            continue
        each = [files.require(found, name.format(k), f"{name.format(k)}.gz") for k in NORB_KINDS]
        pixels, kind, shape = _norb_array(files, each[0])
        if shape[1:] != (2, 96, 96) or kind != np.uint8:
            raise DataError(f"{each[0].path}: is not an array of image pairs: {shape}")
        category, info = (_values(*_norb_array(files, one)) for one in each[1:])
        if category.shape != shape[:1] or info.shape != (shape[0], 4):
            raise DataError(f"{each[2].path}: has {info.shape} labels for {shape[0]} images")
        columns = {"label_category": category, **dict(zip(NORB_POSE, info.T, strict=True))}
        # SmallNORB's azimuths are the even numbers from 0 to 34; TFDS stores their halves.
        columns["label_azimuth"] = columns["label_azimuth"] // 2
        first = pixels._replace(size=2 * 96 * 96)
        splits[split] = Rows(first, columns, f"{split}_{{:05d}}")
    return Contents(splits)


def encode_smallnorb(data: Sequence[bytes], features: Features) -> Features:
    """Both images of a pair."""
    left, right = np.frombuffer(data[0], np.uint8).reshape(2, 96, 96, 1)
    return {"image": decoding.encode(left), "image2": decoding.encode(right)}


def _norb_array(
    files: SourceFiles, found: FileEntry
) -> tuple[FileEntry, np.dtype, tuple[int, ...]]:
    """The location, the type and the shape of the values in a file of SmallNORB's format.

    A magic number says the type, then come the number of axes and at least three lengths, int32.
    """
    with files.opened(found) as (plain, file):
        head = file.read(8 + 4 * 8)
    try:
        magic, axes = struct.unpack_from("<ii", head)
        kind = NORB_TYPES[magic]
        # The head has 8 lengths at most: 9 are a struct.error, as of a damaged file.
        shape = struct.unpack_from(f"<{axes if 0 < axes <= 8 else 9}i", head, 8)
        length, size = 8 + 4 * max(3, axes), kind.itemsize * math.prod(shape)
        if min(shape) < 1 or found.size != length + size:
            raise ValueError
    except (struct.error, KeyError, ValueError):
        raise DataError(f"{found.path}: is not a SmallNORB array, or is truncated") from None
    return plain._replace(offset=plain.offset + length, size=size), kind, shape


def _values(location: FileEntry, kind: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    count = math.prod(shape)
    numbers = np.fromfile(location.container, kind, count, offset=location.offset)
    if len(numbers) != count:
        raise DataError(f"{location.path}: changed while it was read")
    return numbers.reshape(shape)


SPRITES = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64"
SPRITES_MOST = max(datasets.DSPRITES.images.values())
SPRITES_LARGEST = 100  # of the factors, which are angles and shares
SPRITES_LABELS = ("shape", "scale", "orientation", "x_position", "y_position")
# The arrays: their path in the HDF5 file, their shape for an image, their type.
SPRITES_ARRAYS = {
    "imgs": ("imgs", (64, 64), PIXELS),
    "latents_classes": ("latents/classes", (6,), WHOLE),
    "latents_values": ("latents/values", (6,), NUMBERS),
}


def find_dsprites(files: SourceFiles) -> Contents:
    """Finds the shapes: in the authors' .npz, or in their HDF5 file."""
    (found,) = files.sort(rf"({SPRITES}\.(?:hdf5|npz/\w+\.npy))")
    if f"{SPRITES}.npz/imgs.npy" in found:
        arrays = [
            _npy_array(files, files.require(found, f"{SPRITES}.npz/{name}.npy"), shape, kinds)
            for name, (_, shape, kinds) in SPRITES_ARRAYS.items()
        ]
        pixels, _, shape = arrays[0]
        images = shape[0]
        classes, values = (_values(*array) for array in arrays[1:])
    elif hdf5 := found.get(f"{SPRITES}.hdf5"):
        with _hdf5(files, hdf5) as file:
            pixels, classes, values = (
                _hdf5_array(file, name, shape, kinds, SPRITES_MOST)
                for name, shape, kinds in SPRITES_ARRAYS.values()
            )
            # Labels whole, the 3 GB of pixels only as they are spilled.
            images, classes, values = len(pixels), classes[()], values[()]
            pixels = spill_pixels(files, [hdf5], pixels, 64 * 64)
    else:
        return Contents({})
    if not len(classes) == len(values) == images:
        raise DataError(f"{files.named}: has other numbers of labels than of images")
    # NaN fails this comparison, too.
    if not (np.abs(values) < SPRITES_LARGEST).all():
        raise DataError(f"{files.named}: has labels that are not dSprites'")
    columns = {}
    for kind, array in (("label", classes.astype(np.int64)), ("value", values.astype(np.float32))):
        for number, name in enumerate(SPRITES_LABELS, start=1):  # the first factor is the color
            columns[f"{kind}_{name}"] = array[:, number]
    return Contents({"train": Rows(pixels._replace(size=64 * 64), columns, "{:06d}")})


def _npy_array(
    files: SourceFiles, found: FileEntry, part: tuple[int, ...], kinds: tuple[str, ...]
) -> tuple[FileEntry, np.dtype, tuple[int, ...]]:
    """The location, the type and the shape of the values in a .npy file, of `part` for each image.

    What the header says is compared with the length of the file before it is used; it is not
    evaluated, as numpy does.
    """
    with files.opened(found) as (plain, file):
        try:
            length, shape, dtype, fortran = npy.read_header(found.path, file)
        except (ValueError, TypeError):
            raise DataError(f"{found.path}: is not an array, or is damaged") from None
    shown = " x ".join(map(str, shape))
    if shape[1:] != part or dtype.str[1:] not in kinds or fortran:
        raise DataError(f"{found.path}: is not dSprites': {shown} values of type {dtype}")
    size = math.prod(shape) * dtype.itemsize
    if length + size != found.size or shape[0] > SPRITES_MOST:
        raise DataError(f"{found.path}: has {found.size:,} bytes for {shown} values")
    return plain._replace(offset=plain.offset + length, size=size), dtype, shape


CAMELYON_SPLITS = {"train": "train", "validation": "valid", "test": "test"}
CAMELYON = "camelyonpatch_level_2_split_{}_{}.h5"
CAMELYON_MOST = max(datasets.CAMELYON.images.values())


def find_camelyon(files: SourceFiles) -> Contents:
    """Finds the tissue patches and their tumor labels."""
    found = files.by_name(CAMELYON.format(s, k) for s in CAMELYON_SPLITS.values() for k in "xy")
    splits = {}
    for split, short in CAMELYON_SPLITS.items():
        pixels, labels = (CAMELYON.format(short, kind) for kind in "xy")
        if pixels not in found:
            continue
        with _hdf5(files, files.require(found, labels, f"{labels}.gz")) as file:
            label = _hdf5_array(file, "y", (1, 1, 1), WHOLE, CAMELYON_MOST)[()].reshape(-1)
            if not np.isin(label, (0, 1)).all():
                raise DataError(f"{labels}: has labels other than 0 and 1")
        with _hdf5(files, found[pixels]) as file:
            images = _hdf5_array(file, "x", (96, 96, 3), PIXELS, CAMELYON_MOST)
            if len(images) != len(label):
                raise DataError(f"{pixels}: has {len(images):,} images for {len(label):,} labels")
            first = spill_pixels(files, [found[pixels]], images, 96 * 96 * 3)
        name = f"{short}_{{}}"
        splits[split] = Rows(first, {"label": label}, name, named="id", by_name=True)
    return Contents(splits)


@contextlib.contextmanager
def _hdf5(files: SourceFiles, found: FileEntry) -> Iterator[Any]:
    """Opens an HDF5 file; raises DataError for one that is damaged, here or where it is read."""
    if importlib.util.find_spec("h5py") is None:
        raise DataError(f"{found.path}: reading HDF5 requires h5py: pip install 'vit_jax[prepare]'")
    import h5py  # pyright: ignore[reportMissingImports]

    try:
        with h5py.File(files.alone(found), "r") as file:
            yield file
    except (UserError, NeedsUnpackingError):
        raise
    except Exception as error:  # of h5py, for damages: eight kinds have been seen
        reason = str(error).partition("\n")[0][:200]
        raise DataError(
            f"{found.path}: is not a valid HDF5 file: {reason}; download it again"
        ) from None


def _hdf5_array(
    file: Any, name: str, part: tuple[int, ...], kinds: tuple[str, ...], most: int
) -> Any:
    """An array of an HDF5 file, unread: of up to `most` images, of the shape `part` each.

    Raises DataError where it is another one, or lies outside of the file.
    """
    import h5py  # pyright: ignore[reportMissingImports]

    array = file
    for step in name.split("/"):
        # An external link, a virtual array or external storage would read other files.
        if not isinstance(array.get(step, getlink=True), h5py.HardLink):
            raise DataError(f"{file.filename}: {name} is missing, or a link to elsewhere")
        array = array[step]
    if not isinstance(array, h5py.Dataset) or array.is_virtual or array.external:
        raise DataError(f"{name}: is not an array, or lies outside of the file")
    # An array without a shape is HDF5's null dataspace.
    fits = array.shape is not None and array.shape[1:] == part and array.shape[0] <= most
    if not fits or array.dtype.str[1:] not in kinds:
        raise DataError(f"{name}: has the shape {array.shape} and the type {array.dtype}")
    if array.chunks and math.prod(array.chunks) * array.dtype.itemsize > MOST_CHUNK:
        raise DataError(f"{name}: has parts of {array.chunks}, which take too much memory")
    return array


def _cifar_recipe(layout: CifarFiles, number: int) -> Recipe:
    binary, python = f"cifar-{number}-binary.tar.gz", f"cifar-{number}-python.tar.gz"
    return Recipe(
        dataset=layout.dataset,
        files=f"{binary} or {python} from www.cs.toronto.edu/~kriz/cifar.html",
        archives=tuple(f"cifar-{number}-{kind}*.tar*" for kind in ("binary", "python")),
        find=functools.partial(find_cifar, layout),
        encode=functools.partial(encode_pixels, (3, 32, 32), (1, 2, 0)),
        downloads=(binary,),
    )


RECIPES = (
    _cifar_recipe(CIFAR10, 10),
    _cifar_recipe(CIFAR100, 100),
    Recipe(
        dataset=datasets.SVHN,
        files="train_32x32.mat and test_32x32.mat from ufldl.stanford.edu/housenumbers",
        find=find_svhn,
        encode=functools.partial(encode_pixels, (3, 32, 32), (2, 1, 0)),
        downloads=tuple(SVHN_FILES.values()),
    ),
    Recipe(
        dataset=datasets.SMALLNORB,
        files="the six smallnorb-5x*.mat.gz from cs.nyu.edu/~ylclab/data/norb-v1.0-small",
        find=find_smallnorb,
        encode=encode_smallnorb,
        downloads=tuple(f"{n.format(k)}.gz" for n in NORB_FILES.values() for k in NORB_KINDS),
    ),
    Recipe(
        dataset=datasets.DSPRITES,
        files=f"{SPRITES}.npz (or .hdf5, which requires h5py) from "
        "github.com/google-deepmind/dsprites-dataset",
        archives=(f"{SPRITES}.npz",),
        unpacked=2**32,
        find=find_dsprites,
        encode=functools.partial(encode_pixels, (64, 64, 1), (0, 1, 2)),
        downloads=(f"{SPRITES}.hdf5",),
    ),
    Recipe(
        dataset=datasets.CAMELYON,
        files="the six camelyonpatch_level_2_split_*.h5.gz from zenodo.org/record/2546921 (they "
        "take h5py)",
        unpacked=2**34,
        find=find_camelyon,
        encode=functools.partial(encode_pixels, (96, 96, 3), (0, 1, 2)),
        downloads=tuple(
            f"{CAMELYON.format(s, k)}.gz" for s in CAMELYON_SPLITS.values() for k in "xy"
        ),
    ),
)
