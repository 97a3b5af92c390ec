"""Arrays and Pillow images become what files of the same picture decode to."""

import io

import ml_dtypes
import numpy as np
import pytest
from PIL import Image

from vit_jax import config
from vit_jax.data import decoding, image_inputs
from vit_jax.utils.errors import AssumptionWarning

PHOTO = np.random.default_rng(0).integers(0, 256, (6, 9, 3), np.uint8)
PHOTO[0, 0] = 0, 255, 255
RGB = Image.fromarray(PHOTO)
ALPHA = Image.fromarray(np.dstack([PHOTO, PHOTO[:, :, :1]]))
DEEP = np.random.default_rng(1).integers(0, 65536, (6, 9)).astype(np.uint16)


def loaded(image, **options):
    data = config.Data(**options)
    ((_, found),) = image_inputs.read_images(image, data)
    return decoding.load_image(found, channels=data.channels, max_pixels=10**6, depth=data.depth)


def saved(image, kind="PNG", **more):
    stream = io.BytesIO()
    image.save(stream, kind, **more)
    return stream.getvalue()


def transparent():
    image = RGB.quantize(7)
    return Image.open(io.BytesIO(saved(image, transparency=2)))


def test_files_and_pillow_images_agree_on_alpha():
    gray, one = ALPHA.convert("LA"), {"exif": ALPHA.getexif()}
    one["exif"][0x0112] = 6
    files = {
        "RGB and alpha": (4, saved(ALPHA)),
        "transparent palette": (4, saved(transparent())),
        "transparent GIF": (3, saved(RGB.quantize(7), "GIF", transparency=2)),
        "GIF with a channel of alpha": (4, saved(RGB.quantize(7), "GIF", transparency=2)),
        "turned PNG": (4, saved(ALPHA, **one)),
        "turned WebP": (4, saved(ALPHA, "WEBP", lossless=True, exact=True, **one)),
        "gray and alpha": (2, saved(gray, **one)),
        "gray, alpha of 4": (4, saved(gray)),
        "TIFF of gray, alpha of 4": (4, saved(gray, "TIFF")),
    }
    for name, (channels, data) in files.items():
        image = Image.open(io.BytesIO(data))
        file = decoding.load_image(data, channels=channels, max_pixels=10**6)
        np.testing.assert_array_equal(loaded(image, channels=channels), file, err_msg=name)
        assert file.shape[:2] == decoding.size(data), name
    with pytest.raises(decoding.BadImage, match=r"has 3 channels, not data.channels=4"):
        loaded(RGB.convert("CMYK"), channels=4)


def test_a_gif_larger_than_its_header_says_is_damaged():
    data = bytearray(saved(RGB.quantize(7), "GIF"))
    data[6] -= 1
    with pytest.raises(decoding.BadImage, match=r"^is a truncated or damaged GIF$"):
        decoding.decode_image(bytes(data), channels=3, max_pixels=10**6)


def test_alpha_is_a_channel_or_dropped():
    gray = ALPHA.convert("LA")
    np.testing.assert_array_equal(loaded(gray, channels=2), np.asarray(gray))
    opaque = RGB.convert("RGBA").convert("RGBa")  # multiplied by alpha
    np.testing.assert_array_equal(loaded(opaque), PHOTO)


def test_lists_of_lists_are_numbered_and_pixels_counted():
    named = image_inputs.read_images([[RGB], [RGB, RGB]], config.Data(max_pixels=54))
    assert [name for name, _ in named] == ["images[0][0]", "images[1][0]", "images[1][1]"]
    with pytest.raises(decoding.BadImage, match=r"has 9 x 6 pixels, more than data.max_pixels=53"):
        loaded(RGB, max_pixels=53)


FRACTIONS = PHOTO / 255
WHOLE = PHOTO.astype(np.int64)


@pytest.mark.parametrize(
    "image",
    [
        FRACTIONS, FRACTIONS.astype(np.float32), WHOLE, WHOLE.astype(np.uint32),
        np.maximum(PHOTO - 0.3, 0),
        PHOTO.astype(np.float16), (PHOTO * np.uint16(257)).astype(">u2"), PHOTO.astype(float),
        PHOTO.astype(ml_dtypes.bfloat16),
    ],
    ids=lambda image: str(image.dtype),
)  # fmt: skip
def test_arrays_of_other_types_are_the_same_picture(image):
    np.testing.assert_array_equal(loaded(image), PHOTO)
    batch = list(image_inputs.read_images(np.stack([image, image]), config.Data()))
    assert [name for name, _ in batch] == ["images[0]", "images[1]"]
    ((_, alone),) = image_inputs.read_images(image, config.Data())
    assert alone.dtype.isnative


def test_numbers_of_8_bits_in_a_type_of_16_are_told():
    """A dark image of 16 bits has such numbers too, so they are not guessed."""
    with pytest.warns(AssumptionWarning, match="taken for 16 bits, nearly black; give 8 bits as"):
        assert loaded(PHOTO.astype(np.uint16)).max() == 0


def test_pillow_images_of_wide_numbers():
    gray = PHOTO[:, :, 0]
    for values in (gray / 255, gray.astype(np.float32)):
        image = Image.fromarray(values.astype(np.float32))
        assert image.mode == "F"
        np.testing.assert_array_equal(loaded(image, channels=1)[:, :, 0], gray)
    image = Image.fromarray(DEEP.astype(np.int32))
    assert image.mode == "I"
    np.testing.assert_array_equal(loaded(image, channels=1, depth=16)[:, :, 0], DEEP)
    np.testing.assert_array_equal(loaded(image, channels=1)[:, :, 0], DEEP >> 8)
    half = loaded(np.full((2, 2), 0.5), channels=1, depth=16)
    assert half.max() == half.min() == 32768
    np.testing.assert_array_equal(loaded(gray > 9, channels=1)[:, :, 0], 255 * (gray > 9))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (FRACTIONS - 0.5, "images: is float64 with values from -0.5 to 0.5; expected 0 to 255,"),
        (FRACTIONS * 300, "images: is float64 with values from 0 to 300"),
        (np.where(FRACTIONS > 0.5, np.nan, 0), "with values from nan to nan"),
        (WHOLE - 1, "images: is int64 with values from -1 to 254"),
        (WHOLE + 65535, "is int64 with values from"),
        (np.full((2, 2), "a"), r"images: is <U1 \(2, 2\); expected numbers"),
        (np.zeros((2, 2), complex), r"is complex128 \(2, 2\); expected numbers"),
        (np.zeros((0, 2)), r"images: is float64 \(0, 2\); expected \(H, W\)"),
        (Image.new("RGB", (0, 3)), "images: has no pixels: 0 x 3"),
        (Image.new("RGB", (2000, 2000)), "has 2000 x 2000 pixels, more than data.max_pixels=9999"),
        (Image.open(io.BytesIO(saved(RGB, "TIFF")[:-40])), "is a truncated or damaged image"),
        (7, "images: has type int; expected a path, a Pillow image, or an array"),
        (io.BytesIO(b"a\nb"), "images: has type BytesIO; expected a path"),
    ],
)  # fmt: skip
def test_what_is_no_picture_is_said(image, message):
    with pytest.raises(decoding.BadImage, match=message):
        list(image_inputs.read_images(image, config.Data(max_pixels=9999)))
