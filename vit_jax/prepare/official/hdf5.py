"""dSprites and PatchCamelyon from HDF5 files; dSprites from a numpy archive, too."""

import functools
import importlib.util
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from vit_jax.data import datasets
from vit_jax.data.source import DataError
from vit_jax.prepare.image_listing import Found
from vit_jax.prepare.official import encoded_images
from vit_jax.prepare.official.archives import Archives
from vit_jax.prepare.official.recipe import Contents, Recipe
from vit_jax.prepare.official.rows import Rows, blocks, by_name, named

SPRITES = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64"
SPRITES_LABELS = ("shape", "scale", "orientation", "x_position", "y_position")
CAMELYON_FILES = {"train": "train", "validation": "valid", "test": "test"}
CAMELYON = "camelyonpatch_level_2_split_{}_{}.h5"


def look_for_dsprites(archives: Archives) -> Contents:
    """Finds the shapes: in the authors' .npz, or in their HDF5 file."""
    wanted = {f"{SPRITES}.hdf5"} | {
        f"{SPRITES}.npz/{name}.npy" for name in ("imgs", "latents_classes", "latents_values")
    }
    files = {
        path[path.index(SPRITES) :]: found
        for path, found in archives.table(
            lambda path: path.partition("?")[0].endswith(tuple(wanted))
        ).items()
    }
    if f"{SPRITES}.npz/imgs.npy" in files:
        imgs = files[f"{SPRITES}.npz/imgs.npy"]
        path, start = archives.plain(imgs)
        shape, start = _npy_header(path, start)
        classes, values = (
            np.load(io.BytesIO(archives.read(files[f"{SPRITES}.npz/{name}.npy"])))
            for name in ("latents_classes", "latents_values")
            if f"{SPRITES}.npz/{name}.npy" in files
        )
    elif f"{SPRITES}.hdf5" in files:
        found = files[f"{SPRITES}.hdf5"]
        with _hdf5(archives, found) as file:
            shape, start = file["imgs"].shape, 0
            classes, values = file["latents"]["classes"][()], file["latents"]["values"][()]
            path = archives.spill(named(found), functools.partial(blocks, file["imgs"]))
    else:
        return Contents({})
    if shape[1:] != (64, 64) or not classes.shape == values.shape == (shape[0], 6):
        raise DataError(f"{archives.named}: is not dSprites: {shape} images")
    columns = [*classes.astype(np.int64).T[1:], *values.astype(np.float32).T[1:]]
    return Contents({"train": Rows(str(path), start, 64 * 64, columns, "{:06d}".format)})


def look_for_camelyon(archives: Archives) -> Contents:
    """Finds the tissue patches and their tumor labels."""
    names = {CAMELYON.format(split, kind) for split in CAMELYON_FILES.values() for kind in "xy"}
    files = by_name(archives, names)
    splits = {}
    for split, short in CAMELYON_FILES.items():
        pixels, labels = (CAMELYON.format(short, kind) for kind in "xy")
        if pixels not in files:
            continue
        if labels not in files:
            raise DataError(f"{archives.named}: lacks {labels}.gz")
        with _hdf5(archives, files[labels]) as file:
            label = np.asarray(file["y"][()]).reshape(-1).astype(np.int64)
        with _hdf5(archives, files[pixels]) as file:
            if file["x"].shape != (len(label), 96, 96, 3) or file["x"].dtype != np.uint8:
                raise DataError(f"{pixels}: has {file['x'].shape} pixels for {len(label)} labels")
            path = archives.spill(named(files[pixels]), functools.partial(blocks, file["x"]))
        name = f"{short}_{{}}".format
        splits[split] = Rows(str(path), 0, 96 * 96 * 3, [label], name, name)
    return Contents(splits)


def encode_dsprites(data: Sequence[bytes], values: tuple[Any, ...]) -> dict[str, Any]:
    """Makes an example."""
    pixels = np.frombuffer(data[0], np.uint8).reshape(64, 64, 1)
    names = [f"{kind}_{name}" for kind in ("label", "value") for name in SPRITES_LABELS]
    return {"image": encoded_images.as_png(pixels)} | dict(zip(names, values[1:], strict=True))


def encode_camelyon(data: Sequence[bytes], values: tuple[Any, ...]) -> dict[str, Any]:
    """Makes an example."""
    name, label = values
    pixels = np.frombuffer(data[0], np.uint8).reshape(96, 96, 3)
    return {"image": encoded_images.as_png(pixels), "label": label, "id": name}


def _npy_header(path: Any, start: int) -> tuple[tuple[int, ...], int]:
    """Returns the shape of a .npy of bytes and the offset of the values."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0
            shape, fortran, kind = (
                read if version == (1, 0) else np.lib.format.read_array_header_2_0
            )(file)
            if fortran or kind != np.uint8:
                raise ValueError(f"{kind} values")
            return shape, file.tell()
    except ValueError as error:
        raise DataError(f"{SPRITES}.npz: imgs is not an array of bytes: {error}") from None


def _hdf5(archives: Archives, found: Found) -> Any:
    """Returns an open HDF5 file."""
    if importlib.util.find_spec("h5py") is None:
        raise DataError(f"{found.path}: reading HDF5 requires h5py: pip install 'vit_jax[prepare]'")
    import h5py  # pyright: ignore[reportMissingImports]

    path, _ = archives.plain(found)
    try:
        return h5py.File(path, "r")
    except OSError as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{found.path}: is not a valid HDF5 file: {reason}") from None


RECIPES = (
    Recipe(
        dataset=datasets.DSPRITES.tfds,
        files=f"{SPRITES}.npz (or .hdf5, which requires h5py) from "
        "github.com/google-deepmind/dsprites-dataset",
        splits=datasets.DSPRITES.images,
        archives=(f"{SPRITES}.npz",),
        unpacked=2**32,
        look=look_for_dsprites,
        encode=encode_dsprites,
        downloads=(f"{SPRITES}.hdf5",),
    ),
    Recipe(
        dataset=datasets.CAMELYON.tfds,
        files="the six camelyonpatch_level_2_split_*.h5.gz from zenodo.org/record/2546921 (they "
        "take h5py)",
        splits=datasets.CAMELYON.images,
        archives=("camelyonpatch_level_2_split_*.h5.gz",),
        unpacked=2**34,
        look=look_for_camelyon,
        encode=encode_camelyon,
        downloads=tuple(
            f"{CAMELYON.format(split, kind)}.gz"
            for split in CAMELYON_FILES.values()
            for kind in "xy"
        ),
    ),
)
