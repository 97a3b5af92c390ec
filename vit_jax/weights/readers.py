"""Files of arrays by name, read one array at a time: .npz, .safetensors, and folders of shards.

Nothing in a file is executed or unpacked to disk. What it claims of itself is checked against its
size and against limits before memory is taken for it. No file is mapped into memory: one that is
cut short meanwhile would end the process, not the call.

Every array of a .npz has a checksum, so damage never goes unnoticed. A .safetensors has none: a
number that changed on the way is read as it is, if the array is still finite.
"""

import collections
import contextlib
import dataclasses
import io
import json
import math
import os
import pathlib
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

import ml_dtypes
import numpy as np

from vit_jax import config

# The largest released ViT takes 2.5 GB; whoever unpacks to more than this means harm.
MAX_BYTES = 32 * 2**30
# So does what shrinks more than numbers do: some files hold a head of zeros, none only zeros.
MAX_RATIO = 32
FREE_BYTES = 64 * 2**20  # and unpacks to more than this
MAX_DEPTH = 64  # of JSON: objects and lists within each other
MAX_TABLE = 8 * 2**20  # bytes of names, shapes and labels that are taken in at once
MAX_ARRAYS = 20_000
MAX_HEADER = 1_000  # bytes before the numbers of one array in a .npz
MAX_AXES = 8
CHUNK = 2**20
NAME = re.compile(r"[\w./:\-+]{1,300}", re.ASCII)
PICKLES = (".bin", ".pth", ".pt", ".ckpt", ".pkl", ".pickle", ".h5", ".msgpack")


class WeightsError(config.UserError):
    """Weights that cannot be read, do not fit, or cannot be written in the wanted form.

    Its text is one line that can be shown on a terminal, whatever stood in a file.
    """

    def __init__(self, text: str):
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in text))


@dataclasses.dataclass(frozen=True)
class Spec:
    """Shape and type of one array."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """The bytes of its numbers."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Arrays by name, of which `read` takes one at a time into memory.

    `read` raises WeightsError naming the array when it turns out damaged.
    """

    specs: Mapping[str, Spec]
    read: Callable[[str], np.ndarray]


def open_arrays(path: pathlib.Path) -> Arrays:
    """Opens the arrays of a .npz or .safetensors file; raises WeightsError."""
    if path.suffix in PICKLES:
        raise WeightsError(
            f"{path}: {path.suffix} files can run code when they are read, so they are not; "
            "convert it to .safetensors where it was made, or download that version"
        )
    readers = {".npz": _npz, ".safetensors": _safetensors}
    if path.suffix not in readers:
        raise WeightsError(f"{path}: is none of the known kinds of file: {', '.join(readers)}")
    with _named(path):
        if not path.is_file():
            raise WeightsError("no such file")
        with _explained(f"is no {path.suffix} file, or only a part of one"):
            return readers[path.suffix](_File(path))


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
        if not re.fullmatch(r"[\w\-]{1,200}\.safetensors", name, re.ASCII):
            raise WeightsError(f"{index}: {name[:80]!r} is no file beside it")
        shards[name] = open_arrays(index.parent / name)
    missing = [name for name, file in places.items() if name not in shards[file].specs]
    if missing:
        raise WeightsError(f"{index}: {places[missing[0]]} does not hold {missing[0][:80]!r}")
    specs = {name: shards[file].specs[name] for name, file in places.items()}
    with _named(index):
        _check_size(sum(spec.nbytes for spec in specs.values()))

    def read(name: str) -> np.ndarray:
        with _named(places[name]):
            return shards[places[name]].read(name)

    return Arrays(specs, read)


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Returns the object in a JSON file of moderate size; raises WeightsError."""
    with _named(path):
        with _explained("is no JSON"):
            values = json.loads(_File(path).read().decode("utf-8"))
        if not isinstance(values, dict):
            raise WeightsError("is no JSON object")
        _check_depth(values)
    return values


class _File(io.FileIO):
    """A file that hands out no more than MAX_TABLE bytes at once, whatever its tables claim."""

    def read(self, size: int | None = -1) -> bytes:
        """Returns up to `size` bytes; all of them if it is negative."""
        whole = size is None or size < 0 or size > MAX_TABLE
        data = super().read(MAX_TABLE + 1 if whole else size) or b""
        if len(data) > MAX_TABLE:
            raise WeightsError(f"has a table of more than {_amount(MAX_TABLE)}")
        return data

    @property
    def size(self) -> int:
        """The bytes of the file."""
        return os.fstat(self.fileno()).st_size

    def __del__(self) -> None:
        self.close()  # which it does by itself too, but with a warning


@contextlib.contextmanager
def _named(file: object) -> Iterator[None]:
    """Puts the name of a file before what is wrong with it."""
    try:
        yield
    except WeightsError as error:
        raise WeightsError(f"{file}: {error}") from error


@contextlib.contextmanager
def _explained(damage: str) -> Iterator[None]:
    """Turns whatever a damaged file leads to, here or in a library, into a WeightsError."""
    try:
        yield
    except (WeightsError, MemoryError):
        raise
    except OSError as error:
        raise WeightsError(f"cannot be read: {error.strerror or error}") from error
    except Exception as error:
        raise WeightsError(f"{damage}; download it again") from error


def _fill(source: Any, spec: Spec) -> np.ndarray:
    """Returns the array whose numbers a file goes on with; raises EOFError if it ends before."""
    data = np.empty(spec.nbytes, np.uint8)
    start = 0
    while start < spec.nbytes:
        count = source.readinto(data.data[start : start + CHUNK])
        if not count:
            raise EOFError(f"{start} bytes of {spec.nbytes}")
        start += count
    return data.view(spec.dtype).reshape(spec.shape)


def _amount(size: int) -> str:
    """Returns a number of bytes for people."""
    unit, name = next(
        (u, n) for u, n in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")) if size >= u
    )
    return f"{size / unit:.4g} {name}"


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        raise WeightsError(f"unpacks to {_amount(size)}; at most {_amount(MAX_BYTES)}")


def _check_ratio(size: int, packed: int) -> None:
    """Raises WeightsError for an archive of `packed` bytes that holds too many."""
    most = max(FREE_BYTES, MAX_RATIO * packed)
    if size > most:
        raise WeightsError(
            f"unpacks to {_amount(size)}, {size / packed:.0f} times its size, as no weights do; "
            f"at most {_amount(most)}"
        )


def _check_depth(values: Any) -> None:
    """Raises WeightsError for JSON whose objects and lists are nested too deeply to be shown."""
    level = [values]
    for _ in range(MAX_DEPTH):
        inner = (v.values() if isinstance(v, dict) else v for v in level)
        level = [v for many in inner for v in many if isinstance(v, dict | list)]
        if not level:
            return
    raise WeightsError(f"is nested more than {MAX_DEPTH} deep")


def _check_names(names: Iterable[str]) -> None:
    names = list(names)
    if len(names) > MAX_ARRAYS:
        raise WeightsError(f"holds {len(names)} arrays; at most {MAX_ARRAYS}")
    for name in names:
        if not NAME.fullmatch(name) or ".." in name or name.startswith("/"):
            raise WeightsError(f"holds an array of the name {name[:80]!r}; download it again")
    if twice := _repeated(names):
        raise WeightsError(f"holds {twice} twice; download it again")


def _repeated(names: Iterable[str]) -> str | None:
    """Returns the first name that comes more than once."""
    return next((name for name, n in collections.Counter(names).items() if n > 1), None)


# .npz: a zip archive of .npy files

# As numpy and all who imitate it write it: a Python dict, which nobody has to run to understand.
HEADER = re.compile(
    r"\{ *'descr': *'([<>|=]?[fiubcVUS]\d{1,4})', *'fortran_order': *(True|False), *"
    r"'shape': *\(([\d, ]*)\) *,? *\} *\n?"
)


def _npz(file: _File) -> Arrays:
    archive = zipfile.ZipFile(file)
    members = archive.infolist()
    _check_names(member.filename for member in members)
    size = sum(member.file_size for member in members)
    _check_size(size)
    _check_ratio(size, file.size)
    specs: dict[str, Spec] = {}
    headers: dict[str, tuple[int, Spec, bool]] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name == member.filename:
            raise WeightsError(f"holds {name}, which is no array")
        # Python bounds neither the memory of other ways to compress, nor does numpy use them.
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise WeightsError(f"{name} is compressed in a way that numpy does not know")
        with _explained(f"{name} is damaged or no plain array"), archive.open(member) as source:
            length, spec, _ = headers[name] = _header(name, source)
        if length + spec.nbytes != member.file_size:
            raise WeightsError(f"{name} is not of the size its header says; download it again")
        specs[name] = spec

    def read(name: str) -> np.ndarray:
        length, spec, transposed = headers[name]
        with _explained(f"{name} is damaged"), archive.open(f"{name}.npy") as source:
            source.read(length)
            if transposed:
                return _fill(source, Spec(spec.shape[::-1], spec.dtype)).T
            return _fill(source, spec)

    return Arrays(specs, read)


def _header(name: str, source: IO[bytes]) -> tuple[int, Spec, bool]:
    """Returns the header of a .npy file: its bytes, the array, whether the first axis runs fastest.

    Raises ValueError, or WeightsError where the header is large.
    """
    magic = source.read(8)
    if magic[:6] != b"\x93NUMPY" or magic[6:] not in (b"\1\0", b"\2\0", b"\3\0"):
        raise ValueError(f"begins with {magic!r}")
    size = source.read(2 if magic[6] == 1 else 4)
    length = int.from_bytes(size, "little")
    if length > MAX_HEADER:
        raise WeightsError(f"{name} has a header of {length} bytes; at most {MAX_HEADER}")
    match = HEADER.fullmatch(source.read(length).decode("latin1"))
    if match is None:
        raise ValueError("the header is not as numpy writes it")
    # numpy has no bfloat16 and stores its bytes as void.
    dtype = np.dtype(ml_dtypes.bfloat16 if match[1] in ("<V2", "|V2") else match[1])
    shape = tuple(int(n) for n in match[3].split(",") if n.strip())
    if len(shape) > MAX_AXES:
        raise WeightsError(f"{name} has {len(shape)} axes; at most {MAX_AXES}")
    return len(magic) + len(size) + length, Spec(shape, dtype), match[2] == "True"


# .safetensors: the length of a JSON header in 8 bytes, the header, then the numbers of all arrays,
# one after the other without gaps

TYPES = {
    "F64": "f8", "F32": "f4", "F16": "f2", "BF16": ml_dtypes.bfloat16, "I64": "i8", "I32": "i4",
    "U8": "u1", "BOOL": "?",
}  # fmt: skip


def _safetensors(file: _File) -> Arrays:
    length = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=_once)
    header.pop("__metadata__", None)
    _check_names(header)
    specs: dict[str, Spec] = {}
    starts: dict[str, int] = {}
    end = 8 + length
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        shape, (begin, finish) = entry["shape"], entry["data_offsets"]
        whole = all(type(n) is int and n >= 0 for n in (*shape, begin, finish))
        if not whole or len(shape) > MAX_AXES:
            raise ValueError(f"{name} has the shape {shape} and the place {begin}, {finish}")
        if entry["dtype"] not in TYPES:
            raise WeightsError(
                f"{name} is of the type {str(entry['dtype'])[:20]!r}, which nothing here uses"
            )
        specs[name] = Spec(tuple(shape), np.dtype(TYPES[entry["dtype"]]))
        starts[name] = end
        if 8 + length + begin != end or finish - begin != specs[name].nbytes:
            raise ValueError(f"{name} is not where the one before it ends, or not as long as it is")
        end += specs[name].nbytes
    if end != file.size:
        raise ValueError(f"{file.size} bytes, of which {end} are accounted for")
    _check_size(end)

    def read(name: str) -> np.ndarray:
        with _explained(f"{name} is damaged"):
            file.seek(starts[name])
            return _fill(file, specs[name])

    return Arrays(specs, read)


def _once(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the dict of a JSON object; raises WeightsError if a name comes twice in it."""
    twice = _repeated(name for name, _ in items)
    if twice is not None:
        raise WeightsError(f"holds {twice[:80]!r} twice; download it again")
    return dict(items)
