"""Every kind of file gives the right pixels or one clear error."""

import importlib.util
import io
import os
import resource
import struct

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest

import hostile
from commands import error_line
from vit_jax.data import decoding, image_headers, jpeg

Y, X = np.mgrid[0:40, 0:56]
PIXELS = np.stack([Y * 6, X * 4, (X + Y) * 2], axis=-1).astype(np.uint8)
PICTURE = PIL.Image.fromarray(PIXELS)


def encode(picture: PIL.Image.Image, kind: str, **options) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return stream.getvalue()


def decode(data: bytes, channels: int = 3, max_pixels: int = 10**6) -> np.ndarray:
    return decoding.decode_image(data, channels=channels, max_pixels=max_pixels)


JPEG = encode(PICTURE, "JPEG", quality=95)
PNG = encode(PICTURE, "PNG")
WEBP = encode(PICTURE, "WEBP", lossless=True)
WHOLE = {
    "JPEG": JPEG,
    "progressive": encode(PICTURE, "JPEG", quality=95, progressive=True),
    "PNG": PNG,
    "WebP": encode(PICTURE, "WEBP"),
    "lossless": WEBP,
    "extended": encode(PICTURE.convert("RGBA"), "WEBP", exif=PIL.Image.Exif()),
    "GIF": encode(PICTURE, "GIF"),
    "BMP": encode(PICTURE, "BMP"),
}


@pytest.mark.parametrize("data", [PNG, WEBP, WHOLE["BMP"]], ids=["PNG", "WebP", "BMP"])
def test_lossless_formats_give_the_very_pixels(data):
    image = decode(data)
    assert image.dtype == np.uint8
    np.testing.assert_array_equal(image, PIXELS)


def test_alpha_is_dropped_and_the_colors_under_it_stay():
    for kind, options in (("PNG", {}), ("WEBP", {"lossless": True, "exact": True})):
        picture = PICTURE.copy()
        picture.putalpha(PIL.Image.fromarray((X * 4).astype(np.uint8)))  # column 0 is clear
        np.testing.assert_array_equal(decode(encode(picture, kind, **options)), PIXELS)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("channels", [3, 4])
def test_an_animated_png_is_what_pillow_opens(channels, apart):
    """The first frame, or the image that stands apart from the frames."""
    pictures = [PICTURE.rotate(angle).convert("RGBA") for angle in (0, 90)]
    data = encode(
        pictures[0], "PNG", save_all=True, append_images=pictures[1:] * 2, default_image=apart
    )
    shown = np.asarray(PIL.Image.open(io.BytesIO(data)))[:, :, :channels]
    np.testing.assert_array_equal(shown, np.asarray(pictures[0])[:, :, :channels])
    np.testing.assert_array_equal(decode(data, channels), shown)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation):
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    for kind, plain in (("JPEG", JPEG), ("PNG", PNG)):
        options = {"quality": 95} if kind == "JPEG" else {}
        data = encode(PICTURE, kind, exif=exif, **options)
        turned = PIL.Image.fromarray(decode(plain))
        turned.getexif()[0x0112] = orientation
        np.testing.assert_array_equal(decode(data), PIL.ImageOps.exif_transpose(turned))
        assert image_headers.orientation(data) == orientation
        assert decoding.size(data) == decode(data).shape[:2]


def test_exif_that_opencv_does_not_read_turns_pixels_as_it_does_sizes():
    """In PNG with the prefix that JPEG has, and with another type of number."""
    picture, prefix = PIL.Image.new("RGB", (8, 4)), b"Exif\0\0"
    long = b"MM\0*\0\0\0\x08\0\x01" + struct.pack(">HHII", 274, 4, 1, 6) + bytes(4)
    for kind, exif in (("PNG", prefix * 2 + tiff_of(6) + bytes(4)), ("JPEG", prefix + long)):
        data = encode(picture, kind, exif=exif)
        for channels in (1, 3):
            assert decode(data, channels).shape[:2] == (8, 4)
        assert decoding.size(data) == (8, 4)
        shown = PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(data)))
        assert shown.size == (4, 8)
    bmp = encode(picture, "BMP")[:12] + b"EXIF" + bytes(4) + tiff_of(6)
    assert image_headers.orientation(bmp) == 1


def test_fill_bytes_before_a_segment_are_skipped():
    """Any number of 0xFF may stand before a marker (ITU-T T.81, B.1.1.2)."""
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    data = encode(PIL.Image.new("RGB", (8, 4)), "JPEG", exif=exif)
    at = data.index(b"\xff\xe1")
    for filled in (data, data[:at] + b"\xff" * 3 + data[at:]):
        assert image_headers.orientation(filled) == 6
        assert decoding.size(filled) == (8, 4)


def tiff_of(orientation: int) -> bytes:
    """Exif data, which are a TIFF with one field."""
    return b"MM\0*\0\0\0\x08\0\x01" + struct.pack(">HHIHH", 274, 3, 1, orientation, 0)


@pytest.mark.parametrize("start", [b"", b"Exif\0\0"])
def test_exif_data_behind_chunks_of_any_length(start):
    def chunk(name: bytes, body: bytes) -> bytes:
        return name + struct.pack("<I", len(body)) + body + bytes(len(body) % 2)

    for length in range(4):
        webp = chunk(b"VP8X", bytes(10)) + chunk(b"ALPH", bytes(length))
        webp = b"RIFF\0\0\0\0WEBP" + webp + chunk(b"EXIF", start + tiff_of(7))
        assert image_headers.orientation(webp) == 7
        png = struct.pack(">I", length) + b"tEXt" + bytes(length + 4)
        png = PNG[:8] + png + bytes(4) + b"eXIf" + start + tiff_of(8)
        assert image_headers.orientation(png) == 8
    for wrong in (0, 9):
        assert image_headers.orientation(PNG[:8] + bytes(4) + b"eXIf" + tiff_of(wrong)) == 1


@pytest.mark.parametrize("before", [0xC4, 0xC8, 0xCC, 0x01, 0xD0, 0xD7, 0xDB, 0xFE])
def test_the_size_of_a_jpeg_stands_behind_other_segments(before):
    """Tables of Huffman codes (0xC4) may, and markers without a segment (0x01, 0xD0 to 0xD8)."""
    alone = before == 0x01 or 0xD0 <= before <= 0xD8
    segment = bytes([0xFF, before]) + (b"" if alone else b"\0\x09" + bytes(range(1, 8)))
    frame = b"\xff\xc2\0\x11\x08" + struct.pack(">HH", 40, 56) + bytes(12)
    assert image_headers.read_header(b"\xff\xd8" + segment + frame) == ("JPEG", (40, 56))


def test_the_size_of_a_lossy_webp_is_without_its_scale():
    data = b"RIFF\0\0\0\0WEBPVP8 " + bytes(10) + struct.pack("<HH", 1 << 14 | 56, 2 << 14 | 40)
    assert image_headers.read_header(data) == ("WebP", (40, 56))


def test_a_file_is_complete_with_all_its_bytes_and_with_pixels():
    assert image_headers.is_complete("WebP", WHOLE["WebP"])
    assert not image_headers.is_complete("WebP", WHOLE["WebP"][:-1])
    at = PNG.index(b"IDAT") - 4
    (length,) = struct.unpack_from(">I", PNG, at)
    assert image_headers.is_complete("PNG", PNG)
    assert not image_headers.is_complete("PNG", PNG[:at] + PNG[at + length + 12 :])


def test_one_channel_is_the_weighted_mean():
    image = decode(PNG, channels=1)
    assert image.shape == (40, 56, 1)
    exact = PIXELS @ np.array([0.299, 0.587, 0.114])
    assert np.abs(image[:, :, 0] - exact).max() <= 0.51


@pytest.mark.parametrize("kind", WHOLE)
def test_truncation_at_any_byte_is_an_error(kind, capfd):
    data = WHOLE[kind]
    end = len(data) - (1 if kind == "GIF" else 0)  # a GIF may lack its trailer
    for length in range(1, end, max(1, len(data) // 200)):
        with pytest.raises(decoding.BadImage):
            decode(data[:length])
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("kind", WHOLE)
def test_bytes_after_the_end_do_not_matter(kind):
    np.testing.assert_array_equal(decode(WHOLE[kind] + b"more" * 9), decode(WHOLE[kind]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html><html><body>404</body></html>",
         "is not a JPEG, PNG, WebP, GIF, BMP or TIFF: it starts with b'<!DOCTYPE html><'"),
        (b"RIFF\x10\0\0\0WAVEfmt ", "is not a JPEG, PNG, WebP, GIF, BMP or TIFF: it starts with "
         r"b'RIFF\x10\x00\x00\x00WAVEfmt '"),
        (PNG.replace(b"IDAT", b"IDaT"), "is a truncated or damaged PNG"),
        (b"\xff\xd8\xff\xd9", "is a truncated or damaged JPEG"),
        (b"\xff\xd8\xff\xe0\0\0" + bytes(50), "is a truncated or damaged JPEG"),
    ],
    ids=["empty", "html", "wav", "no IDAT", "no frame", "segment"],
)  # fmt: skip
def test_message(data, message):
    assert error_line(decoding.BadImage, decode, data) == message


@pytest.mark.parametrize("kind", WHOLE)
def test_size_is_known_from_the_header(kind):
    assert decode(WHOLE[kind], max_pixels=40 * 56).shape == (40, 56, 3)
    with pytest.raises(
        decoding.BadImage, match=r"of 56 x 40 pixels, more than data.max_pixels=2239"
    ):
        decode(WHOLE[kind], max_pixels=40 * 56 - 1)


@pytest.mark.parametrize("kind", hostile.BOMBS)
def test_a_bomb_is_refused_without_memory(kind):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(decoding.BadImage, match=rf"is a {kind} of \d+ x \d+ pixels, more than"):
        decode(hostile.BOMBS[kind], max_pixels=100_000_000)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 16 * 1024  # KiB; its pixels would take 1.1 GiB and more


def with_scans(number: int, side: int = 64, mode: str = "L") -> bytes:
    """A progressive JPEG of one gray whose last scan is there again and again."""
    plain = encode(PIL.Image.new(mode, (side, side), 128), "JPEG", progressive=True)
    last = plain.rindex(b"\xff\xda")
    return plain[:last] + plain[last:-2] * (number - plain.count(b"\xff\xda") + 1) + b"\xff\xd9"


def test_scans_of_a_jpeg_are_bounded():
    assert decode(with_scans(decoding.MOST_SCANS)).shape == (64, 64, 3)
    for number, side in ((decoding.MOST_SCANS + 1, 64), (3000, 900)):
        line = f"is a JPEG of {number:,} scans, more than 50"
        assert error_line(decoding.BadImage, decode, with_scans(number, side)) == line


def test_only_scans_that_are_decoded_count():
    """Bytes that look like one are in comments, in thumbnails, and behind the end of the image."""
    alike = b"\xff\xda" * 1000
    comment = b"\xff\xfe" + struct.pack(">H", 2 + len(alike)) + alike
    plain = encode(PIL.Image.new("L", (64, 64), 128), "JPEG", progressive=True)
    last = plain.rindex(b"\xff\xda")
    for data in (
        plain[:2] + comment + plain[2:],
        plain[:last] + comment + plain[last:],
        plain + alike,
    ):
        np.testing.assert_array_equal(decode(data), decode(plain))
        assert image_headers.jpeg_scans(data) == plain.count(b"\xff\xda")


def black(width: int, height: int, mode: str, kind: str, **options) -> bytes:
    return encode(PIL.Image.new(mode, (width, height)), kind, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "kind", "options"),
    [
        ("RGB", "JPEG", {"optimize": True}),
        ("L", "JPEG", {"progressive": True}),
        ("RGB", "PNG", {"optimize": True}),
        ("L", "WEBP", {"lossless": True}),
        ("RGB", "GIF", {}),
    ],
)
def test_a_black_photograph_of_a_camera_can_be_read(mode, kind, options):
    data = black(4000, 3000, mode, kind, **options)
    assert decode(data, max_pixels=10**8).max() <= 1


@pytest.mark.parametrize(
    ("kind", "options", "start"),
    [
        ("JPEG", {}, "is a JPEG of 6000 x 5000 pixels in 1,502 bytes"),
        ("JPEG", {"progressive": True}, "is a JPEG of 6000 x 5000 pixels in 1,502 bytes"),
        ("WEBP", {"lossless": True}, "is a WebP of 6000 x 5000 pixels in "),
    ],
)
def test_pixels_for_a_byte_are_bounded(kind, options, start):
    data = black(6000, 5000, "L", kind, **options)
    if kind == "JPEG":  # the header and little more, with the marker that ends an image
        data = data[:1500] + b"\xff\xd9"
    with pytest.raises(decoding.BadImage) as caught:
        decode(data, max_pixels=10**8)
    assert str(caught.value).startswith(start)
    assert str(caught.value).endswith("more than 10,000 pixels a byte")


def test_few_pixels_are_cheap_however_short_the_file():
    data = black(1500, 1500, "L", "WEBP", lossless=True)
    assert decoding.MOST_WORK * len(data) < 1500**2
    assert decode(data, max_pixels=10**8).shape == (1500, 1500, 3)


def test_pixels_as_people_see_them():
    rng = np.random.default_rng(0)
    for channels, shown in ((1, 1), (2, 1), (3, 3), (4, 3), (13, 3)):
        image = rng.integers(0, 256, (4, 5, channels), np.uint8)
        np.testing.assert_array_equal(decoding.for_display(image), image[:, :, :shown])
    deep = np.array([0, 1, 2, 1000], np.uint16).reshape(2, 2, 1)
    np.testing.assert_array_equal(decoding.for_display(deep).ravel(), [0, 0, 1, 255])
    assert not decoding.for_display(np.zeros((2, 2, 1), np.uint16)).any()


def test_work_counts_every_scan():
    flat = with_scans(50, side=1600)
    assert error_line(decoding.BadImage, decode, flat, max_pixels=10**8) == (
        f"is a JPEG of 1600 x 1600 pixels in {len(flat):,} bytes and 50 scans, "
        "more than 10,000 pixels a byte"
    )
    few = with_scans(10, side=1600)
    assert decode(few, max_pixels=10**8).shape == (1600, 1600, 3)


def test_a_file_is_read_within_its_bound(tmp_path, monkeypatch):
    (tmp_path / "a.jpg").write_bytes(JPEG)
    assert decoding.read_file(tmp_path / "a.jpg") == JPEG
    monkeypatch.setattr(decoding, "MOST_BYTES", len(JPEG) - 1)
    with pytest.raises(decoding.BadImage, match=rf"has {len(JPEG):,} bytes, more than"):
        decoding.read_file(tmp_path / "a.jpg")
    decoding.check_bytes(len(JPEG) - 1)
    with pytest.raises(decoding.BadImage, match=rf"has {len(JPEG):,} bytes, more than"):
        decoding.check_bytes(len(JPEG))
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(decoding.BadImage, match="is not a regular file"):
        decoding.read_file(tmp_path / "pipe.jpg")
    with pytest.raises(OSError, match="No such file"):
        decoding.read_file(tmp_path / "none.jpg")


def test_an_extension_that_was_built_is_used():
    """It is left aside where it decodes a test image unlike OpenCV."""
    built = importlib.util.find_spec("vit_jax.data.jpeg._jpeg") is not None
    assert jpeg.decoder().endswith("parts of images" if built else "whole images (no extension)")
