"""Roles of the splits of a run, and names of their metrics.

A validation split is evaluated while training, and the best checkpoint may be chosen on it; a test
split is evaluated once. Metrics are named after their split, such as `validation/top1`; its
expression, such as `train[90%:]`, is recorded with them.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import NamedTuple

from vit_jax import config
from vit_jax.data import availability, splits, tasks
from vit_jax.data.source import DataError

AUTO = "auto"
KINDS = ("fewshot", "probe", "knn")  # of evaluators of frozen features, and options that name sets
OWN = "self"  # the run's own splits, of features that are measured
KNN, NEIGHBORS = "knn", 20  # that DINO's authors report
TRAIN, VALIDATION, TEST = "train", "validation", "test"
# Groups of metrics without a split.
RESERVED = {"train", "data", "speed", "fewshot", "probe", "knn", "imagenet-c", *tasks.TASKS}


class Role(NamedTuple):
    """An evaluated split."""

    name: str  # prefix of its metrics, such as `validation`
    split: str  # the expression, such as `train[90%:]`
    role: str  # TRAIN for training images, VALIDATION, or TEST

    @property
    def shown(self) -> str:
        """The split in words: `test`, or `validation` (`train[90%:]`)."""
        return f"`{self.name}`" + ("" if self.name == self.split else f" (`{self.split}`)")


def evaluation(data: config.Data) -> Role:
    """The split that is evaluated while training."""
    split = data.eval_split
    name, role = _name_and_role(data, split)
    test = data.test_split
    if test is not None and role != TRAIN and not splits.overlap(split, test):
        # The test split is another one, so this one may choose.
        role = VALIDATION
        if name == _name_and_role(data, test)[0]:  # two parts of one split
            name = VALIDATION
    return Role(name, split, role)


def final(data: config.Data) -> Role | None:
    """The split that is evaluated once, at the end, or None."""
    if data.test_split is None:
        return None
    return Role(_name_and_role(data, data.test_split)[0], data.test_split, TEST)


def best_metric(cfg: config.Config) -> str | None:
    """The metric that chooses the best checkpoint, such as `validation/top1`, or None.

    `checkpoint.best=auto` means top-1, the mean average precision of images with several classes,
    the mean absolute error of one number, or the loss of several, or of masked patches, predicted
    or autoencoded, or else the nearest neighbors of features, if they are measured, on a validation
    split; a test split is used only if the config names it. A head that no loss reaches chooses
    nothing.
    """
    measured, best = evaluation(cfg.data), cfg.checkpoint.best
    if best == AUTO:
        usual = "map" if cfg.data.multilabel else "top1"
        if cfg.data.targets:  # several have units of their own, and one loss
            usual = "mae" if len(cfg.data.targets) == 1 else "loss"
        if not cfg.needs_labels:
            usual = "loss"
        if not cfg.measured:  # as the objective has no loss on a split
            usual = KNN
        best = usual if measured.role == VALIDATION else None
    return knn_metric(cfg) if best == KNN else best and f"{measured.name}/{best}"


def knn_metric(cfg: config.Config) -> str | None:
    """The nearest-neighbor metric that represents a run; None if it is not measured."""
    if not cfg.evaluation.knn:
        return None
    return f"{KNN}/{cfg.evaluation.knn[0]}/{representative(cfg.evaluation.neighbors)}nn/top1"


def representative(neighbors: Sequence[int]) -> int:
    """The number of neighbors whose accuracy represents a run: 20, or the nearest to it."""
    return min(neighbors, key=lambda number: abs(number - NEIGHBORS))


def notes(cfg: config.Config, evaluations: int) -> list[str]:
    """Lines for the start of a run: which split chooses the checkpoint, and which one tests it."""
    measured, test, metric = evaluation(cfg.data), final(cfg.data), best_metric(cfg)
    if not cfg.measured:
        further = cfg.evaluation
        if further.knn or further.probe or further.fewshot or further.evaluators:
            return []
        objective = f"objective.name={cfg.objective.name}"
        if cfg.distillation is not None:  # of features alone
            objective = f"objective.target={cfg.distillation.target}"
        if measured.role == TRAIN:
            return [
                f"no images are held out, as {objective} has no loss to measure on them; to "
                "measure features, set evaluation.knn to a set with labels"
            ]
        remedy = "; if not, set data.holdout=0 to train on all" if cfg.data.holdout else ""
        return [
            f"the split {measured.shown} is not measured, as {objective} has no loss on it; if its "
            f"images have labels, set evaluation.knn=self{remedy}"
        ]
    lines = []
    if measured.role == TRAIN:
        lines.append(
            f"data.eval_split={measured.split}: has images that are trained on "
            f"({cfg.data.train_split}); its metrics are called {measured.name}"
        )
    if measured.role == TEST and evaluations > 1:
        if metric is None:
            lines.append(
                f"the test split {measured.shown} is measured {evaluations} times while training; "
                "no checkpoint is chosen on it"
            )
        else:
            lines.append(
                f"the best checkpoint is chosen on the test split {measured.shown}, by {metric}; "
                "to keep it for a last measurement, set data.eval_split to another split and "
                f"data.test_split={measured.split}"
            )
    if test is not None:
        judged = "the last state" if metric is None else f"the best checkpoint by {metric}"
        lines.append(f"the test split {test.shown} is measured once, at the end, on {judged}")
    return lines


def check_splits(data: config.Data, *, labels: bool = True) -> None:
    """Raises ConfigError if splits share images, unless their names say that they do.

    The test split has no image of the other two. Evaluated images may be trained on under the same
    name, as metrics are then called so. Images are found by their `labels`, or without.
    """
    # Lists, tars and tables take a synonym, and a validation split for `test` where there is none.
    there = () if data.source in ("folder", "tfds") else list_splits(data, labels=labels)

    trained, evaluated, test = data.train_split, data.eval_split, data.test_split
    read = {split: splits.in_folder(split, there) for split in (trained, evaluated, test) if split}
    for key, other in (("train_split", trained), ("eval_split", evaluated)):
        if test is not None and splits.overlap(read[test], read[other]):
            raise config.ConfigError(
                f"data.test_split={test}: has images of data.{key}={other}; "
                "name a split of its own, or none"
            )
    if splits.overlap(read[evaluated], read[trained]) and not splits.overlap(evaluated, trained):
        raise config.ConfigError(
            f"data.eval_split={evaluated}: has images of data.train_split={trained}, as both mean "
            f"{splits.parts(read[trained])[0].name}; name another split, or both alike"
        )


def asks_for_own(cfg: config.Config) -> bool:
    """Whether frozen features of the run's own splits are measured."""
    return any(OWN in getattr(cfg.evaluation, kind) for kind in KINDS)


def measures_split(cfg: config.Config) -> bool:
    """Whether a run measures anything on its evaluation split."""
    return cfg.measured or asks_for_own(cfg) or bool(cfg.evaluation.evaluators)


def resolved(data: config.Data, *, labels: bool = True, measured: bool = True) -> config.Data:
    """The data options with `auto` splits resolved to existing ones.

    If a folder or a TFDS dataset has a validation split, that is evaluated and `test` is the test
    split; otherwise `test` is evaluated, or the training split stands for it where nothing is
    `measured`. With `data.holdout` the held-out images are called `validation`. Images are found by
    their `labels`, or without. Raises nothing: the source reports missing data.
    """
    if AUTO not in (data.eval_split, data.test_split):
        return data
    # Folders may be called `Valid`; of `val` and `Val` the one that is named as here.
    found = list_splits(data, labels=labels)
    there = {name.lower(): name for name in found} | {name: name for name in found}
    eval_split = data.eval_split
    if eval_split == AUTO:
        names = (*splits.VALIDATION, *splits.TEST)
        none = TEST if measured else data.train_split
        eval_split = next((there[name] for name in names if name in there), none)
    test = data.test_split
    if test == AUTO:
        apart = not data.holdout and data.source in (*config.FILES, "tfds")
        tests = (there[name] for name in splits.TEST if apart and name in there)
        free = (name for name in tests if not splits.overlap(name, eval_split))
        # Without a test split: its presence alone would make the evaluated one a validation split.
        choosing = dataclasses.replace(data, eval_split=eval_split, test_split=None)
        test = next(free, None) if evaluation(choosing).role == VALIDATION else None
    return dataclasses.replace(data, eval_split=eval_split, test_split=test)


def list_splits(data: config.Data, *, labels: bool) -> tuple[str, ...]:
    """The names of the existing splits that `auto` chooses from; none of data that is missing."""
    if data.source == "digits":
        return ("test",)
    if data.holdout:
        return (VALIDATION,)
    try:
        if data.source == "folder":
            from vit_jax.data import folders

            return folders.list_splits(data)
        if data.source in config.PACKED:
            from vit_jax.data import tar_source

            return tar_source.list_splits(data, labels=labels)
        if data.source == "csv" and data.root:
            from vit_jax.data import csv_source, folders

            return tuple(csv_source.list_splits(folders.local_root(data)))
        if data.source == "tfds" and data.name:
            # A known dataset lists only splits that have labels.
            dataset = availability.known_dataset(data.name)
            if dataset is not None:
                return tuple(dataset.images)
            return availability.labeled_splits(data.name, data.root)
    except DataError:
        pass  # reported by the source
    return ()


def _name_and_role(data: config.Data, split: str) -> tuple[str, str]:
    role = _role(data, split)
    names = list(dict.fromkeys(name for name, _, _ in splits.parts(split)))
    trained = {name for name, _, _ in splits.parts(data.train_split)}
    if len(names) == 1 and (split == names[0] or role == TRAIN):
        name = names[0]
    elif role != TRAIN and (_by_task(data, split) or trained & set(names)):
        # Not `train` for a part of the training split, such as `train[90%:]`, that is held out.
        name = role
    else:
        name = "-".join(names)
    # Metrics are called `NAME/top1`: a slash would start another group.
    name = re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII)
    return (f"{name}_split" if name in RESERVED or not name else name), role


def _role(data: config.Data, split: str) -> str:
    known = _by_task(data, split)
    if known is not None:
        return known
    if splits.overlap(split, data.train_split):
        return TRAIN
    names = {name.lower() for name, _, _ in splits.parts(split)}
    return TEST if names & set(splits.TEST) else VALIDATION


def _by_task(data: config.Data, split: str) -> str | None:
    """The role that a task of the same dataset assigns to a split, if any."""
    if data.source != "tfds" or not data.name:
        return None
    bare = data.name.partition(":")[0]
    for task in tasks.TASKS.values():
        if task.dataset.tfds == bare and split in (task.test, task.held_out):
            return TEST if split == task.test else VALIDATION
    return None
