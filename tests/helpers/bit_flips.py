"""Faults of a device: one bit of its part of an array."""

import jax
import numpy as np


def flipped(array, device, element, bit):
    """A sharded array with one bit of one device's part flipped."""
    parts = []
    for shard in array.addressable_shards:
        part = np.array(shard.data)
        if shard.device == device:
            words = part.reshape(-1).view({1: np.uint8, 2: np.uint16, 4: np.uint32}[part.itemsize])
            words[element % words.size] ^= words.dtype.type(1 << bit % (8 * part.itemsize))
        parts.append(jax.device_put(part, shard.device))
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)
