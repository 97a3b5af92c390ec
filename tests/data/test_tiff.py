"""TIFF files of every form give the samples that were stored, or one clear error."""

import io
import itertools
import pathlib
import tracemalloc

import cv2
import numpy as np
import PIL.Image
import pytest

import tiffs
from commands import error_line
from vit_jax.data import decoding, tiff


def samples(channels=13, kind=np.uint16, shape=(37, 53)):
    rng = np.random.default_rng(channels)
    smooth = cv2.resize(rng.random((5, 6, channels), np.float32), shape[::-1]).reshape(*shape, -1)
    noise = rng.integers(0, 50, smooth.shape)
    return (smooth * (np.iinfo(kind).max - 50)).astype(kind) + noise.astype(kind)


def decode(data, channels, depth=16, max_pixels=10**6):
    return decoding.decode_image(data, channels=channels, depth=depth, max_pixels=max_pixels)


FORMS = list(itertools.product(
    "<>", tiffs.COMPRESSIONS, (1, 2), (False, True), ({}, {"rows": 7}, {"tile": (16, 32)})
))  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [1, 3, 13])
def test_every_form_gives_what_was_stored(channels, kind):
    pixels = samples(channels, kind)
    for order, compression, predictor, planar, blocks in FORMS:
        data = tiffs.tiff(
            pixels, order=order, compression=compression, predictor=predictor, planar=planar,
            photometric=2 if channels == 3 else 1, **blocks,
        )  # fmt: skip
        found = decode(data, channels, depth=8 * kind().itemsize)
        assert found.dtype == kind
        np.testing.assert_array_equal(found, pixels, str((order, compression, predictor, planar)))


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [1, 3])
def test_files_of_opencv_and_pillow(channels, kind):
    pixels = samples(channels, kind)
    mine = {"cv2": cv2.imencode(".tiff", pixels[:, :, ::-1])[1].tobytes()}
    if kind == np.uint8 or channels == 1:
        for name in ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits"):
            stream, page = io.BytesIO(), PIL.Image.fromarray(pixels.squeeze())
            other = PIL.Image.new(page.mode, (9, 9))  # the first page counts
            page.save(stream, "TIFF", compression=name, save_all=True, append_images=[other])
            mine[name] = stream.getvalue()
    for name, data in mine.items():
        np.testing.assert_array_equal(
            decode(data, channels, depth=8 * kind().itemsize), pixels, name
        )


FOREIGN = np.load(pathlib.Path(__file__).parents[1] / "fixtures/data/tifffile.npz")


@pytest.mark.parametrize("name", FOREIGN.files)
def test_files_of_tifffile_and_in_imagejs_layouts(name):
    """Strips of a row, tiles, planes, stacks, big-endian: fixtures/data/make_tifffile.py."""
    y, x, c = np.mgrid[:24, :36, :3]
    rgb = ((7 * y + 3 * x + 50 * c + (x * y) % 11) % 256).astype(np.uint8)
    gray = rgb[:, :, :1].astype(np.uint16) * 257
    expected = gray if "gray" in name else rgb
    found = decode(FOREIGN[name].tobytes(), expected.shape[2], depth=8 * expected.itemsize)
    np.testing.assert_array_equal(found, expected)


def test_orientations_are_pillows():
    pixels = samples(3, np.uint8)
    for number in range(1, 9):
        turned = PIL.Image.fromarray(pixels)
        turned.getexif()[0x0112] = number
        expected = np.asarray(PIL.ImageOps.exif_transpose(turned))
        data = tiffs.tiff(pixels, photometric=2, orientation=number)
        np.testing.assert_array_equal(decode(data, 3, depth=8), expected)
        assert tiff.parse_header(data).size == expected.shape[:2]


def test_photometric_interpretations():
    pixels = samples(1, np.uint8)
    inverted = decode(tiffs.tiff(pixels, photometric=0), 1, depth=8)
    np.testing.assert_array_equal(inverted, 255 - pixels)
    deep = samples(1)
    np.testing.assert_array_equal(decode(tiffs.tiff(deep, photometric=0), 1), 65535 - deep)
    colors = np.random.default_rng(0).integers(0, 2**8, (3, 256))
    for written in (colors, colors << 8, colors * 257):  # by different writers
        data = tiffs.tiff(pixels, photometric=3, colors=written.ravel().tolist())
        np.testing.assert_array_equal(decode(data, 3), 257 * colors.T[pixels[:, :, 0]])
        np.testing.assert_array_equal(decode(data, 3, depth=8), colors.T[pixels[:, :, 0]])


def test_alpha_is_dropped_of_gray_and_rgb_and_near_infrared_is_not():
    four, two = samples(4), samples(2)
    np.testing.assert_array_equal(
        decode(tiffs.tiff(four, photometric=2, extra=2), 3), four[..., :3]
    )
    np.testing.assert_array_equal(decode(tiffs.tiff(two, extra=1), 1), two[..., :1])
    np.testing.assert_array_equal(decode(tiffs.tiff(four, photometric=2, extra=2), 4), four)
    with pytest.raises(decoding.BadImage, match=r"^has 4 channels, not data.channels=3$"):
        decode(tiffs.tiff(four, photometric=2, extra=0), 3)
    for extra, alpha in (([0, 2], True), ([2, 0], False), ([0, 1], True), ([0, 0], False)):
        assert tiff.parse_header(tiffs.tiff(samples(5), extra=extra)).alpha is alpha


def test_a_file_that_says_no_rows_of_strips_has_one():
    data = tiffs.tiff(samples(3), photometric=2)
    at = data.index(b"\x16\x01\x03\0\x01\0\0\0")  # 278
    data = data[:at] + b"\x17\x02" + data[at + 2 :]  # a tag of no meaning
    np.testing.assert_array_equal(decode(data, 3), samples(3))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (tiffs.tiff(samples(1), tag_258=32), "is a TIFF of whole numbers of 32 bits; save it with"),
        (tiffs.tiff(samples(1), tag_339=3), "is a TIFF of floating-point numbers of 16 bits; save"),
        (tiffs.tiff(samples(1), tag_258=[8, 16]), "is a TIFF of whole numbers of 8 and 16 bits"),
        (tiffs.tiff(samples(1), tag_259=7), "is a TIFF of compression 7, which is not read"),
        (tiffs.tiff(samples(4), tag_262=5), "is a TIFF of photometric interpretation 5, which"),
        (tiffs.tiff(samples(1), tag_317=3), "is a TIFF of predictor 3, which is not read"),
        (tiffs.tiff(samples(1), tag_266=2), "is a TIFF of fill order 2, which is not read"),
        (tiffs.tiff(samples(1), tag_257=99), "is a truncated or damaged TIFF"),
        (tiffs.tiff(samples(1), tag_273=[10**9]), "is a truncated or damaged TIFF"),
        (tiffs.tiff(samples(1), tag_277=65), "is a truncated or damaged TIFF"),
        (tiffs.tiff(samples(1), tag_278=0), "is a truncated or damaged TIFF"),
        (tiffs.tiff(samples(1), tag_256=10**6), "is a TIFF of 1000000 x 37 pixels, 1 ch"),
        (tiffs.tiff(samples(1), photometric=3), "is a truncated or damaged TIFF"),
        (tiffs.tiff(samples(1), photometric=3, colors=[1, 2, 3]), "is a truncated or damaged TIFF"),
        (tiffs.tiff(samples(13))[:-9], "is a truncated or damaged TIFF"),
        (tiffs.tiff(samples(1), tile=(16, 2**17 - 16)), "is a truncated or damaged TIFF"),
        (b"II*\0", "is a truncated or damaged TIFF"),
        (b"MM\0*\0\0\0\x08\0\1", "is a truncated or damaged TIFF"),
        (b"II+\0\x08\0\0\0", "is not a JPEG, PNG, WebP, GIF, BMP or TIFF: it starts with"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_named(data, reason):
    assert error_line(decoding.BadImage, decode, data, 1).startswith(reason)


@pytest.mark.parametrize("compression", tiffs.COMPRESSIONS)
def test_a_truncated_block_is_an_error(compression, capfd):
    for form in ({}, {"rows": 7}, {"tile": (16, 32)}):
        data = tiffs.tiff(samples(6), compression=compression, **form)
        sizes = tiff.parse_header(data).sizes
        cut = tiffs.tiff(
            samples(6), compression=compression, **form,
            **{f"tag_{325 if 'tile' in form else 279}": (sizes - 9).tolist()},
        )  # fmt: skip
        with pytest.raises(decoding.BadImage, match="is a truncated or damaged TIFF"):
            decode(cut, 6)


def test_many_channels_cost_pixels():
    data = tiffs.tiff(samples(13))
    decode(data, 13, max_pixels=37 * 53 * 4)
    with pytest.raises(decoding.BadImage, match=r"53 x 37 pixels, 13 channels, more than data.max"):
        decode(data, 13, max_pixels=37 * 53 * 4 - 1)


@pytest.mark.parametrize("compression", tiffs.COMPRESSIONS)
def test_blocks_may_name_the_same_bytes_and_more_than_they_take(compression):
    """As all name the whole file, what one gets of it is bounded by its samples."""
    row = samples(1, np.uint8)[:1]
    one = tiffs.packed(row, compression)
    data = tiffs.tiff(
        np.repeat(row, 5, 0), compression=compression, rows=1, tag_273=[8] * 5,
        tag_279=[2**32 - 1] * 5,
    ) + bytes(2**20)  # fmt: skip
    assert data[8 : 8 + len(one)] == one
    tracemalloc.start()
    try:
        np.testing.assert_array_equal(decode(data, 1, depth=8), np.repeat(row, 5, 0))
        assert tracemalloc.get_traced_memory()[1] < 2**19
    finally:
        tracemalloc.stop()


def test_a_small_file_cannot_ask_for_many_pixels():
    """Every strip at the same place: 256 megapixels in a file of 70 kB."""
    pixels = np.zeros((2048, 2**17, 1), np.uint8)
    one = tiffs.packed(pixels[:1], "deflate")
    tags = {
        256: 2**17, 257: 2048, 258: 8, 259: 8, 262: 1, 277: 1, 278: 1,
        273: [8] * 2048, 279: [len(one)] * 2048,
    }  # fmt: skip
    data = tiffs.header(one, tags)
    with pytest.raises(decoding.BadImage, match="10,000 pixels a byte"):
        decode(data, 1, max_pixels=10**9)
