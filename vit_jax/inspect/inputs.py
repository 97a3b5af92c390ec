"""Images to inspect a model with, after its own preprocessing."""

import dataclasses
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from vit_jax import config, loading, prediction
from vit_jax.data import decoding, transforms


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pictures:
    """Images by name: `views` (B, H, W, C) uint8 are preprocessed except for normalization."""

    names: Sequence[str]
    views: np.ndarray

    def first(self, count: int) -> "Pictures":
        """Returns the first `count` images."""
        return Pictures(names=self.names[:count], views=self.views[:count])


def from_files(
    opened: loading.LoadedModel, paths: Sequence[pathlib.Path], count: int, seed: int = 0
) -> Pictures:
    """Returns the images in files and folders, `count` of them by seed if there are more.

    Raises ConfigError.
    """
    for path in paths:
        if not path.exists():
            raise config.ConfigError(f"--images={path}: no such file or folder")
    return preprocessed(opened.config.data, prediction.files(paths, count, seed))


def from_split(opened: loading.LoadedModel, count: int, seed: int = 0) -> Pictures:
    """Returns at most `count` images of the evaluation split, drawn by seed."""
    return preprocessed(opened.config.data, prediction.read_examples(opened.config, count, seed))


def preprocessed(data: config.Data, pictures: Iterable[tuple[str, Any, Any]]) -> Pictures:
    """Returns images, given by name with their bytes or pixels; raises ConfigError."""
    steps, names, views = transforms.eval_transforms(data), [], []
    for name, picture, _ in pictures:
        try:
            view = decoding.load(picture, channels=data.channels, max_pixels=data.max_pixels)
        except decoding.BadImage as error:
            raise config.ConfigError(f"{name}: {error}") from error
        for step in steps:
            view = step(view, np.random.default_rng(0))
        names.append(name)
        views.append(view)
    return Pictures(names=names, views=np.stack(views))
