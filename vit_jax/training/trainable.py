"""Which parameters train, and with which factors on the learning rate and weight decay.

All of it is decided here, once, from the options and the names of the parameters. The step
differentiates with respect to what trains only: for the rest there are neither gradients nor
moments nor an average. Of stacked layers, some may train and others not.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config, models
from vit_jax.config import patterns
from vit_jax.models import mae
from vit_jax.models.classifier import LORA, OBJECTIVE
from vit_jax.training import lora, optimizers, schedules
from vit_jax.utils import tree_utils
from vit_jax.utils.tree_utils import Tree
from vit_jax.weights.adapting import HEAD

# Parts after the layers, which train at the full rate, as in the code of BEiT and MAE; others stand
# before them, shared relative biases too, which BEiT's code has at the full rate. (timm counts the
# final norm with the last layer.)
AFTER = (*HEAD, "encoder_norm/", "pooling/", f"{OBJECTIVE}/")


@dataclasses.dataclass(frozen=True)
class TrainSpec:
    """The training of one parameter.

    Attributes:
      layers: the stacked layers that train; None: the whole array.
      count: of its stacked layers, 1 where none are.
      rate: factors on the learning rate, one or one for each of these layers.
      decay: factors on the weight decay, likewise.
      head: whether it is part of the head.
    """

    layers: tuple[int, ...] | None
    count: int
    rate: np.ndarray
    decay: np.ndarray
    head: bool

    @property
    def index(self) -> slice | np.ndarray:
        """Indexes the layers that train: a slice if contiguous, which XLA updates in place."""
        if self.layers is None:
            return slice(None)
        first, last = self.layers[0], self.layers[-1]
        contiguous = len(self.layers) == last - first + 1
        return slice(first, last + 1) if contiguous else np.asarray(self.layers)

    def part(self, leaf: jax.Array) -> jax.Array:
        """The part of an array that trains."""
        return leaf if self.layers is None else leaf[self.index]


@dataclasses.dataclass(frozen=True, eq=False)
class Trainable:
    """The parameters that train; made by `from_config`.

    Attributes:
      specs: by the names of the parameters that train; None: all, alike.
      shapes: of all parameters of the run, adapters included; None where all train.
      optimizer: options of the run.
      lora: options of the run.
      unrolled: whether the network has no loop over layers.
      waits: as of the objective.
      steps: of the run; weight decay may be a function of the step.
    """

    specs: Mapping[str, TrainSpec] | None = None
    shapes: models.Params | None = None
    optimizer: config.Optimizer = dataclasses.field(default_factory=config.Optimizer)
    lora: config.Lora = dataclasses.field(default_factory=config.Lora)
    unrolled: bool = False
    waits: Mapping[str, int] = dataclasses.field(default_factory=dict)
    steps: int = 0

    @property
    def cut(self) -> dict[str, optimizers.Layers]:
        """Number and index of the layers that train, of parameters of which others do not."""
        specs = self.specs or {}
        return {name: (s.count, s.index) for name, s in specs.items() if s.layers is not None}

    def split(self, params: Tree) -> Tree:
        """The part of the parameters that trains, nested by name."""
        if self.specs is None:
            return params
        flat = tree_utils.flatten(params)
        return tree_utils.nest({name: spec.part(flat[name]) for name, spec in self.specs.items()})

    def join(self, trained: Tree, params: Tree) -> models.Params:
        """`params` with the part that trains, as from `split`, put into its place."""
        specs = self.specs
        if specs is None:
            return trained
        flat = tree_utils.flatten(trained)

        def one(name: str, leaf: jax.Array) -> jax.Array:
            if name not in flat:
                return leaf
            whole = specs[name].layers is None
            return flat[name] if whole else leaf.at[specs[name].index].set(flat[name])

        return tree_utils.map_named(one, params)

    def network(self, trained: Tree, params: Tree) -> models.Params:
        """The forward-pass parameters: base weights and scaled LoRA adapters."""
        params = self.join(trained, params)
        return lora.scaled(self.lora, params) if self.lora.rank else params

    def evaluated(self, held: Mapping[str, models.Params]) -> models.Params:
        """The parameters to evaluate: averages where there are any, adapters merged.

        Args:
          held: `params` of a state and, where it has one, `ema`, which may be alone if everything
            trains.
        """
        if self.specs is None:
            return held["ema"] if "ema" in held else held["params"]
        params = held["params"]
        if "ema" in held:
            params = self.join(held["ema"], params)
        return lora.merge(self.lora, params) if self.lora.rank else params

    def scale(self, updates: Tree, trained: Tree, step: jax.Array) -> Tree:
        """Applies each trainable parameter's own learning rate and weight decay to its update."""
        specs = self.specs
        if specs is None:
            return updates
        options = self.optimizer
        decay = options.weight_decay
        changes: jax.typing.ArrayLike = 1.0  # its factor at this step
        if options.weight_decay_end is not None:
            ends = options.weight_decay, options.weight_decay_end
            decay, changes = 1.0, schedules.half_cosine(*ends, self.steps)(step)
        elif not (optimizers.decays_apart(options) or self.waits):
            decay = 0.0  # the optimizer's chain has it

        def one(name: str, update: jax.Array, param: jax.Array) -> jax.Array:
            spec = specs[name]
            # Decay first: a factor on the learning rate scales the whole update, as the rate itself
            # does.
            if decay and spec.decay.any():
                update = update + _along(decay * spec.decay, param) * changes * param
            if (spec.rate != 1).any():
                update = update * _along(spec.rate, param)
            # Updates alone are held back: moments accumulate from the first step (see
            # `docs/configs.md`).
            first = 0 if spec.head else options.head_first
            first = max(first, optimizers.wait_of(name, self.waits))
            return jnp.where(step < first, 0.0, update) if first else update

        return tree_utils.map_named(one, updates, trained)

    def passes(self) -> float:
        """Training FLOPs per image as a multiple of forward FLOPs (3.0 if nothing is frozen).

        One forward; backward, the layers from the first that trains on (all of them where they are
        a loop), and the gradients of the matrices that train. Adapters add three passes of their
        own.
        """
        if self.specs is None:
            return 3.0
        flat = tree_utils.flatten(self.shapes)
        sizes = {name: leaf.size for name, leaf in flat.items() if name.endswith("/kernel")}
        own = sum(
            sizes[name] * (1.0 if spec.layers is None else len(spec.layers) / spec.count)
            for name, spec in self.specs.items()
            if name in sizes
        )
        own += 3 * sum(leaf.size for name, leaf in flat.items() if name.startswith(f"{LORA}/"))
        through = max((self._through(*item) for item in self.specs.items()), default=0.0)
        return 1 + through + own / max(sum(sizes.values()), 1)

    def _through(self, name: str, spec: TrainSpec) -> float:
        """The share of the layers that a gradient passes to reach a parameter."""
        name = name.removeprefix(f"{LORA}/")
        if name.startswith(AFTER):
            return 0.0
        if name.startswith("encoder/") and self.unrolled and spec.layers:
            return 1 - spec.layers[0] / spec.count
        return 1.0

    def remarks(self) -> list[str]:
        """Lines on patterns that do less than they seem to."""
        specs = self.specs
        if specs is None:
            return []
        flat = tree_utils.flatten(self.shapes)
        layers = {name: lora.layers_of(name, leaf.shape) for name, leaf in flat.items()}

        def trains(name: str, mask: np.ndarray) -> bool:
            spec = specs.get(name)
            return bool(spec and (mask.any() if spec.layers is None else mask[spec.index].any()))

        lines = []
        for group in self.optimizer.groups:
            taken = _matching([group.pattern], layers, "optimizer.groups")
            if not any(trains(name, mask) for name, mask in taken.items()):
                lines.append(f"optimizer.groups.{group.pattern}: none of its parameters trains")
                if any(trains(f"{LORA}/{name}/a", mask) for name, mask in taken.items()):
                    lines[-1] += f"; their adapters are {LORA}/{group.pattern}"
        for text in self.optimizer.freeze:
            taken = _matching([text], layers, "optimizer.freeze")
            if any(trains(f"{LORA}/{name}/a", mask) for name, mask in taken.items()):
                lines.append(
                    f"optimizer.freeze={text}: its matrices change by their adapters, which train; "
                    f"to freeze those, add {LORA}/{text}"
                )
        return lines

    def describe(self) -> str:
        """The number of parameters that train, in words; empty if all train alike."""
        if self.specs is None:
            return ""
        count = tree_utils.count(jax.eval_shape(self.split, self.shapes))
        rates = np.concatenate([spec.rate for spec in self.specs.values()])
        every = tree_utils.count(self.shapes)
        text = f"{count:,} of {every:,} train" if count < every else f"all {every:,} train"
        if rates.min() != rates.max():
            text += f", at {rates.min():.3g} to {rates.max():.3g} times the learning rate"
        if self.optimizer.head_first:
            text += f", the head alone in the first {self.optimizer.head_first:,} steps"
        return text


def parameters(model: models.Classifier, cfg: config.Config) -> models.Params:
    """Shapes of the parameters of a run that are read after it.

    The model's, adapters where it has them, and the decoder of a masked autoencoder.
    """
    shapes = model.shapes()
    if cfg.mae is not None:
        shapes |= {OBJECTIVE: mae.create_decoder(model, cfg.mae).shapes()}
    if cfg.lora.rank is None:
        return shapes
    return shapes | tree_utils.nest(lora.shapes(cfg.lora, model))


def from_config(
    model: models.Classifier,
    cfg: config.Config,
    own: models.Params | None = None,
    *,
    waits: Mapping[str, int] = MappingProxyType({}),
    steps: int = 0,
    check: bool = True,
) -> Trainable:
    """The trainable parameters of a run; raises ConfigError for patterns that match nothing.

    Args:
      model: the network.
      cfg: the run.
      own: shapes of the objective's parameters, if it has any.
      waits: as of the objective.
      steps: of the run.
      check: whether every pattern must match, and a parameter and any `head_first` must train;
        False for a run that has trained, whose checkpoint is read without `own`.
    """
    options = cfg.optimizer
    asked = (options.freeze, options.only, options.groups, options.layer_decay, options.head_first)
    scheduled = options.weight_decay_end is not None
    if not any(asked) and cfg.lora.rank is None and not scheduled and not waits:
        return Trainable()
    shapes = parameters(model, cfg) | ({OBJECTIVE: own} if own else {})
    flat = tree_utils.flatten(shapes)
    layers = {name: lora.layers_of(name, leaf.shape) for name, leaf in flat.items()}
    if check:
        _check_patterns(options, layers)
    trains, rates = _trains(cfg, layers), _rates(options, layers, model)
    decays = _factors(options, layers, "decay")
    specs = {}
    for name, count in layers.items():
        trained = np.flatnonzero(trains[name])
        if not trained.size:
            continue
        default = float(optimizers.decays(options, name))
        specs[name] = TrainSpec(
            # None for all of them: a whole array is neither cut nor put together again.
            layers=None if len(trained) == count else tuple(map(int, trained)),
            count=count,
            rate=_compact(rates[name][trained]),
            # A group's factor goes before `optimizer.decayed`: it makes biases decay, too.
            decay=_compact(np.where(np.isnan(decays[name]), default, decays[name])[trained]),
            head=name.startswith((*HEAD, f"{OBJECTIVE}/")),
        )
    if check and not specs:
        raise config.ConfigError(
            f"optimizer.freeze={config.show(options.freeze)}: leaves no parameter to train"
        )
    if check and options.head_first and not any(spec.head for spec in specs.values()):
        raise config.ConfigError(
            f"optimizer.head_first={options.head_first}: the head is frozen; set 0"
        )
    unrolled = (model.config.unroll or 1) >= (model.config.depth or 1)
    return Trainable(specs, shapes, options, cfg.lora, unrolled, waits, steps)


def _trains(cfg: config.Config, layers: Mapping[str, int]) -> dict[str, np.ndarray]:
    options, adapters = cfg.optimizer, cfg.lora.rank is not None
    frozen, only = (
        _matching(getattr(options, key), layers, f"optimizer.{key}") for key in ("freeze", "only")
    )

    def trains(name: str, count: int) -> np.ndarray:
        if name.startswith(f"{LORA}/"):
            allowed = np.full(count, True)
        elif options.only:
            allowed = only[name]
        else:
            # With adapters, what the base lacks trains whole: a new head, the objective's
            # parameters.
            allowed = np.full(count, not adapters or name.startswith((*HEAD, f"{OBJECTIVE}/")))
        return allowed & ~frozen[name]

    return {name: trains(name, count) for name, count in layers.items()}


def _check_patterns(options: config.Optimizer, layers: Mapping[str, int]) -> None:
    groups = tuple(group.pattern for group in options.groups)
    for name, texts in (("freeze", options.freeze), ("only", options.only), ("groups", groups)):
        key = f"optimizer.{name}"
        found = [patterns.parse_pattern(text, key) for text in texts]
        patterns.check_matches(found, layers, key)


def _matching(texts: Iterable[str], layers: Mapping[str, int], key: str) -> dict[str, np.ndarray]:
    """Which layers of each parameter any pattern of an option takes."""
    found = tuple(patterns.parse_pattern(text, key) for text in texts)
    masks = {name: np.full(count, False) for name, count in layers.items()}
    for name, mask in masks.items():
        for pattern in found:
            mask[list(pattern.taken(name, len(mask)))] = True
    return masks


def _rates(
    options: config.Optimizer, layers: Mapping[str, int], model: models.Classifier
) -> dict[str, np.ndarray]:
    """The factor on the learning rate of each layer of each parameter."""
    decay, last = options.layer_decay, (model.config.depth or 0) + 1
    if decay is not None and not any(name.startswith("encoder/") for name in layers):
        raise config.ConfigError(
            f"optimizer.layer_decay={decay:g}: is for the layers of an encoder, and the model has "
            "none; set none, or optimizer.groups"
        )

    def depth(name: str, count: int) -> np.ndarray:
        name = name.removeprefix(f"{LORA}/")
        if name.startswith("encoder/"):
            return np.arange(1, count + 1)
        # BEiT's get_num_layer_for_vit: 0 before the layers, 1 to L in them, L + 1 after.
        return np.full(count, last if name.startswith(AFTER) else 0)

    found = {
        name: np.nan_to_num(rate, nan=1.0) for name, rate in _factors(options, layers, "lr").items()
    }
    if decay is None:
        return found
    return {
        name: rate * float(decay) ** (last - depth(name, len(rate))) for name, rate in found.items()
    }


def _factors(
    options: config.Optimizer, layers: Mapping[str, int], what: str
) -> dict[str, np.ndarray]:
    """For each layer the factor on `what` (lr or decay) of the first matching group; NaN: none."""
    masks = [_matching([group.pattern], layers, "optimizer.groups") for group in options.groups]
    found = {name: np.full(count, np.nan) for name, count in layers.items()}
    for group, mask in reversed([*zip(options.groups, masks, strict=True)]):  # the first one last
        if (factor := getattr(group, what)) is not None:
            for name, values in found.items():
                values[mask[name]] = factor
    return found


def _compact(values: np.ndarray) -> np.ndarray:
    """One number where all are equal: a factor for the whole array, which XLA folds."""
    return values[:1] if (values == values[0]).all() else values


def _along(values: np.ndarray, array: jax.Array) -> jax.Array:
    """Factors that multiply an array along its first axis, or all of it, float32."""
    shape = (len(values), *(1,) * (array.ndim - 1)) if len(values) > 1 else ()
    return jnp.asarray(values.reshape(shape), jnp.float32)
