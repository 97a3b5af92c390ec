"""Images to inspect a model with, as it sees them and as people do."""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from vit_jax import config
from vit_jax.data import decoding, transforms

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


def preprocess(
    data: config.Data, pictures: Iterable[tuple[str, bytes | np.ndarray, str | None]]
) -> Pictures:
    """Images, given by name with their bytes or pixels; raises ConfigError."""
    names, views, photos = [], [], []
    for name, picture, _ in pictures:
        try:
            view, photo = see(picture, data)
        except decoding.BadImage as error:
            raise config.ConfigError(f"{name}: {error}") from error
        names.append(name)
        views.append(view)
        photos.append(photo)
    most = max(len(one) for one in photos)
    # Sides differ by powers of two, so that pixels are repeated whole.
    alike = [one.repeat(most // len(one), 0).repeat(most // len(one), 1) for one in photos]
    return Pictures(names=names, views=np.stack(views), photos=np.stack(alike))


def see(picture: bytes | np.ndarray, data: config.Data) -> tuple[np.ndarray, np.ndarray]:
    """An image as the model sees it, (H, W, C) uint8, and as people do; raises BadImage.

    For people the same part of it has 1, 2, 4, ... times as many rows and columns.
    """
    pixels = decoding.load_view(picture, data)
    height, width = data.image_size
    factor = 1
    while (
        2 * factor * max(height, width) <= SHARPEST
        and 2 * factor * height <= pixels.shape[0]
        and 2 * factor * width <= pixels.shape[1]
    ):
        factor *= 2
    # What stands for a `resize_to`, a share, grows with the image size; one in pixels does not.
    larger = dataclasses.replace(
        data,
        image_size=(factor * height, factor * width),
        resize_to=data.resize_to and factor * data.resize_to,
    )
    return _transform(pixels, data), _transform(pixels, larger)


def _transform(pixels: np.ndarray, data: config.Data) -> np.ndarray:
    for step in transforms.eval_transforms(data):
        pixels = step(pixels, np.random.default_rng(0))  # evaluation draws nothing
    return pixels
