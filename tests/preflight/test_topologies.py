import math
import os
import types

import jax
import pytest

from vit_jax import config
from vit_jax.preflight import topologies


@pytest.mark.parametrize(
    ("name", "generation", "shape"),
    [
        ("v3:8x8", "v3", (8, 8)),
        ("v3:16x16", "v3", (16, 16)),
        ("v5p:4x4x4", "v5p", (4, 4, 4)),
        # Google's numbers: cores of v2, v3, v4 and v5p, chips of v5e and v6e.
        ("v2-8", "v2", (2, 2)),
        ("v3-32", "v3", (4, 4)),
        ("v3-128", "v3", (8, 8)),
        ("v3-256", "v3", (8, 16)),
        ("v3-512", "v3", (16, 16)),
        ("v4-8", "v4", (2, 2, 1)),
        ("v4-32", "v4", (2, 2, 4)),
        ("v5p-128", "v5p", (4, 4, 4)),
        ("v5e-4", "v5e", (2, 2)),
        ("v5e-16", "v5e", (4, 4)),
        ("v5e-256", "v5e", (16, 16)),
        ("v6e-8", "v6e", (2, 4)),
        ("tpu7x:2x2x1", "tpu7x", (2, 2, 1)),
    ],
)
def test_names(name, generation, shape):
    assert topologies.parse_topology(name) == (generation, shape)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v7-8", "no such slice; generations: v2, v3, v4, v5e, v5p, v6e, tpu7x; examples: "),
        ("tpu", "no such slice; generations: v2"),
        ("v3", "no such slice; generations: v2"),
        ("v3:8", "no such slice; generations: v2"),
        ("v3:8x8x8", "a v3 slice has 2 axes, such as v3:4x4"),
        ("v4:4x4", "a v4 slice has 3 axes, such as v4:4x4x4"),
        ("v3:0x8", "a v3 slice has 2 axes, such as v3:4x4"),
        ("v3-12", "no such size; known: v3-8, v3-16, v3-32"),
        ("v3-9", "no such size; known: v3-8"),
        ("tpu7x-8", "name it by its chips along each axis, such as tpu7x:2x2x1"),
        ("tpu7x:4x4", "a tpu7x slice has 3 axes, such as tpu7x:4x4x4"),
        ("v5e-2", "no such size; known: v5e-1, v5e-4, v5e-8"),
    ],
)
def test_wrong_names(name, message):
    with pytest.raises(config.ConfigError) as caught:
        topologies.parse_topology(name)
    assert str(caught.value).startswith(f"--topology={name}: {message}")
    assert "\n" not in str(caught.value)


def test_without_the_compiler_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr(topologies.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(config.ConfigError, match=r"needs the TPU compiler; pip install .*\[tpu\]"):
        topologies.open_slice("v3-8")


def test_no_gpu_here():
    message = "--topology=gpu: JAX finds no such device on this machine"
    with pytest.raises(config.ConfigError, match=message):
        topologies.open_slice("gpu")


def test_the_devices_of_this_machine_share_its_memory(monkeypatch):
    here = topologies.open_slice("cpu")
    names = ("SC_PAGE_SIZE", "SC_PHYS_PAGES")
    assert here.memory == math.prod(map(os.sysconf, names)) / len(here.devices)
    one = types.SimpleNamespace(memory_stats=lambda: {"bytes_limit": 5}, platform="gpu")
    monkeypatch.setattr(jax, "devices", lambda platform: [one])
    assert topologies.open_slice("gpu").memory == 5
