"""Bytes from outside, made wrong: every reader, sound files for it, and damages.

    python tests/helpers/hostile.py --inputs=10000 --seed=1 [READER ...]

reads so many damaged inputs with each reader in a process with a limit of memory, and prints how
many there were, how many were refused, and what must not happen: other errors, crashes, more than
5 s for one, more memory than the limit, and imports or code run.
"""

import argparse
import codecs
import contextlib
import functools
import gzip
import io
import itertools
import json
import multiprocessing
import os
import pathlib
import pickle
import resource
import struct
import sys
import tarfile
import tempfile
import time
import tracemalloc
import zlib

import cv2
import numpy as np

from vit_jax.runtime import provenance
from vit_jax.utils import errors, limits

HANG = 5.0  # seconds for one input
START = 600.0  # for a process to import and read its sound files
MEMORY = 512 * 2**20  # bytes of Python's for one input
ADDRESSES = 6 * 2**30  # bytes of a process, of which libraries reserve most
FORBIDDEN = (
    "exec", "compile", "pickle", "os.system", "os.exec", "os.spawn", "subprocess", "ctypes",
    "socket.connect", "shutil", "import",
)  # fmt: skip
CODECS = ("unicode_escape", "raw_unicode_escape", "latin-1", "utf-16-le", "cp437", "utf-8-sig")
NUMBERS = (0, 1, 127, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**63 - 1)
WORDS = (
    b"[", b"]", b"{", b"}", b'"', b",", b":", b"null", b"-1", b"1e999", b"NaN", b"9" * 400,
    b"\\u0000", b"\\ud800", b"../", b"/", b"\0", b"\xff\xd8", b"\xff\xda", b"PK\3\4", b"ustar",
    b"cos\nsystem\n", b"__import__", b'"type":"os.system"', b"{" * 300, b"[" * 300,
)  # fmt: skip


def damaged(content, edits):
    """Bytes with edits: (kind, place, number, word), each of any value."""
    data = bytearray(content)
    for kind, place, number, word in edits:
        at = place % (len(data) + 1)
        size = 1 + number % 200
        match kind % 7:
            case 0 if data:
                data[at % len(data)] ^= 1 << (number % 8)
            case 1:
                width = 1 << (number % 4)
                value = NUMBERS[number % len(NUMBERS)] & (2 ** (8 * width) - 1)
                data[at : at + width] = value.to_bytes(width, ("little", "big")[kind % 2])
            case 2:
                del data[at:]
            case 3:
                del data[at : at + size]
            case 4:
                data[at:at] = data[number % (len(data) + 1) :][:size]
            case 5:
                data[at:at] = WORDS[number % len(WORDS)]
            case _:
                data[at : at + len(word)] = word
    return bytes(data)


def png(width, height, idat):
    def chunk(name, body):
        check = struct.pack(">I", zlib.crc32(name + body))
        return struct.pack(">I", len(body)) + name + body + check

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", idat), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


# Images of more pixels than memory has room for, in few bytes.
BOMBS = {
    "PNG": png(20000, 20000, zlib.compress(bytes(10**6))),
    "JPEG": b"\xff\xd8\xff\xc0\x00\x11\x08" + struct.pack(">HH", 65535, 65535) + bytes(99),
    "GIF": b"GIF89a" + struct.pack("<HH", 65535, 65535) + bytes(99),
    "BMP": b"BM" + bytes(12) + struct.pack("<Iii", 40, 30000, -30000) + bytes(99),
    "WebP": b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0" + bytes(4) + b"\xff\xff\xff\xff\xff\xff",
}


# Datasets whose archives have a reader of their own, by the function of official_fakes.
OFFICIAL = (
    "cifar10", "oxford_iiit_pet", "oxford_flowers102", "caltech101", "dtd", "svhn_cropped",
    "smallnorb", "dsprites", "patch_camelyon", "clevr", "kitti", "diabetic_retinopathy_detection",
    "dmlab", "cars196",
)  # fmt: skip


# --- Readers: each returns sound files, and what reads one ---------------------------------------


def stored(name, read):
    """What writes an input to a file of this name, and gives its path to `read`."""

    def read_stored(data, folder):
        path = folder / name
        path.write_bytes(data)
        read(path)

    return read_stored


def in_place_of_one(files, read):
    """What writes sound files by name, JSON and another, one of them damaged."""
    document, other = files

    def read_folder(data, folder):
        changed = document if data[:1] == b"{" else other
        for name, sound in files.items():
            (folder / name).write_bytes(data if name == changed else sound)
        read(folder)

    return list(files.values()), read_folder


def every_array(suffix):
    """What writes a file of weights and reads each of its arrays."""
    from vit_jax.weights import readers

    def read(path):
        opened = readers.open_arrays(path)
        for name in opened.specs:
            opened.read(name)

    return stored(f"w{suffix}", read)


def images():
    from vit_jax.data import decoding, jpeg

    pixels = cv2.resize(np.random.default_rng(0).integers(0, 256, (5, 6, 3), np.uint8), (40, 30))
    kinds = [cv2.imencode(kind, pixels)[1].tobytes() for kind in (".jpg", ".png", ".webp", ".bmp")]
    slow = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes()
    import PIL.Image

    stream = io.BytesIO()
    PIL.Image.fromarray(pixels).save(stream, "GIF")

    def read(data, folder):
        with contextlib.suppress(decoding.BadImage):
            decoding.size(data)
        decoding.decode_image(data, channels=3, max_pixels=10**6)
        size = jpeg.size(data)
        if size and min(size) > 9:
            part = (1, 1, min(size[0], 100) - 2, min(size[1], 100) - 2)
            jpeg.decode(data, part, np.empty(jpeg.buffer_size(part), np.uint8))

    return [*kinds, slow, stream.getvalue()], read


def deep_images():
    import tiffs
    from vit_jax.data import decoding, tiff

    drawn = np.random.default_rng(0).integers(0, 2**16, (5, 6, 13)).astype(np.uint16)
    pixels = cv2.resize(drawn, (40, 30))
    files = [
        tiffs.tiff(pixels, compression=name, predictor=2, **form)
        for name, form in zip(
            tiffs.COMPRESSIONS,
            ({"rows": 7}, {"tile": (16, 16)}, {"planar": True}, {"order": ">"}, {"rows": 9}),
            strict=True,
        )
    ]
    colors = np.arange(768).tolist()
    files.append(tiffs.tiff(pixels.astype(np.uint8)[..., :1], photometric=3, colors=colors))
    files += [cv2.imencode(".png", pixels[..., :count])[1].tobytes() for count in (1, 3, 4)]

    def read(data, folder):
        channels = 3
        if data.startswith(tiff.MAGIC):
            with contextlib.suppress(decoding.BadImage):
                channels = tiff.parse_header(data).samples
        decoding.decode_image(data, channels=channels, max_pixels=10**6, depth=16)

    return files, read


def weights():
    from vit_jax.weights import readers

    arrays = {"a/kernel": np.ones((3, 4), np.float32), "b": np.arange(5, dtype=np.float16)}
    plain, packed = io.BytesIO(), io.BytesIO()
    np.savez(plain, **arrays)
    np.savez_compressed(packed, **arrays)
    fields = {"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}
    head = json.dumps(fields).encode()
    tensors = struct.pack("<Q", len(head)) + head + bytes(16)

    def read(data, folder):
        if data[:1] != b"{":
            every_array(".npz" if data[:2] == b"PK" else ".safetensors")(data, folder)
            return
        path = folder / "w.json"
        path.write_bytes(data)
        for name in ("w", "x"):
            (folder / f"{name}.safetensors").write_bytes(tensors)
        readers.read_json(path)
        readers.open_shards(path)

    index = json.dumps({"weight_map": {"a": "w.safetensors"}}).encode()
    return [plain.getvalue(), packed.getvalue(), tensors, index], read


def torch_weights():
    """PyTorch's files of both forms."""
    files = pathlib.Path(__file__).parents[1] / "fixtures/weights/torch"
    return [(files / name).read_bytes() for name in ("zip.pth", "older.pth")], every_array(".pth")


def flax_weights():
    """Flax's MessagePack."""
    import flax.serialization

    tree = {"params": {"a": np.ones((3, 4), np.float32), "b": np.arange(5)}, "step": 7}
    return [flax.serialization.msgpack_serialize(tree)], every_array(".msgpack")


def orbax_weights():
    """Checkpoints of other programs; the first byte of an input says which file it stands for."""
    import orbax.checkpoint as ocp

    from vit_jax.weights import readers

    place = pathlib.Path(tempfile.mkdtemp(prefix="orbax_"))
    tree = {"params": {"a": np.ones((3, 4), np.float32), "b": np.arange(5)}, "step": 7}
    for name, options in (("a", {}), ("b", {"use_ocdbt": False}), ("c", {"use_zarr3": True})):
        ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)).save(place / name, tree)
    files = [one for one in sorted(place.rglob("*")) if one.is_file()]
    contents = [one.read_bytes() for one in files]

    def read(data, folder):
        number = data[0] % len(files) if data else 0
        files[number].write_bytes(data[1:])
        try:
            opened = readers.open_orbax(place / files[number].relative_to(place).parts[0])
            for name in opened.specs:
                opened.read(name)
        finally:
            files[number].write_bytes(contents[number])

    return [bytes([n]) + data for n, data in enumerate(contents)], read


def archives():
    import official_fakes
    from vit_jax.data import decoding
    from vit_jax.data.prepare import archives

    long = {"\u00e9" * 60 + "/" + "n" * 90: b"y"}
    plain = official_fakes.tar({"a/1.jpg": b"x" * 600} | long, format=tarfile.GNU_FORMAT)
    nested = official_fakes.tar({"a/1.tar": plain} | long, format=tarfile.PAX_FORMAT)
    packed = official_fakes.zipped({"a/1.jpg": b"x" * 900, "b.txt": b"y"})

    def read(path):
        reader = archives.Reader()
        try:
            for found in archives.list_files(path):
                with contextlib.suppress(decoding.BadImage):
                    reader(found)
        finally:
            reader.close()

    return [plain, nested, packed], stored("archive", read)


def metadata():
    from etils import epath

    from vit_jax.data import availability, tfds_metadata
    from vit_jax.data.prepare.shards import read_info

    image = "tensorflow_datasets.core.features.image_feature.Image"
    label = "tensorflow_datasets.core.features.class_label_feature.ClassLabel"
    features = {
        "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
        "featuresDict": {"features": {
            "image": {"pythonClassName": image,
                      "image": {"shape": {"dimensions": ["-1", "-1", "3"]}, "dtype": "uint8"}},
            "label": {"pythonClassName": label, "classLabel": {"numClasses": "3"}},
        }},
    }  # fmt: skip
    info = {
        "name": "mine", "version": "1.0.0", "fileFormat": "array_record",
        "splits": [{"name": "train", "numBytes": "9", "shardLengths": ["3", "2"],
                    "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"}],
    }  # fmt: skip

    def read(data, folder):
        is_info = b'"splits"' in data or b'"fileFormat"' in data
        place = folder / "mine" / "1.0.0"
        place.mkdir(parents=True, exist_ok=True)
        for name, sound in (("features.json", features), ("dataset_info.json", info)):
            mine = is_info == (name == "dataset_info.json")
            (place / name).write_bytes(data if mine else json.dumps(sound).encode())
        availability.read_info(epath.Path(place))
        with contextlib.suppress(ValueError, KeyError, TypeError):
            tfds_metadata.check_features(place)
        read_info(place)

    return [json.dumps(features).encode(), json.dumps(info).encode()], read


def records():
    import official_fakes
    from vit_jax.data.prepare import tfrecords

    def read(data, folder):
        for _ in tfrecords.read_records(io.BytesIO(data), "x"):
            pass

    return [official_fakes.tfrecord([b"abc", b"", b"z" * 300])], read


def array_records():
    from array_record.python import array_record_data_source, array_record_module

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/a.array_record"
        writer = array_record_module.ArrayRecordWriter(path, "group_size:1")
        for body in (b"abc", b"z" * 300):
            writer.write(body)
        writer.close()
        content = pathlib.Path(path).read_bytes()

    def read(path):
        with array_record_data_source.ArrayRecordDataSource(str(path)) as source:
            for index in range(min(len(source), 3)):
                source[index]

    return [content], stored("a.array_record", read)


def lists():
    from vit_jax.data import example_lists, objectnet, real_labels

    labels = json.dumps([[1, 2], [], [999]]).encode()
    known = {"task": "t", "dataset": "d", "version": "1", "split": "s", "images": 1}
    examples = example_lists.ExampleList("t", "d", "1", "s", ("0" * 16,))
    listed = json.dumps(known | {"sha256": examples.sha256, "examples": ["0" * 16]}).encode()
    mapping = {"folder": "Label"}, {"Label": "a; b"}, "a\nb\n", {"0": 1, "1": 2}

    def read(data, folder):
        path = folder / "list.json"
        path.write_bytes(data)
        if data[:1] == b"[":
            real_labels.load_real(path, images=3)
        elif b'"task"' in data:
            example_lists.read_list(path)
        else:
            for name, sound in zip(objectnet.FILES, mapping, strict=True):
                text = sound if isinstance(sound, str) else json.dumps(sound)
                (folder / name).write_text(text)
            (folder / objectnet.FILES[data.startswith(b'{"Label')]).write_bytes(data)
            objectnet.right_classes(folder, ["folder"])

    return [labels, listed, *(json.dumps(one).encode() for one in mapping[:2])], read


def csv_files():
    from vit_jax import config
    from vit_jax.data import sources

    names = b'image,labels\na.png,cat;dog\nsub/b.png,dog\n"c,c.png",\nd.png, cat ; bird \n'
    columns = b"\xef\xbb\xbffile,dog,cat\r\na.png,1,0\r\nsub/b.png,0,0\r\n"

    def read(path):
        options = config.Data(source="csv", root=str(path.parent), multilabel=True)
        source = sources.open_source(options, "train[:90%]", train=True)
        for index in range(len(source)):
            assert source.name(index).startswith(f"{path.parent}/")
            assert ".." not in source.name(index).split("/")

    return [names, columns], stored("train.csv", read)


def pickles():
    from vit_jax.data.prepare.official import pickles

    value = {b"labels": [1, 2], b"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "t": ("x", 3)}

    def read(data, folder):
        pickles.load_dictionary(data, "batch")

    return [pickle.dumps(value, protocol=protocol) for protocol in (0, 2)], read


def matlab():
    import scipy.io

    from vit_jax.data.prepare.official import mat

    files = []
    for packed in (False, True):
        stream = io.BytesIO()
        values = {"labels": np.arange(6.0).reshape(2, 3), "name": "text", "s": {"a": 1, "b": "x"}}
        scipy.io.savemat(stream, values, do_compression=packed)
        files.append(stream.getvalue())

    def read(data, folder):
        mat.load_arrays(data, ("labels", "name", "s"), "m.mat", 10**7)

    return files, read


def official():
    """The archives of datasets: tables, arrays and images in them, and archives in archives.

    The first two bytes choose which file of which set the others stand for.
    """
    import PIL.Image

    import official_fakes
    from vit_jax.data.prepare import shards
    from vit_jax.data.prepare.official import build

    PIL.Image.init()  # or it imports its formats when it meets a file of none
    place = pathlib.Path(tempfile.mkdtemp(prefix="official_"))
    files, encoders = [], {}
    for name in OFFICIAL:
        getattr(official_fakes, name)(place / name)
        files += [(name, path) for path in sorted((place / name).rglob("*")) if path.is_file()]
    files = [(name, path, path.read_bytes()) for name, path in files]
    by_name = {name.partition("/")[0]: recipe for name, recipe in build.RECIPES.items()}

    def read(data, folder):
        name, path, sound = files[int.from_bytes(data[:2], "little") % len(files)]
        scratch = pathlib.Path(tempfile.mkdtemp(dir=folder))
        path.write_bytes(data[2:])
        recipe = by_name[name]
        job = build.Job(
            name=name, recipe=recipe, builder=None, sources=[place / name], partial=True
        )
        encode = encoders.setdefault(name, build.ExampleEncoder(recipe.dataset.tfds))
        try:
            for split, examples in build.find_examples(job, scratch).splits.items():
                for position in build.order(split, examples).tolist()[:2]:
                    encode(examples[position], shards.ShardResult())
        finally:
            encode.close()
            path.write_bytes(sound)
            for one in scratch.rglob("*"):
                if one.is_file():
                    one.unlink()

    return [number.to_bytes(2, "little") + data for number, (*_, data) in enumerate(files)], read


def masks():
    """Masks of segmentation, and Pascal VOC's list of names."""
    from vit_jax.inference import segmentation

    values = cv2.resize(np.arange(20, dtype=np.uint8).reshape(4, 5), (30, 20))
    palette, one_bit = io.BytesIO(), io.BytesIO()
    import PIL.Image

    indexed = PIL.Image.fromarray(values).convert("P")
    indexed.save(palette, "PNG", transparency=0)
    PIL.Image.fromarray(values > 9).save(one_bit, "PNG")

    def read(data, folder):
        path = folder / "a.png"
        path.write_bytes(data)
        if data[:1] == b"\x89":
            segmentation.read_mask(segmentation.LabeledImage(path, path, 1), max_pixels=10**6)
            return
        for name in ("ImageSets/Segmentation", "JPEGImages", "SegmentationClass"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for name in ("JPEGImages/a.jpg", "SegmentationClass/a.png"):
            (folder / name).touch()
        (folder / "ImageSets/Segmentation/val.txt").write_bytes(data)
        segmentation.find_images(folder, "val")

    files = [cv2.imencode(".png", values)[1].tobytes(), palette.getvalue(), one_bit.getvalue()]
    return [*files, b"a\na\n"], read


def listings():
    """The paths in a tar or zip, which name splits and classes."""
    import official_fakes
    from vit_jax.data.prepare import assignment, image_listing

    names = [f"all/{split}/{c}/{n}.jpg" for split in ("train", "val") for c in "xy" for n in "ab"]
    files = dict.fromkeys(names, b"x")

    def read(path):
        assignment.arrange(image_listing.scan([path]), "train", "mine", 0.5)

    return [official_fakes.tar(files), official_fakes.zipped(files)], stored("images", read)


def parquet_files():
    """Parquet files of images and labels, as Hugging Face stores them."""
    import pyarrow as pa
    import pyarrow.parquet

    from vit_jax.data.decoding import BadImage
    from vit_jax.data.prepare import image_listing, parquet_pages
    from vit_jax.data.prepare import parquet as reader

    image = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    images = pa.array([{"bytes": b"\xff\xd8x", "path": "a.jpg"}] * 9, image)
    plain = pa.table({"image": images, "label": [*range(9)]})
    described = {"label": {"_type": "ClassLabel", "names": [*"abcdefghi"]}}
    facts = json.dumps({"info": {"features": described}})
    described = plain.replace_schema_metadata({"huggingface": facts})
    forms = [
        {}, {"data_page_version": "2.0", "compression": "none"},
        {"use_dictionary": False, "compression": "lz4", "write_statistics": False},
        {"use_dictionary": False, "compression": "gzip", "data_page_version": "2.0"},
    ]  # fmt: skip
    files = [pa.BufferOutputStream() for _ in forms]
    for number, file in enumerate(files):
        one = (plain, described)[number % 2]
        pyarrow.parquet.write_table(one, file, row_group_size=4, **forms[number])

    def read(path):
        refused = None
        try:
            listing = image_listing.scan_tables([path], "parquet", None, "x")
            one = parquet_pages.Reader()
            for at in range(len(listing)):
                with contextlib.suppress(BadImage):
                    one(listing[at])
        except errors.UserError as error:
            refused = error
        for _ in reader.rows(path):
            pass
        if refused is not None:
            raise refused

    return [file.getvalue().to_pybytes() for file in files], stored("train.parquet", read)


def arrow_files():
    """Arrow files of images and labels, as the library datasets saves them."""
    import pyarrow as pa
    import pyarrow.ipc

    from vit_jax.data.prepare import arrow

    images = [{"bytes": b"\xff\xd8x", "path": "a.jpg"}, None, {"bytes": None, "path": "b"}] * 3
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    columns = {"image": pa.array(images, kind), "values": pa.array([[1.0], []] * 4 + [None])}
    labels = (pa.array([*range(9)]), pa.array([*"abcabcabc"]).dictionary_encode())
    files = []
    for label, new in itertools.product(labels, (pa.ipc.new_stream, pa.ipc.new_file)):
        one, stream = pa.table({**columns, "label": label}), pa.BufferOutputStream()
        with new(stream, one.schema) as writer:
            writer.write_table(one, max_chunksize=4)
        files.append(stream.getvalue().to_pybytes())

    def read(data, folder):
        path = folder / "train.arrow"
        path.write_bytes(data)
        for found in filter(None, arrow.rows(path, None)):
            assert len(data[found.offset :][: found.size]) == found.size

    return files, read


def feature_tables():
    """The tables of features that `search` reads."""
    import pyarrow as pa
    import pyarrow.parquet

    from vit_jax.inference import search

    features = np.random.default_rng(0).random((5, 4), np.float32)
    plain, table = io.BytesIO(), pa.BufferOutputStream()
    np.savez(plain, names=np.array([*"abcde"]), features=features)
    flat = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), 4)
    columns = pa.table({"name": [*"abcde"], "features": flat})
    pyarrow.parquet.write_table(columns, table, use_dictionary=False)

    def read(data, folder):
        path = (
            folder / f"features{'.parquet' if data[:1] == b'P' and data[1:2] != b'K' else '.npz'}"
        )
        path.write_bytes(data)
        found = search.read_index(path)
        found.nearest(np.ones(found.features.shape[1], np.float32), 3)

    return [plain.getvalue(), table.getvalue().to_pybytes()], read


def adapters():
    """PEFT's folders: what an adapter says of itself, and its arrays."""
    from safetensors.numpy import save

    from vit_jax.weights import peft_files
    from vit_jax.weights.arrays import Arrays, ArraySpec

    layer = "base_model.model.vit.encoder.layer.0.attention.attention.query"
    arrays = {f"{layer}.lora_A.weight": np.ones((2, 4), np.float32),
              f"{layer}.lora_B.weight": np.ones((4, 2), np.float32),
              "base_model.model.classifier.weight": np.ones((3, 4), np.float32)}  # fmt: skip
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "alpha_pattern": {"key": 8}}
    files = {peft_files.CONFIG: json.dumps(settings).encode(), peft_files.FILES[0]: save(arrays)}
    names = (f"{layer.removeprefix(peft_files.PREFIX)}.weight", "classifier.weight")
    specs = {name: ArraySpec((4, 4), np.dtype("<f4")) for name in names}
    base = Arrays(specs, lambda name: np.zeros((4, 4), np.float32))

    def read(folder):
        merged = peft_files.merged(folder, base)
        for name in merged.specs:
            merged.read(name)

    return in_place_of_one(files, read)


def projections():
    """Heads of self-distillation beside an encoder."""
    from safetensors.numpy import save

    from vit_jax import config
    from vit_jax.weights import projection_heads, readers

    own = config.Dino(head_layers=2, head_hidden=4, head_bottleneck=2, prototypes=6,
                      patch_loss=1.0, patch_head=True)  # fmt: skip
    arrays = {"teacher.backbone.mask_token": np.ones((1, 4), np.float32)}
    for head in ("dino_head", "ibot_head"):
        for name, shape in {
            "mlp.0.weight": (4, 4), "mlp.0.bias": (4,), "mlp.2.weight": (2, 4), "mlp.2.bias": (2,),
            "last_layer.weight_v": (6, 2), "last_layer.weight_g": (6, 1),
        }.items():  # fmt: skip
            arrays[f"teacher.{head}.{name}"] = np.ones(shape, np.float32)

    def read(path):
        found = readers.open_arrays(path)
        projection_heads.names(found, "teacher.backbone.", own)
        projection_heads.from_arrays(found, "teacher.backbone.", own, 4)

    return [save(arrays)], stored("w.safetensors", read)


def native_weights():
    """NaFlex models: their configs, and the shapes of their arrays."""
    from safetensors.numpy import save

    from vit_jax import weights

    arrays = {"embeds.proj.weight": (8, 48), "embeds.pos_embed": (1, 2, 2, 8), "norm.weight": (8,)}
    shapes = {"norm1": (8,), "attn.qkv": (24, 8), "attn.proj": (8, 8), "norm2": (8,),
              "mlp.fc1": (16, 8), "mlp.fc2": (8, 16)}  # fmt: skip
    arrays |= {f"blocks.0.{name}.weight": shape for name, shape in shapes.items()}
    biases = {name.replace("weight", "bias"): shape[:1] for name, shape in arrays.items()}
    arrays |= {name: shape for name, shape in biases.items() if name.endswith("bias")}
    facts = {
        "architecture": "naflexvit_base_patch16_gap", "num_classes": 0, "global_pool": "avg",
        "model_args": {"embed_dim": 8, "depth": 1, "num_heads": 2, "mlp_ratio": 2,
                       "patch_size": 4, "in_chans": 3, "pos_embed_grid_size": [2, 2]},
        "pretrained_cfg": {"input_size": [3, 16, 16], "mean": [0.5] * 3, "std": [0.5] * 3},
    }  # fmt: skip
    whole = {name: np.zeros(shape, np.float32) for name, shape in arrays.items()}
    files = {"config.json": json.dumps(facts).encode(), "model.safetensors": save(whole)}
    return in_place_of_one(files, weights.read_spec)


def bucket_listings():
    """What a bucket says it holds, and the record of a copy."""
    import fsspec

    from vit_jax.data import bucket

    class System:
        def __init__(self, listed):
            self.listed = listed

        def find(self, root, detail):
            return self.listed

        def get_file(self, name, local):
            pathlib.Path(local).write_bytes(b"x")

    listed = {f"b/{name}": {"type": "file", "size": 1, "ETag": "e"} for name in ("a/0", "a/1", "c")}
    record = {name.removeprefix("b/"): [1, "ETag=e"] for name in listed}
    files = [json.dumps(one).encode() for one in (listed, record)]

    def read(data, folder):
        about = b'"ETag"' in data
        try:
            found = limits.load_json(data) if about else listed
        except (ValueError, RecursionError, limits.LimitError):
            return
        if not isinstance(found, dict) or not all(isinstance(o, dict) for o in found.values()):
            return  # fsspec gives no others
        where = bucket._folder("s3://b", folder)
        where.mkdir(exist_ok=True)
        (where / "objects.json").write_bytes(files[1] if about else data)
        before, fsspec.url_to_fs = fsspec.url_to_fs, lambda *given, **more: (System(found), "b")
        try:
            bucket.copy("s3://b", folder, 10**6)
        finally:
            fsspec.url_to_fs = before

    return files, read


def fix_lists():
    """Lists of images to leave out, as `doctor` writes them."""
    from vit_jax import config
    from vit_jax.data import sources

    def read(path):
        (path.parent / "a").mkdir(exist_ok=True)
        (path.parent / "a/0.png").touch()
        options = config.Data(source="folder", root=str(path.parent), exclude=str(path))
        for path in sources.read_excluded(options):
            assert ".." not in path.split("/")

    sound = b"image,problem,detail\na/0.png,copy,of a/1.png\na/1.png,broken,\n"
    return [sound], stored("fix.csv", read)


def webdatasets():
    """Tars of images with their labels beside them."""
    import official_fakes
    from vit_jax.data.prepare import image_listing

    files = {}
    for number in range(3):
        described = json.dumps({"label": number}).encode()
        files |= {f"{number}.jpg": b"x", f"{number}.cls": b"%d" % number}
        files[f"{number}.json"] = described

    def read(path):
        found = image_listing.scan([path])
        for index in range(len(found)):
            assert ".." not in found.path(index).split("/")

    return [official_fakes.tar(files)], stored("train-0.tar", read)


def beside_weights():
    """What adapters say of themselves, and the digests of downloads; test_fuzz.py has configs."""
    from vit_jax.weights import adapter_file, hub

    adapter = {"config": {"name": "x"}, "classes": ["a", "b"], "base": "b"}
    lock = {"a": {"sha256": "0" * 64, "size": 1, "mtime_ns": 2}}

    def read(data, folder):
        is_adapter = b'"base"' in data
        (folder / (adapter_file.FACTS if is_adapter else hub.LOCK)).write_bytes(data)
        adapter_file.read_fields(folder) if is_adapter else hub.read_lock(folder)

    return [json.dumps(one).encode() for one in (adapter, lock)], read


def run_files():
    from vit_jax import config
    from vit_jax.inference.inspect import figure_index as inspect_figures
    from vit_jax.runs import directory
    from vit_jax.runtime import goodput, locking, logs
    from vit_jax.studies import records as study_records
    from vit_jax.studies.report import run_data

    sound = config.Config(name="x", model=config.Model(variant="ViT-B/16", num_classes=10))
    settings = json.dumps(config.to_dict(sound)).encode()
    lines = b'{"step": 1, "train/loss": 2.5}\n{"step": 2, "eval/top1": null}\n'
    session = {"first_step": 0, "last_step": 3, "seconds": {"train": 1.5}, "failed": False}
    figures = [{"file": "a.png", "caption": "c", "step": 3}]
    cell = {"stage": "final", "setup": "v", "lr": 0.1, "seed": 0, "directory": "d", "state": "done"}
    table = {"cells": [cell], "results": {}}

    def read(data, folder):
        inspect = folder / inspect_figures.FOLDER
        inspect.mkdir(exist_ok=True)
        for name in ("config.json", "metrics.jsonl", "goodput.json", run_data.TRANSFER):
            (folder / name).write_bytes(data)
        (inspect / inspect_figures.INDEX).write_bytes(data)
        run_data.read_run(folder)
        run_data.read_transfer(folder)
        try:  # the seal stops nearly all of these; what is behind it is read of sealed ones
            resealed = json.dumps(study_records.sealed(limits.load_json(data)))
        except (ValueError, TypeError, RecursionError, limits.LimitError):
            pass
        else:
            (folder / run_data.TRANSFER).write_text(resealed)
            run_data.read_transfer(folder)
        inspect_figures.read_pictures(folder)
        goodput.read_sessions(folder / "goodput.json")
        locking.Holder.parse(data)
        with contextlib.suppress(limits.LimitError):
            logs.read_metrics(folder / "metrics.jsonl")
        if b'"model"' in data:
            directory.reconcile(folder, None, {})

    files = [session], figures, table
    return [settings, lines, *(json.dumps(one).encode() for one in files)], read


def checkpoints():
    from etils import epath

    from vit_jax.checkpoints import record

    body = {"step": 3, "facts": {"classes": ["a"]}, "metrics": {}, "files": {}}
    body |= {"leaves": {"p": {"shape": [2]}}}
    whole = record.encode_commit(body).encode()

    return [whole], stored(record.COMMIT, lambda path: record.read_commit(epath.Path(path).parent))


READERS = {
    one.__name__: one
    for one in (images, deep_images, weights, torch_weights, flax_weights, orbax_weights, archives,
                metadata, records, array_records, lists, csv_files, pickles, matlab, official,
                masks, listings, parquet_files, arrow_files, feature_tables, adapters, projections,
                native_weights, bucket_listings, fix_lists, webdatasets, beside_weights, run_files,
                checkpoints)
}  # fmt: skip


# Errors that the callers of a reader turn into one line.
FOREIGN = {
    "array_records": (OSError, RuntimeError, ValueError, IndexError),
    "checkpoints": (errors.DamagedCheckpoint,),
}


class Ran(Exception):
    """Something was imported or run because of an input."""


@functools.cache
def guard():
    """A list whose item says whether events that run code raise Ran."""
    armed = [False]
    for name in CODECS:  # which Python imports when they are first used
        codecs.lookup(name)

    def hook(event, args):
        if armed[0] and event.startswith(FORBIDDEN):
            armed[0] = False
            raise Ran(f"{event} {str(args)[:200]}")

    sys.addaudithook(hook)  # for as long as the process lives
    return armed


@contextlib.contextmanager
def nothing_runs():
    """Lets nothing be imported or run."""
    armed = guard()
    armed[0] = True
    try:
        yield
    finally:
        armed[0] = False


def attempt(reader, data, folder, allowed=()):
    """Reads one input; returns whether it was refused. Raises for what must not happen."""
    began, refused = time.monotonic(), None
    try:
        with nothing_runs():
            reader(data, folder)
    except (errors.UserError, *allowed) as error:
        refused = str(error)
    assert time.monotonic() - began < HANG, f"{time.monotonic() - began:.1f} s"
    assert refused is None or allowed or "\n" not in refused, refused
    return refused is not None


# --- Campaigns ------------------------------------------------------------------------------------


def _inputs(contents, rng):
    while True:
        content = contents[rng.integers(len(contents))]
        numbers = rng.integers(0, 2**31, (rng.integers(1, 4), 3)).tolist()
        yield damaged(content, [(*three, rng.bytes(three[0] % 9)) for three in numbers])


def _work(name, inputs, seed, answers):
    contents, reader = READERS[name]()
    allowed = FOREIGN.get(name, ())
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        for content in contents:  # which imports all that is needed
            with contextlib.suppress(Exception):
                reader(content, place)
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
        answers.send(("ready", None))
        tracemalloc.start()
        for data, _ in zip(_inputs(contents, rng), range(inputs), strict=False):
            answers.send(("input", gzip.compress(data, 1)))
            tracemalloc.reset_peak()
            try:
                answers.send(("refused" if attempt(reader, data, place, allowed) else "read", None))
            except BaseException as error:
                answers.send(("wrong", f"{type(error).__name__}: {error}"[:300]))
            if tracemalloc.get_traced_memory()[1] > MEMORY:
                answers.send(("memory", None))
    answers.send(("end", None))


def _received(pipe):
    """The next message, or None where the sender has ended."""
    try:
        return pipe.recv()
    except EOFError:
        return None


def campaign(name, inputs, seed):
    """Outcomes of a number of inputs to a reader, counted, and the first bad inputs."""
    counts, bad, done = (
        dict.fromkeys(("read", "refused", "wrong", "crash", "hang", "memory"), 0),
        [],
        0,
    )
    context = multiprocessing.get_context("spawn")
    while done < inputs:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(name, inputs - done, [seed, done], there))
        process.start()
        there.close()
        # A process that does not start would not the next time either.
        if not here.poll(START) or _received(here) is None:
            process.kill()
            raise RuntimeError(f"{name}: no process that reads its sound files")
        data = None
        while True:
            if not here.poll(HANG):
                event = "hang"
            else:
                event, content = _received(here) or ("crash", None)
            if event == "end":
                done = inputs
                break
            if event == "input":
                data, done = content, done + 1
                continue
            counts[event] += 1
            if event not in ("read", "refused"):
                bad.append((event, content if event == "wrong" else "", data))
            if event in ("hang", "crash"):
                break
        process.kill()
        process.join()
    return counts, bad


def _cpu_seconds():
    """Those of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main():
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # or libtpu looks for a TPU, and complains
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("readers", nargs="*", default=list(READERS))
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=pathlib.Path, help="records: a line for each reader")
    args = parser.parse_args()
    print("| reader | inputs | read | refused | other errors | crashes | hangs | memory | s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in args.readers:
        began, spent = time.monotonic(), _cpu_seconds()
        counts, bad = campaign(name, args.inputs, args.seed)
        seconds = round(time.monotonic() - began)
        row = [name, args.inputs, *counts.values(), seconds]
        print(f"| {' | '.join(map(str, row))} |", flush=True)
        if args.output:
            command = (
                f"python tests/helpers/hostile.py {name} --inputs={args.inputs} --seed={args.seed}"
            )
            line = {"command": command, "reader": name, "inputs": args.inputs} | counts
            line |= {"seconds": seconds, "cpu_seconds": round(_cpu_seconds() - spent)}
            line |= provenance.fields("cpu", {})
            with args.output.open("a") as stream:
                stream.write(json.dumps(line) + "\n")
        for event, text, data in bad[:5]:
            print(event, text, gzip.decompress(data)[:300] if data else None, file=sys.stderr)


if __name__ == "__main__":
    main()
