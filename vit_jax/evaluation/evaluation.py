"""The evaluators of a config, on its own splits and on further datasets.

An evaluator component is `factory(run, **arguments)` with an `Evaluation` as `run`. It makes a
function of parameters that returns named numbers, or None where `stop()` turned true before.
"""

import collections
import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from vit_jax import config, models
from vit_jax.config import ConfigError, checks, components
from vit_jax.data import class_matching, sources, split_roles
from vit_jax.data.source import Source
from vit_jax.evaluation import evaluators, features, fewshot, knn, metrics, probe, task_sets
from vit_jax.evaluation.runner import Evaluator, SplitRunner, create_runner, plan_native
from vit_jax.training import build, sharding

KEY = "evaluation.evaluators"


class Evaluation:
    """The evaluators of a config, with the splits and model they use.

    Attributes:
      cfg: the config, with the number of classes.
      mesh: the ('data', 'zero', 'fsdp') mesh.
      classes: names of the head's classes.
      source: images of the evaluation split; None: it is not evaluated.
      role: that split and the name of its metrics.
      evaluators: by the name of their metrics, the evaluation split first.
    """

    def __init__(
        self,
        cfg: config.Config,
        source: Source | None,
        classes: Sequence[str],
        model: models.Classifier,
        mesh: Mesh,
        *,
        head: Sequence[str] | None = None,
        temperature: float | None = None,
        keep: Callable[[metrics.Outputs], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Builds the evaluators; raises ConfigError or DataError.

        Args:
          cfg: a complete config with the number of classes.
          source: images of the evaluation split; None: it is not evaluated.
          classes: names of the head's classes.
          model: the model.
          mesh: the devices.
          head: `classes` where the head existed before the data; splits are matched with it.
          temperature: of the head; None: one is fitted if a validation split is evaluated.
          keep: is given the outputs of the evaluation split.
          stop: evaluators return None when it turns true while they wait for images.
        """
        self.cfg, self.source, self.classes = cfg, source, tuple(classes)
        self.model, self.mesh, self._head, self._stop = model, mesh, head, stop
        self._temperature, self._keep = temperature, keep
        self.role = split_roles.evaluation(cfg.data)
        self.evaluators = self._evaluators()

    def __call__(
        self,
        params: models.Params,
        *,
        stop: Callable[[], bool] = lambda: False,
        begin: Callable[[str], None] = lambda _: None,
    ) -> dict[str, float] | None:
        """Runs all evaluators; None if `stop()` became true. Calls `begin` with each name."""
        results: dict[str, float] = {}
        for name, evaluator in self.evaluators.items():
            begin(name)
            found = evaluator(params, stop=stop)
            if found is None:
                return None
            results |= {f"{name}/{key}": value for key, value in found.items()}
        return results

    @property
    def brief(self) -> list[str]:
        """Evaluators that show only their main results: all but that of the evaluation split.

        Those that the config names in `evaluation.evaluators` are shown whole.
        """
        return [
            one
            for one in list(self.evaluators)[1:]
            if one not in {one.name for one in self.cfg.evaluation.evaluators}
        ]

    def _evaluators(self) -> dict[str, Evaluator]:
        model, cfg = self.model, self.cfg
        found: dict[str, Evaluator] = {}
        if self.source is not None and cfg.measured:
            # ReaL relabels the test split, so a run with its own test split measures it there.
            found[self.role.name] = self.of_split(self.source, real=cfg.data.test_split is None)
        found |= task_sets.create_evaluators(model, cfg, self.classes, self.runner)
        found |= self._on_features()
        for one in cfg.evaluation.evaluators:
            if one.name in found:
                raise ConfigError(f"{KEY}={one.name}: the run has other metrics called {one.name}/")
            made = components.make(one, KEY, self)
            if not callable(made):
                raise ConfigError(
                    f"{KEY}={one.name}: must return a function, evaluate(params, *, stop)"
                )
            found[one.name] = _checked(made, one.name)
        return found

    def _on_features(self) -> dict[str, Evaluator]:
        """The evaluators of frozen features, which read each split once together."""
        options, asked = self.cfg.evaluation, task_sets.open_pairs(self.cfg, self.runner)
        # Counted, so that features of a split are dropped after the last evaluator that needs them.
        splits = [split for pairs in asked.values() for p in pairs for split in (p.train, p.test)]
        extract = features.Extractor(self.model, self.cfg.data, collections.Counter(splits))
        kinds: dict[str, features.Measure] = {
            "fewshot": functools.partial(fewshot.measure, options=options),
            "probe": probe.measure,
            "knn": functools.partial(knn.measure, neighbors=options.neighbors),
        }
        return {
            name: features.on_features(kinds[name], extract, pairs)
            for name, pairs in asked.items()
            if pairs
        }

    def of_split(self, source: Source, *, real: bool) -> Evaluator:
        """The evaluator of a split; with `real`, ReaL labels are used if asked for."""
        model, cfg = self.model, self.cfg
        if cfg.masked is not None:
            return evaluators.masked_patches(model, cfg, self.runner(source))
        if cfg.mae is not None:
            return evaluators.mae(model, cfg, self.runner(source))
        own = source is self.source
        keep = self._keep if own and self._keep else lambda _: None
        if cfg.data.targets:
            return evaluators.numbers(model, cfg, self.runner(source), source, keep=keep)
        if cfg.data.multilabel:
            # Only then some outputs may have no class in the data, and so no labels.
            matched = isinstance(source, class_matching.Relabeled)
            annotated = source.outputs if matched else None
            return evaluators.label_sets(model, cfg, self.runner(source), annotated, keep=keep)
        labels = task_sets.reassess(cfg, source) if real else None
        # Means are summed batch by batch; logits are gathered only for metrics that need them all.
        if not cfg.evaluation.metrics and not (own and self._keep):
            return evaluators.classification(model, cfg, self.runner(labels or source), labels)
        if labels is not None:
            raise ConfigError(
                "evaluation.tasks=imagenet-real: takes neither evaluation.metrics nor --output; "
                "evaluate it on its own"
            )
        # On validation images alone: a temperature fitted on test images would flatter them.
        fit = own and self._temperature is None and self.role.role == split_roles.VALIDATION
        return evaluators.whole_classification(
            model,
            cfg,
            self.runner(source),
            temperature=self._temperature,
            fit=fit,
            ranks=self._ranks(),
            keep=keep,
        )

    def _ranks(self) -> np.ndarray | None:
        """The ranks (K,) of the outputs in the order of data.classes, if metrics ask for them."""
        cfg, order = self.cfg, self.cfg.data.classes
        if "ordinal" not in cfg.evaluation.metrics or order is None:
            return None
        if sorted(order) != sorted(self.classes):
            raise ConfigError(
                f"evaluation.metrics=ordinal: data.classes={config.show(order)} must name the "
                f"classes of the head, from lowest to highest: {', '.join(self.classes)}"
            )
        return np.array([order.index(name) for name in self.classes])

    def open_split(self, split: str) -> Source:
        """Opens a split of the run's data, such as `test[:100]`, without augmentation."""
        return sources.open_split(self.cfg, split, self._head)

    def runner(self, source: Source) -> SplitRunner:
        """A runner, which applies a function to every batch of a source."""
        rows = _rows_at_once(self.cfg, self.mesh.size)
        plan = plan_native(self.model, source, self.cfg.data, rows)
        return create_runner(source, self.cfg, self.mesh, rows, plan=plan, stop=self._stop)


def _checked(evaluator: Callable[..., object], name: str) -> Evaluator:
    """The evaluator of a component; an error of its code, or another result, is a ConfigError."""

    def number(key: object, value: object) -> float:
        if isinstance(value, int | float):
            return value
        # Means are often left as scalars of NumPy or JAX.
        if isinstance(value, np.ndarray | np.generic | jax.Array) and value.ndim == 0:
            return float(value)
        raise ConfigError(f"{KEY}={name}: {key} is a {type(value).__name__}; must be a number")

    def evaluate(params: models.Params, *, stop: Callable[[], bool]) -> dict[str, float] | None:
        with components.calling(KEY, name):
            results = evaluator(params, stop=stop)
        if results is None:
            return None
        if not isinstance(results, Mapping):
            raise ConfigError(f"{KEY}={name}: must return numbers by name, or None if stopped")
        return {str(key): number(key, value) for key, value in results.items()}

    return evaluate


def _rows_at_once(cfg: config.Config, devices: int) -> int:
    """Images of a batch over all `devices`: by default a microbatch, whose memory is there.

    Rounded up, as the batch of a checkpoint may be for other devices.
    """
    train, rows = cfg.train, cfg.evaluation.batch_size
    if rows is None:
        rows = train.batch_size // train.accumulation
        rows = min(rows, (train.microbatch or rows) * devices)
    return -(-rows // devices) * devices


def open_evaluation(
    cfg: config.Config,
    *,
    split: bool = True,
    head: Sequence[str] | None = None,
    temperature: float | None = None,
    keep: Callable[[metrics.Outputs], None] | None = None,
) -> Evaluation:
    """The evaluation of a checkpoint: no optimizer, no training images.

    Args:
      cfg: a complete config.
      split: whether to evaluate `data.eval_split`; without it and `head`, classes are numbers.
      head: names of the outputs of a head that exists; the data's classes are matched with them by
        name. None: the head is made for the data's classes.
      temperature: as in `Evaluation`.
      keep: as in `Evaluation`.

    Raises ConfigError or DataError.
    """
    checks.check_devices(cfg, jax.device_count(), training=False)
    source = sources.open_split(cfg, cfg.data.eval_split, head) if split else None
    numbers = tuple(str(number) for number in range(cfg.model.num_classes or 0))
    classes = tuple(head or (numbers if source is None else source.classes))
    cfg = config.with_classes(cfg, len(classes))
    mesh = sharding.create_mesh(cfg.mesh.fsdp)
    model = build.create_model(cfg)
    return Evaluation(
        cfg, source, classes, model, mesh, head=head, temperature=temperature, keep=keep
    )


@components.register("evaluator", "classification")
def classification(run: Evaluation, split: str | None = None) -> Evaluator:
    """Measures loss and accuracy on a split; by default, on the evaluation split."""
    if run.cfg.data.targets:
        raise ConfigError(f"{KEY}=classification: is for classes, but data.targets has numbers")
    source = run.open_split(split or run.cfg.data.eval_split)
    return evaluators.classification(run.model, run.cfg, run.runner(source))


@components.register("evaluator", "masked_patches")
def masked_patches(run: Evaluation, split: str | None = None) -> Evaluator:
    """Measures masked patch prediction on a split."""
    if run.cfg.masked is None:
        raise ConfigError(f"{KEY}=masked_patches: needs objective.name=masked_patches")
    source = run.open_split(split or run.cfg.data.eval_split)
    return evaluators.masked_patches(run.model, run.cfg, run.runner(source))
