"""Update rules, without the learning rate: the step multiplies by it, as a function of the step."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from vit_jax import config
from vit_jax.config import components, patterns
from vit_jax.utils import tree_utils

# Which parameters decay, by name; the first match decides.
DECAYED = {
    "kernels": ((r".*kernel", True), (r".*", False)),  # big_vision's rule
    "all": ((r".*", True),),  # flax.optim.Adam's, when the paper was written
}

# Kernels (D, H, d), with one input axis; those of others come before their last axis.
HEADS_LAST = re.compile(r".*/(query|key|value)/kernel")


def create(optimizer: config.Optimizer, *, clip_norm: float | None) -> optax.GradientTransformation:
    """Returns clip, moments and decoupled weight decay as one optax chain.

    Its updates are to be scaled by minus the learning rate, so weight decay is multiplied by it
    too (AdamW's form; AugReg, section 3.3). Where groups have a decay of their own, there is none
    in the chain: `trainable` adds it to the updates.
    """
    dtype = jnp.dtype(optimizer.moment_dtype)

    def decayed(params: Any) -> Any:
        return tree_utils.map_named(lambda name, _: decays(optimizer, name), params)

    if optimizer.name == "adam":
        moments = optax.scale_by_adam(optimizer.b1, optimizer.b2, optimizer.eps, mu_dtype=dtype)
    elif optimizer.name != "sgd":
        moments = _named(optimizer.name)
    else:
        moments = optax.trace(optimizer.momentum, accumulator_dtype=dtype)
    parts = [moments]
    if clip_norm is not None:
        parts.insert(0, optax.clip_by_global_norm(clip_norm))
    if optimizer.weight_decay and not decays_in_groups(optimizer):
        parts.append(optax.add_decayed_weights(optimizer.weight_decay, mask=decayed))
    chain = optax.chain(*parts)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        # optax mixes types on purpose (bfloat16 moments, float32 gradients), our tests forbid it.
        with jax.numpy_dtype_promotion("standard"):
            return chain.update(updates, state, params)

    return optax.GradientTransformation(chain.init, update)


def decays(optimizer: config.Optimizer, name: str) -> bool:
    """Returns whether a parameter decays, groups aside."""
    return tree_utils.first_match(name, DECAYED[optimizer.decayed])


def decays_in_groups(optimizer: config.Optimizer) -> bool:
    """Returns whether groups of parameters have a weight decay of their own."""
    groups = [patterns.parse_group(text, "optimizer.groups") for text in optimizer.groups]
    return any(group.decay is not None for group in groups)


# Direction of descent in optax, where it is not called scale_by_NAME.
_SCALES = {
    "adabelief": "scale_by_belief",
    "adagrad": "scale_by_rss",
    "rmsprop": "scale_by_rms",
}


def _named(text: str) -> optax.GradientTransformation:
    """Returns the optimizer that a config names: of a plug-in, else of optax.

    Its updates point up the gradient and know no learning rate.
    """
    key = "optimizer.name"
    spec = components.parse(text, key)
    if spec.name in components.names("optimizer"):
        made = components.make("optimizer", text, key)
        if not isinstance(made, optax.GradientTransformation):
            raise config.ConfigError(f"{key}={text}: must return an optax.GradientTransformation")
        return made
    scale = getattr(optax, _SCALES.get(spec.name, f"scale_by_{spec.name}"), None)
    if scale is not None:
        return components.call(scale, spec, key)
    # The others, such as lamb and adafactor, descend by themselves.
    whole = getattr(optax, spec.name, None) or getattr(optax.contrib, spec.name)
    more = {"muon_weight_dimension_numbers": _matrices} if spec.name == "muon" else {}
    made = components.call(whole, spec, key, learning_rate=1.0, **more)
    return optax.chain(made, optax.scale(-1.0))


def _matrices(params: Any) -> Any:
    """Returns the axes of the hidden matrices, which Muon orthogonalizes; Adam updates the rest.

    They are those of the encoder, of each layer apart, each with all of its heads as one matrix.
    """

    def axes(name: str, leaf: Any) -> optax.contrib.MuonDimensionNumbers | None:
        if not re.fullmatch(r"encoder/.*/kernel", name):
            return None
        first = range(1, 2 if HEADS_LAST.fullmatch(name) else leaf.ndim - 1)
        return optax.contrib.MuonDimensionNumbers(tuple(first), tuple(range(first.stop, leaf.ndim)))

    return tree_utils.map_named(axes, params)
