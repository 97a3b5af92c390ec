"""Adapter folders: the trained parameters of a run, loaded together with its base.

`adapter.json` holds the run's config, which names the base; its classes; a digest of the frozen
parameters; and a digest of the folder, over these fields and the arrays in `model.safetensors`.
"""

import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from vit_jax.runtime.logs import log
from vit_jax.weights import readers, writers
from vit_jax.weights.arrays import WeightsError

FACTS = "adapter.json"
SEAL = "sha256"  # the field with the folder's own digest; folders of older versions lack it
REMEDY = "write the adapter again: vit_jax convert --to=adapter"
FIELDS = {"config": dict, "classes": list, "base": str}
TEMPERATURE = "temperature"  # a field of runs that have fitted one


def recognizes(path: pathlib.Path) -> bool:
    """Whether a path is an adapter folder."""
    return (path / FACTS).is_file()


def write_adapter(
    path: pathlib.Path,
    arrays: Mapping[str, np.ndarray],
    fields: Mapping[str, object],
    origin: str = "",
) -> None:
    """Writes a folder, completely or not at all; raises WeightsError."""
    documents = {FACTS: {**fields, SEAL: _seal(arrays, fields)}}
    writers.write_weights(path, arrays, documents, {"vit_jax": origin} if origin else None)


def read_fields(path: pathlib.Path) -> dict[str, Any]:
    """Reads the fields of `adapter.json`; raises WeightsError for a damaged file."""
    fields = readers.read_json(path / FACTS)
    for name, kind in FIELDS.items():
        if not isinstance(fields.get(name), kind):
            raise WeightsError(f"{path / FACTS}: has no {name}; write the adapter again")
    if unknown := sorted(fields.keys() - FIELDS.keys() - {SEAL, TEMPERATURE}):
        raise WeightsError(f"{path / FACTS}: has an unknown field {unknown[0]}; {REMEDY}")
    return fields


def read_arrays(
    path: pathlib.Path,
    shapes: Mapping[str, jax.ShapeDtypeStruct],
    fields: Mapping[str, object],
) -> dict[str, np.ndarray]:
    """Reads the arrays by name; raises WeightsError unless they match `shapes`.

    Also raises if arrays or `fields` have changed since they were written. Warns of a folder by an
    older version, which has no digest.
    """
    arrays = readers.open_arrays(path / writers.FOLDED)
    wanted = {name: tuple(leaf.shape) for name, leaf in shapes.items()}
    found = {name: spec.shape for name, spec in arrays.specs.items()}
    # A name that is missing, one that is too many and one of another shape all differ as a pair.
    if wrong := sorted(wanted.items() ^ found.items()):
        name = wrong[0][0]
        raise WeightsError(
            f"{path}: {name} is {found.get(name, 'missing')}, not {wanted.get(name, 'part of it')}"
        )
    read = {name: arrays.read(name).astype(np.float32, copy=False) for name in wanted}
    if bad := [name for name, array in read.items() if not np.isfinite(array).all()]:
        raise WeightsError(f"{path}: {bad[0]} is not finite")
    if SEAL not in fields:
        log.warning("%s: has no digest (an older version wrote it); values are not verified", path)
    elif fields[SEAL] != _seal(read, fields):
        raise WeightsError(f"{path}: {FACTS} or {writers.FOLDED} was changed; {REMEDY}")
    return read


def _seal(arrays: Mapping[str, np.ndarray], fields: Mapping[str, object]) -> str:
    kept = {name: value for name, value in fields.items() if name != SEAL}
    # Sorted, as JSON promises no order of fields: a file that an editor reordered is the same
    # adapter.
    text = json.dumps([kept, digest_params(arrays)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def digest_params(arrays: Mapping[str, np.ndarray]) -> str:
    """A digest of float32 arrays by name."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        # The hash reads memory as it lies: one order of axes and bytes on every machine.
        array = np.ascontiguousarray(arrays[name], "<f4")
        found.update(f"{name} {array.shape} ".encode())
        found.update(array.data)
    return found.hexdigest()[:32]
