"""Device mesh and sharding rules for batches and training state.

The state is split as in ZeRO (Rajbhandari et al. 2020, stage 1): every device updates its part of
the float32 parameters, moments and average. A step gathers the parameters, each in the type it is
used in, and reduces gradients to the same parts. Over `fsdp`, parameters stay split while a step
computes, and layers are gathered one by one.
"""

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import config
from vit_jax.utils import tree_utils
from vit_jax.utils.tree_utils import Tree

# All three: `zero` and `fsdp` split the state, but every device has images of its own.
BATCH = P(("data", "zero", "fsdp"))

# Axes over which an array of the state is split: while a step computes, after the first reduction
# of its gradient, and while it is updated. In this order, what a device gathers is in one piece.
COMPUTE, REDUCE, UPDATE = ("fsdp",), ("fsdp", "zero"), ("fsdp", "zero", "data")


# TPUs scatter whole tiles only, of 16 rows in bfloat16: 16 devices get 48 each of a width of 768.
RING = 16


def create_mesh(fsdp: int, devices: Sequence[Any] | None = None) -> Mesh:
    """The ('data', 'zero', 'fsdp') mesh over all devices, neighbors sharing parameters.

    `data` and `zero` are as equal as divisors allow, `zero` at most RING: on a torus each axis is
    then one or more rings, along which TPUs can reduce-scatter.
    """
    devices = jax.devices() if devices is None else devices
    copies = len(devices) // fsdp
    zero = copies // _divisor(copies, math.isqrt(copies))
    if zero > RING:
        zero = _divisor(copies, RING)
    shape = (copies // zero, zero, fsdp)
    # Without splitting, fsdp=8 would fail on the 4 x 4 chips of a v5e-16.
    grid = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    # Whatever jax's default is: on Explicit axes (jax 0.12) every operand that is joined to a
    # sharded one, such as the class token, needs that sharding written out.
    return Mesh(grid, ("data", "zero", "fsdp"), axis_types=(AxisType.Auto,) * 3)


def _divisor(count: int, most: int) -> int:
    return max(n for n in range(1, most + 1) if count % n == 0)


def spec(
    name: str,
    shape: tuple[int, ...],
    sizes: Mapping[str, int],
    options: config.Mesh,
    axes: tuple[str, ...] = UPDATE,
) -> P:
    """PartitionSpec of a state array: split along its largest axis that divides.

    The first axis of stacked layers or units is never split: scan would gather all at once.

    Args:
      name: of the array, its keys joined by slashes.
      shape: of the array.
      sizes: devices along each axis of the mesh.
      options: of the run; small arrays stay whole.
      axes: COMPUTE, REDUCE or UPDATE.
    """
    if math.prod(shape) < options.fsdp_min_size:
        return P()
    first = 1 if re.search(r"(^|/)(encoder|rest)/", name) else 0
    # All three split the same axis of an array, so that no step between them moves it elsewhere.
    for names in (UPDATE, REDUCE, COMPUTE) if options.zero else (COMPUTE,):
        parts = math.prod(sizes[each] for each in names)
        divides = [axis for axis in range(first, len(shape)) if shape[axis] % parts == 0]
        if divides:
            over = tuple(each for each in names if each in axes and sizes[each] > 1)
            before = (None,) * max(divides, key=lambda axis: shape[axis])
            return P(*before, over) if over else P()
    return P()


def placed(shapes: Tree, mesh: Mesh, options: config.Mesh, axes: tuple[str, ...] = UPDATE) -> Tree:
    """Adds to a state's ShapeDtypeStructs their NamedShardings on `mesh`."""

    def place(name: str, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        where = NamedSharding(mesh, spec(name, leaf.shape, mesh.shape, options, axes))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)

    return tree_utils.map_named(place, shapes)


def copied(leaves: Sequence[jax.Array], places: Sequence[jax.sharding.Sharding]) -> list[jax.Array]:
    """Copies arrays, each to its sharding in `places`.

    One program copies all arrays: every start of a program takes time, and on CPUs processes can
    deadlock in the collectives of many small ones.
    """
    return _copier(tuple(places))(list(leaves))


@functools.cache
def _copier(
    places: tuple[jax.sharding.Sharding, ...],
) -> Callable[[list[jax.Array]], list[jax.Array]]:
    # Cached, as jit keeps programs by function: each new lambda would be compiled again.
    return jax.jit(lambda leaves: [jnp.copy(x) for x in leaves], out_shardings=list(places))


def constrain(tree: Tree, options: config.Mesh, axes: tuple[str, ...]) -> Tree:
    """Shards state arrays over axes of the mesh that is set; without one, a no-op."""
    return gather_params(tree, options, (axes,), 0)


def gather_params(
    tree: Tree, options: config.Mesh, steps: Sequence[tuple[str, ...]], layers: int
) -> Tree:
    """Reshards state arrays over the axes of each step in turn.

    Args:
      tree: the arrays.
      options: of the run.
      steps: axes of the mesh that is set; without one, arrays stay as they are.
      layers: stacked layers of the encoder, each taken through the steps by itself; 0: all at once.
    """
    sizes = jax.sharding.get_abstract_mesh().shape
    if not (sizes and options.zero):
        return tree

    def split(name: str, leaf: jax.Array) -> jax.Array:
        places = [spec(name, leaf.shape, sizes, options, axes) for axes in steps]
        if not (layers and name.startswith("encoder/") and any(places)):
            return _taken(leaf, places)
        # Of one layer: the stacked axis is first, and never split.
        own = [P(*place[1:]) for place in places]
        return jnp.stack([_taken(leaf[i], own) for i in range(layers)])

    return tree_utils.map_named(split, tree)


def _taken(x: jax.Array, places: Sequence[P]) -> jax.Array:
    for place in places:
        x = jax.lax.with_sharding_constraint(x, place)
    return x


def host_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """The rows of a global batch that live on this process's devices, sorted, int64."""
    indices = NamedSharding(mesh, BATCH).addressable_devices_indices_map((batch_size,))
    rows = [np.arange(batch_size)[index] for index in indices.values() if index is not None]
    return np.unique(np.concatenate(rows))


def put_batch(
    batch: Mapping[str, np.ndarray], mesh: Mesh, batch_size: int, rows: np.ndarray
) -> dict[str, jax.Array]:
    """Global arrays of `batch_size` rows from the rows this process has loaded."""
    sharding = NamedSharding(mesh, BATCH)

    def put(local: np.ndarray) -> jax.Array:
        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None
            start, stop, _ = index[0].indices(batch_size)
            # A device's rows are neighbors in the batch, so they are neighbors in what was loaded
            # too.
            begin = int(np.searchsorted(rows, start))
            return local[begin : begin + stop - start]

        # Not device_put, which wants the whole array: no process has all rows.
        return jax.make_array_from_callback((batch_size, *local.shape[1:]), sharding, part)

    return {name: put(array) for name, array in batch.items()}


def device_bytes(tree: object) -> int:
    """The bytes that one device stores of sharded arrays."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )
