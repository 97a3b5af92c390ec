"""Update rules, without the learning rate: the step multiplies by it, as a function of the step."""

import re
from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib

from vit_jax import config
from vit_jax.config import components, patterns
from vit_jax.utils import tree_utils
from vit_jax.utils.tree_utils import Tree

# Kernels (D, H, d) have one input axis; in all others, every axis but the last is one.
HEADS_LAST = re.compile(r".*/(query|key|value)/kernel")
HEADS = re.compile("/(query|key|value)/")
# Optimizers of optax that measure an array as a whole: its norm, the size of its update, its axes.
WHOLE = ("adafactor", "novograd", "sm3")

Layers = tuple[int, slice | np.ndarray]  # how many are stacked, and the index of those that train


def create_optimizer(
    optimizer: config.Optimizer,
    *,
    clip_norm: float | None,
    clip_by: str = "global",
    waits: Mapping[str, int] = MappingProxyType({}),
    layers: Mapping[str, Layers] = MappingProxyType({}),
) -> optax.GradientTransformation:
    """Clip, moments and decoupled weight decay as one optax chain.

    Its updates are to be scaled by minus the learning rate, so weight decay is multiplied by it
    too (AdamW's form; AugReg, section 3.3). Weight decay that differs by group or follows a
    schedule is not in the chain: `trainable` adds it to the updates.

    Args:
      optimizer: options of the run.
      clip_norm: the largest norm of gradients; None: any.
      clip_by: `train.clip_by`, whose norm that is.
      waits: as of the objective.
      layers: of the parameters of which some layers are frozen.
    """

    def decayed(params: Tree) -> Tree:
        return tree_utils.map_named(lambda name, _: decays(optimizer, name), params)

    # The clip before the moments, weight decay after them (AdamW), then LAMB's ratio, which is of
    # the whole update. LARS's is of the gradient with weight decay; its momentum comes last.
    parts = []
    if optimizer.weight_decay and not decays_apart(optimizer) and not waits:
        parts.append(optax.add_decayed_weights(optimizer.weight_decay, mask=decayed))
    if isinstance(optimizer, config.Lamb | config.Lars):
        parts.append(_trust_ratio(optimizer))
    first = len(parts) if optimizer.name == "lars" else 0
    parts.insert(first, _waiting(_moments(optimizer), waits))
    if clip_norm is not None:
        each = clip_by == "parameter"
        clip = _clip_each(clip_norm, layers) if each else optax.clip_by_global_norm(clip_norm)
        parts.insert(0, clip)
    chain = optax.chain(*parts)

    def update(updates: Tree, state: Tree, params: Tree = None) -> tuple[Tree, Tree]:
        # optax mixes types on purpose (bfloat16 moments, float32 gradients), our tests forbid it.
        with jax.numpy_dtype_promotion("standard"):
            return chain.update(updates, state, params)

    return optax.GradientTransformation(chain.init, update)


def decays(optimizer: config.Optimizer, name: str) -> bool:
    """Whether a parameter decays, groups aside.

    `kernels` is big_vision's rule, `all` that of flax.optim.Adam when the paper was written.
    """
    return optimizer.decayed == "all" or name.endswith("kernel")


def decays_apart(optimizer: config.Optimizer) -> bool:
    """Whether weight decay differs between groups of parameters or changes with the step."""
    scheduled = optimizer.weight_decay_end is not None
    return scheduled or any(group.decay is not None for group in optimizer.groups)


def _clip_each(limit: float, layers: Mapping[str, Layers]) -> optax.GradientTransformation:
    """Scales the gradient of each parameter to a norm of at most `limit`.

    As in the code of DINO and its torch models: of stacked layers each has its own norm; queries,
    keys and values of a layer, which are one parameter there, share one.
    """

    def update(updates: Tree, state: Tree, params: Tree = None) -> tuple[Tree, Tree]:
        squares: dict[str, jax.Array] = {}
        for name, leaf in tree_utils.flatten(updates).items():
            axes = tuple(range(patterns.STACKED.fullmatch(name) is not None, leaf.ndim))
            square = jnp.sum(jnp.square(leaf), axes)
            if name in layers:  # its rows are not those of the others
                count, index = layers[name]
                square = jnp.zeros(count, square.dtype).at[index].set(square)
            whole = HEADS.sub("/", name)
            squares[whole] = squares[whole] + square if whole in squares else square

        def clipped(name: str, leaf: jax.Array) -> jax.Array:
            # The 1e-6 is that of DINO's clip_gradients.
            factor = jnp.minimum(1.0, limit / (jnp.sqrt(squares[HEADS.sub("/", name)]) + 1e-6))
            factor = factor[layers[name][1]] if name in layers else factor
            return leaf * factor.reshape(*factor.shape, *(1,) * (leaf.ndim - factor.ndim))

        return tree_utils.map_named(clipped, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _waiting(
    moments: optax.GradientTransformation, waits: Mapping[str, int]
) -> optax.GradientTransformation:
    """Delays the moments, and their step count, until their parameters train."""
    if not any(waits.values()):
        return moments

    def late(first: int) -> optax.GradientTransformation:
        def trains(step: jax.typing.ArrayLike, **_: object) -> jax.Array:
            return jnp.asarray(step) >= first

        masked = optax.conditionally_mask(moments, trains)
        return optax.GradientTransformation(masked.init, masked.update)

    def labels(params: Tree) -> Tree:
        return tree_utils.map_named(lambda name, _: str(wait_of(name, waits)), params)

    groups: dict[Hashable, optax.GradientTransformation] = {"0": moments}
    return optax.partition(groups | {str(first): late(first) for first in waits.values()}, labels)


def wait_of(name: str, waits: Mapping[str, int]) -> int:
    """The steps after which a parameter begins to train."""
    return next((first for begin, first in waits.items() if name.startswith(begin)), 0)


@components.register("optimizer", "adam")
def adam(*, b1: float, b2: float, eps: float, moment_dtype: str) -> optax.GradientTransformation:
    """Adam (Kingma and Ba 2015), its first moment stored in `moment_dtype`."""
    # The second moment stays float32: it changes by 1 - b2 = 0.001 a step, and bfloat16, with steps
    # of 2^-8, would round that away.
    return optax.scale_by_adam(b1, b2, eps, mu_dtype=jnp.dtype(moment_dtype))


@components.register("optimizer", "sgd")
def sgd(*, momentum: float, moment_dtype: str) -> optax.GradientTransformation:
    """SGD with momentum, stored in `moment_dtype`."""
    return optax.trace(momentum, accumulator_dtype=jnp.dtype(moment_dtype))


@components.register("optimizer", "muon")
def muon(**arguments: Any) -> optax.GradientTransformation:
    """Muon for the encoder's matrices, Adam for the rest."""
    # It descends by itself, at this learning rate; the step multiplies by minus the run's.
    whole = optax.contrib.muon(
        learning_rate=1.0, muon_weight_dimension_numbers=_matrices, **arguments
    )
    return optax.chain(whole, optax.scale(-1.0))


@components.register("optimizer", "lamb")
def lamb(*, b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """The moments of LAMB (You et al. 2020); its trust ratio follows the weight decay."""
    return optax.scale_by_adam(b1, b2, eps)


@components.register("optimizer", "lars")
def lars(*, momentum: float, nesterov: bool, **_: object) -> optax.GradientTransformation:
    """The momentum of LARS (You et al. 2017); weight decay and its trust ratio precede it."""
    return optax.trace(momentum, nesterov=nesterov)


def _trust_ratio(optimizer: config.Optimizer) -> optax.GradientTransformation:
    """Scales the update of a decayed parameter to its norm, of stacked layers each by itself.

    Others keep their updates, as in timm's LAMB, deit3-jax's, and the LARS of MAE's code.
    """
    factor, eps, ratios = 1.0, 0.0, True
    if isinstance(optimizer, config.Lars):
        factor, eps = optimizer.trust_coefficient, optimizer.eps
        ratios = optimizer.trust_ratio_mask

    def scaled(name: str, update: jax.Array, param: jax.Array) -> jax.Array:
        if not (ratios and decays(optimizer, name)):
            return update
        axes = tuple(range(1 if patterns.STACKED.fullmatch(name) else 0, param.ndim))
        lengths = (jnp.sqrt(jnp.sum(x * x, axes, keepdims=True)) for x in (param, update))
        wanted, found = lengths
        # A parameter of zeros, such as a new head, would be scaled by 0 for ever.
        usable = (wanted > 0) & (found > 0)
        ratio = factor * wanted / (jnp.where(usable, found, 1.0) + eps)
        return update * jnp.where(usable, ratio, 1.0)

    def update(updates: Tree, state: Tree, params: Tree = None) -> tuple[Tree, Tree]:
        return tree_utils.map_named(scaled, updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _moments(optimizer: config.Optimizer) -> optax.GradientTransformation:
    """The transformation that a config names; its updates point up the gradient.

    It knows no learning rate: those of optax that want one get 1.
    """
    key, name = "optimizer.name", optimizer.name
    descends = name in components.OPTAX_OPTIMIZERS and components.descends(name)
    made = components.make(optimizer, key, **({"learning_rate": 1.0} if descends else {}))
    if not isinstance(made, optax.GradientTransformation):
        raise config.ConfigError(f"{key}={name}: must return an optax.GradientTransformation")
    if name not in (*components.built_in("optimizer"), *components.OPTAX_OPTIMIZERS):
        made = _guarded(made, name)
    made = optax.chain(made, optax.scale(-1.0)) if descends else made
    return _by_layer(made) if name in WHOLE else made


def _guarded(made: optax.GradientTransformation, name: str) -> optax.GradientTransformation:
    guarded = components.guarded("optimizer.name", name)

    def update(
        updates: Tree, state: Tree, params: Tree = None, **more: object
    ) -> tuple[Tree, Tree]:
        found = guarded(made.update)(updates, state, params, **more)
        wanted = jax.tree.map(jnp.shape, updates)
        if not (
            isinstance(found, tuple)
            and len(found) == 2
            and jax.tree.map(jnp.shape, found[0]) == wanted
        ):
            raise config.ConfigError(
                f"optimizer.name={name}: update must return updates of the gradients' shapes, and "
                "its state"
            )
        return found

    return made._replace(init=guarded(made.init), update=update)


def _by_layer(moments: optax.GradientTransformation) -> optax.GradientTransformation:
    """Updates each layer of stacked arrays as an array of its own."""
    layer = optax.GradientTransformation(jax.vmap(moments.init), jax.vmap(moments.update))

    def apart(tree: Tree) -> optax.GradientTransformation:
        # Stacks may have unlike numbers of layers: frozen ones are left out, stages differ.
        counts = tree_utils.map_named(
            lambda name, leaf: str(leaf.shape[0]) if patterns.STACKED.fullmatch(name) else "", tree
        )
        rules = {count: layer if count else moments for count in jax.tree.leaves(counts)}
        return optax.partition(rules, counts) if any(rules) else moments

    def update(updates: Tree, state: Tree, params: Tree = None) -> tuple[Tree, Tree]:
        return apart(updates).update(updates, state, params)

    return optax.GradientTransformation(lambda params: apart(params).init(params), update)


def _matrices(params: Tree) -> Tree:
    """The axes of the hidden matrices, which Muon orthogonalizes; Adam updates the rest.

    They are those of the encoder, of each layer apart, each with all of its heads as one matrix.
    """

    def axes(name: str, leaf: jax.Array) -> optax.contrib.MuonDimensionNumbers | None:
        if not re.fullmatch(r"encoder/.*/kernel", name):
            return None
        first = range(1, 2 if HEADS_LAST.fullmatch(name) else leaf.ndim - 1)
        return optax.contrib.MuonDimensionNumbers(tuple(first), tuple(range(first.stop, leaf.ndim)))

    return tree_utils.map_named(axes, params)
