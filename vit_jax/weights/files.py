"""Files of arrays by name, read one array at a time: .npz, .safetensors, and folders of shards.

Nothing in a file is executed. What a header claims is checked against the size of the file before
memory is taken for it.
"""

import ast
import dataclasses
import json
import math
import pathlib
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import safetensors

from vit_jax import config

# The largest released ViT takes 2.5 GB; whoever unpacks to more than this means harm.
MAX_BYTES = 32 * 2**30
MAX_ARRAYS = 20_000
MAX_HEADER = 10_000  # characters of the header of one array
MAX_JSON = 16 * 2**20
MAX_AXES = 8
NAME = re.compile(r"[\w./:\-+]{1,300}", re.ASCII)
PICKLES = (".bin", ".pth", ".pt", ".ckpt", ".pkl", ".pickle", ".h5", ".msgpack")


class WeightsError(config.UserError):
    """Weights that cannot be read, do not fit, or cannot be written in the wanted form."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """Shape and type of one array."""

    shape: tuple[int, ...]
    dtype: np.dtype


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Arrays by name, of which `read` takes one at a time into memory.

    `read` raises WeightsError naming the array when it turns out damaged.
    """

    specs: Mapping[str, Spec]
    read: Callable[[str], np.ndarray]


def open_arrays(path: pathlib.Path) -> Arrays:
    """Returns what a .npz or .safetensors file holds; raises WeightsError."""
    if path.suffix in PICKLES:
        raise WeightsError(
            f"{path}: {path.suffix} files can run code when they are read, so they are not; "
            "convert it to .safetensors where it was made, or download that version"
        )
    readers = {".npz": _npz, ".safetensors": _safetensors}
    if path.suffix not in readers:
        raise WeightsError(f"{path}: is none of the known kinds of file: {', '.join(readers)}")
    try:
        if not path.is_file():
            raise WeightsError(f"{path}: no such file")
        arrays = readers[path.suffix](path)
        _check(arrays.specs)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror}") from error
    except WeightsError as error:
        text = str(error)
        raise WeightsError(text if text.startswith(str(path)) else f"{path}: {text}") from error
    return arrays


def open_shards(index: pathlib.Path) -> Arrays:
    """Returns what the .safetensors files named by an index (`*.safetensors.index.json`) hold."""
    values = read_json(index)
    places = values.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(v, str) for v in places.values()):
        raise WeightsError(f"{index}: has no weight_map from names to files")
    if len(places) > MAX_ARRAYS:
        raise WeightsError(f"{index}: names {len(places)} arrays; at most {MAX_ARRAYS}")
    shards = {}
    for name in sorted(set(places.values())):
        if not re.fullmatch(r"[\w\-]+\.safetensors", name, re.ASCII):
            raise WeightsError(f"{index}: {name!r} is no file beside it")
        shards[name] = open_arrays(index.parent / name)
    missing = [name for name, file in places.items() if name not in shards[file].specs]
    if missing:
        raise WeightsError(f"{index}: {places[missing[0]]} does not hold {missing[0]}")
    specs = {name: shards[file].specs[name] for name, file in places.items()}
    _check(specs)
    return Arrays(specs, lambda name: shards[places[name]].read(name))


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Returns the object in a JSON file of moderate size; raises WeightsError."""
    try:
        if path.stat().st_size > MAX_JSON:
            raise WeightsError(f"{path}: is larger than {MAX_JSON // 2**20} MiB")
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: is no JSON: {error}") from error
    if not isinstance(values, dict):
        raise WeightsError(f"{path}: is no JSON object")
    return values


def _check(specs: Mapping[str, Spec]) -> None:
    size = sum(math.prod(s.shape) * s.dtype.itemsize for s in specs.values())
    if size > MAX_BYTES:
        raise WeightsError(f"unpacks to {size / 2**30:.0f} GiB; at most {MAX_BYTES // 2**30} GiB")


def _check_names(names: Iterable[str]) -> None:
    names = list(names)
    if len(names) > MAX_ARRAYS:
        raise WeightsError(f"holds {len(names)} arrays; at most {MAX_ARRAYS}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise WeightsError(f"holds {twice!r} twice; download it again")
    for name in names:
        if not NAME.fullmatch(name) or ".." in name or name.startswith("/"):
            raise WeightsError(f"holds an array of the name {name[:80]!r}; download it again")


# .npz: a zip archive of .npy files


def _npz(path: pathlib.Path) -> Arrays:
    try:
        archive = zipfile.ZipFile(path)
    except OSError:
        raise
    except Exception as error:  # BadZipFile, or whatever damage in its directory leads to
        raise WeightsError("is no .npz file, or only a part of one; download it again") from error
    members = archive.infolist()
    _check_names(member.filename for member in members)
    specs = {}
    for member in members:
        if not member.filename.endswith(".npy"):
            raise WeightsError(f"holds {member.filename!r}, which is no array")
        try:
            with archive.open(member) as file:
                spec, start = _header(file)
        except Exception as error:
            raise WeightsError(
                f"{member.filename} is damaged or no plain array; download it again"
            ) from error
        if start + math.prod(spec.shape) * spec.dtype.itemsize != member.file_size:
            raise WeightsError(f"{member.filename} is not of the size its header says")
        specs[member.filename.removesuffix(".npy")] = spec

    def read(name: str) -> np.ndarray:
        try:
            with archive.open(f"{name}.npy") as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
        except Exception as error:  # of the archive, of zlib, or of numpy's parser
            raise WeightsError(f"{path}: {name} is damaged; download it again") from error
        # numpy has no bfloat16 and stores its bytes as void.
        return array.view(ml_dtypes.bfloat16) if array.dtype == np.dtype("V2") else array

    return Arrays(specs, read)


def _header(file: Any) -> tuple[Spec, int]:
    """Returns the shape and type that a .npy file begins with, and where its numbers begin."""
    version = np.lib.format.read_magic(file)
    length = int.from_bytes(file.read(2 if version == (1, 0) else 4), "little")
    if version not in ((1, 0), (2, 0), (3, 0)) or length > MAX_HEADER:
        raise ValueError(f"version {version}, header of {length} bytes")
    fields = ast.literal_eval(file.read(length).decode("latin1"))
    shape, dtype = fields["shape"], np.dtype(fields["descr"])
    if not isinstance(fields["fortran_order"], bool) or set(fields) - {
        "shape",
        "descr",
        "fortran_order",
    }:
        raise ValueError("fields")
    if len(shape) > MAX_AXES or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError("shape")
    if dtype.hasobject or dtype.fields:
        raise ValueError("type")
    if dtype == np.dtype("V2"):
        dtype = np.dtype(ml_dtypes.bfloat16)
    start = len(np.lib.format.MAGIC_PREFIX) + 2 + (2 if version == (1, 0) else 4) + length
    return Spec(tuple(shape), dtype), start


# .safetensors: a JSON header, then bytes, both checked by the library

TYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(bool),
}


def _safetensors(path: pathlib.Path) -> Arrays:
    try:
        opened = safetensors.safe_open(path, framework="numpy")
    except OSError:
        raise
    except Exception as error:  # SafetensorError; its text tells people nothing
        raise WeightsError(
            f"is no .safetensors file, or only a part of one; download it again ({error})"
        ) from error
    _check_names(_written_names(path))
    specs = {}
    for name in opened.keys():  # noqa: SIM118 - it is no mapping
        part = opened.get_slice(name)
        if part.get_dtype() not in TYPES:
            raise WeightsError(f"{name} is of the type {part.get_dtype()}, which nothing here uses")
        specs[name] = Spec(tuple(part.get_shape()), TYPES[part.get_dtype()])
    return Arrays(specs, opened.get_tensor)


def _written_names(path: pathlib.Path) -> list[str]:
    """Returns the names in the header of a sound file; the library hides one that comes twice."""
    with path.open("rb") as file:
        text = file.read(int.from_bytes(file.read(8), "little")).decode("utf-8")
    names: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in items]
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise WeightsError(f"holds {twice!r} twice; download it again")
        return dict(items)

    names += [name for name in json.loads(text, object_pairs_hook=pairs) if name != "__metadata__"]
    return names
