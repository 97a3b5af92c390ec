"""Two thousand damaged images through the whole pipeline: each is named, nothing else happens."""

import io
import json
import os
import pathlib
import struct
import subprocess
import sys
import zlib

import cv2
import numpy as np
import PIL.Image
import pytest

COUNT = 2000


def picture(rng: np.random.Generator) -> np.ndarray:
    height, width = rng.integers(40, 300, 2).tolist()
    small = rng.integers(0, 256, (7, 9, 3), np.uint8)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)


def save(pixels: np.ndarray, kind: str, **options) -> bytes:
    stream = io.BytesIO()
    PIL.Image.fromarray(pixels).save(stream, kind, **options)
    return stream.getvalue()


def chunk(name: bytes, body: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(name + body))
    return struct.pack(">I", len(body)) + name + body + check


def bomb(number: int) -> bytes:
    """400 megapixels, of a JPEG by its header alone, of a PNG with 16 million in 50 kB."""
    if number % 2:
        frame = struct.pack(">HBHHB", 17, 8, 20000, 20000, 3) + b"\1\x22\0\2\x11\1\3\x11\1"
        return b"\xff\xd8\xff\xc0" + frame + bytes(500) + b"\xff\xd9"
    packer = zlib.compressobj(9)
    header = struct.pack(">IIBBBBB", 20000, 20000, 8, 2, 0, 0, 0)
    idat = b"".join(packer.compress(bytes(60001 * 200)) for _ in range(4)) + packer.flush()
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", idat), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def make(number: int, rng: np.random.Generator) -> bytes:
    """One kind of trouble after another."""
    pixels = picture(rng)
    kinds = ("JPEG", "JPEG", "PNG", "WEBP", "JPEG")
    plain = save(
        pixels, kinds[number // 12 % 5], **({"progressive": True} if number % 7 == 0 else {})
    )
    damaged = bytearray(plain)
    match number % 12:
        case 0 | 6 | 8:
            return plain
        case 1:
            return plain[: rng.integers(len(plain))]
        case 2 | 3:
            for place in rng.integers(0, len(plain), rng.integers(1, 9)):
                damaged[place] ^= 1 << int(rng.integers(8))
            return bytes(damaged)
        case 4:
            first = int(rng.integers(len(plain)))
            damaged[first : first + 200] = bytes(len(damaged[first : first + 200]))
            return bytes(damaged)
        case 5:
            return b"<!DOCTYPE html><html><body>404 Not Found</body></html>" * (number % 5)
        case 7 | 9:
            return save(pixels, "GIF" if number % 12 == 7 else "BMP")  # whatever the name says
        case 10:
            tags = PIL.Image.Exif()
            tags[0x0112] = number // 12 % 10  # 0 and 9 are none
            whole = save(pixels, "JPEG", exif=tags)
            return whole if number % 24 == 10 else whole[: len(whole) // 2]
        case _:
            return bomb(number // 12) if number // 12 % 20 == 0 else bytes(rng.integers(2, 5000))


SCRIPT = """
import json, logging, resource, sys
from vit_jax import config
from vit_jax.data import decoding, pipeline, sources, transforms

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

def run(budget, train, **more):
    data = config.Data(source="folder", root=sys.argv[1], image_size=(64, 64), threads=2,
                       max_bad_examples=budget, **more)
    source = sources.open_source(data, "train", train=train)
    steps = transforms.train_transforms(data) if train else transforms.eval_transforms(data)
    with pipeline.batches(source, steps, data, seed=0, batch_size=100, rows=range(100),
                          train=train, stop_step=len(source) // 100) as batches:
        return [(int(b["mask"].sum()), (b["bad"] >= 0).sum().item()) for b in batches]

def main():
    messages = []
    class Keep(logging.Handler):
        def emit(self, record):
            messages.append(record.getMessage())
    logging.getLogger("vit_jax").addHandler(Keep())
    data = config.Data(source="folder", root=sys.argv[1])
    source = sources.open_source(data, "train", train=True)
    bad = []
    for index in range(0, 100):  # what decoding needs at most is not the pipeline's
        try:
            decoding.decode_image(source[index].image, channels=3, max_pixels=data.max_pixels)
        except decoding.BadImage:
            pass
    before = peak()
    named = {}
    for train in (True, False):
        messages.clear()
        counts = run(2000, train)
        named[str(train)] = sorted(m.partition(": ")[0] for m in messages)
        assert all(m.isprintable() for m in messages), messages
        assert sum(c[0] for c in counts) == (2000 if train else 2000 - len(messages)), counts
    after = peak()
    for index in range(2000):
        try:
            decoding.load_image(source[index].image, channels=3, max_pixels=data.max_pixels)
        except decoding.BadImage:
            bad.append(source.name(index))
    errors = []
    for budget, train in ((len(bad) - 1, True), (len(bad) - 1, False), (0, True)):
        try:
            run(budget, train)
        except pipeline.DataError as error:
            errors.append(str(error))
    assert len(run(len(bad), True)) == 20
    print(json.dumps({"named": named, "bad": sorted(bad), "errors": errors,
                      "peak": after - before}))

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_two_thousand_damaged_images(tmp_path):
    rng = np.random.default_rng(0)
    for name in "ab":
        (tmp_path / "train" / name).mkdir(parents=True)
    suffixes = (".jpg", ".png", ".webp", ".jpeg", ".jpg")
    for number in range(COUNT):
        suffix = suffixes[number // 12 % 5]
        path = tmp_path / "train" / "ab"[number % 2] / f"{number:04}{suffix}"
        path.write_bytes(make(number, rng))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    seen = json.loads(done.stdout)
    assert seen["named"] == {"True": seen["bad"], "False": seen["bad"]}
    assert 700 < len(seen["bad"]) < 1300
    assert seen["peak"] < 512  # MiB
    *over, first = seen["errors"]
    assert len(over) == 2
    for error in over:
        budget = len(seen["bad"]) - 1
        assert error.startswith(f"more than data.max_bad_examples={budget} unreadable images: ")
        assert "\n" not in error
    assert first.endswith("allow for unreadable images with data.max_bad_examples")
