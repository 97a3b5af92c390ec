"""Makes the objective that a config names; a mistake in a plug-in's is a line with the option."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import models
from vit_jax.config import ConfigError, components
from vit_jax.data.pipeline import View
from vit_jax.training.objectives.objective import Inputs, Objective, Setup
from vit_jax.utils import tree_utils
from vit_jax.utils.tree_utils import Tree

KEY = "objective.name"
METHODS = [
    name for name, value in vars(Objective).items() if callable(value) and name.isidentifier()
    and not name.startswith("_")
]  # fmt: skip

Measures = Mapping[str, jax.Array]


def create_objective(setup: Setup) -> Objective:
    """The objective that a config names."""
    name = setup.cfg.objective.name
    made = components.make(setup.cfg.objective, KEY, setup)
    if not isinstance(made, Objective):
        raise ConfigError(f"{KEY}={name}: must make a training.objectives.Objective")
    if name not in components.built_in("objective"):
        guard(made, name)
    return made


def guard(made: Objective, name: str) -> None:
    """Makes errors of an objective's methods, and what they may not return, ConfigErrors."""
    label, guarded = f"{KEY}={name}", components.guarded(KEY, name)
    _check_attributes(made, label)
    for method in METHODS:
        if callable(own := getattr(made, method)):  # not an argument of that name, such as decay
            setattr(made, method, guarded(own))
    # Guarded by now: what follows checks what they return.
    init, loss, summarize, warning = made.init, made.loss, made.summarize, made.warning
    init_state = made.init_state

    def checked_init(key: jax.Array) -> models.Params:
        params = init(key)
        if not _is_nested(params):
            raise ConfigError(f"{label}: init must return a dict of arrays, nested by name")
        for path, leaf in tree_utils.flatten({"init": params}).items():
            if (kind := np.dtype(leaf.dtype)) != np.float32:
                raise ConfigError(f"{label}: {path} is {kind}; its parameters must be float32")
        return params

    def checked_state(params: models.Params) -> Mapping[str, Tree]:
        state = init_state(params)
        if not isinstance(state, Mapping):
            raise ConfigError(f"{label}: init_state must return a dict")
        return state

    def checked_loss(outputs: Tree, inputs: Inputs) -> tuple[jax.Array, dict[str, jax.Array]]:
        found = loss(outputs, inputs)
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping)):
            raise ConfigError(f"{label}: loss must return the loss and measures by name")
        value = guarded(jnp.asarray)(found[0])
        if value.shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
            raise ConfigError(
                f"{label}: loss returned {value.dtype} {value.shape}; must return a float ()"
            )
        return value, {one: guarded(jnp.asarray)(measure) for one, measure in found[1].items()}

    def checked_summarize(measures: Measures, inputs: Inputs) -> Measures:
        found = summarize(dict(measures), inputs)
        for one in made.measures:
            if one not in found or jnp.shape(found[one]) != ():
                raise ConfigError(
                    f"{label}: measures names {one}, but the loss returns no such scalar"
                )
        return found

    def checked_warning(metrics: Mapping[str, float]) -> tuple[str, bool] | None:
        found = warning(metrics)
        if found is not None and not (isinstance(found, tuple) and len(found) == 2):
            raise ConfigError(f"{label}: warning must return None, or a text and whether it ends")
        return found

    for method, checked in (
        ("init", checked_init), ("init_state", checked_state), ("loss", checked_loss),
        ("summarize", checked_summarize), ("warning", checked_warning),
    ):  # fmt: skip
        setattr(made, method, checked)


def _is_nested(params: object) -> bool:
    """Whether parameters are arrays in nested dicts, with names that files can hold."""
    return isinstance(params, Mapping) and all(
        isinstance(name, str) and "/" not in name and (hasattr(one, "dtype") or _is_nested(one))
        for name, one in params.items()
    )


def _check_attributes(made: Objective, label: str) -> None:
    with components.calling(*label.split("=", 1)):
        views, measures, shown = made.views, made.measures, made.shown
    if not isinstance(views, tuple) or not views or not all(isinstance(v, View) for v in views):
        raise ConfigError(f"{label}: views must be a tuple of data.pipeline.View")
    for key, names in (("measures", measures), ("shown", shown)):
        if not isinstance(names, tuple):
            raise ConfigError(f"{label}: {key}={names!r} must be a tuple of names")
    if others := sorted({*shown} - {*measures}):
        raise ConfigError(f"{label}: shown names {others[0]}, which measures does not")
