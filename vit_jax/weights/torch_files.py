"""Reads the tensors of PyTorch's `.pth`, `.pt`, `.bin` and `.ckpt` files; nothing is executed.

Both forms of `torch.save` are read: the zip archive of PyTorch 1.6 and later, whose storages have
checksums, and the older sequence of pickles and storages. Source: `torch/serialization.py` of
PyTorch 2.13, read for its layout.
"""

import dataclasses
import io
import itertools
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from vit_jax.utils import limits, pickles, storage
from vit_jax.utils.pickles import Inert, Refused, expect
from vit_jax.weights.arrays import MAX_ENTRIES

File = io.BufferedIOBase | io.RawIOBase

MAX_DEPTH = 16  # dictionaries in dictionaries
MAX_PICKLE = 8 * 2**20  # bytes; that of ViT-L/16 and its optimizer has 0.2 million
CHUNK = 2**20
MAGIC = 0x1950A86A20F9469CFC6C  # the first value of the older form; its version follows
VERSION = 1001

DTYPES = {
    "Double": "<f8", "Float": "<f4", "Half": "<f2", "BFloat16": ml_dtypes.bfloat16,
    "Long": "<i8", "Int": "<i4", "Short": "<i2", "Char": "i1", "Byte": "u1", "Bool": "?",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Storage:
    """Values of one type, one after the other; of a view, `offset` is where it begins in `key`."""

    key: str
    dtype: np.dtype
    count: int
    offset: int = 0


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A part of a storage; offset and strides count values."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def span(self) -> int:
        """The number of values from its first to its last."""
        if 0 in self.shape:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    def read(self, source: File, start: int) -> np.ndarray:
        """Its values, (shape), from a file in which its storage begins at byte `start`."""
        dtype = self.storage.dtype
        data = np.empty(self.span, dtype)
        source.seek(start + (self.storage.offset + self.offset) * dtype.itemsize)
        storage.fill(source, data.view(np.uint8).data)
        strides = [n * dtype.itemsize for n in self.strides]
        # Strides may repeat values, as `expand` makes them, so only the span is read. The reshape
        # gives a scalar back its shape (): ascontiguousarray makes it (1,).
        values = np.lib.stride_tricks.as_strided(data, self.shape, strides, writeable=False)
        return np.ascontiguousarray(values).reshape(self.shape)


# --- What a pickle of weights may name ----------------------------------------------------------


def rebuilt_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> Tensor:
    """`torch._utils._rebuild_tensor`, checked: a part outside of its storage is refused."""
    if len(expect(shape, tuple)) != len(expect(strides, tuple)) or len(shape) > limits.AXES:
        raise ValueError(f"a tensor of {len(shape)} axes")
    if not all(type(n) is int and 0 <= n < 2**48 for n in (offset, *shape, *strides)):
        raise ValueError("a tensor whose shape or strides are not counts")
    tensor = Tensor(expect(storage, Storage), offset, shape, strides)
    if offset + tensor.span > tensor.storage.count:
        raise ValueError("a tensor that reaches beyond its storage")
    return tensor


def _parameter(data: object, *_: object) -> object:
    return data


def _mapping(*arguments: Any) -> dict[Any, Any]:
    """An OrderedDict, a Counter or a defaultdict as a plain dictionary.

    Nothing is copied that another call may name again, or n bytes could ask for n^2 entries.
    """
    items = next((one for one in arguments if isinstance(one, list | dict)), [])
    if isinstance(items, dict):
        return items
    flat = []
    while items:
        key, value = expect(items.pop(), tuple | list)
        flat += [value, key]
    return dict(pickles.pairs(flat[::-1]))


def _inert(*_: object) -> Inert:
    return Inert()


# Names that carry no weights become inert objects: arguments of a run, NumPy's numbers.
INERT = [
    "argparse Namespace", "types SimpleNamespace", "pathlib PosixPath", "pathlib._local PosixPath",
    "torch Size", "torch device", "torch.storage UntypedStorage",
    *(f"torch {name}Storage" for name in DTYPES),
    *(f"torch {name}" for name in ("float64", "float32", "float16", "bfloat16", "int64", "bool")),
    "numpy ndarray", "numpy dtype", "_codecs encode",
    "numpy.core.multiarray scalar", "numpy.core.multiarray _reconstruct",
    "numpy._core.multiarray scalar", "numpy._core.multiarray _reconstruct",
    *(f"builtins {name}" for name in ("dict", "list", "set", "int", "float")),
    *(f"__builtin__ {name}" for name in ("dict", "list", "set", "int", "float")),
]  # fmt: skip
GLOBALS: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(INERT, _inert),
    "torch._utils _rebuild_tensor": rebuilt_tensor,
    "torch._utils _rebuild_tensor_v2": rebuilt_tensor,
    "torch._utils _rebuild_parameter": _parameter,
    "torch._utils _rebuild_parameter_with_state": _parameter,
    "torch.nn.parameter Parameter": _parameter,
    "collections OrderedDict": _mapping,
    "collections defaultdict": _mapping,
    "collections Counter": _mapping,
}


def _storage(identity: Any) -> Storage:
    """The storage that a persistent id stands for."""
    # The older form adds a sixth part, the view of another storage or None.
    if len(expect(identity, tuple)) not in (5, 6):
        raise ValueError("an id of a storage with other parts")
    kind, dtype, key, _, count, *view = identity
    name = expect(dtype, pickles.Global).name.removeprefix("torch ").removesuffix("Storage")
    if kind != "storage" or name not in DTYPES:
        raise Refused(f"values of the type {name.replace(' ', '.')[:80]}")
    if not (isinstance(key, str) and type(count) is int and count >= 0):
        raise ValueError("a storage without key or size")
    offset = 0
    if view and view[0] is not None:  # of the older form: the view's key, offset and size
        _, offset, count = expect(view[0], tuple)
        if not all(type(n) is int and n >= 0 for n in (offset, count)):
            raise ValueError("a view without offset or size")
    return Storage(key, np.dtype(DTYPES[name]), count, offset)


def named_tensors(value: object) -> dict[str, Tensor]:
    """The tensors in dictionaries of dictionaries, by the names on the way, joined by dots.

    What else there is, such as counters, histories and the arguments of a run, is left out.
    """
    found: dict[str, Tensor] = {}
    entries = itertools.count(1)

    def visit(value: object, path: str, depth: int) -> None:
        if isinstance(value, Tensor):
            if len(path) > pickles.MAX_KEY:
                raise ValueError("a name of many long keys")
            if path in found:
                raise ValueError(f"{path[:80]!r} occurs twice")
            found[path] = value
        elif isinstance(value, dict):
            if depth == MAX_DEPTH:
                raise Refused(f"dictionaries nested more than {MAX_DEPTH} deep")
            for key, inner in value.items():
                # Entries are counted as they expand: one dictionary may occur in many others.
                if next(entries) > MAX_ENTRIES:
                    raise Refused(f"more than {MAX_ENTRIES} entries")
                visit(inner, f"{path}.{key}" if path else str(key), depth + 1)

    visit(value, "", 0)
    return found


# --- The two forms of a file --------------------------------------------------------------------


def open_tensors(file: File) -> tuple[dict[str, Tensor], Callable[[str], np.ndarray]]:
    """The tensors of a file by name, and what reads the values of one.

    Raises pickles.Refused for contents that are no weights, ValueError and zipfile.BadZipFile for
    a damaged file.
    """
    start = file.read(4)
    file.seek(0)
    return _archive(file) if start == b"PK\3\4" else _sequence(file)


def _archive(file: File) -> tuple[dict[str, Tensor], Callable[[str], np.ndarray]]:
    """A zip archive: `NAME/data.pkl`, and each storage uncompressed as `NAME/data/KEY`."""
    archive = zipfile.ZipFile(file)
    members = {member.filename: member for member in archive.infolist()}
    if len(members) != len(archive.infolist()):
        raise ValueError("a name occurs twice")
    roots = [name for name in members if name.endswith("data.pkl") and name.count("/") == 1]
    if len(roots) != 1:
        raise Refused("no data.pkl, which torch.save writes")
    root = roots[0].removesuffix("data.pkl")
    if f"{root}constants.pkl" in members:
        raise Refused("a TorchScript program")
    # Tensors are read in place, which compression would not allow; torch.save stores.
    if any(member.compress_type != zipfile.ZIP_STORED for member in members.values()):
        raise ValueError("a compressed member")
    order = f"{root}byteorder"
    if order in members and archive.read(order)[:8] != b"little":
        raise Refused("values in big-endian order")
    if members[roots[0]].file_size > MAX_PICKLE:
        raise Refused(f"a pickle of more than {MAX_PICKLE} bytes")
    tensors = named_tensors(pickles.load_pickle(archive.read(roots[0]), GLOBALS, _storage))
    for name, tensor in tensors.items():
        member = members.get(f"{root}data/{tensor.storage.key}")
        size = tensor.storage.count * tensor.storage.dtype.itemsize
        if member is None or member.file_size != size:
            raise ValueError(f"the values of {name[:80]} are not there")
    checked: set[str] = set()

    def read(name: str) -> np.ndarray:
        member = members[f"{root}data/{tensors[name].storage.key}"]
        if member.filename not in checked:  # many tensors may share a storage: it is read once
            # zipfile compares the checksum at the end of a member alone, and a tensor may be any
            # part of one.
            with archive.open(member) as source:
                while source.read(CHUNK):  # raises BadZipFile at the end if the checksum differs
                    pass
            checked.add(member.filename)
        return tensors[name].read(file, _member_start(file, member))

    return tensors, read


def _member_start(file: File, member: zipfile.ZipInfo) -> int:
    """The offset of an uncompressed member's bytes, which follow its local header."""
    # The archive's directory does not give it: torch pads the extra field of local headers alone,
    # to align values.
    file.seek(member.header_offset + 26)
    lengths = file.read(4)
    name, extra = (int.from_bytes(lengths[k : k + 2], "little") for k in (0, 2))
    return member.header_offset + 30 + name + extra


def _sequence(file: File) -> tuple[dict[str, Tensor], Callable[[str], np.ndarray]]:
    """Five pickles, then each storage: its number of values in 8 bytes, and the values."""
    source = _BoundedFile(file)
    if pickles.load_pickle(source) != MAGIC or pickles.load_pickle(source) != VERSION:
        raise Refused("other contents than torch.save writes")
    system = expect(pickles.load_pickle(source), dict)
    if system.get("little_endian") is not True:
        raise Refused("values in big-endian order")
    sizes: dict[str, int] = {}  # bytes of a value, by storage

    def storage(identity: Any) -> Storage:
        one = _storage(identity)
        sizes[one.key] = one.dtype.itemsize
        return one

    tensors = named_tensors(pickles.load_pickle(source, GLOBALS, storage))
    starts, ends = {}, {}
    for key in expect(pickles.load_pickle(source), list):
        count = int.from_bytes(file.read(8), "little")
        starts[key] = file.tell()
        ends[key] = file.seek(starts[key] + count * sizes[expect(key, str)])
    if file.tell() != file.seek(0, io.SEEK_END):
        raise ValueError("other bytes behind the last storage than it has, or fewer")
    for name, tensor in tensors.items():
        one = tensor.storage
        if starts[one.key] + (one.offset + one.count) * one.dtype.itemsize > ends[one.key]:
            raise ValueError(f"the values of {name[:80]} are not there")

    def read(name: str) -> np.ndarray:
        return tensors[name].read(file, starts[tensors[name].storage.key])

    return tensors, read


class _BoundedFile:
    """A file that reads at most MAX_PICKLE bytes, whatever its pickles declare."""

    def __init__(self, file: File) -> None:
        self._file, self._left = file, MAX_PICKLE

    def read(self, size: int) -> bytes:
        """The next `size` bytes."""
        # One byte more than is allowed, by which `_counted` notices.
        return self._counted(self._file.read(min(size, self._left + 1)))

    def readline(self) -> bytes:
        """The next line."""
        return self._counted(self._file.readline(self._left + 1))

    def _counted(self, data: bytes) -> bytes:
        self._left -= len(data)
        if self._left < 0:
            raise Refused(f"a pickle of more than {MAX_PICKLE} bytes")
        return data
