"""Images with a mask of classes for their pixels, in three layouts of folders.

- `ROOT/SPLIT/images/NAME.jpg` and `ROOT/SPLIT/masks/NAME.png`, with other suffixes too.
- Pascal VOC: `ROOT/JPEGImages`, `ROOT/SegmentationClass`, and the names in
  `ROOT/ImageSets/Segmentation/SPLIT.txt`.
- ADE20K as in its scene parsing challenge: `ROOT/images/SPLIT` and `ROOT/annotations/SPLIT`, where
  0 is no class.

A mask is a PNG of indices or of gray levels, at most 8 bits; 255 is no class.
"""

import io
import pathlib
import warnings
from typing import NamedTuple

import numpy as np
from PIL import Image

from vit_jax.config import ConfigError
from vit_jax.data import decoding, image_headers, tiff
from vit_jax.utils import limits, storage

NO_CLASS = 255
IMAGES = {".jpg", ".jpeg", ".png", ".webp"}
# Pillow multiplies gray levels of 2 and 4 bits by these, so that the largest becomes 255.
STRETCHED = {2: 85, 4: 17}


class LabeledImage(NamedTuple):
    """The files of an image, and the number in its mask that is class 0."""

    image: pathlib.Path
    mask: pathlib.Path
    offset: int


def find_images(root: pathlib.Path, split: str) -> list[LabeledImage]:
    """The images of a split in order of their names.

    Raises ConfigError if there are none, or an image without a mask.
    """
    if (root / "ImageSets" / "Segmentation").is_dir():
        found = _voc(root, split)
    elif (root / "annotations").is_dir():
        found = _beside(root / "images" / split, root / "annotations" / split, offset=1)
    else:
        found = _beside(root / split / "images", root / split / "masks", offset=0)
    for one in found:
        for path in (one.image, one.mask):
            with storage.errors_as(ConfigError, f"--data={root}"):
                there = path.is_file()
            if not there:
                raise ConfigError(f"--data={root}: {path.relative_to(root)} is missing")
    return found


def _voc(root: pathlib.Path, split: str) -> list[LabeledImage]:
    names = root / "ImageSets" / "Segmentation" / f"{split}.txt"
    if not names.is_file():
        there = ", ".join(sorted(path.stem for path in names.parent.glob("*.txt")))
        raise ConfigError(f"--data={root}: has no split {split}; there are {there or 'none'}")
    try:
        listed = limits.read_file(names, limits.TABLE).decode("utf-8")
    except (OSError, limits.LimitError, UnicodeDecodeError) as error:
        raise ConfigError(f"{names}: is not a list of names: {error}") from None
    return [
        LabeledImage(
            root / "JPEGImages" / f"{name}.jpg", root / "SegmentationClass" / f"{name}.png", 0
        )
        for name in map(pathlib.PurePath, listed.split())
        if name.name == str(name)  # never a path
    ]


def _beside(images: pathlib.Path, masks: pathlib.Path, *, offset: int) -> list[LabeledImage]:
    files = sorted(path for path in images.glob("*") if path.suffix.lower() in IMAGES)
    if not files:
        raise ConfigError(f"{images}: holds no images; see `vit_jax segment --help` for layouts")
    return [LabeledImage(path, masks / f"{path.stem}.png", offset) for path in files]


def read_mask(one: LabeledImage, *, max_pixels: int) -> np.ndarray:
    """The class of every pixel, (H, W) uint8, NO_CLASS where there is none.

    Raises ConfigError for a file that is no such mask.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images, which are refused below
            encoded = decoding.read_file(one.mask)
            opened = Image.open(io.BytesIO(encoded), formats=("PNG",))
        # P: the index itself is the class, whatever its color.
        if opened.mode not in ("P", "L", "1"):
            raise ConfigError(
                f"{one.mask}: is a PNG of mode {opened.mode}; a mask has one 8-bit class per pixel"
            )
        if opened.width * opened.height > max_pixels:
            raise ConfigError(
                f"{one.mask}: has {opened.width} x {opened.height} pixels, more than "
                f"data.max_pixels={max_pixels}"
            )
        values = np.asarray(opened)
        if opened.mode == "L":
            # Byte 24 of a PNG is its bit depth.
            values = values // STRETCHED.get(encoded[24], 1)
    # Pillow raises SyntaxError for a broken chunk.
    except (
        decoding.BadImage, OSError, SyntaxError, ValueError, Image.DecompressionBombError,
    ) as error:  # fmt: skip
        raise ConfigError(f"{one.mask}: is not a readable PNG ({error})") from error
    # As its image is; Pillow leaves that to whoever reads it.
    values = tiff.upright(values.astype(np.uint8), image_headers.orientation(encoded))
    if not one.offset:
        return values
    outside = (values < one.offset) | (values == NO_CLASS)
    return np.where(outside, NO_CLASS, values - one.offset).astype(np.uint8)
