"""Reads every image of a listing once: facts of its file, its fingerprint and its features."""

import dataclasses
import io
import pathlib
from concurrent import futures
from typing import NamedTuple

import numpy as np
from PIL import Image

from vit_jax.data import decoding, image_inputs, tiff
from vit_jax.data.prepare import dedup
from vit_jax.inference import loaded_model
from vit_jax.inference.doctor.listing import Listing
from vit_jax.runtime.progress import Bar

CHUNK = 256  # images whose views are in memory, twice
THREADS = 4  # which decode at most 4 x `data.max_pixels` at a time
# How Pillow calls pixels, in words; its header reader opens no other formats than these.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
MODES = {
    "1": "black and white", "L": "gray", "P": "palette", "LA": "gray with alpha",
    "RGBA": "RGB with alpha", "PA": "palette with alpha", "I;16": "gray, 16 bits",
}  # fmt: skip
MOST_PIXELS = Image.MAX_IMAGE_PIXELS or 0  # Pillow warns above


@dataclasses.dataclass(frozen=True, kw_only=True)
class Images:
    """Facts about N images: about 600 bytes and D features each.

    Attributes:
      errors: why images cannot be used, by index; of these nothing else is known.
      prints: (N,) records of `dedup.RECORD`.
      features: (N, D) float32, rows of length 1, or 0.
      sizes: (N, 2) int64, height and width.
      modes: how pixels are stored, such as `RGB`, (N); empty: not known.
    """

    errors: dict[int, str]
    prints: np.ndarray
    features: np.ndarray
    sizes: np.ndarray
    modes: list[str]

    @property
    def readable(self) -> np.ndarray:
        """(N,) bool."""
        return ~np.isin(np.arange(len(self.modes)), list(self.errors))


class _Image(NamedTuple):
    view: np.ndarray
    print: dedup.Print
    size: tuple[int, int]
    mode: str


def read_images(listing: Listing, model: loaded_model.LoadedModel) -> Images:
    """Reads, decodes and embeds all images; unreadable ones are recorded with the reason."""
    count = len(listing.paths)
    width = loaded_model.feature_shape(model.model, "pre_logits")[0]
    found = Images(
        errors={},
        prints=np.zeros(count, dedup.RECORD),
        features=np.zeros((count, width), np.float32),
        sizes=np.zeros((count, 2), np.int64),
        modes=[""] * count,
    )

    def one(number: int) -> _Image | str:
        return _read_image(listing.root / listing.paths[number], model)

    def keep(numbers: range, images: list[_Image | str]) -> None:
        views, places = [], []
        for number, image in zip(numbers, images, strict=True):
            if isinstance(image, str):
                found.errors[number] = image
                continue
            exact, bits, gray = image.print
            found.prints[number] = (exact, bits or 0, bits is not None, gray)
            found.sizes[number], found.modes[number] = image.size, image.mode
            views.append(image.view)
            places.append(number)
        if views:
            rows = model.features(views, "pre_logits")
            loaded_model.check_finite(rows)
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
            # A row of zeros stays one.
            found.features[places] = rows / np.maximum(lengths, np.finfo(np.float32).tiny)

    with Bar("reading images", count) as progress, futures.ThreadPoolExecutor(THREADS) as pool:
        waiting: tuple[range, list[futures.Future[_Image | str]]] | None = None
        # Threads decode a chunk while the one before is embedded; the last turn only empties the
        # pipe.
        for start in range(0, count + CHUNK, CHUNK):
            numbers = range(start, min(start + CHUNK, count))
            ahead = numbers, [pool.submit(one, number) for number in numbers]
            if waiting is not None:
                keep(waiting[0], [image.result() for image in waiting[1]])
                progress.update(waiting[0].stop)
            waiting = ahead
    return found


def _read_image(path: pathlib.Path, model: loaded_model.LoadedModel) -> _Image | str:
    """An image, or why it cannot be used."""
    data = model.config.data
    try:
        encoded = decoding.read_file(path)
        pixels = decoding.load_view(encoded, data)
        view = model.view(pixels)
    except (OSError, decoding.BadImage) as error:
        # Without the path that an OSError repeats.
        return str(getattr(error, "strerror", None) or error)
    # Of 16 bits the high byte: every image on the same scale.
    plain = decoding.for_display((pixels >> 8).astype(np.uint8) if data.depth == 16 else pixels)
    size = (pixels.shape[0], pixels.shape[1])
    return _Image(view, dedup.fingerprint(plain), size, _mode(encoded, size))


def _mode(encoded: bytes, size: tuple[int, int]) -> str:
    """How the pixels of a file are stored, from its header; empty: not known."""
    if encoded.startswith(tiff.MAGIC):
        header = tiff.parse_header(encoded)
        return f"TIFF of {header.samples} channels, {header.bits} bits"
    if size[0] * size[1] > MOST_PIXELS:
        return ""
    try:
        with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
            return MODES.get(image.mode, image.mode)
    except image_inputs.DAMAGED:
        return ""
