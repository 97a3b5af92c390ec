"""Decodes image files to correct pixels, or raises one clear error."""

import io
import os

import cv2
import numpy as np
from PIL import Image

from vit_jax import config
from vit_jax.data import image_headers, tiff
from vit_jax.data.source import BadImage
from vit_jax.utils import limits

# Many threads and processes decode images at once, so OpenCV's own thread pool would only add
# contention. Its log lines lack the file name, which callers of `decode_image` add to its errors.
cv2.setNumThreads(1)
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)


MOST_BYTES = 2**28  # of a file; 100 megapixels of 16 bits without compression are twice as much

# Limits for the cost of decoding. Encoders write about 10 scans, at most about 15 for the smallest
# files. A scan needs one bit per block for DC values, so a black JPEG has at most 512 pixels per
# byte, or 5,120 pixel visits per byte with 10 scans.
MOST_SCANS = 50
MOST_WORK = 10_000  # pixels x scans of a JPEG for each byte of its file
# Other formats have no such bound for a single color; this size takes at most a second.
CHEAP_PIXELS = 2**24
PNG_BITS = 24  # the byte of a PNG that tells its bits a sample
PNG_COLORS, GRAY_ALPHA = 25, 4  # the byte that tells its channels, and one of its values
# What Pillow raises for a damaged file.
PILLOW_ERRORS = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


def read_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file; raises OSError, or BadImage if it is too large or no file.

    A pipe of that name would otherwise block the reader forever.
    """
    try:
        return limits.read_file(path, MOST_BYTES)
    except limits.LimitError as error:
        raise BadImage(str(error)) from None


def check_bytes(size: int) -> None:
    """Raises BadImage for a file too large to read."""
    if size > MOST_BYTES:
        raise BadImage(f"has {size:,} bytes, more than {MOST_BYTES:,}")


def decode_image(encoded: bytes, *, channels: int, max_pixels: int, depth: int = 8) -> np.ndarray:
    """The pixels of a JPEG, PNG, WebP, GIF, BMP or TIFF file as `H W C`.

    They are uint8 for a `depth` of 8, of 16-bit samples the high byte; or uint16 for 16, 8-bit
    samples times 257, so that 255 becomes 65535.

    C is `channels`. For 1 or 3, gray or RGB, CMYK becomes RGB, palettes are looked up, gray is
    repeated, and alpha is dropped (the colors under it stay). For another number, the file must
    have so many, among which alpha counts, as the last (gray with alpha is RGBA too). An EXIF
    orientation is applied; of an animation or several pages the first counts, of an animated PNG
    the image that other programs show.

    Raises BadImage for anything but a complete image of at most `max_pixels`, checked in the header
    before allocating pixels, and for files that decode too slowly for their length: JPEGs with many
    scans, small files with many pixels. Damage that the format cannot detect (JPEG and WebP have no
    checksums) gives wrong pixels, not an error.

    JPEGs decode as in TensorFlow with `dct_method="INTEGER_ACCURATE"`, bit for bit on 60 photos.
    TensorFlow's default, the fast transform used to train the published models, differs by 1.2 gray
    levels on average and 22 at most.
    """
    if not encoded:
        raise BadImage("is empty")
    if encoded.startswith(tiff.MAGIC):
        return with_channels(_decode_tiff(encoded, channels, max_pixels), channels, depth)
    kind, size = image_headers.read_header(encoded)
    if kind is None:
        raise BadImage(
            f"is not a JPEG, PNG, WebP, GIF, BMP or TIFF: it starts with {encoded[:16]!r}"
        )
    if size is None:
        raise BadImage(f"is a truncated or damaged {kind}")
    height, width = size
    if height * width > max_pixels:
        raise BadImage(
            f"is a {kind} of {width} x {height} pixels, more than data.max_pixels={max_pixels}"
        )
    if not image_headers.is_complete(kind, encoded):
        raise BadImage(f"is a truncated or damaged {kind}")
    _check_work(kind, height, width, encoded)
    if kind == "GIF":  # OpenCV paints its transparent pixels black
        return with_channels(_decode_gif(encoded, channels, size), channels, depth)
    # Turned below, by one reader of EXIF: OpenCV's takes fewer of its forms than `size` and Pillow.
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    flags |= cv2.IMREAD_ANYDEPTH if depth == 16 else 0
    if kind == "PNG":  # OpenCV would pass over an image that is no frame
        encoded = image_headers.without_animation(encoded)
    if channels not in (1, 3):
        # The only flag that keeps alpha or two channels; it gives BGRA, and turns nothing either.
        flags = cv2.IMREAD_UNCHANGED
    try:
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), flags)
    except cv2.error:
        image = None
    if image is None:
        raise BadImage(f"is a truncated or damaged {kind}")
    if image.ndim == 3 and image.shape[2] == 4:
        image = cv2.cvtColor(image, cv2.COLOR_BGRA2RGBA)
        if channels == 2 and kind == "PNG" and encoded[PNG_COLORS] == GRAY_ALPHA:
            image = image[:, :, 2:]  # OpenCV repeats gray
    image = tiff.upright(image, image_headers.orientation(encoded))
    return with_channels(image, channels, depth)


def _decode_gif(encoded: bytes, channels: int, size: tuple[int, int]) -> np.ndarray:
    """The first frame, RGB; RGBA if its transparency is a channel."""
    try:
        with Image.open(io.BytesIO(encoded), formats=("GIF",)) as image:
            if image.size == size[::-1]:  # a frame may be larger than the header says
                clear = channels == 4 and "transparency" in image.info
                return np.asarray(image.convert("RGBA" if clear else "RGB"))
    except PILLOW_ERRORS:
        pass
    raise BadImage("is a truncated or damaged GIF")


def _decode_tiff(encoded: bytes, channels: int, max_pixels: int) -> np.ndarray:
    """The samples of a TIFF, without alpha if gray or RGB is asked for."""
    layout = tiff.parse_header(encoded)
    if layout.cost > max_pixels:
        raise BadImage(
            f"is a TIFF of {layout.width} x {layout.height} pixels, {layout.samples} channels, "
            f"more than data.max_pixels={max_pixels} for each 4 of them"
        )
    _check_work("TIFF", layout.height, layout.width * layout.samples, encoded)
    image = tiff.decode_tiff(encoded, layout)
    if layout.alpha and (channels, layout.samples) == (4, 2):
        return image[:, :, (0, 0, 0, 1)]
    return image[:, :, :-1] if layout.alpha and channels in (1, 3) else image


def has_16_bits(encoded: bytes) -> bool:
    """Whether the samples of an image that decodes have 16 bits; of BMP, JPEG and others, never."""
    if encoded.startswith(tiff.MAGIC):
        return tiff.parse_header(encoded).bits == 16
    return image_headers.read_header(encoded)[0] == "PNG" and encoded[PNG_BITS] == 16


def size(image: bytes | np.ndarray) -> tuple[int, int]:
    """The height and width of an example as `load_image` gives it, from the file's header.

    Raises BadImage for a file without one.
    """
    if not isinstance(image, bytes):
        return image.shape[0], image.shape[1]
    if image.startswith(tiff.MAGIC):
        return tiff.parse_header(image).size
    kind, found = image_headers.read_header(image)
    if found is None or min(found) < 1:
        raise BadImage(f"is a truncated or damaged {kind or 'file'}")
    height, width = found
    # Orientations 5 to 8 turn by 90 degrees.
    return (width, height) if image_headers.orientation(image) > 4 else (height, width)


def load_image(
    image: bytes | np.ndarray, *, channels: int, max_pixels: int, depth: int = 8
) -> np.ndarray:
    """The pixels of an example as a source gives it: by `decode_image` or `with_channels`."""
    if isinstance(image, bytes):
        return decode_image(image, channels=channels, max_pixels=max_pixels, depth=depth)
    return with_channels(image, channels, depth)


def load_view(image: bytes | np.ndarray, data: config.Data) -> np.ndarray:
    """The pixels of an example as the options of `data` have them."""
    return load_image(image, channels=data.channels, max_pixels=data.max_pixels, depth=data.depth)


def with_channels(image: np.ndarray, channels: int, depth: int = 8) -> np.ndarray:
    """Converts uint8 or uint16 pixels `H W` or `H W C` to `H W channels` of `depth` bits.

    Gray is repeated; RGB becomes gray by the weights of JPEG (0.299, 0.587, 0.114). Raises BadImage
    for another number of channels.
    """
    image = image.reshape(*image.shape[:2], -1)
    if depth == 8 and image.dtype == np.uint16:
        image = (image >> 8).astype(np.uint8)
    elif depth == 16 and image.dtype == np.uint8:
        # 257 = 65535 / 255, so white stays white.
        image = image.astype(np.uint16) * np.uint16(257)
    found = image.shape[2]
    if found == channels:
        return image
    if (found, channels) == (3, 1):
        return cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_RGB2GRAY)[:, :, None]
    if (found, channels) == (1, 3):
        return np.repeat(image, channels, axis=2)
    raise BadImage(f"has {found} channels, not data.channels={channels}")


def for_display(image: np.ndarray) -> np.ndarray:
    """Pixels `H W C` as people see them: uint8, of 1 or 3 channels.

    Of more channels the first three, of two the first. 16 bits are scaled so that the largest value
    is white: files often use a small part of the range.
    """
    if image.shape[2] not in (1, 3):
        image = image[:, :, : 3 if image.shape[2] > 3 else 1]
    if image.dtype != np.uint8:
        image = np.rint(image * (255 / max(1, int(image.max())))).astype(np.uint8)
    return image


def thumbnail(image: bytes | np.ndarray, side: int, data: config.Data) -> bytes:
    """An example as an 8-bit PNG, at most `side` pixels a side; raises like `load_view`."""
    pixels = for_display(load_view(image, data))
    shrink = side / max(pixels.shape[:2])
    if shrink < 1:
        height, width = (max(1, round(length * shrink)) for length in pixels.shape[:2])
        pixels = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
    return encode(pixels.reshape(*pixels.shape[:2], -1))


def encode(pixels: np.ndarray, suffix: str = ".png", *options: int) -> bytes:
    """Gray or RGB pixels `H W C` as a file of a format; `options` are OpenCV's."""
    return cv2.imencode(suffix, pixels[:, :, ::-1], options)[1].tobytes()  # it writes BGR


def without_border(image: np.ndarray, border: int) -> np.ndarray:
    """Pixels `H W C` without `border` rows and columns on every side.

    Raises BadImage if no pixels would remain.
    """
    height, width = image.shape[:2]
    if min(height, width) <= 2 * border:
        raise BadImage(f"has {width} x {height} pixels, all of them in its border of {border}")
    return np.ascontiguousarray(image[border : height - border, border : width - border])


def _check_work(kind: str, height: int, width: int, data: bytes) -> None:
    """Raises BadImage for an image that is too expensive to decode for its file size."""
    pixels, most = height * width, MOST_WORK * len(data)
    size = f"is a {kind} of {width} x {height} pixels in {len(data):,} bytes"
    if kind != "JPEG":
        if pixels > max(most, CHEAP_PIXELS):
            raise BadImage(f"{size}, more than {MOST_WORK:,} pixels a byte")
        return
    # A fast upper bound: thumbnails and bytes behind the end may contain the marker too.
    scans = data.count(image_headers.SCAN)
    if scans > MOST_SCANS or pixels * scans > most:
        scans = image_headers.jpeg_scans(data)
    if scans > MOST_SCANS:
        raise BadImage(f"is a JPEG of {scans:,} scans, more than {MOST_SCANS}")
    if pixels * scans > most:
        raise BadImage(f"{size} and {scans} scans, more than {MOST_WORK:,} pixels a byte")
