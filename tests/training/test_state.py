"""The state: what it begins with."""

import dataclasses
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import runs
from vit_jax.training import state
from vit_jax.training.build import build
from vit_jax.utils import tree_utils


@pytest.mark.parametrize("fsdp", [1, 8])
def test_a_state_begins_with_some_parameters(fsdp):
    cfg = runs.configure(model={"num_classes": 10}, mesh={"fsdp": fsdp, "fsdp_min_size": 0})
    trainer = build(cfg, 200)
    live = trainer.init_state()
    old = tree_utils.flatten(jax.device_get(live["params"]))
    given = {"encoder_norm/scale": old["encoder_norm/scale"] + 1}
    # The states of an objective and of an optimizer begin with the same parameters.
    keeps = mock.Mock(init_state=lambda params: {"teacher": params})
    live["objective"] = {"teacher": live["params"]}
    live["opt"] = jax.tree.map(jnp.copy, {"start": live["params"]})
    starts = mock.Mock(init=lambda params: {"start": jax.tree.map(jnp.copy, params)})
    new = state.begin_with(live, tree_utils.nest(given), trainer.trainable, keeps, starts)
    live["kept"] = live["start"] = live["params"]
    new |= {"kept": new["objective"]["teacher"], "start": new["opt"]["start"]}
    for key in ("params", "ema", "kept", "start"):
        assert jax.tree.structure(new[key]) == jax.tree.structure(live[key])
        for name, leaf in tree_utils.flatten(new[key]).items():
            np.testing.assert_array_equal(leaf, given.get(name, old[name]))
            assert leaf.sharding == tree_utils.flatten(live[key])[name].sharding


def test_initial_parameters_are_drawn_from_the_seed():
    trainer = build(runs.configure(model={"num_classes": 10}), 200)
    for seed in (0, 3):
        live = dataclasses.replace(
            trainer, cfg=dataclasses.replace(trainer.cfg, seed=seed)
        ).init_state()
        # The key that earlier versions drew them from: a seed keeps its parameters.
        drawn = jax.jit(trainer.model.init)(jax.random.fold_in(jax.random.key(seed), 0))
        chex.assert_trees_all_close(live["params"], drawn, rtol=1e-6)
