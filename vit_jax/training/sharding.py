"""Where arrays live: one mesh, the batch over all of it, the state whole or split over `fsdp`.

This is what pmap and pjit became: pjit merged into `jax.jit`, and pmap is in maintenance.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import tree_utils

BATCH = P(("data", "fsdp"))


def create_mesh(fsdp: int, devices: Sequence[Any] | None = None) -> Mesh:
    """Returns the ('data', 'fsdp') mesh over all devices, neighbors sharing parameters."""
    devices = jax.devices() if devices is None else devices
    # Mesh, not jax.make_mesh: its Explicit axes refuse convolutions and concatenations.
    shape = (len(devices) // fsdp, fsdp)
    # Without splitting, fsdp=8 would not do on the 4 x 4 chips of a v5e-16.
    grid = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    return Mesh(grid, ("data", "fsdp"))


def spec(name: str, shape: tuple[int, ...], *, fsdp: int, min_size: int) -> P:
    """Returns the largest axis that divides by `fsdp`, for arrays of at least `min_size`.

    The first axis of stacked layers or units is never split: scan would gather all at once.
    """
    if fsdp == 1 or np.prod(shape) < min_size:
        return P()
    first = 1 if re.search(r"(^|/)(encoder|rest)/", name) else 0
    axes = [axis for axis in range(first, len(shape)) if shape[axis] % fsdp == 0]
    if not axes:
        return P()
    largest = max(axes, key=lambda axis: shape[axis])
    return P(*(None,) * largest, "fsdp")


def placed(shapes: Any, mesh: Mesh, *, min_size: int) -> Any:
    """Returns a state's shapes as ShapeDtypeStructs that carry their NamedShardings on `mesh`."""
    fsdp = mesh.shape["fsdp"]

    def place(name: str, leaf: Any) -> jax.ShapeDtypeStruct:
        where = NamedSharding(mesh, spec(name, leaf.shape, fsdp=fsdp, min_size=min_size))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)

    return tree_utils.map_named(place, shapes)


def host_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """Returns the rows of a global batch that live on this process's devices, sorted, int64."""
    indices = NamedSharding(mesh, BATCH).addressable_devices_indices_map((batch_size,))
    rows = [np.arange(batch_size)[index] for index in indices.values() if index is not None]
    return np.unique(np.concatenate(rows))


def put_batch(
    batch: Mapping[str, np.ndarray], mesh: Mesh, batch_size: int, rows: np.ndarray
) -> dict[str, jax.Array]:
    """Returns global arrays of `batch_size` rows from the rows this process has loaded."""
    sharding = NamedSharding(mesh, BATCH)

    def put(local: np.ndarray) -> jax.Array:
        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None
            start, stop, _ = index[0].indices(batch_size)
            begin = int(np.searchsorted(rows, start))
            return local[begin : begin + stop - start]

        return jax.make_array_from_callback((batch_size, *local.shape[1:]), sharding, part)

    return {name: put(array) for name, array in batch.items()}
