"""The training state: a plain dict, created where it will live."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from vit_jax import config, models
from vit_jax.training import lora, sharding, streams, trainable
from vit_jax.utils import tree_utils

State = dict[str, Any]


def create(
    model: models.Classifier, tx: optax.GradientTransformation, cfg: config.Config
) -> dict[str, Any]:
    """Returns a new state; call it under `jit` or `eval_shape`.

    Keys: `params` (with adapters under `lora`), `opt` (optax), `ema` (where the config asks for
    one), `step` and `bad_steps` (int32: steps whose loss or gradient was not finite, and which
    changed nothing else). `opt` and `ema` hold what trains only.
    """
    params = model.init(streams.key(cfg.seed, streams.INIT))
    if cfg.lora.rank is not None:
        params |= lora.initial(cfg.lora, model, cfg.seed)
    trained = trainable.from_config(model, cfg).split(params)
    state = {
        "params": params,
        "opt": tx.init(trained),
        "step": jnp.zeros((), jnp.int32),
        "bad_steps": jnp.zeros((), jnp.int32),
    }
    if cfg.train.ema is not None:
        state["ema"] = jax.tree.map(jnp.copy, trained)
    return state


def abstract_state(
    model: models.Classifier, tx: optax.GradientTransformation, cfg: config.Config, mesh: Mesh
) -> dict[str, Any]:
    """Returns the state's ShapeDtypeStructs with their shardings on `mesh`; allocates nothing."""
    shapes = jax.eval_shape(lambda: create(model, tx, cfg))
    return sharding.placed(shapes, mesh, cfg.mesh)


def initialize(
    model: models.Classifier, tx: optax.GradientTransformation, cfg: config.Config, mesh: Mesh
) -> dict[str, Any]:
    """Returns a new state, each shard created on its own device."""
    places = jax.tree.map(lambda leaf: leaf.sharding, abstract_state(model, tx, cfg, mesh))
    return jax.jit(lambda: create(model, tx, cfg), out_shardings=places)()


def begin_with(
    state: dict[str, Any], params: Any, chosen: trainable.Trainable = trainable.EVERYTHING
) -> dict[str, Any]:
    """Returns a new state with some parameters replaced, and the same in their average.

    Args:
      state: as from `initialize`.
      params: numpy float32 arrays, nested by name; all of the state's parameters, or some.
      chosen: what trains.
    """
    given = tree_utils.flatten(params)

    def replaced(name: str, leaf: jax.Array) -> jax.Array:
        if name not in given:
            return leaf
        whole = given[name]
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda part: whole[part])

    new = {"params": tree_utils.map_named(replaced, state["params"])}
    if "ema" in state:
        places = jax.tree.map(lambda leaf: leaf.sharding, state["ema"])
        copied = jax.jit(
            lambda own: jax.tree.map(jnp.copy, chosen.split(own)), out_shardings=places
        )
        new["ema"] = copied(new["params"])
    return state | new


def evaluated(
    state: dict[str, Any],
    options: config.Mesh,
    chosen: trainable.Trainable = trainable.EVERYTHING,
) -> models.Params:
    """Returns the model's parameters to evaluate, gathered: the average where there is one."""
    mesh = state["step"].sharding.mesh
    if chosen.shares is None:  # the average is that of all parameters, and stands for them
        return _placed(state.get("ema", state["params"]), mesh, options)
    held = _placed({key: state[key] for key in ("params", "ema") if key in state}, mesh, options)
    return _placed(chosen.evaluated(held), mesh, options)


def _placed(params: Any, mesh: Mesh, options: config.Mesh) -> Any:
    """Returns parameters split for computing alone; those that lie so already are not copied.

    All others move together, while no other program runs (see `sharding.copied`).
    """
    flat = tree_utils.flatten(params)
    target = tree_utils.flatten(sharding.placed(params, mesh, options, sharding.COMPUTE))
    places = {
        name: leaf.sharding
        for name, leaf in target.items()
        if not flat[name].sharding.is_equivalent_to(leaf.sharding, leaf.ndim)
    }
    if places:
        leaves = jax.block_until_ready([flat[name] for name in places])
        moved = jax.block_until_ready(sharding.copied(leaves, list(places.values())))
        flat |= dict(zip(places, moved, strict=True))
    return tree_utils.nest(flat)
