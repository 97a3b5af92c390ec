"""A small training state whose every value follows from its step, and a process that saves it.

python states.py DIRECTORY MODE     (modes: at the end of the file)
"""

import json
import pathlib
import resource
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.checkpoints import manager
from vit_jax.utils import tree_utils


def mesh(data: int = 1, fsdp: int = 1) -> Mesh:
    """A mesh of the first devices."""
    return Mesh(np.array(jax.devices()[: data * fsdp]).reshape(data, fsdp), ("data", "fsdp"))


def shapes(width: int = 16) -> dict[str, Any]:
    """The shapes of a state of all types that occur, scalars and empty arrays too."""
    tx = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(1e-3, mu_dtype=jnp.bfloat16),
        optax.trace(0.9),
    )
    params = {
        "encoder": {"kernel": jnp.zeros((2, width, 24)), "bias": jnp.zeros((2, 24))},
        "head": {"kernel": jnp.zeros((24, 8)), "none": jnp.zeros((0, 8))},
    }
    return jax.eval_shape(
        lambda: {
            "params": params,
            "opt": tx.init(params),
            "ema": params,
            "step": jnp.int32(0),
            "flag": jnp.zeros((64,), bool),
        }
    )


def target(on: Mesh, width: int = 16) -> dict[str, Any]:
    """The shapes with shardings: what divides by the mesh is split."""

    def place(name: str, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        spec = P(None, "fsdp", "data") if len(leaf.shape) == 3 else P()
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(on, spec))

    return tree_utils.map_named(place, shapes(width))


def values(step: int, width: int = 16) -> dict[str, np.ndarray]:
    """The leaves of the state of a step, by name; incompressible."""
    rng = np.random.default_rng(step)

    def draw(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        normal = np.asarray(rng.standard_normal(leaf.shape))
        return normal > 0 if leaf.dtype == bool else (1e6 * normal).astype(leaf.dtype)

    return {name: draw(leaf) for name, leaf in tree_utils.flatten(shapes(width)).items()}


def state(step: int, on: Mesh, width: int = 16) -> dict[str, Any]:
    """The state of a step on a mesh."""
    found = values(step, width)
    return tree_utils.map_named(
        lambda name, leaf: jax.device_put(found[name], leaf.sharding), target(on, width)
    )


def equal(restored: Any, step: int, width: int = 16) -> bool:
    """Whether a state is that of `step`, bit for bit and in structure."""
    wanted, found = values(step, width), tree_utils.flatten(restored)
    return jax.tree.structure(restored) == jax.tree.structure(shapes(width)) and all(
        found[name].dtype == array.dtype
        and found[name].shape == array.shape
        and np.asarray(found[name]).tobytes() == array.tobytes()
        for name, array in wanted.items()
    )


def _say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _save_forever(directory: pathlib.Path) -> None:
    """Saves step after step until killed, telling what is begun and what is committed."""
    saver = manager.Manager(directory, keep=2, best="top1")
    step = max(saver.steps(), default=0)
    while True:
        step += 1
        _say(begun=step)
        saver.save(step, state(step, mesh()), record={}, metrics=None)
        if step % 3:
            saver.wait()
            _say(committed=step)


def _save_over_a_full_disk(directory: pathlib.Path) -> None:
    """Saves 1, fails to save 2 (no file may be that large), saves 3."""
    width = 4096
    saver = manager.Manager(directory, keep=2, best="top1")
    saver.save(1, state(1, mesh(), width), record={}, metrics=None)
    saver.wait()
    before = {path.name for path in directory.iterdir()}
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    try:
        saver.save(2, state(2, mesh(), width), record={}, metrics=None)
        saver.wait()
        _say(error=None)
    except manager.SaveFailed as error:
        _say(error=str(error), code=error.exit_code, steps=saver.steps())
    _say(left=sorted({path.name for path in directory.iterdir()} - before))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    saver.save(3, state(3, mesh(), width), record={}, metrics=None)
    saver.wait()
    _say(steps=saver.steps())
    saver.close()


if __name__ == "__main__":
    modes = {"forever": _save_forever, "full": _save_over_a_full_disk}
    modes[sys.argv[2]](pathlib.Path(sys.argv[1]))
