"""Images to inspect a model with, after its own preprocessing."""

import dataclasses
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from vit_jax import config
from vit_jax.data import decoding, transforms
from vit_jax.inference import loading, prediction

SHARPEST = 256  # pixels of a photo's longer side, at most, unless the model sees more


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pictures:
    """Images by name.

    Attributes:
      names: one each.
      views: what the model sees, (B, H, W, C) uint8, before normalization.
      photos: the same for people, (B, kH, kW, C) uint8: up to SHARPEST pixels, of files with more
        than the model sees.
    """

    names: Sequence[str]
    views: np.ndarray
    photos: np.ndarray

    def first(self, count: int) -> "Pictures":
        """The first `count` images."""
        return Pictures(
            names=self.names[:count], views=self.views[:count], photos=self.photos[:count]
        )


def from_files(
    opened: loading.LoadedModel, paths: Sequence[pathlib.Path], count: int, seed: int = 0
) -> Pictures:
    """The images in files and folders, `count` of them by seed if there are more.

    Raises ConfigError.
    """
    for path in paths:
        if not path.exists():
            raise config.ConfigError(f"--images={path}: no such file or folder")
    return preprocessed(opened.config.data, prediction.files(paths, count, seed))


def from_split(opened: loading.LoadedModel, count: int, seed: int = 0) -> Pictures:
    """At most `count` images of the evaluation split, drawn by seed."""
    return preprocessed(opened.config.data, prediction.read_examples(opened, count, seed))


def preprocessed(data: config.Data, pictures: Iterable[tuple[str, Any, Any]]) -> Pictures:
    """Images, given by name with their bytes or pixels; raises ConfigError."""
    names, views, photos = [], [], []
    for name, picture, _ in pictures:
        try:
            pixels = load(picture, data)
        except decoding.BadImage as error:
            raise config.ConfigError(f"{name}: {error}") from error
        names.append(name)
        views.append(seen(pixels, data))
        photos.append(photo(pixels, data))
    most = max(len(one) for one in photos)
    alike = [one.repeat(most // len(one), 0).repeat(most // len(one), 1) for one in photos]
    return Pictures(names=names, views=np.stack(views), photos=np.stack(alike))


def load(picture: bytes | np.ndarray, data: config.Data) -> np.ndarray:
    """The pixels of an image, (H, W, C); raises BadImage."""
    return decoding.load(
        picture, channels=data.channels, max_pixels=data.max_pixels, depth=data.depth
    )


def seen(pixels: np.ndarray, data: config.Data) -> np.ndarray:
    """What the model sees of an image, (H, W, C) uint8."""
    for step in transforms.eval_transforms(data):
        pixels = step(pixels, np.random.default_rng(0))
    return pixels


def photo(pixels: np.ndarray, data: config.Data) -> np.ndarray:
    """The same part of an image in 1, 2, 4, ... times as many rows and columns."""
    height, width = data.image_size
    factor = 1
    while (
        2 * factor * max(height, width) <= SHARPEST
        and 2 * factor * height <= pixels.shape[0]
        and 2 * factor * width <= pixels.shape[1]
    ):
        factor *= 2
    larger = dataclasses.replace(
        data,
        image_size=(factor * height, factor * width),
        resize_to=None if data.crop_pct else factor * max(data.before_crop),
    )
    return seen(pixels, larger)
