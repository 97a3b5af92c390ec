"""The training state: a plain dict, created shard by shard on its devices."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from vit_jax import config, models
from vit_jax.models.classifier import OBJECTIVE
from vit_jax.training import lora, sharding, streams
from vit_jax.training.objectives import Objective
from vit_jax.training.trainable import Trainable
from vit_jax.utils import tree_utils

State = dict[str, Any]


def create_state(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    trainable: Trainable,
    cfg: config.Config,
) -> State:
    """A new state; call it under `jit` or `eval_shape`.

    Keys: `params` (with adapters under `lora`, and the objective's own under `objective`), `opt`
    (optax), `ema` (where config or objective ask for one), `objective` (what that keeps, if
    anything), `step` and `bad_steps` (int32: steps whose loss or gradient was not finite, and
    which changed nothing else). `opt` and `ema` hold what trains only.
    """
    params = objective.model.init(streams.key(cfg.seed, streams.INIT))
    if cfg.lora.rank is not None:
        params |= lora.initial(cfg.lora, objective.model, cfg.seed)
    if own := objective.init(streams.key(cfg.seed, streams.OBJECTIVE)):
        params |= {OBJECTIVE: own}
    trained = trainable.split(params)
    state = {
        "params": params,
        "opt": optimizer.init(trained),
        "step": jnp.zeros((), jnp.int32),
        "bad_steps": jnp.zeros((), jnp.int32),
    }
    if cfg.train.ema is not None or objective.averages:
        # A copy: the step donates its state, and a buffer can be donated only once.
        state["ema"] = jax.tree.map(jnp.copy, trained)
    if kept := objective.init_state(params):
        # Copied for the same reason: it may hold parameters.
        state["objective"] = jax.tree.map(jnp.copy, dict(kept))
    return state


def begin_with(
    state: State,
    params: models.Params,
    trainable: Trainable,
    objective: Objective,
    optimizer: optax.GradientTransformation,
) -> State:
    """Replaces parameters of a new state, and everything derived from them, such as the average.

    `params` are numpy float32 arrays, nested by name, of some or all parameters; `trainable` is
    what trains. The states of objective and optimizer begin anew: they may hold parameters, such as
    a teacher's, or the initial ones, to which some update rules measure the distance.
    """
    given = tree_utils.flatten(params)

    def replaced(name: str, leaf: jax.Array) -> jax.Array:
        if name not in given:
            return leaf
        whole = given[name]
        # Every process has all of it and takes its own parts: nothing crosses between hosts.
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda part: whole[part])

    new = {"params": tree_utils.map_named(replaced, state["params"])}
    places = jax.tree.map(lambda leaf: leaf.sharding, state["opt"])
    # The old state is donated: two of them would be the largest part of the memory.
    # `keep_unused`, as jax drops an argument that nothing reads, and would not donate it.
    begun = jax.jit(
        lambda own, _: optimizer.init(trainable.split(own)),
        donate_argnums=1,
        keep_unused=True,
        out_shardings=places,
    )
    new["opt"] = begun(new["params"], state["opt"])
    if "ema" in state:
        places = jax.tree.map(lambda leaf: leaf.sharding, state["ema"])
        copied = jax.jit(
            lambda own: jax.tree.map(jnp.copy, trainable.split(own)), out_shardings=places
        )
        new["ema"] = copied(new["params"])
    if "objective" in state:
        places = jax.tree.map(lambda leaf: leaf.sharding, state["objective"])
        kept = jax.jit(
            lambda own: jax.tree.map(jnp.copy, dict(objective.init_state(own))),
            out_shardings=places,
        )
        new["objective"] = kept(new["params"])
    return state | new


def evaluated(state: State, options: config.Mesh, trainable: Trainable) -> models.Params:
    """The model's parameters to evaluate, gathered: the average where there is one."""
    mesh = state["step"].sharding.mesh
    if trainable.specs is None:  # the average is that of all parameters, and stands for them
        return _gathered(state.get("ema", state["params"]), mesh, options)
    held = _gathered({key: state[key] for key in ("params", "ema") if key in state}, mesh, options)
    return _gathered(trainable.evaluated(held), mesh, options)


def _gathered(params: tree_utils.Tree, mesh: Mesh, options: config.Mesh) -> tree_utils.Tree:
    """Reshards parameters for the forward pass; those already in place are not copied.

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
