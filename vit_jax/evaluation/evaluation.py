"""The evaluators of a config, on its own splits and on those that it names besides."""

import collections
from collections.abc import Callable, Mapping, Sequence

import jax
from jax.sharding import Mesh

from vit_jax import config, models
from vit_jax.config import checks
from vit_jax.data import class_matching, pipeline, prefetch, run_splits, split_roles, transforms
from vit_jax.data.source import Source
from vit_jax.evaluation import (
    features,
    fewshot,
    knn,
    linear_data,
    masked_patches,
    named,
    probe,
    registry,
)
from vit_jax.evaluation.classification import Classification
from vit_jax.evaluation.label_sets import LabelSets
from vit_jax.evaluation.runner import Evaluator, SplitRunner, plan_native
from vit_jax.training import build, sharding


class Evaluation:
    """The evaluators of a config, and what they are made from.

    Attributes:
      cfg: the config, with the number of classes.
      model: the model.
      mesh: the ('data', 'zero', 'fsdp') mesh.
      classes: names of the head's classes.
      source: images of the evaluation split, or None.
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
          stop: evaluators return None when it turns true while they wait for images.
        """
        self.cfg, self.source, self.classes = cfg, source, tuple(classes)
        self.model, self.mesh, self._head, self._stop = model, mesh, head, stop
        self.role = split_roles.evaluation(cfg.data)
        self.evaluators = self._evaluators()

    def __call__(
        self,
        params: models.Params,
        *,
        stop: Callable[[], bool] = lambda: False,
        begin: Callable[[str], None] = lambda _: None,
    ) -> dict[str, float] | None:
        """Runs all evaluators; None when `stop()` turned true. `begin` is told each one's name."""
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
        """Evaluators beside the evaluation split, of whose results only the main ones are shown.

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
        if self.source is not None:
            # ReaL relabels the test split, so a run with its own test split measures it there.
            found[self.role.name] = self.of_split(self.source, real=cfg.data.test_split is None)
        found |= registry.evaluators(model, cfg, self.classes, self.runner)
        return found | self._of_features() | named.create(self, found)

    def _of_features(self) -> dict[str, Evaluator]:
        """Returns the evaluators of frozen features, which read each split once together."""
        asked = linear_data.open_pairs(self.cfg, self.runner)
        pairs = [pair for opened in asked.values() for pair in opened.values()]
        splits = [split for pair in pairs for split in (pair.train, pair.test)]
        options = self.cfg.evaluation
        extract = features.Extractor(self.model, self.cfg.data, collections.Counter(splits))
        kinds: dict[str, Callable[[Mapping[str, linear_data.Pair]], Evaluator]] = {
            "fewshot": lambda pairs: fewshot.FewShot(extract, options, pairs),
            "probe": lambda pairs: probe.Probe(extract, pairs),
            "knn": lambda pairs: knn.NearestNeighbors(extract, options.neighbors, pairs),
        }
        return {name: kinds[name](pairs) for name, pairs in asked.items() if pairs}

    def of_split(self, source: Source, *, real: bool) -> Evaluator:
        """Returns the evaluator of a split; with `real`, ReaL labels are used if asked for."""
        model, cfg = self.model, self.cfg
        if cfg.masked.target is not None:
            return masked_patches.MaskedPatches(model, cfg, self.runner(source))
        if cfg.data.multilabel:
            matched = isinstance(source, class_matching.Relabeled)
            annotated = source.outputs if matched else None
            return LabelSets(model, cfg, self.runner(source), annotated)
        labels = registry.reassess(cfg, source) if real else None
        return Classification(model, cfg, self.runner(labels or source), labels)

    def open_split(self, split: str) -> Source:
        """Opens a split of the run's data, such as `test[:100]`, without augmentation."""
        return run_splits.open_split(self.cfg, split, self._head)

    def runner(self, source: Source) -> SplitRunner:
        """Returns the runner that passes every batch of a source to a function."""
        data, rows = self.cfg.data, self.cfg.evaluation.batch_size or self.cfg.train.batch_size
        plan = plan_native(self.model, source, data, rows)

        def batches() -> prefetch.BatchIterator:
            loaded = pipeline.batches(
                source,
                transforms.eval_transforms(data),
                data,
                seed=self.cfg.seed,
                batch_size=rows,
                rows=sharding.host_rows(self.mesh, rows),
                train=False,
                stop_step=-(-len(source) // rows) if plan is None else plan.steps,
                plan=plan,
            )
            return prefetch.Prefetcher(loaded, self._stop)

        return SplitRunner(self.mesh, rows, batches, plan and plan.rows.reshape(-1))


def open_evaluation(
    cfg: config.Config, *, split: bool = True, head: Sequence[str] | None = None
) -> Evaluation:
    """The evaluation of a checkpoint: no optimizer, no training images.

    Args:
      cfg: a complete config.
      split: whether to evaluate `data.eval_split`; without it and `head`, classes are numbers.
      head: names of the outputs of a head that exists; the data's classes are matched with them by
        name. None: the head is made for the data's classes.

    Raises ConfigError or DataError.
    """
    cfg = checks.with_accumulation(cfg, jax.device_count())
    checks.check_devices(cfg, jax.device_count())
    source = run_splits.open_split(cfg, cfg.data.eval_split, head) if split else None
    numbers = tuple(str(number) for number in range(cfg.model.num_classes or 0))
    classes = tuple(head or (numbers if source is None else source.classes))
    cfg = config.with_classes(cfg, len(classes))
    mesh = sharding.create_mesh(cfg.mesh.fsdp)
    return Evaluation(cfg, source, classes, build.create_model(cfg), mesh, head=head)
