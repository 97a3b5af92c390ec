"""Array digests that do not depend on the sharding or the number of devices.

The digest of a leaf is a sum over its elements, so every device sums its own shards and one
all-reduce of a few integers completes it. Unlike a SHA-256 of the bytes, this never gathers a
sharded array on a host and costs one pass over memory. Each element's bits are mixed with its
logical position by MurmurHash3's 32-bit finalizer (a bijection that changes about half of the
output bits for any input bit); a second lane sums another bijection of the same word. Both lanes
are sums modulo 2**32.

Damage to a single element is always detected, since its term in the sum changes. Damage to several
elements, or swapped elements, escapes detection with a probability near 2**-64.
Two lanes are enough for that, and take 0.007 s for 100 MB on one CPU core, about as long as reading
the memory. This is not a cryptographic hash: it protects against damage, not against tampering.
"""

import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.checkpoints.record import Leaf

# 2**32 / golden ratio: successive positions land far apart; the offset keeps 0 from mixing to 0.
POSITION, OFFSET = np.uint32(0x9E3779B1), np.uint32(0x7F4A7C15)
# Odd, so that multiplying is a bijection; chosen for low bias by C. Wellons, "Hash Prospector".
SECOND = np.uint32(0x7FEB352D)


class Digests:
    """Digests of arrays, computed on their devices without blocking the host.

    All processes must create it, from the thread that runs the other collectives; any thread may
    read it. The arrays may be donated meanwhile.
    """

    def __init__(self, leaves: Mapping[str, jax.Array]) -> None:
        """Starts the pass.

        Args:
          leaves: arrays by name; floating, integer or boolean, 1 to 8 bytes per element.

        Raises TypeError for any other dtype.
        """
        # Noted first, as the arrays may be donated before `read`.
        self._facts = {name: (str(leaf.dtype), list(leaf.shape)) for name, leaf in leaves.items()}
        self._sums: jax.Array | None = None
        if not leaves:
            return
        placed = next(iter(leaves.values())).sharding
        whole = NamedSharding(placed.mesh, P()) if isinstance(placed, NamedSharding) else None
        shards = tuple(_shards(leaf) for leaf in leaves.values())
        # Two programs with collectives in flight can starve each other on simulated CPU devices.
        simulated = jax.default_backend() == "cpu" and len(placed.device_set) > 1
        if simulated:
            jax.block_until_ready(leaves)
        self._sums = _program(whole, shards)(list(leaves.values()))
        if simulated:
            jax.block_until_ready(self._sums)

    def read(self) -> tuple[dict[str, Leaf], list[str]]:
        """Waits; `{name: {"dtype", "shape", "digest"}}`, and the names of non-finite arrays.

        All processes get the same.
        """
        sums = [] if self._sums is None else jax.device_get(self._sums).tolist()
        digests: dict[str, Leaf] = {}
        bad: list[str] = []
        for (name, (dtype, shape)), (*lanes, count) in zip(self._facts.items(), sums, strict=True):
            digest = "".join(f"{lane:08x}" for lane in lanes)
            digests[name] = {"dtype": dtype, "shape": shape, "digest": digest}
            if count:
                bad.append(name)
        return digests, bad


def lanes(x: jax.Array) -> jax.Array:
    """The digest of an array on one device, (2,) uint32, within a program.

    Raises TypeError as `Digests` does.
    """
    return _sums(x, (1,) * x.ndim)[:2]


def _shards(x: jax.Array) -> tuple[int, ...]:
    """The number of shards along each axis."""
    # Shards of an empty axis have length 0, too.
    pairs = zip(x.shape, x.sharding.shard_shape(x.shape), strict=True)
    return tuple(size // part if part else 1 for size, part in pairs)


# jit recognizes a program by its function: a new `sums` would be compiled again at every save.
@functools.cache
def _program(
    whole: NamedSharding | None, shards: tuple[tuple[int, ...], ...]
) -> Callable[[list[jax.Array]], jax.Array]:
    """The compiled pass; its small result is replicated, so that every host has it."""

    def sums(arrays: Sequence[jax.Array]) -> jax.Array:
        return jnp.stack([_sums(x, cut) for x, cut in zip(arrays, shards, strict=True)])

    return jax.jit(sums, out_shardings=whole)


def _sums(x: jax.Array, shards: tuple[int, ...]) -> jax.Array:
    """The two lanes, and a number that is not 0 if an element is not finite, (3,) uint32.

    Every shard is summed by one reduction of three operands. XLA's CPU compiler turns a reduction
    of one operand into a tree for accuracy, which integers do not need, and for which it finds no
    vector instructions: that takes 25 times as long.
    """
    words = _words(x)
    # The logical position in row-major order, built per axis: a reshape would move shards between
    # devices.
    position, stride = jnp.zeros(words.shape, jnp.uint32), 1
    for axis in reversed(range(words.ndim)):
        along = jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
        # numpy refuses an integer beyond uint32; positions count modulo 2**32 in any case.
        position += along * np.uint32(stride % 2**32)
        stride *= words.shape[axis]
    first = _mix(words ^ (position * POSITION + OFFSET))
    second = (first ^ (first >> 15)) * SECOND
    second ^= second >> 14
    bad = ~jnp.isfinite(x) if jnp.issubdtype(x.dtype, jnp.floating) else jnp.zeros(x.shape, bool)
    bad = bad.reshape(*x.shape, *(1,) * (words.ndim - x.ndim))
    lanes = [first, second, jnp.broadcast_to(bad, words.shape).astype(jnp.uint32)]
    shards = (*shards, *(1,) * (words.ndim - x.ndim))
    # Each axis becomes (shard, element within it). The reduction over the latter moves nothing
    # between devices, which leaves one number per shard and lane to the all-reduce.
    sizes = zip(shards, words.shape, strict=True)
    cut = [part for count, size in sizes for part in (count, size // count)]
    lanes = [lane.reshape(cut) for lane in lanes]
    zeros = [jnp.zeros((), jnp.uint32)] * len(lanes)
    local = jax.lax.reduce(lanes, zeros, _add_lanes, tuple(range(1, len(cut), 2)))
    # With the dtype: jnp.sum adds uint32 in uint64 where x64 is enabled.
    return jnp.stack([jnp.sum(lane, dtype=jnp.uint32) for lane in local])


def _add_lanes(some: Sequence[jax.Array], others: Sequence[jax.Array]) -> list[jax.Array]:
    return [a + b for a, b in zip(some, others, strict=True)]


def _words(x: jax.Array) -> jax.Array:
    """Every element's bits as uint32; 8-byte elements add a last axis of two."""
    # A bitcast takes no booleans.
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint32)
    # int4 counts as one byte, but a bitcast to uint8 packs two of them into one.
    kinds = (jnp.floating, jnp.integer)
    if not any(jnp.issubdtype(x.dtype, kind) for kind in kinds) or x.dtype.name.endswith("int4"):
        raise TypeError(f"no digest for arrays of {x.dtype}")
    if x.dtype.itemsize >= 4:
        return jax.lax.bitcast_convert_type(x, jnp.uint32)
    narrow = {1: jnp.uint8, 2: jnp.uint16}[x.dtype.itemsize]
    return jax.lax.bitcast_convert_type(x, narrow).astype(jnp.uint32)


def _mix(h: jax.Array) -> jax.Array:
    """MurmurHash3's fmix32 (A. Appleby, public domain)."""
    h = (h ^ (h >> 16)) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * np.uint32(0xC2B2AE35)
    return h ^ (h >> 16)
