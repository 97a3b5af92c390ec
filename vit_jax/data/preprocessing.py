"""Turns an image from a source into a row of a batch: decoding and transforms together.

If training starts with an Inception crop, the rectangle is drawn from the size in the header, and
only that rectangle is decoded if `partial_jpeg` supports it; `data.partial_decoding=False` turns
that off. Random draws and pixels are the same either way.
"""

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np

from vit_jax import config
from vit_jax.data import decoding, partial_jpeg
from vit_jax.data.transforms import InceptionCrop, Transform


class Randomness:
    """Random numbers for preprocessing: a Philox stream for each (seed, epoch, index).

    One generator moves between streams, which is ten times faster than creating new ones.
    """

    def __init__(self, seed: int) -> None:
        self._bits = np.random.Philox(key=0)
        self._start: Any = self._bits.state
        self._seed = seed
        self._generator = np.random.Generator(self._bits)

    def at(self, epoch: int, index: int) -> np.random.Generator:
        """Returns the generator at the start of the stream (seed x 2^32 + epoch, index)."""
        key = self._start["state"]["key"]
        key[0], key[1] = self._seed << 32 | epoch, index
        self._bits.state = self._start
        return self._generator


class Views:
    """Preprocesses images one after another; not thread-safe, because it reuses memory."""

    def __init__(self, transforms: Sequence[Transform], data: config.Data, seed: int) -> None:
        self._transforms, self._data = tuple(transforms), data
        first = self._transforms[0] if self._transforms else None
        partial = data.partial_decoding and isinstance(first, InceptionCrop)
        self._crop = first if partial else None
        self._randomness = Randomness(seed)
        self._scratch = np.empty(0, np.uint8)
        self._small = np.empty((*data.image_size, data.channels), data.pixel_type)

    def __call__(self, image: bytes | np.ndarray, epoch: int, index: int, row: np.ndarray) -> None:
        """Writes an image, preprocessed with the stream (epoch, index), into `row` `H W C`.

        Raises `decoding.BadImage` before anything is written.
        """
        data, steps = self._data, self._transforms
        rng = self._randomness.at(epoch, index)
        part = self._rectangle(image, rng)
        if part is not None:
            assert self._crop is not None
            steps = steps[1:]
            pixels = self._crop.stretch(part, self._small if steps else row)
        else:
            rng = self._randomness.at(epoch, index)
            pixels = decoding.load(
                image, channels=data.channels, max_pixels=data.max_pixels, depth=data.depth
            )
        for step in steps:
            pixels = step(pixels, rng)
        if pixels.strides[1] < 0:  # mirrored; much faster than NumPy
            cv2.flip(pixels[:, ::-1], 1, dst=row)
        elif not np.may_share_memory(pixels, row):  # else it was made there
            row[:] = pixels

    def _rectangle(self, image: bytes | np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
        """Returns the Inception crop of an image, decoding nothing else."""
        if self._crop is None or not isinstance(image, bytes):
            return None
        size = partial_jpeg.size(image)
        if size is None or size[0] * size[1] > self._data.max_pixels:
            return None
        rectangle = self._crop.rectangle(*size, rng)
        needed = partial_jpeg.buffer_size(rectangle)
        if self._scratch.size < needed:
            self._scratch = np.empty(needed, np.uint8)
        part = partial_jpeg.decode(image, rectangle, self._scratch)
        if part is None:
            return None
        return decoding.with_channels(part, self._data.channels, self._data.depth)
