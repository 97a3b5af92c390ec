"""The evaluation of a config: its data, its model and its evaluators."""

import collections
from collections.abc import Callable, Mapping, Sequence

import jax

from vit_jax import config
from vit_jax.config import checks
from vit_jax.data import class_matching, pipeline, prefetch, sources, split_roles, transforms
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
from vit_jax.evaluation.runner import SplitRunner
from vit_jax.loaded_model import create_model, plan_native
from vit_jax.training import sharding
from vit_jax.training.hooks import Evaluator


class Evaluation:
    """The live objects that training and evaluation of a config share.

    Attributes:
      cfg: the config, with the number of classes and the accumulation that these devices need.
      role: the evaluation split and the name of its metrics.
      source: images of that split, or None.
      classes: names of the classes.
      mesh: the ('data', 'zero', 'fsdp') mesh over all devices.
      model: the model.
      evaluators: by the name of their metrics, the evaluation split first.
    """

    def __init__(
        self,
        cfg: config.Config,
        *,
        split: bool = True,
        head: Sequence[str] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Opens the data and builds the model.

        Args:
          cfg: a complete config.
          split: whether to evaluate `data.eval_split`; without it and `head`, classes are numbers.
          head: names of the outputs of a head that exists; the data's classes are matched with
            them by name. None: the head is made for the data's classes.
          stop: evaluators return None when it turns true while they wait for images.

        Raises ConfigError or DataError.
        """
        cfg = checks.with_accumulation(cfg, jax.device_count())
        checks.check_devices(cfg, jax.device_count())
        self.cfg, self._stop, self._head = cfg, stop, head
        self.role = split_roles.evaluation(cfg.data)
        self.source = self.open_split(cfg.data.eval_split) if split else None
        numbers = tuple(str(number) for number in range(cfg.model.num_classes or 0))
        self.classes = tuple(head or (numbers if self.source is None else self.source.classes))
        self.cfg = config.with_classes(cfg, len(self.classes))
        self.mesh = sharding.create_mesh(cfg.mesh.fsdp)
        self.model = create_model(self.cfg)
        self.evaluators = self._evaluators()

    @property
    def named(self) -> list[str]:
        """Names in `evaluation.evaluators`."""
        return [one.name for one in self.cfg.evaluation.evaluators]

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
        return sources.open_source(
            self.cfg.data,
            split,
            num_classes=self.cfg.model.num_classes,
            labels=self.cfg.needs_labels,
            train=False,
            head=self._head,
        )

    def open_train(self) -> Source:
        """Opens the training split; raises ConfigError if it has other classes."""
        data = self.cfg.data
        source = sources.open_source(
            data,
            data.train_split,
            num_classes=self.cfg.model.num_classes,
            labels=self.cfg.needs_labels,
            train=True,
        )
        if tuple(source.classes) != self.classes:
            raise config.ConfigError(
                f"data.eval_split={data.eval_split}: its classes differ from those of "
                f"{data.train_split}"
            )
        return source

    def open_test(self) -> Source | None:
        """Opens the test split, if there is one, and reads none of its images.

        Raises ConfigError if it has other classes.
        """
        data, test = self.cfg.data, split_roles.final(self.cfg.data)
        if test is None:
            return None
        source = sources.open_source(
            data,
            test.split,
            num_classes=self.cfg.model.num_classes,
            labels=self.cfg.needs_labels,
            key="data.test_split",
        )
        if tuple(source.classes) != self.classes:
            raise config.ConfigError(
                f"data.test_split={test.split}: its classes differ from those of {data.train_split}"
            )
        return source

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
