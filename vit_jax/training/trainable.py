"""Which parameters train, and with which share of the learning rate and weight decay.

All of it is decided here, once, from the options and the names of the parameters. The step
differentiates with respect to what trains only: for the rest there are neither gradients nor
moments nor an average. Of stacked layers, some may train and others not.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config, models
from vit_jax.config import patterns
from vit_jax.models.classifier import LORA
from vit_jax.training import lora, optimizers
from vit_jax.utils import tree_utils
from vit_jax.weights.adapting import HEAD

# Parts after the layers, which train at the full rate, as in the code of BEiT and MAE; others stand
# before them, shared relative biases too, which BEiT's code has at the full rate. (timm counts the
# final norm with the last layer.)
AFTER = (*HEAD, "encoder_norm/", "pooling/")


@dataclasses.dataclass(frozen=True)
class Share:
    """How one parameter trains.

    Attributes:
      layers: that train, of its stacked layers; None: the whole array.
      count: of its stacked layers, 1 where none are.
      rate: factor on the learning rate, one number or one for each of these layers.
      decay: weight decay of each, a factor on that of the run.
      head: whether it is part of the head.
    """

    layers: tuple[int, ...] | None
    count: int
    rate: np.ndarray
    decay: np.ndarray
    head: bool

    @property
    def part(self) -> float:
        """The share of the array that trains."""
        return 1.0 if self.layers is None else len(self.layers) / self.count


@dataclasses.dataclass(frozen=True, eq=False)
class Trainable:
    """What trains of a model; made by `from_config`.

    Attributes:
      shares: by the names of the parameters that train; None: all, alike.
      shapes: of all parameters of the run, adapters included; None where all train.
      optimizer: options of the run.
      lora: options of the run.
      unrolled: whether the network has no loop over layers.
    """

    shares: Mapping[str, Share] | None = None
    shapes: models.Params | None = None
    optimizer: config.Optimizer = dataclasses.field(default_factory=config.Optimizer)
    lora: config.Lora = dataclasses.field(default_factory=config.Lora)
    unrolled: bool = False

    def split(self, params: Any) -> Any:
        """Returns the part of the parameters that trains, nested by name."""
        if self.shares is None:
            return params
        flat = tree_utils.flatten(params)
        return tree_utils.nest(
            {name: _part(flat[name], share.layers) for name, share in self.shares.items()}
        )

    def join(self, trained: Any, params: Any) -> Any:
        """Returns `params` with the part that trains, as from `split`, put into its place."""
        if self.shares is None:
            return trained
        flat = tree_utils.flatten(trained)

        def one(name: str, leaf: jax.Array) -> jax.Array:
            if name not in flat:
                return leaf
            layers = (self.shares or {})[name].layers
            return flat[name] if layers is None else leaf.at[_index(layers)].set(flat[name])

        return tree_utils.map_named(one, params)

    def network(self, trained: Any, params: Any) -> Any:
        """Returns what a step computes with: matrices and, beside them, their scaled adapters."""
        params = self.join(trained, params)
        return lora.scaled(self.lora, params) if self.lora.rank else params

    def evaluated(self, held: Mapping[str, Any]) -> models.Params:
        """Returns the model's parameters: those with an average as that, adapters added.

        Args:
          held: `params` of a state and, where it has one, `ema`, which may be alone if everything
            trains.
        """
        if self.shares is None:
            return held["ema"] if "ema" in held else held["params"]
        params = held["params"]
        if "ema" in held:
            params = self.join(held["ema"], params)
        return lora.merge(self.lora, params) if self.lora.rank else params

    def scale(self, updates: Any, trained: Any, step: jax.Array) -> Any:
        """Returns the updates of what trains with the rates and weight decays of their own."""
        shares = self.shares
        if shares is None:
            return updates
        weight_decay = 0.0
        if optimizers.decays_in_groups(self.optimizer):
            weight_decay = self.optimizer.weight_decay
        waits = step < self.optimizer.head_first

        def one(name: str, update: jax.Array, param: jax.Array) -> jax.Array:
            share = shares[name]
            if weight_decay and share.decay.any():
                update = update + _along(weight_decay * share.decay, param) * param
            if (share.rate != 1).any():
                update = update * _along(share.rate, param)
            if self.optimizer.head_first and not share.head:
                update = jnp.where(waits, 0.0, update)
            return update

        return tree_utils.map_named(one, updates, trained)

    def passes(self) -> float:
        """Returns the arithmetic of training on an image, in forward passes: 3 if all trains.

        One forward; backward, the layers from the first that trains on (all of them where they are
        a loop), and the gradients of the matrices that train. Adapters take three passes of theirs.
        """
        if self.shares is None:
            return 3.0
        flat = tree_utils.flatten(self.shapes)
        sizes = {name: leaf.size for name, leaf in flat.items() if lora.is_matrix(name)}
        own = sum(sizes[n] * share.part for n, share in self.shares.items() if n in sizes)
        own += 3 * sum(leaf.size for name, leaf in flat.items() if name.startswith(f"{LORA}/"))
        through = max((self._through(*item) for item in self.shares.items()), default=0.0)
        return 1 + through + own / max(sum(sizes.values()), 1)

    def _through(self, name: str, share: Share) -> float:
        """Returns the share of the layers that a gradient passes to reach a parameter."""
        name = name.removeprefix(f"{LORA}/")
        if name.startswith(AFTER):
            return 0.0
        if name.startswith("encoder/") and self.unrolled and share.layers:
            return 1 - share.layers[0] / share.count
        return 1.0

    def describe(self) -> str:
        """Returns how many of the parameters train, for people; empty if all do alike."""
        if self.shares is None:
            return ""
        count = tree_utils.count(jax.eval_shape(self.split, self.shapes))
        rates = np.concatenate([share.rate for share in self.shares.values()])
        text = f"{count:,} of {tree_utils.count(self.shapes):,} train"
        if rates.min() != rates.max():
            text += f", at {rates.min():.3g} to {rates.max():.3g} times the learning rate"
        if self.optimizer.head_first:
            text += f", the head alone in the first {self.optimizer.head_first:,} steps"
        return text


EVERYTHING = Trainable()


def from_config(model: models.Classifier, cfg: config.Config) -> Trainable:
    """What trains in a run; raises ConfigError for patterns that match nothing."""
    options = cfg.optimizer
    asked = (options.freeze, options.only, options.groups, options.layer_decay, options.head_first)
    if not any(asked) and cfg.lora.rank is None:
        return EVERYTHING
    return _from_options(model, options, cfg.lora)


def parameters(model: models.Classifier, cfg: config.Config) -> models.Params:
    """Returns the shapes of a run's parameters: the model's, and adapters where it has them."""
    shapes = model.shapes()
    if cfg.lora.rank is None:
        return shapes
    return shapes | tree_utils.nest(lora.shapes(cfg.lora, model))


@functools.lru_cache(maxsize=16)
def _from_options(
    model: models.Classifier, options: config.Optimizer, adapters: config.Lora
) -> Trainable:
    cfg = config.Config(optimizer=options, lora=adapters)
    shapes = parameters(model, cfg)
    flat = tree_utils.flatten(shapes)
    layers = {name: lora.layers_of(name, leaf.shape) for name, leaf in flat.items()}
    trains = _trains(options, adapters, layers)
    rates = _rates(options, layers, model)
    decays = _decays(options, layers)
    shares = {}
    for name, count in layers.items():
        if not trains[name].any():
            continue
        kept = np.flatnonzero(trains[name])
        whole = len(kept) == count
        shares[name] = Share(
            layers=None if whole else tuple(map(int, kept)),
            count=count,
            rate=_alike(rates[name][kept]),
            decay=_alike(decays[name][kept]),
            head=name.startswith(HEAD),
        )
    if options.head_first and not any(share.head for share in shares.values()):
        raise config.ConfigError(
            f"optimizer.head_first={options.head_first}: the head is frozen; set 0"
        )
    unrolled = model.config.unroll >= (model.config.depth or 1)
    return Trainable(shares, shapes, options, adapters, unrolled)


def _trains(
    options: config.Optimizer, adapters: config.Lora, layers: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """Returns which layers of each parameter train."""
    frozen = _parsed(options.freeze, layers, "optimizer.freeze")
    only = _parsed(options.only, layers, "optimizer.only")

    def allowed(name: str, count: int) -> np.ndarray:
        if name.startswith(f"{LORA}/"):
            return np.full(count, True)
        if only:
            return _mask(only, name, count)
        return np.full(count, adapters.rank is None or name.startswith(HEAD))

    found = {n: allowed(n, c) & ~_mask(frozen, n, c) for n, c in layers.items()}
    if not any(mask.any() for mask in found.values()):
        raise config.ConfigError(
            f"optimizer.freeze={config.show(options.freeze)}: leaves no parameter to train"
        )
    return found


def _rates(
    options: config.Optimizer, layers: Mapping[str, int], model: models.Classifier
) -> dict[str, np.ndarray]:
    """Returns the factor on the learning rate of each layer of each parameter."""
    groups = _grouped(options, layers, "lr")
    decay, depth = options.layer_decay, model.config.depth
    if decay is not None and not any(name.startswith("encoder/") for name in layers):
        raise config.ConfigError(
            f"optimizer.layer_decay={decay:g}: is for the layers of an encoder, and the model has "
            "none; set none, or optimizer.groups"
        )

    def rate(name: str, count: int) -> np.ndarray:
        found = _first(groups, name, count, np.ones(count))
        if decay is None:
            return found
        place, last = name.removeprefix(f"{LORA}/"), (depth or 0) + 1
        if place.startswith("encoder/"):
            position = np.arange(1, count + 1)
        else:
            position = np.full(count, last if place.startswith(AFTER) else 0)
        return found * float(decay) ** (last - position)

    return {name: rate(name, count) for name, count in layers.items()}


def _decays(options: config.Optimizer, layers: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Returns the factor on the weight decay of each layer of each parameter."""
    groups = _grouped(options, layers, "decay")
    return {
        name: _first(groups, name, count, np.full(count, float(optimizers.decays(options, name))))
        for name, count in layers.items()
    }


def _grouped(
    options: config.Optimizer, layers: Mapping[str, int], what: str
) -> list[tuple[patterns.Pattern, float]]:
    """Returns the groups that name a factor on `what`, with it."""
    parsed = _parsed((group.pattern for group in options.groups), layers, "optimizer.groups")
    factors = zip(parsed, (getattr(group, what) for group in options.groups), strict=True)
    return [(pattern, factor) for pattern, factor in factors if factor is not None]


def _first(
    groups: Sequence[tuple[patterns.Pattern, float]], name: str, count: int, default: np.ndarray
) -> np.ndarray:
    """Returns the factor of the first group that takes each layer of a parameter."""
    found = default.copy()
    for pattern, factor in reversed(groups):
        found[list(pattern.taken(name, count))] = factor
    return found


def _parsed(
    texts: Iterable[str], layers: Mapping[str, int], key: str
) -> tuple[patterns.Pattern, ...]:
    """Returns the patterns of an option; raises ConfigError for one that takes nothing."""
    found = tuple(patterns.parse(text, key) for text in texts)
    patterns.check_matches(found, layers, key)
    return found


def _mask(chosen: Iterable[patterns.Pattern], name: str, count: int) -> np.ndarray:
    """Returns which layers of a parameter any of the patterns takes."""
    mask = np.full(count, False)
    for pattern in chosen:
        mask[list(pattern.taken(name, count))] = True
    return mask


def _alike(values: np.ndarray) -> np.ndarray:
    """Returns one number where all are equal."""
    return values[:1] if (values == values[0]).all() else values


def _along(values: np.ndarray, array: jax.Array) -> jax.Array:
    """Returns factors that multiply an array along its first axis, or all of it, float32."""
    shape = (len(values), *(1,) * (array.ndim - 1)) if len(values) > 1 else ()
    return jnp.asarray(values.reshape(shape), jnp.float32)


def _index(layers: Sequence[int]) -> Any:
    """Returns what takes these layers, a slice where they are neighbors."""
    first, last = layers[0], layers[-1]
    neighbors = len(layers) == last - first + 1
    return slice(first, last + 1) if neighbors else np.asarray(layers)


def _part(leaf: Any, layers: Sequence[int] | None) -> Any:
    return leaf if layers is None else leaf[_index(layers)]
