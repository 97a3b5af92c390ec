"""Evaluators by name: the built-in ones, and those of `evaluation.evaluators` for a run.

An evaluator component is `factory(run, **arguments)`. It returns a function of parameters that
returns named numbers, or None where `stop()` turned true before it was done.
"""

from collections.abc import Collection
from typing import Protocol

from jax.sharding import Mesh

from vit_jax import config, models
from vit_jax.config import ConfigError, components
from vit_jax.data.source import Source
from vit_jax.evaluation.classification import Classification
from vit_jax.evaluation.masked_patches import MaskedPatches
from vit_jax.evaluation.runner import Evaluator, SplitRunner

KEY = "evaluation.evaluators"


class Run(Protocol):
    """What an evaluator is made from."""

    cfg: config.Config
    model: models.Classifier
    classes: tuple[str, ...]
    mesh: Mesh

    def open_split(self, split: str) -> Source:
        """Opens a split of the run's data, such as `test[:100]`, without augmentation."""
        ...

    def runner(self, source: Source) -> SplitRunner:
        """Returns what runs a function over every batch of a source."""
        ...


@components.register("evaluator", "classification")
def classification(run: Run, split: str | None = None) -> Evaluator:
    """Measures loss and accuracy on a split; by default, on the evaluation split."""
    source = run.open_split(split or run.cfg.data.eval_split)
    return Classification(run.model, run.cfg, run.runner(source))


@components.register("evaluator", "masked_patches")
def masked_patches(run: Run, split: str | None = None) -> Evaluator:
    """Measures masked patch prediction on a split, for a run that is trained so."""
    if run.cfg.masked.target is None:
        raise ConfigError(f"{KEY}=masked_patches: needs masked.target")
    source = run.open_split(split or run.cfg.data.eval_split)
    return MaskedPatches(run.model, run.cfg, run.runner(source))


def create(run: Run, taken: Collection[str]) -> dict[str, Evaluator]:
    """Returns those of `evaluation.evaluators` by name.

    Raises ConfigError for an unknown one, and for a name that is among `taken` or stands twice.
    """
    found: dict[str, Evaluator] = {}
    for one in run.cfg.evaluation.evaluators:
        name = one.name
        if name in taken or name in found:
            raise ConfigError(f"{KEY}={name}: the run has other metrics called {name}/")
        found[name] = components.make(one, KEY, run)
        if not callable(found[name]):
            raise ConfigError(f"{KEY}={name}: must return a function, evaluate(params, *, stop)")
    return found
