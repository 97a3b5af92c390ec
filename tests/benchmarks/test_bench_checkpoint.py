"""What `bench checkpoint` saves and restores, and that nothing stays behind."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.benchmarks import checkpoint
from vit_jax.training import sharding


@pytest.fixture
def state():
    """A small state and its shapes."""
    place = NamedSharding(sharding.create_mesh(1, jax.devices()[:1]), P())
    drawn = np.random.default_rng(0)
    live = {
        "params": {"kernel": jnp.asarray(drawn.standard_normal((3, 5), np.float32))},
        "opt": (jnp.asarray(drawn.standard_normal(7, np.float32)).astype(jnp.bfloat16),),
        "step": jnp.asarray(3, jnp.int32),
    }
    live = jax.device_put(live, place)
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), live
    )
    return live, shapes


@pytest.mark.parametrize("name", checkpoint.KINDS)
def test_a_program_restores_what_it_saved(tmp_path, state, name):
    live, target = state
    with checkpoint.programs(target, tmp_path) as found:
        program = found[name]
        for number in (1, 2):
            program.begin(number, live)
            program.end()
        checkpoint.forget(program.path(2))
        restored = program.restore(2)
        checkpoint.remove(program.path(2))
        assert not program.path(2).exists()
    assert jax.tree.structure(restored) == jax.tree.structure(live)
    for ours, other in zip(jax.tree.leaves(live), jax.tree.leaves(restored), strict=True):
        assert ours.dtype == other.dtype
        assert ours.sharding == other.sharding
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(other))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_saving_and_restoring_are_compared(tmp_path, state):
    found = checkpoint.compare("tiny", *state, rounds=2, where=tmp_path)
    assert [one.work for one in found] == [
        "save, tiny", "begin to save, tiny", "restore, tiny",
    ]  # fmt: skip
    for one in found:
        assert one.amount == (3 * 5 * 4 + 7 * 2 + 4) / 1e6
        assert [result.name for result in one.results] == list(checkpoint.KINDS)
        assert all(len(result.seconds) == 2 for result in one.results)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_state_is_that_of_a_run_and_not_of_zeros():
    live, target = checkpoint.random_state("ViT-Ti/16")
    assert live.keys() == {"params", "opt", "step", "bad_steps"}
    # 5,717,416 parameters (ViT-Ti/16 with 1,000 classes), and two moments for each.
    sizes = [leaf.size for leaf in jax.tree.leaves(live["params"])]
    assert sum(sizes) == 5_717_416
    assert sum(leaf.size for leaf in jax.tree.leaves(live["opt"])) >= 2 * sum(sizes)
    for leaf, shape in zip(jax.tree.leaves(live), jax.tree.leaves(target), strict=True):
        assert (leaf.shape, leaf.dtype) == (shape.shape, shape.dtype)
        if leaf.size > 100:
            assert abs(float(jnp.std(leaf)) - 1) < 0.3


def test_the_file_system_is_named():
    assert checkpoint.file_system(None) in checkpoint.title(None)[-1]
    with open("/proc/mounts") as mounts:  # noqa: PTH123
        assert checkpoint.file_system(None) in {line.split()[2] for line in mounts}
