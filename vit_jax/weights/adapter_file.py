"""Adapter folders: what a run has trained beside a base that stays where it is.

`adapter.json` holds the run's config, which names the base, its classes, and a digest of what was
frozen; `model.safetensors` the arrays by our names.
"""

import hashlib
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.weights import readers, writers
from vit_jax.weights.readers import WeightsError

FACTS = "adapter.json"
FIELDS = {"config": dict, "classes": list, "base": str}


def recognizes(path: pathlib.Path) -> bool:
    """Returns whether a path is an adapter folder."""
    return (path / FACTS).is_file()


def write(
    path: pathlib.Path,
    arrays: Mapping[str, np.ndarray],
    fields: Mapping[str, Any],
    origin: str = "",
) -> None:
    """Writes a folder, completely or not at all; raises WeightsError."""
    writers.write(path, arrays, {FACTS: fields}, origin)


def read_fields(path: pathlib.Path) -> dict[str, Any]:
    """Returns the fields of `adapter.json`; raises WeightsError for a damaged file."""
    fields = readers.read_json(path / FACTS)
    for name, kind in FIELDS.items():
        if not isinstance(fields.get(name), kind):
            raise WeightsError(f"{path / FACTS}: has no {name}; write the adapter again")
    return fields


def read_arrays(path: pathlib.Path, shapes: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the arrays by name; raises WeightsError unless they are those of `shapes`."""
    arrays = readers.open_arrays(path / writers.FOLDED)
    wanted = {name: tuple(leaf.shape) for name, leaf in shapes.items()}
    found = {name: spec.shape for name, spec in arrays.specs.items()}
    if wrong := sorted(wanted.items() ^ found.items()):
        name = wrong[0][0]
        raise WeightsError(
            f"{path}: {name} is {found.get(name, 'missing')}, not {wanted.get(name, 'part of it')}"
        )
    read = {name: arrays.read(name).astype(np.float32, copy=False) for name in wanted}
    if bad := [name for name, array in read.items() if not np.isfinite(array).all()]:
        raise WeightsError(f"{path}: {bad[0]} is not finite")
    return read


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Returns a digest of float32 arrays by name."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name], "<f4")
        found.update(f"{name} {array.shape} ".encode())
        found.update(array.data)
    return found.hexdigest()[:32]
