"""Reads named arrays one at a time from files of weights, and from sharded checkpoints.

Nothing in a file is executed or unpacked to disk. Declared sizes are checked against the file size
and against limits before memory is allocated. Files are not memory-mapped: if one were truncated
while mapped, the process would crash.

Every array in a .npz has a checksum, and in PyTorch's archives, and in the .safetensors files that
this project writes, so damage is always detected. Other files have none: a corrupted value goes
unnoticed if the array is still finite.
"""

import collections
import contextlib
import hashlib
import io
import json
import os
import pathlib
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

import ml_dtypes
import numpy as np

from vit_jax.utils import limits, npy, pickles, storage
from vit_jax.utils.messages import memory_text
from vit_jax.weights import flax_files, orbax_files, torch_files
from vit_jax.weights.arrays import Arrays, ArraySpec, WeightsError

# DINOv3's 7B takes 27 GB in float32; a file that unpacks to more than this is an attack.
MAX_BYTES = 32 * 2**30
# So is a higher compression ratio: some files contain a head of zeros, none only zeros.
MAX_RATIO = 32
FREE_BYTES = 64 * 2**20  # smaller contents may have any ratio
MAX_TABLE = 8 * 2**20  # bytes of names, shapes and labels to read at once
MAX_ARRAYS = 20_000  # each costs memory before a value is read; networks have hundreds
NAME = re.compile(r"[\w./:\-+]{1,300}", re.ASCII)
# Formats of weights that are known and not read, by the suffix of a file, and why.
UNREAD = {
    **dict.fromkeys((".pkl", ".pickle"), "holds objects of any class"),
    ".h5": "is Keras's HDF5, which is not supported",
    ".tar": "is an archive, which is not unpacked here",
}
POINTER = b"version https://git-lfs.github.com/spec/"


def open_arrays(path: pathlib.Path, kind: str = "") -> Arrays:
    """Opens the arrays of a .npz or .safetensors file; raises WeightsError.

    `kind` is the suffix, for a file of another name.
    """
    kind = kind or _suffix(path)
    if kind in UNREAD:
        raise WeightsError(
            f"{path}: a {kind} file {UNREAD[kind]}; convert it to .safetensors with "
            "the library that wrote it, or download that format"
        )
    if kind not in FORMATS:
        raise WeightsError(f"{path}: unsupported file type; supported: {', '.join(FORMATS)}")
    with _named(path):
        if not path.is_file():
            raise WeightsError("no such file")
        with _explained(f"is not a complete {kind} file"):
            file = File(path)
            if file.read(len(POINTER)) == POINTER:  # a repository cloned without Git LFS
                raise WeightsError("is a pointer of Git LFS, not the file; run: git lfs pull")
            file.seek(0)
            return FORMATS[kind](file)


def is_weights(path: pathlib.Path) -> bool:
    """Whether a path is a file whose name is that of weights."""
    return _suffix(path) in FORMATS and path.is_file()


def open_orbax(folder: pathlib.Path) -> Arrays:
    """Opens the arrays of an Orbax checkpoint of another program; raises WeightsError."""
    with _named(folder), _explained("is not a complete Orbax checkpoint"):
        arrays = orbax_files.open_arrays(folder)
        packed = orbax_files.size(folder)
        check_ratio(sum(one.span for one in arrays.values()), packed)
        specs = {name: ArraySpec(one.shape, one.dtype) for name, one in arrays.items()}
        return _checked(specs, lambda name: arrays[name].read(), packed)


def open_shards(index: pathlib.Path) -> Arrays:
    """Opens the files that an index lists (`*.safetensors.index.json`, `*.bin.index.json`)."""
    values = read_json(index)
    places = values.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(v, str) for v in places.values()):
        raise WeightsError(f"{index}: has no valid weight_map")
    if len(places) > MAX_ARRAYS:
        raise WeightsError(f"{index}: lists {len(places)} arrays; the limit is {MAX_ARRAYS}")
    shards = {}
    for name in sorted(set(places.values())):
        # The index may come from anywhere: a name with a / could have any file of this machine
        # read.
        if not re.fullmatch(r"[\w\-]{1,200}\.(safetensors|bin)", name, re.ASCII):
            raise WeightsError(f"{index}: {name[:80]!r} is not a file next to it")
        shards[name] = open_arrays(index.parent / name)
    missing = [name for name, file in places.items() if name not in shards[file].specs]
    if missing:
        raise WeightsError(f"{index}: {places[missing[0]]} does not contain {missing[0][:80]!r}")
    specs = {name: shards[file].specs[name] for name, file in places.items()}
    with _named(index):
        _check_size(sum(spec.nbytes for spec in specs.values()))

    def read(name: str) -> np.ndarray:
        with _named(places[name]):
            return shards[places[name]].read(name)

    return Arrays(specs, read)


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Reads the object in a JSON file of moderate size; raises WeightsError."""
    with _named(path):
        with _explained("is not valid JSON"):
            values = limits.load_json(File(path).read())
        if not isinstance(values, dict):
            raise WeightsError("must be a JSON object")
    return values


class File(io.FileIO):
    """A file that returns at most MAX_TABLE bytes per read, whatever its tables declare."""

    def read(self, size: int | None = -1) -> bytes:
        """Reads up to `size` bytes; all of them if it is negative."""
        whole = size is None or size < 0 or size > MAX_TABLE
        data = super().read(MAX_TABLE + 1 if whole else size) or b""
        if len(data) > MAX_TABLE:
            raise WeightsError(f"contains a table larger than {memory_text(MAX_TABLE)}")
        return data

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return os.fstat(self.fileno()).st_size

    def __del__(self) -> None:
        self.close()  # otherwise Python closes it with a warning


@contextlib.contextmanager
def _named(file: object) -> Iterator[None]:
    """Prefixes errors with the name of a file."""
    try:
        yield
    except WeightsError as error:
        raise WeightsError(f"{file}: {error}") from error


@contextlib.contextmanager
def _explained(damage: str) -> Iterator[None]:
    """Turns any error from a damaged file, here or in a library, into a WeightsError."""
    try:
        yield
    # No damage: what is too large for this machine is not mended by another download.
    except (WeightsError, MemoryError):
        raise
    except limits.LimitError as error:
        raise WeightsError(str(error)) from error
    except OSError as error:
        raise WeightsError(f"cannot be read: {error.strerror or error}") from error
    # zipfile, zlib, json, struct and numpy raise a dozen types for damaged bytes, and do not
    # promise which.
    except Exception as error:
        raise WeightsError(f"{damage}; download it again") from error


def _fill(source: IO[bytes], spec: ArraySpec) -> np.ndarray:
    """Reads the values of an array from a file; raises EOFError if the file ends too early."""
    # As bytes: numpy exports no buffer of bfloat16.
    data = np.empty(spec.nbytes, np.uint8)
    storage.fill(source, data.data)
    return data.view(spec.dtype).reshape(spec.shape)


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        raise WeightsError(f"unpacks to {memory_text(size)}; the limit is {memory_text(MAX_BYTES)}")


def check_ratio(size: int, packed: int) -> None:
    """Raises WeightsError if an archive of `packed` bytes unpacks to too many."""
    most = max(FREE_BYTES, MAX_RATIO * packed)
    if size > most:
        raise WeightsError(
            f"unpacks to {memory_text(size)}, {size / packed:.0f} times its size, unlike any "
            f"weights; the limit is {memory_text(most)}"
        )


def _check_names(names: Iterable[str]) -> None:
    names = list(names)
    if len(names) > MAX_ARRAYS:
        raise WeightsError(f"contains {len(names)} arrays; the limit is {MAX_ARRAYS}")
    for name in names:
        if not NAME.fullmatch(name) or ".." in name or name.startswith("/"):
            raise WeightsError(f"has the invalid array name {name[:80]!r}; download it again")
    if twice := _repeated(names):
        raise WeightsError(f"contains {twice} twice; download it again")


def _repeated(names: Iterable[str]) -> str | None:
    return next((name for name, n in collections.Counter(names).items() if n > 1), None)


# .npz: a zip archive of .npy files


def _npz(file: File) -> Arrays:
    archive = zipfile.ZipFile(file)
    members = archive.infolist()
    _check_names(member.filename for member in members)
    size = sum(member.file_size for member in members)
    _check_size(size)
    check_ratio(size, file.size)
    specs: dict[str, ArraySpec] = {}
    headers: dict[str, npy.NpyHeader] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name == member.filename:
            raise WeightsError(f"contains {name}, which is not an array")
        # numpy uses no other compression method, and Python does not bound their memory.
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise WeightsError(f"{name} uses a compression method that numpy does not support")
        with _explained(f"{name} is damaged or not a plain array"), archive.open(member) as source:
            header = headers[name] = npy.read_header(name, source)
        specs[name] = ArraySpec(header.shape, header.dtype)
        if header.length + specs[name].nbytes != member.file_size:
            raise WeightsError(f"{name} does not have the size in its header; download it again")

    def read(name: str) -> np.ndarray:
        header = headers[name]
        with _explained(f"{name} is damaged"), archive.open(f"{name}.npy") as source:
            # A compressed member cannot be positioned: the header is unpacked once more.
            source.read(header.length)
            if header.fortran:
                # Fortran's order is that of C with the axes reversed, so a view will do.
                return _fill(source, ArraySpec(header.shape[::-1], header.dtype)).T
            return _fill(source, specs[name])

    return Arrays(specs, read, _comment(archive.comment))


def _comment(comment: bytes) -> dict[str, str]:
    """The text by name that `writers` keeps in the comment of an archive; {} in one of another.

    Zip has no checksum of its comment. A digest is part of it, and ours is known by either of two
    marks, so that one damaged byte is noticed.
    """
    if b"vit_jax" not in comment:
        return {}
    text, _, digest = comment.partition(b"\n")
    values = json.loads(text.decode("utf-8"))
    if digest != comment_digest(text) or not all(isinstance(v, str) for v in values.values()):
        raise ValueError("the comment of the archive does not have its digest")
    return values


def comment_digest(text: bytes) -> bytes:
    """The last line of an archive's comment."""
    return b"vit_jax sha256 " + hashlib.sha256(text).hexdigest().encode()


# .safetensors: the length of a JSON header in 8 bytes, the header, then the values of all arrays
# without gaps

TYPES = {
    "F64": "f8", "F32": "f4", "F16": "f2", "BF16": ml_dtypes.bfloat16, "I64": "i8", "I32": "i4",
    "U8": "u1", "BOOL": "?",
}  # fmt: skip
DIGESTS = "vit_jax.sha256"  # the metadata of our files with the digest of every array, as JSON


def _safetensors(file: File) -> Arrays:
    length = int.from_bytes(file.read(8), "little")
    # Whatever length is declared, File reads at most MAX_TABLE bytes.
    header = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=_once)
    metadata = header.pop("__metadata__", None) or {}
    if not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("__metadata__ must be text by name")
    _check_names(header)
    specs: dict[str, ArraySpec] = {}
    starts: dict[str, int] = {}
    end = 8 + length
    # By where they begin: without gaps and overlaps, as safetensors demands.
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        shape, (begin, finish) = entry["shape"], entry["data_offsets"]
        whole = all(type(n) is int and n >= 0 for n in (*shape, begin, finish))
        if not whole or len(shape) > limits.AXES:
            raise ValueError(f"{name} has shape {shape} and offsets {begin}, {finish}")
        if entry["dtype"] not in TYPES:
            raise WeightsError(f"{name} has the unsupported type {str(entry['dtype'])[:20]!r}")
        specs[name] = ArraySpec(tuple(shape), np.dtype(TYPES[entry["dtype"]]))
        starts[name] = end
        if 8 + length + begin != end or finish - begin != specs[name].nbytes:
            raise ValueError(
                f"{name} does not start where the previous array ends, or has another length"
            )
        end += specs[name].nbytes
    if end != file.size:
        raise ValueError(f"{file.size} bytes, but the header describes {end}")
    _check_size(end)
    digests = json.loads(metadata.get(DIGESTS, "{}"))
    if DIGESTS in metadata and digests.keys() != specs.keys():
        raise ValueError("the digests are not those of the arrays")

    def read(name: str) -> np.ndarray:
        with _explained(f"{name} is damaged"):
            file.seek(starts[name])
            array = _fill(file, specs[name])
            if digests and digest_array(array) != digests[name]:
                raise ValueError("does not have its digest")
        return array

    return Arrays(specs, read, metadata)


def digest_array(array: np.ndarray) -> str:
    """A digest of the values of a contiguous array, as a header of ours keeps it."""
    # As bytes, like `_fill`: numpy exports no buffer of bfloat16.
    return hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()[:32]


def _once(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """The dict of a JSON object; raises WeightsError for a repeated name."""
    # Of equal keys Python's json keeps the last; other readers may keep the first.
    twice = _repeated(name for name, _ in items)
    if twice is not None:
        raise WeightsError(f"contains {twice[:80]!r} twice; download it again")
    return dict(items)


# PyTorch's and Flax's files


def _torch(file: File) -> Arrays:
    try:
        tensors, read_tensor = torch_files.open_tensors(file)
    except pickles.Refused as error:
        raise WeightsError(
            f"has {error}; tensors alone are read: save the model's state_dict, or .safetensors"
        ) from error
    specs = {name: ArraySpec(one.shape, one.storage.dtype) for name, one in tensors.items()}
    # Tensors may share values, or repeat them.
    spans = sum(one.span * one.storage.dtype.itemsize for one in tensors.values())
    check_ratio(spans, file.size)
    return _checked(specs, read_tensor, file.size)


def _flax(file: File) -> Arrays:
    arrays = flax_files.open_arrays(file)
    specs = {name: ArraySpec(one.shape, one.dtype) for name, one in arrays.items()}
    return _checked(specs, lambda name: arrays[name].read(file), file.size)


def _checked(
    specs: Mapping[str, ArraySpec], read_array: Callable[[str], np.ndarray], packed: int
) -> Arrays:
    """Validates names and sizes of arrays in files of `packed` bytes."""
    _check_names(specs)
    size = sum(spec.nbytes for spec in specs.values())
    _check_size(size)
    check_ratio(size, packed)

    def read(name: str) -> np.ndarray:
        with _explained(f"{name} is damaged"):
            return read_array(name)

    return Arrays(specs, read)


def _suffix(path: pathlib.Path) -> str:
    """The suffix that tells the format; timm's `.pth.tar` is no archive, Flax's files have none."""
    if path.name.lower().endswith(".pth.tar"):
        return ".pth"
    if re.fullmatch(r"checkpoint_\d+", path.name):
        return ".msgpack"
    return path.suffix.lower()


FORMATS: Mapping[str, Callable[[File], Arrays]] = {
    ".npz": _npz,
    ".safetensors": _safetensors,
    **dict.fromkeys((".pth", ".pt", ".bin", ".ckpt"), _torch),
    ".msgpack": _flax,
}
