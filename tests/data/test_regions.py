"""Parts of JPEGs are the pixels of the whole, and nothing but speed depends on the extension."""

import dataclasses
import io
import itertools
import sys

import cv2
import numpy as np
import PIL.Image
import pytest

import toys
from vit_jax import config
from vit_jax.data import decoding, jpeg, pipeline, transforms
from vit_jax.data.source import Record

pytestmark = pytest.mark.skipif(
    not jpeg.decoder().endswith("parts of images"),
    reason="the extension was not built: no compiler, or no headers of libjpeg-turbo",
)

SAMPLINGS = {
    "4:4:4": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
    "4:2:2": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422,
    "4:2:0": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
    "4:1:1": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411,
    "4:4:0": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440,
}


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (height // 9 + 1, width // 9 + 1, 3), np.uint8)
    smooth = cv2.resize(blocks, (width, height), interpolation=cv2.INTER_CUBIC)
    return cv2.add(smooth, rng.integers(0, 30, smooth.shape, np.uint8))


def encode(pixels: np.ndarray, sampling: str = "4:2:0", quality: int = 85, restart: int = 0):
    options = [cv2.IMWRITE_JPEG_QUALITY, quality]
    options += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, SAMPLINGS[sampling]]
    return cv2.imencode(".jpg", pixels, [*options, cv2.IMWRITE_JPEG_RST_INTERVAL, restart])[1]


def pillow(pixels: np.ndarray, mode: str = "RGB", **options) -> bytes:
    stream = io.BytesIO()
    PIL.Image.fromarray(pixels).convert(mode).save(stream, "JPEG", **options)
    return stream.getvalue()


def decode(encoded: bytes, rectangle: jpeg.Rectangle) -> np.ndarray | None:
    """Decodes into a buffer of the size that is promised to do; nothing beyond it is written."""
    room, guard = jpeg.buffer_size(rectangle), 100
    scratch = np.full(room + guard, 77, np.uint8)
    part = jpeg.decode(encoded, rectangle, scratch[:room])
    assert (scratch[room:] == 77).all()
    return part


def assert_parts(encoded: bytes, rectangles) -> None:
    whole = decoding.decode_image(encoded, channels=3, max_pixels=10**8)
    assert jpeg.size(encoded) == whole.shape[:2]
    for top, left, height, width in rectangles:
        part = decode(encoded, (top, left, height, width))
        assert part is not None
        expected = whole[top : top + height, left : left + width]
        np.testing.assert_array_equal(part, expected, err_msg=f"{top} {left} {height} {width}")


def random_rectangles(rng, height: int, width: int, count: int):
    for _ in range(count):
        h, w = int(rng.integers(1, height + 1)), int(rng.integers(1, width + 1))
        yield int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1)), h, w


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("restart", [0, 3])
def test_any_rectangle_is_that_of_the_whole_image(sampling, restart):
    rng = np.random.default_rng(restart)
    for height, width in ((1, 1), (8, 200), (97, 131), (160, 9), (176, 208)):
        encoded = encode(picture(height, width), sampling, restart=restart).tobytes()
        assert_parts(encoded, random_rectangles(rng, height, width, 40))
        assert_parts(encoded, [(0, 0, height, width), (height - 1, width - 1, 1, 1)])


@pytest.mark.parametrize("sampling", ["4:2:0", "4:2:2"])
def test_every_edge_of_a_rectangle_around_the_blocks(sampling):
    """Upsampling looks at neighbors: edges at every offset from the edges of blocks."""
    encoded = encode(picture(70, 150), sampling).tobytes()
    edges = itertools.product(range(14, 34), (17, 31))
    assert_parts(encoded, [(t, t + 40, h, h + 3) for t, h in edges])
    assert_parts(encoded, [(3, left, 60, width) for left in (0, 40) for width in range(1, 90, 3)])


def test_gray_files_and_all_qualities():
    rng = np.random.default_rng(1)
    assert_parts(pillow(picture(90, 120), "L"), random_rectangles(rng, 90, 120, 30))
    for quality in (1, 30, 60, 100):
        encoded = encode(picture(64, 80, quality), quality=quality).tobytes()
        assert_parts(encoded, random_rectangles(rng, 64, 80, 10))


@pytest.mark.parametrize(("quality", "restart"), [(75, 0), (100, 7)])
def test_tables_made_for_the_file_and_codes_of_every_length(quality, restart):
    """Noise between smooth parts has codes of up to 16 bits and values of up to 11."""
    rng = np.random.default_rng(quality)
    pixels = picture(150, 170)
    pixels[40:90, 30:120] = rng.choice([0, 255], (50, 90, 3))
    pixels[100:, 60:] = 128
    options = {"optimize": True} if restart == 0 else {"restart_marker_blocks": restart}
    encoded = pillow(pixels, quality=quality, **options)
    assert_parts(encoded, random_rectangles(rng, 150, 170, 60))


def test_no_reference_is_lost_where_nothing_can_be_decoded():
    scratch, before = np.zeros(1000, np.uint8), sys.getrefcount(None)
    for _ in range(1000):
        assert jpeg.size(b"") is None
        assert jpeg.decode(b"", (0, 0, 1, 1), scratch) is None
    assert abs(sys.getrefcount(None) - before) < 100


def exif(orientation: int) -> PIL.Image.Exif:
    tags = PIL.Image.Exif()
    tags[0x010F], tags[0x0112] = "a camera", orientation
    return tags


def test_what_is_left_to_the_other_decoder():
    pixels = picture(60, 80)
    plain = pillow(pixels)
    assert jpeg.size(plain) == (60, 80)
    assert jpeg.size(pillow(pixels, exif=exif(1))) == (60, 80)
    for orientation in range(2, 9):
        assert jpeg.size(pillow(pixels, exif=exif(orientation))) is None
    for other in (
        pillow(pixels, progressive=True),
        pillow(pixels, "CMYK"),
        cv2.imencode(".png", pixels)[1].tobytes(),
        b"",
        b"\xff\xd8\xff\xd9",
        b"<html>",
        plain.replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc0\x00\x11\x0c"),  # 12 bits
    ):
        assert jpeg.size(other) is None
    for length in range(len(plain)):
        assert jpeg.size(plain[:length]) is None


def test_damage_above_or_in_the_rectangle_is_noticed():
    encoded = bytearray(encode(picture(100, 100), quality=95).tobytes())
    middle = len(encoded) * 2 // 3
    encoded[middle : middle + 8] = b"\xff\xd9\xff\xd0\xff\xd7\xff\xd9"  # a marker
    assert decode(bytes(encoded), (0, 0, 20, 20)) is not None
    assert decode(bytes(encoded), (80, 0, 20, 20)) is None


@pytest.mark.parametrize(
    "rectangle",
    [(-1, 0, 5, 5), (0, -1, 5, 5), (0, 0, 0, 5), (0, 0, 5, 0), (56, 0, 5, 5), (0, 76, 5, 5),
     (0, 0, 61, 5), (2**62, 0, 5, 5), (0, 0, 6, 5)],
)  # fmt: skip
def test_rectangles_outside_the_image_or_the_buffer_are_refused(rectangle):
    encoded = encode(picture(60, 80)).tobytes()
    with pytest.raises(ValueError, match="the (rectangle is not in|buffer is smaller than)"):
        jpeg.decode(encoded, rectangle, np.empty(5 * 64 * 3, np.uint8))


def test_mutated_files_give_whole_decodings_or_nothing():
    rng = np.random.default_rng(0)
    refused = 0
    sources = [pillow(picture(40, 50)), pillow(picture(33, 47), exif=exif(1), quality=98)]
    sources.append(encode(picture(50, 40), "4:2:2", restart=2).tobytes())
    sources.append(pillow(picture(64, 64), optimize=True, quality=95))
    for number in range(4000):
        damaged = bytearray(sources[number % len(sources)])
        for place in rng.integers(2, len(damaged) if number % 2 else 700, rng.integers(1, 6)):
            damaged[place] = rng.integers(256)
        size = jpeg.size(bytes(damaged))
        if size is None or size[0] * size[1] > 10**5:
            refused += 1
            continue
        (rectangle,) = random_rectangles(rng, *size, 1)
        part = decode(bytes(damaged), rectangle)
        if part is None:
            refused += 1
            continue
        top, left, height, width = rectangle
        whole = decoding.decode_image(bytes(damaged), channels=3, max_pixels=10**6)
        np.testing.assert_array_equal(part, whole[top : top + height, left : left + width])
    assert 500 < refused < 3500


def mixed():
    """JPEGs of every kind, upright and turned, a PNG, and damaged ones."""
    pixels = picture(90, 130)
    jpeg = encode(pixels).tobytes()
    middle = len(jpeg) // 2
    return [
        jpeg,
        encode(picture(61, 77), "4:4:4").tobytes(),
        encode(picture(200, 40), "4:2:2", restart=4).tobytes(),
        pillow(pixels, "L"),
        pillow(pixels, exif=exif(6)),
        pillow(pixels, progressive=True),
        pillow(pixels, "CMYK"),
        cv2.imencode(".png", pixels)[1].tobytes(),
        jpeg[:-9],
        jpeg[:middle] + b"\xff\xd9" + jpeg[middle:],
        jpeg[:middle] + bytes(40) + jpeg[middle + 40 :],
        b"<html>",
    ]


@pytest.mark.parametrize(
    ("channels", "more"),
    [(1, {"randaugment": (2, 10)}), (3, {"resampling": "antialiased_bicubic"})],
)
def test_batches_are_the_same_without_the_extension(monkeypatch, channels, more):
    data = config.Data(
        image_size=(48, 40), channels=channels, max_bad_examples=9, max_pixels=20_000, **more
    )
    files = mixed()
    source = toys.Made(len(files), lambda index: Record(files[index], index % 2))

    def batches(data=data):
        arguments = {"seed": 1, "batch_size": 24, "rows": range(24), "train": True}
        steps = transforms.train_transforms(data)
        with pipeline.batches(source, steps, data, stop_step=3, **arguments) as made:
            return list(made)

    seen = []
    original = jpeg.decode

    def decode(encoded, rectangle, scratch):
        seen.append(files.index(encoded))
        return original(encoded, rectangle, scratch)

    monkeypatch.setattr(jpeg, "decode", decode)
    some = batches()
    assert set(seen) == {0, 1, 2, 3, 9, 10}
    seen.clear()
    switched_off = batches(dataclasses.replace(data, partial_decoding=False))
    assert not seen
    monkeypatch.setattr(jpeg, "size", lambda encoded: None)
    others = batches()
    for one, *rest in zip(some, switched_off, others, strict=True):
        for other, name in itertools.product(rest, one):
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    assert set(np.concatenate([batch["bad"] for batch in some]).tolist()) == {-1, 8, 11}


@pytest.mark.parametrize("part", [True, False])
def test_an_image_of_too_many_pixels_is_refused_by_both_decoders(part):
    data = config.Data(image_size=(31, 29), max_pixels=61 * 77 - 1, partial_decoding=part)
    make = pipeline.Views(transforms.train_transforms(data), data, seed=5)
    with pytest.raises(decoding.BadImage, match="77 x 61 pixels, more than data.max_pixels=4696"):
        make(encode(picture(61, 77), "4:4:4").tobytes(), 0, 0, np.zeros((31, 29, 3), np.uint8))
