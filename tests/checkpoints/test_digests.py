"""Digests against an independent implementation, over meshes, and against every small damage."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from vit_jax.checkpoints import digests

DTYPES = ("float32", "bfloat16", "float16", "int32", "uint32", "int16", "int8", "uint8", "bool")
SHAPES = ((), (1,), (7,), (8, 12), (2, 3, 4, 5), (0, 3))


def bits(dtype, shape):
    """Random bits, NaNs with payloads and negative zeros among them."""
    rng = np.random.default_rng([DTYPES.index(dtype), *shape])
    if dtype == "bool":
        return rng.random(shape) < 0.5
    kind = jnp.dtype(dtype)
    raw = rng.integers(0, 256, (*shape, kind.itemsize), np.uint8)
    return np.frombuffer(raw.tobytes(), kind).reshape(shape)


def reference(array):
    """The two lanes, element by element, in Python's integers."""
    raw, width = array.tobytes(), array.dtype.itemsize
    first = second = 0
    for position in range(array.size):
        h = int.from_bytes(raw[position * width : (position + 1) * width], "little")
        h ^= (position * 0x9E3779B1 + 0x7F4A7C15) % 2**32
        h = (h ^ (h >> 16)) * 0x85EBCA6B % 2**32
        h = (h ^ (h >> 13)) * 0xC2B2AE35 % 2**32
        h ^= h >> 16
        first += h
        g = (h ^ (h >> 15)) * 0x7FEB352D % 2**32
        second += g ^ (g >> 14)
    return f"{first % 2**32:08x}{second % 2**32:08x}"


def read_digests(*arrays):
    """The digests of arrays on one device; one by one, as equal shapes compile once."""
    return [digests.Digests({"x": jnp.asarray(a)}).read()[0]["x"]["digest"] for a in arrays]


def test_equals_the_reference_for_every_type_and_shape():
    arrays = {f"{d}{s}": bits(d, s) for d in DTYPES for s in SHAPES}
    found, _ = digests.Digests({name: jnp.asarray(array) for name, array in arrays.items()}).read()
    assert list(found) == list(arrays)
    one = digests.lanes(jnp.asarray(arrays["float32(7,)"]))
    assert "".join(f"{lane:08x}" for lane in one.tolist()) == found["float32(7,)"]["digest"]
    for name, array in arrays.items():
        expected = {"dtype": str(array.dtype), "shape": list(array.shape)}
        assert found[name] == expected | {"digest": reference(array)}, name


def test_mixes_as_murmurhash3_does():
    # fmix32(1) = 0x514e28b7 is printed in many places; the first position is xored with an offset.
    word = np.array([0x7F4A7C15 ^ 1], np.uint32)
    assert read_digests(word)[0].startswith("514e28b7")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_does_not_depend_on_devices_or_sharding(dtype):
    array = bits(dtype, (8, 16, 24))
    expected = reference(array)
    devices = np.array(jax.devices())
    placements = [SingleDeviceSharding(devices[3])]
    for shape in ((1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (8, 1), (2, 4), (1, 8)):
        mesh = Mesh(devices[: np.prod(shape)].reshape(shape), ("data", "fsdp"))
        specs = [P(), P(None, None, "fsdp"), P("fsdp", "data"), P(None, ("data", "fsdp"))]
        placements += [
            NamedSharding(mesh, spec) for spec in specs[: 4 if mesh.size in (1, 8) else 2]
        ]
    for placement in placements:
        found, _ = digests.Digests({"x": jax.device_put(array, placement)}).read()
        assert found["x"]["digest"] == expected, placement


def test_structured_damage_is_seen():
    """Sums cancel easily: signs flipped in pairs, blocks moved, zeroed, repeated or reversed."""
    clean = bits("float32", (64, 64))
    negated = clean.view(np.uint32).copy()
    negated[3, 5:7] ^= 1 << 31
    zeroed, repeated = clean.copy(), clean.copy()
    zeroed[16:32] = 0
    repeated[16:32] = repeated[:16]
    damaged = [
        clean, negated.view(np.float32), zeroed, repeated, clean[::-1], clean[:, ::-1], clean.T,
        np.roll(clean, 1, 0), np.roll(clean, 1, 1), np.zeros_like(clean), -np.zeros_like(clean),
        np.ones_like(clean), clean.reshape(32, 128),
    ]  # fmt: skip
    found = read_digests(*damaged)
    # A reshape keeps the order of the elements: what tells it apart is the shape beside the lanes.
    assert len(set(found)) == len(found) - 1
    assert found[0] == found[-1]


def test_names_leaves_that_are_not_finite():
    leaves = {
        "fine": jnp.ones((4, 4)),
        "nan": jnp.ones((4, 4)).at[2, 3].set(jnp.nan),
        "minus": jnp.ones((8,), jnp.bfloat16).at[7].set(-jnp.inf),
        "integer": jnp.full((4,), -1, jnp.int32),  # all bits set: a NaN if it were a float
        "largest": jnp.full((2,), jnp.finfo(jnp.float32).max),
        "empty": jnp.zeros((0, 2)),
    }
    assert digests.Digests(leaves).read()[1] == ["nan", "minus"]
    assert digests.Digests({}).read() == ({}, [])


def test_refuses_what_it_cannot_digest():
    for array in (jnp.zeros((2,), jnp.complex64), jax.random.key(0), jnp.zeros((2,), jnp.int4)):
        with pytest.raises(TypeError, match="no digest for arrays of "):
            digests.Digests({"x": array}).read()


def test_gathers_nothing():
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "fsdp"))
    leaves = [
        jax.device_put(bits(dtype, (8, 16, 24)), NamedSharding(mesh, spec))
        for dtype in ("float32", "bfloat16")
        for spec in (P(None, None, "fsdp"), P("fsdp", "data"))
    ]
    program = digests._program(NamedSharding(mesh, P()), tuple(map(digests._shards, leaves)))
    text = program.lower(leaves).compile().as_text()
    assert "all-reduce" in text
    for collective in ("all-gather", "all-to-all", "collective-permute"):
        assert collective not in text
