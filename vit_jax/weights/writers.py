"""Writes files and folders of arrays, completely or not at all."""

import json
import pathlib
import zipfile
from collections.abc import Mapping

import flax.serialization
import numpy as np

from vit_jax.utils import storage, tree_utils
from vit_jax.weights.readers import DIGESTS, TYPES, WeightsError, comment_digest, digest_array

# Fields of JSON files, or the text of others, by the names of the files.
Documents = Mapping[str, Mapping[str, object] | str]

DTYPES = ("float32", "float16", "bfloat16")
FOLDED = "model.safetensors"  # the file of arrays in a folder
FLAX = "flax_model.msgpack"  # that of Hugging Face's Flax classes, names joined by slashes


def rounded(arrays: Mapping[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    """Converts float32 arrays to another type; raises WeightsError beyond its range."""
    with np.errstate(over="ignore"):
        found = {name: np.asarray(array, dtype) for name, array in arrays.items()}
    for name, array in found.items():
        if not np.array_equal(np.isfinite(array.astype(np.float32)), np.isfinite(arrays[name])):
            raise WeightsError(f"--dtype={dtype}: {name} has numbers beyond its range")
    return found


def write_weights(
    path: pathlib.Path,
    arrays: Mapping[str, np.ndarray],
    documents: Documents,
    metadata: Mapping[str, str] | None = None,
    folded: str = FOLDED,
) -> None:
    """Writes arrays of one of DTYPES to a .npz or .safetensors file, or a folder with documents.

    `metadata` is text by name that a file holds beside the arrays; FLAX as `folded` holds none.

    `path` is always complete: data is written to a temporary name, synced, and renamed. If the disk
    fails, raises WeightsError and leaves nothing behind.
    """
    with storage.errors_as(WeightsError, f"{path}: cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with storage.replacing(path) as draft:
            if path.suffix.lower() == ".npz":
                # numpy.savez leaves its archive open where a write fails; it complains when freed.
                with zipfile.ZipFile(draft, "x") as archive:
                    for name, array in arrays.items():
                        # The size is not known yet, and without this zipfile refuses members above
                        # 2 GiB.
                        with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                            np.lib.format.write_array(member, array, allow_pickle=False)
                    if metadata:
                        # In the comment of the archive, which every other reader ignores:
                        # big_vision refuses files with arrays that it does not know.
                        text = json.dumps({"vit_jax": "", **metadata}).encode()
                        archive.comment = text + b"\n" + comment_digest(text)
            elif path.suffix.lower() == ".safetensors":
                _safetensors(draft, arrays, metadata or {})
            else:
                draft.mkdir()
                for name, content in documents.items():
                    if not isinstance(content, str):
                        content = json.dumps(content, indent=2, ensure_ascii=False)
                    # A class named after a folder may hold bytes that are no UTF-8, as lone
                    # surrogates.
                    (draft / name).write_bytes(content.encode(errors="backslashreplace"))
                if folded == FLAX:
                    nested = tree_utils.nest(dict(arrays))
                    (draft / FLAX).write_bytes(flax.serialization.msgpack_serialize(nested))
                else:
                    _safetensors(draft / folded, arrays, metadata or {})
        # POSIX: a rename is on the disk once its folder is.
        storage.sync(path.parent)


def _safetensors(
    path: pathlib.Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]
) -> None:
    digests = {name: digest_array(np.ascontiguousarray(array)) for name, array in arrays.items()}
    said = {"format": "pt", DIGESTS: json.dumps(digests), **metadata}  # Transformers needs `format`
    header: dict[str, object] = {"__metadata__": said}
    start = 0
    for name, array in arrays.items():
        end = start + array.nbytes
        kind = next(kind for kind, dtype in TYPES.items() if np.dtype(dtype) == array.dtype)
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": (start, end)}
        start = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # numbers begin at a multiple of their size
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).tobytes())
