"""The splits of a run: opened, and checked against each other before anything is trained."""

import dataclasses
from collections.abc import Sequence

from vit_jax import config
from vit_jax.config import ConfigError
from vit_jax.data import folder_check, sources, split_roles
from vit_jax.data.source import Source


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSplits:
    """The images of a run.

    Attributes:
      train: the training split.
      evaluation: the split that is evaluated while training.
      test: the split that is measured once at the end, or None.
      classes: names of the classes, the same in all three.
      files: a line about images in files; empty for other data.
    """

    train: Source
    evaluation: Source
    test: Source | None
    classes: tuple[str, ...]
    files: str


def open_splits(cfg: config.Config) -> RunSplits:
    """Opens the splits of a run; raises ConfigError or DataError.

    Images in files are checked, by their first bytes; none is decoded.
    """
    data, final = cfg.data, split_roles.final(cfg.data)
    split_roles.check_test_split(data)
    evaluation = open_split(cfg, data.eval_split)
    classes = tuple(evaluation.classes)
    cfg = config.with_classes(cfg, len(classes))

    def opened(split: str, key: str) -> Source:
        source = sources.open_source(
            data,
            split,
            num_classes=cfg.model.num_classes,
            labels=cfg.needs_labels,
            train=key == "train_split",
            key=f"data.{key}",
        )
        if tuple(source.classes) != classes:
            wrong, other = f"data.{key}={split}", data.train_split
            if key == "train_split":  # the rarer split is the likelier mistake
                wrong = f"data.eval_split={data.eval_split}"
            raise ConfigError(f"{wrong}: its classes differ from those of {other}")
        return source

    train = opened(data.train_split, "train_split")
    test = None if final is None else opened(final.split, "test_split")
    files = folder_check.check_files(data, train, evaluation, test) or ""
    return RunSplits(train=train, evaluation=evaluation, test=test, classes=classes, files=files)


def open_split(cfg: config.Config, split: str, head: Sequence[str] | None = None) -> Source:
    """Opens a split such as `test[:100]`, without augmentation.

    With `head`, the outputs of a head that exists, classes are these, matched by name.
    """
    return sources.open_source(
        cfg.data,
        split,
        num_classes=cfg.model.num_classes,
        labels=cfg.needs_labels,
        train=False,
        head=head,
    )
