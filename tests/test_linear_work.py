"""The work of every reader grows with its input, not with the square of the parts in it.

A file of few parts and one of four times as many: the CPU time of a linear reader grows four times,
with squares 16 times. The sizes are such that a copy of the rest for each part would be seen.
"""

import contextlib
import functools
import io
import json
import os
import pickle
import struct
import time
import types
import unittest.mock
import zlib

import cv2
import flax.serialization
import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest
import safetensors.numpy as safetensors_numpy

import hostile
import official_fakes
import tiffs
from vit_jax import config
from vit_jax.data import bucket, csv_source, decoding, example_lists, image_headers, tiff
from vit_jax.data.prepare import (
    archives,
    arrow,
    assignment,
    image_listing,
    parquet,
    parquet_pages,
    tfrecords,
)
from vit_jax.data.prepare.official import mat, pickles, scene_sets
from vit_jax.data.prepare.official.source_files import SourceFiles
from vit_jax.runtime import logs
from vit_jax.utils.errors import UserError
from vit_jax.weights import peft_files
from vit_jax.weights.arrays import Arrays, ArraySpec

GROWTH = 9  # of the time for four times as many parts: linear is 4, with squares 16
NOISE = 0.01  # seconds


def overlapping(count):
    """Strips of which each claims all of the file."""
    row = np.zeros((1, 64, 1), np.uint8)
    tags = {
        256: 64, 257: count, 258: 8, 259: 8, 262: 1, 277: 1, 278: 1, 273: [8] * count,
        279: [2**31] * count,
    }  # fmt: skip
    data = tiffs.header(tiffs.packed(row, "deflate") + bytes(1024 * count), tags)
    return lambda folder: tiff.decode_tiff(data, tiff.parse_header(data))


def tiles(count):
    pixels = np.zeros((16 * count, 16, 1), np.uint16)
    data = tiffs.tiff(np.pad(pixels, [(0, 0), (0, 9), (0, 0)]), tile=(16, 32), compression="lzw")
    return lambda folder: tiff.decode_tiff(data, tiff.parse_header(data))


def fields(count):
    """A directory of as many fields as its count can say, each as long as the file."""
    body = bytes(1024 * count)
    entry = struct.pack("<HHII", 40_000, 1, len(body), 0)
    data = b"II*\0" + struct.pack("<IH", 8, count) + entry * count + body
    return lambda folder: tiff.fields(data)


def png_chunks(count):
    sound = cv2.imencode(".png", np.zeros((9, 9), np.uint8))[1].tobytes()
    text = b"tEXt" + b"a\0" + b"b" * 500
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    data = sound[:33] + chunk * count + sound[33:]

    def read(folder):
        assert decoding.size(data) == (9, 9)
        assert image_headers.is_complete("PNG", data)

    return read


def jpeg_segments(count):
    sound = cv2.imencode(".jpg", np.zeros((9, 9), np.uint8))[1].tobytes()
    data = sound[:2] + (b"\xff\xfe" + struct.pack(">H", 500) + b"x" * 498) * count + sound[2:]

    def read(folder):
        assert decoding.size(data) == (9, 9)
        assert image_headers.jpeg_scans(data) == 1
        decoding.decode_image(data, channels=1, max_pixels=100)

    return read


def webp_chunks(count):
    sound = cv2.imencode(".webp", np.zeros((9, 9, 3), np.uint8))[1].tobytes()
    data = sound[:12] + sound[12:] + (b"ODD " + struct.pack("<I", 500) + b"x" * 500) * count

    return lambda folder: decoding.size(data)


def npz(count):
    stream = io.BytesIO()
    np.savez(stream, **{f"layer{number}/kernel": np.zeros(3) for number in range(count)})
    return _arrays(stream.getvalue(), ".npz")


def safetensors(count):
    fields = {
        f"a.{number}": {"dtype": "F32", "shape": [1], "data_offsets": [4 * number, 4 * number + 4]}
        for number in range(count)
    }
    head = json.dumps(fields).encode()
    return _arrays(struct.pack("<Q", len(head)) + head + bytes(4 * count), ".safetensors")


def _arrays(data, suffix):
    return functools.partial(hostile.every_array(suffix), data)


def members(count, kind="tar"):
    """Images in an archive, each in a folder of its own, below a hundred common ones."""
    names = [f"{number % 7}/{number}.jpg" for number in range(count)]
    if kind == "tar":
        data = official_fakes.tar({f"a/{name}": b"" for name in names})
    else:
        above = "/".join("a" * 100)
        data = official_fakes.zipped({f"{above}/{name}": b"x" for name in names})

    def read(folder):
        path = folder / "images"
        path.write_bytes(data)
        listing = image_listing.scan([path])
        assert len(assignment.arrange(listing, "train", "mine").labels) == count
        reader = archives.Reader()
        for index in range(count):
            reader(listing[index])
        reader.close()

    return read


def zip_members(count):
    return members(count, "zip")


def unpacked_members(count):
    """Members of a zip that are unpacked to files one by one."""
    data = official_fakes.zipped({f"dmlab-train.tfrecord-{n}": b"" for n in range(count)})

    def read(folder):
        (folder / "dmlab.zip").write_bytes(data)
        with contextlib.closing(
            SourceFiles([folder / "dmlab.zip"], (), folder / "out", 2**20)
        ) as files:
            for found in files:
                assert not list(scene_sets.read_records(files, found))

    return read


def tf_records(count):
    record = official_fakes.tfrecord([b"x" * 100])
    return lambda folder: list(tfrecords.read_records(io.BytesIO(record * count), "x"))


def csv_rows(count):
    text = "image,label\n" + "".join(f"{number}.jpg,{number % 500}\n" for number in range(count))
    return _csv(text)


def csv_columns(count):
    names = [f"class{number}" for number in range(count)]
    return _csv(f"image,{','.join(names)}\n" + f"a.jpg,1{',0' * (count - 1)}\n")


def _csv(text):
    def read(folder):
        (folder / "train.csv").write_text(text)
        csv_source.CsvImages(config.Data(source="csv", root=str(folder)), "train", "k")

    return read


def hashes(count):
    listing = example_lists.ExampleList(
        "t", "d", "1", "s", tuple(f"{n:016x}" for n in range(count))
    )
    facts = listing._asdict() | {"sha256": listing.sha256}

    def read(folder):
        (folder / "a.json").write_text(json.dumps(facts))
        example_lists.read_list(folder / "a.json")

    return read


def metric_lines(count):
    text = "".join(f'{{"step": {step}, "train/loss": 2.5}}\n' for step in range(count))

    def read(folder):
        (folder / "metrics.jsonl").write_text(text)
        logs.read_metrics(folder / "metrics.jsonl")

    return read


def pickled_texts(count):
    """Texts as Python 3 writes bytes for Python 2."""
    data = pickle.dumps({"filenames": [b"%d.png" % number for number in range(count)]}, protocol=2)
    return lambda folder: pickles.load_dictionary(data, "batch")


def repeated_text(count):
    """One long text that is made into bytes again and again."""
    text = b"X" + struct.pack("<I", 1000 * count) + b"x" * 1000 * count + b"q\0"
    encode = b"c_codecs\nencode\n(h\0X\6\0\0\0latin1tR"
    data = b"}X\1\0\0\0a(" + text + encode * count + b"ls."
    return lambda folder: pickles.load_dictionary(data, "batch")


def matrices(count):
    name = struct.pack("<II8s", 1, 3, b"abc")
    array = struct.pack("<IIII", 6, 8, 6, 0) + struct.pack("<IIii", 5, 8, 1, 1) + name
    array += struct.pack("<IId", 9, 8, 0.0)
    head = b"MATLAB 5".ljust(124) + b"\0\1IM"
    data = head + (struct.pack("<II", 14, len(array)) + array) * count
    return lambda folder: mat.load_arrays(data, ["abc"], "a.mat", 2**30)


def labeled_members(count):
    """A webdataset: images with their labels beside them."""
    files = {}
    for number in range(count):
        files |= {f"{number:06d}.jpg": b"x", f"{number:06d}.cls": b"%d" % (number % 9)}
    data = official_fakes.tar(files)

    def read(folder):
        (folder / "train.tar").write_bytes(data)
        assert len(image_listing.scan([folder / "train.tar"])) == count

    return read


def parquet_rows(count):
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    images = pa.array([{"bytes": b"\xff\xd8" + bytes(200), "path": None}] * count, kind)
    table = pa.table({"image": images, "label": [number % 9 for number in range(count)]})
    stream = pa.BufferOutputStream()
    pyarrow.parquet.write_table(table, stream, row_group_size=64)

    def read(folder):
        (folder / "train.parquet").write_bytes(stream.getvalue())
        assert sum(1 for _ in parquet.rows(folder / "train.parquet")) == count

    return read


def arrow_rows(count):
    table = pa.table(
        {"image": [b"\xff\xd8" + bytes(200)] * count, "label": ["a", "b"] * (count // 2)}
    )
    table = table.set_column(1, "label", table["label"].dictionary_encode())
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table, max_chunksize=64)

    def read(folder):
        (folder / "train.arrow").write_bytes(stream.getvalue())
        assert sum(1 for _ in arrow.rows(folder / "train.arrow", None)) == count

    return read


def parquet_pages_of(count):
    """Images one by one, which share pages, and pages that share a row group."""
    images = [b"\xff\xd8" + b"%d" % number for number in range(count)]
    table = pa.table({"image": images, "label": [number % 9 for number in range(count)]})
    stream = pa.BufferOutputStream()
    pyarrow.parquet.write_table(table, stream, write_batch_size=16, data_page_size=256)

    def read(folder):
        path = folder / "train.parquet"
        path.write_bytes(stream.getvalue())
        listing = image_listing.scan_tables([path], "parquet", None, "x")
        reader = parquet_pages.Reader()
        assert [reader(listing[at]) for at in range(len(listing))] == images

    return read


def flax_arrays(count):
    tree = {f"layer{number}": {"kernel": np.zeros(3, np.float32)} for number in range(count)}
    return _arrays(flax.serialization.msgpack_serialize(tree), ".msgpack")


def adapted_layers(count):
    """A PEFT folder of as many layers of LoRA."""
    shapes = {"A": (1, 2), "B": (2, 1)}
    names = [f"vit.encoder.layer.{number}.attention.attention.query" for number in range(count)]
    arrays = {f"base_model.model.{name}.lora_{side}.weight": np.zeros(shape, np.float32)
              for name in names for side, shape in shapes.items()}  # fmt: skip
    data = safetensors_numpy.save(arrays)
    specs = {f"{name}.weight": ArraySpec((2, 2), np.dtype("<f4")) for name in names}
    base = Arrays(specs, lambda name: np.zeros((2, 2), np.float32))

    def read(folder):
        (folder / peft_files.CONFIG).write_text('{"peft_type": "LORA", "r": 1, "lora_alpha": 1}')
        (folder / peft_files.FILES[0]).write_bytes(data)
        assert len(peft_files.merged(folder, base).specs) == count

    return read


def bucket_objects(count):
    """Objects of a bucket, each in as many folders as can be."""
    above = "/".join("a" * (bucket.DEEPEST - 2))
    listed = {f"b/{above}/{n}/x": {"type": "file", "size": 1} for n in range(count)}
    system = types.SimpleNamespace(find=lambda root, detail: listed)

    def read(folder):
        with unittest.mock.patch("fsspec.url_to_fs", return_value=(system, "b")):
            assert len(bucket._list_objects("s3://b", bucket.ROOT)[1]) == count

    return read


# How many parts the smaller file has.
READERS = {
    overlapping: 2**10,
    tiles: 2**7,
    fields: 2**10,
    png_chunks: 2**10,
    jpeg_segments: 2**10,
    webp_chunks: 2**10,
    npz: 2**7,
    safetensors: 2**9,
    members: 2**7,
    zip_members: 2**7,
    unpacked_members: 2**7,
    tf_records: 2**10,
    csv_rows: 2**9,
    csv_columns: 2**11,
    hashes: 2**12,
    metric_lines: 2**9,
    pickled_texts: 2**9,
    repeated_text: 2**7,
    matrices: 2**8,
    labeled_members: 2**6,
    parquet_rows: 2**8,
    arrow_rows: 2**8,
    parquet_pages_of: 2**9,
    flax_arrays: 2**8,
    adapted_layers: 2**7,
    bucket_objects: 2**9,
}


def seconds(build, count, folder):
    """CPU seconds of this thread, the least of two tries; what is refused counts, too."""
    read, spent = build(count), []
    for number in range(2):
        place = folder / f"{count}-{number}-{os.urandom(4).hex()}"
        place.mkdir()
        began = time.thread_time()
        with contextlib.suppress(UserError, ValueError):
            read(place)
        spent.append(time.thread_time() - began)
    return min(spent)


def check(build, count, folder):
    for _ in range(3):  # another process may take the cache of the processor in between
        few, many = (seconds(build, size, folder) for size in (count, 4 * count))
        if many < GROWTH * few + NOISE:
            return
    pytest.fail(f"{4 * count} parts take {many:.3f} s, {count} take {few:.3f} s")


@pytest.mark.parametrize("build", READERS, ids=lambda build: build.__name__)
def test_four_times_as_many_parts_take_four_times_as_long(build, tmp_path):
    check(build, READERS[build], tmp_path)


def test_squares_are_noticed(monkeypatch, tmp_path):
    """By a clock that counts the work, as memory copies megabytes faster on some machines."""
    work = [0.0]
    monkeypatch.setattr(time, "thread_time", lambda: work[0])

    def grows(power):
        def build(count):
            def read(folder):
                work[0] += 1e-6 * count**power

            return read

        return build

    check(grows(1), 2**8, tmp_path)
    with pytest.raises(pytest.fail.Exception, match=r"1024 parts take 1.049 s, 256 take 0.066 s"):
        check(grows(2), 2**8, tmp_path)
