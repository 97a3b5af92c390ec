"""The schema of a run: every option with its type, its bounds and its one-line meaning.

A config file returns an `ml_collections.ConfigDict`; `build` turns it into frozen dataclasses or
raises a one-line `ConfigError` that names the key, the value and the nearest valid choice.
"""

import contextlib
import dataclasses
import numbers
from collections.abc import Iterator, Mapping
from typing import Any

from vit_jax.config import components
from vit_jax.config import options as _options

# `import X as X` marks a name as re-exported, for type checkers and linters.
from vit_jax.config.components import KINDS as KINDS
from vit_jax.config.components import suggest as suggest
from vit_jax.config.data import FILES as FILES
from vit_jax.config.data import PACKED as PACKED
from vit_jax.config.data import Data as Data
from vit_jax.config.data import Files as Files
from vit_jax.config.data import Parquet as Parquet
from vit_jax.config.data import Phase as Phase
from vit_jax.config.data import Synthetic as Synthetic
from vit_jax.config.data import Tar as Tar
from vit_jax.config.data import Tfds as Tfds
from vit_jax.config.data import Transform as Transform
from vit_jax.config.durations import Duration as Duration
from vit_jax.config.measuring import INTERVALS as INTERVALS
from vit_jax.config.measuring import METRICS as METRICS
from vit_jax.config.measuring import NUMBERS as NUMBERS
from vit_jax.config.measuring import Checkpoint as Checkpoint
from vit_jax.config.measuring import Evaluation as Evaluation
from vit_jax.config.measuring import Logger as Logger
from vit_jax.config.measuring import Logging as Logging
from vit_jax.config.measuring import Watchdog as Watchdog
from vit_jax.config.model import Model as Model
from vit_jax.config.options import GIVEN, option
from vit_jax.config.options import Section as Section
from vit_jax.config.options import arguments as arguments
from vit_jax.config.options import changed as changed
from vit_jax.config.options import differences as differences
from vit_jax.config.options import fingerprint as fingerprint
from vit_jax.config.options import get as get
from vit_jax.config.options import listed as listed
from vit_jax.config.options import native as native
from vit_jax.config.options import show as show
from vit_jax.config.training import Adam as Adam
from vit_jax.config.training import Cooled as Cooled
from vit_jax.config.training import Dino as Dino
from vit_jax.config.training import Distillation as Distillation
from vit_jax.config.training import Falling as Falling
from vit_jax.config.training import Focal as Focal
from vit_jax.config.training import Huber as Huber
from vit_jax.config.training import Lamb as Lamb
from vit_jax.config.training import Lars as Lars
from vit_jax.config.training import LogitAdjusted as LogitAdjusted
from vit_jax.config.training import Lora as Lora
from vit_jax.config.training import Loss as Loss
from vit_jax.config.training import Mae as Mae
from vit_jax.config.training import MaskedPatches as MaskedPatches
from vit_jax.config.training import Mesh as Mesh
from vit_jax.config.training import Objective as Objective
from vit_jax.config.training import Optimizer as Optimizer
from vit_jax.config.training import ParamGroup as ParamGroup
from vit_jax.config.training import ReciprocalSqrt as ReciprocalSqrt
from vit_jax.config.training import Regression as Regression
from vit_jax.config.training import Schedule as Schedule
from vit_jax.config.training import StepSchedule as StepSchedule
from vit_jax.config.training import Train as Train
from vit_jax.utils.errors import NO_ROOM as NO_ROOM
from vit_jax.utils.errors import ConfigError as ConfigError
from vit_jax.utils.errors import UserError as UserError

PLUGINS = "plugins"  # of a recorded config: the modules of its components


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run."""

    name: str = option("unnamed", "Name of the run's config.", free=True)
    # 32 bits: the key of an image's random stream holds the seed beside the epoch.
    seed: int = option(
        0, "Seed of initialization, data order, augmentation and dropout.", at_least=0, below=2**32
    )
    init_from: str | None = option(
        None,
        "Weights to begin with: a run, a file or folder, or a published name; none: random ones.",
    )
    init_head: str = option(
        "new",
        "Layers after the encoder: new ones as in fine-tuning, or those of init_from.",
        choices=("new", "keep"),
        when={"init_from": GIVEN},
    )
    model: Model = Model()
    data: Data = Data()
    train: Train = Train()
    loss: Loss = Loss()
    objective: Objective = Objective()
    optimizer: Optimizer = Optimizer()
    lora: Lora = Lora()
    schedule: Schedule = Schedule()
    checkpoint: Checkpoint = Checkpoint()
    evaluation: Evaluation = Evaluation()
    logging: Logging = Logging()
    watchdog: Watchdog = Watchdog()
    mesh: Mesh = Mesh()

    @property
    def needs_labels(self) -> bool:
        """Whether the objective learns from classes; other data are opened without them."""
        name = self.objective.name
        if name in components.built_in("objective"):
            return self.objective.needs_labels
        return getattr(components.find("objective", name, "objective.name"), "needs_labels", True)

    @property
    def measured(self) -> bool:
        """Whether the objective has a loss on an evaluation split: of labels, or of patches."""
        classified = self.needs_labels and self.knows_classes
        return classified or self.masked is not None or self.mae is not None

    @property
    def knows_classes(self) -> bool:
        """Whether a loss reaches the head of classes or numbers, or weights bring it.

        Distillation of features or tokens alone leaves a new head as it is.
        """
        distillation = self.distillation
        if distillation is None or distillation.target == "logits" or distillation.weight < 1:
            return True
        return self.init_from is not None and self.init_head == "keep"

    @property
    def masked(self) -> MaskedPatches | None:
        """The objective, if it is masked patch prediction: its model predicts patches."""
        return self.objective if isinstance(self.objective, MaskedPatches) else None

    @property
    def mae(self) -> Mae | None:
        """The objective, if it is masked autoencoding: a decoder predicts patches."""
        return self.objective if isinstance(self.objective, Mae) else None

    @property
    def distillation(self) -> Distillation | None:
        """The objective, if it is distillation."""
        return self.objective if isinstance(self.objective, Distillation) else None

    @property
    def dino(self) -> Dino | None:
        """The objective, if it is DINO."""
        return self.objective if isinstance(self.objective, Dino) else None

    def __repr__(self) -> str:
        """The options that differ from their defaults, one per line."""
        lines = [f"  {key}={value!r},\n" for key, value in changed(self).items()]
        return f"Config(\n{''.join(lines)})"


def build(values: Mapping[str, Any]) -> Config:
    """The config that nested `values` describe, or raises ConfigError.

    `plugins` in them names the modules of its components, as in `to_dict`. They are never imported,
    only named in the error where such a component is missing.
    """
    plugins = values.get(PLUGINS) if hasattr(values, "items") else None
    if plugins is not None:
        values = {key: value for key, value in values.items() if key != PLUGINS}
    with _plugins_named(plugins):
        return _options.build(Config, values)


@contextlib.contextmanager
def _plugins_named(plugins: object) -> Iterator[None]:
    """Names the plug-ins of a record in the error where a component is unknown without them."""
    try:
        yield
    except components.UnknownComponent as error:
        if how := components.needed(plugins):
            named = str(error).partition(": no such ")[0]
            raise ConfigError(f"{named}: comes from a plug-in; {how}") from None
        raise


def to_dict(config: Config) -> dict[str, Any]:
    """Nested plain values that JSON holds and `build` reads back unchanged.

    If it uses components of plug-ins, `plugins` lists the modules to import.
    """
    modules: set[str] = set()
    for section in sections(config):
        modules |= components.modules(section.kind_of_component.name, section.component)
    return ({PLUGINS: sorted(modules)} if modules else {}) | _options.to_dict(config)


def sections(config: Config) -> Iterator[Section]:
    """Yields every section of a config that names a component, members of lists included."""
    values = [config, *(getattr(config, field.name) for field in dataclasses.fields(config))]
    for value in values:
        if isinstance(value, Section):
            yield value
        if dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                one = getattr(value, field.name)
                yield from (
                    (member for member in one if isinstance(member, Section))
                    if isinstance(one, tuple)
                    else ()
                )


def check_overrides(overrides: object) -> None:
    """Raises ConfigError unless these are options by dotted name."""
    if isinstance(overrides, Mapping):
        other = next((key for key in overrides if not isinstance(key, str)), None)
        if other is not None:
            raise ConfigError(f"{other}: must be the dotted name of an option, not {other!r}")
        return
    raise ConfigError(
        f"overrides={overrides}: must be a dict of options by dotted name, such as "
        '{"data.image_size": 64}'
    )


def check_count(option: str, value: object, most: int = _options.MOST) -> None:
    """Raises ConfigError unless a value is a whole number, from 1 to `most`."""
    number = _whole(value)
    if number is None or number < 1:
        raise ConfigError(f"{option}={value}: must be a whole number, at least 1")
    if number > most:
        raise ConfigError(f"{option}={value}: must be at most {most:,}")


def check_seed(option: str, value: object) -> None:
    """Raises ConfigError unless a value is a seed."""
    number = _whole(value)
    if number is None or not 0 <= number < 2**32:
        raise ConfigError(f"{option}={value}: must be a whole number, from 0 to {2**32 - 1}")


def _whole(value: object) -> int | None:
    """A whole number as Python's, also of NumPy; None of anything else."""
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    return None


def override(values: Mapping[str, Any], assignments: Mapping[str, Any]) -> dict[str, Any]:
    """Nested `values` with texts or values at dotted keys, such as `optimizer.lr`.

    At another `data.image_size` a crop shows as much of an image: `data.resize_to` changes too,
    unless that is assigned, or `data.crop_pct`, which stands for the same.
    """
    check_overrides(assignments)
    with _plugins_named(values.get(PLUGINS)):
        found = _options.override(Config, values, assignments)
    data = found.get("data")
    if not isinstance(data, dict):  # refused later
        return found
    for one, other in (("resize_to", "crop_pct"), ("crop_pct", "resize_to")):
        if f"data.{one}" in assignments and f"data.{other}" not in assignments:
            data.pop(other, None)
    scales = "data.image_size" in assignments and "data.resize_to" not in assignments
    if scales and data.get("resize_to") is not None:
        old, new = (build(nested).data.image_size for nested in (values, found))
        data["resize_to"] = round(data["resize_to"] * max(new) / max(old))
    return found


def fields(config: Config | None = None) -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """Yields `(dotted key, field, type)` of every option, as the schema orders them.

    Arguments of components are those of the ones that the config names, else the default ones.
    """
    return _options.each(config or Config())


def declared() -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """Yields likewise every option, with the arguments of every component of this package."""
    return _options.declared(Config)


def namesake(key: str, value: Any) -> tuple[str, Any] | None:
    """The option that is meant by the name of none, and its value, as `options.namesake`."""
    return _options.namesake(Config, key, value)


def with_classes(cfg: Config, classes: int | None) -> Config:
    """The config with `model.num_classes`, where the user left it to the data."""
    # No number where the data have no classes, as for training without labels.
    model = dataclasses.replace(cfg.model, num_classes=cfg.model.num_classes or classes or None)
    return dataclasses.replace(cfg, model=model)


def with_scale(
    cfg: Config, mean: tuple[float, ...] | None, std: tuple[float, ...] | None
) -> Config:
    """The config with `loss.mean` and `loss.std`, where the user left them to the data."""
    if not isinstance(cfg.loss, Regression):
        return cfg
    mean, std = cfg.loss.mean or mean, cfg.loss.std or std
    return dataclasses.replace(cfg, loss=dataclasses.replace(cfg.loss, mean=mean, std=std))


def as_recorded(cfg: Config, recorded: Config) -> Config:
    """The config with options that the user left to the data, as a run recorded them."""
    cfg = with_classes(cfg, recorded.model.num_classes)
    old = recorded.loss
    return with_scale(cfg, old.mean, old.std) if isinstance(old, Regression) else cfg
