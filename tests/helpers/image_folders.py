"""Folders of files that a test can tell apart, and sources that read them."""

import pathlib

import cv2
import numpy as np

from vit_jax import config
from vit_jax.data.sources import Source, open_source


def fill(root: pathlib.Path, *files: str) -> pathlib.Path:
    """Writes files whose content is their name."""
    for name in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return root


def draw(root: pathlib.Path, *files: str, size: tuple[int, int] = (40, 50)) -> pathlib.Path:
    """Writes pictures of random pixels."""
    rng = np.random.default_rng(0)
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(root / name), rng.integers(0, 256, (*size, 3), np.uint8))
    return root


def folder(root: pathlib.Path, split: str = "train", train: bool = True, **options) -> Source:
    """A split of a folder of images."""
    return open_source(config.Data(source="folder", root=str(root), **options), split, train=train)
