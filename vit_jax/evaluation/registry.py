"""Builds evaluators for the available data sets in `evaluation.tasks`."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from vit_jax import config, models
from vit_jax.config import ConfigError
from vit_jax.data import (
    availability,
    class_matching,
    objectnet,
    real_labels,
    sources,
    tasks,
)
from vit_jax.data.datasets import OBJECTNET
from vit_jax.data.real_labels import NONE, Reassessed
from vit_jax.data.source import DataError, Source
from vit_jax.data.tasks import Task
from vit_jax.evaluation.class_subset import ClassSubset
from vit_jax.evaluation.classification import Classification
from vit_jax.evaluation.corruptions import Corruptions
from vit_jax.evaluation.multilabel import MultiLabel
from vit_jax.evaluation.runner import Evaluator, SplitRunner
from vit_jax.runtime import collectives, logs

KEY = "evaluation.tasks"
REAL, IMAGENET_C = "imagenet-real", "imagenet-c/"
REMEDY = "choose sets for the same head"


def sets(cfg: config.Config, classes: tuple[str, ...]) -> dict[str, Source]:
    """Returns the test split of every available data set, by task name.

    `classes` are the head's class names, which labels are translated to by name; only those of
    ObjectNet, which are no classes of ImageNet, stay. ReaL is excluded because it shares the images
    of the evaluation split. Missing sets are skipped, with one warning per entry of
    `evaluation.tasks`; a multi-process run skips the sets that any process lacks. Raises
    ConfigError for a set with classes that the head lacks.
    """
    root = _root(cfg)
    found: dict[str, Source] = {}
    for entry in cfg.evaluation.tasks:
        chosen = [task for task in tasks.select(entry, f"{KEY}=") if task.name != REAL]
        for task in chosen:
            if not task.test:
                raise ConfigError(f"{KEY}={task.name}: has no test images")
        missing = []
        for task in chosen:
            source, problem = _open(task, root)
            if collectives.first_problem(problem) is not None or source is None:
                missing.append(task.name)
                continue
            found[task.name] = source
            if task.dataset is not OBJECTNET:
                where = f"{KEY}={entry}"  # not of each task: what is assumed is said once
                found[task.name] = class_matching.relabel(source, classes, where, remedy=REMEDY)
        if missing:
            warn(KEY, entry, missing, root)
    return found


def asks_for_real(cfg: config.Config) -> bool:
    """Returns whether to evaluate ReaL labels on the evaluation split."""
    return any(
        tasks.TASKS[REAL] in tasks.select(entry, f"{KEY}=") for entry in cfg.evaluation.tasks
    )


def reassess(cfg: config.Config, source: Source) -> Reassessed | None:
    """Returns the evaluation split with ReaL labels if requested and available.

    Raises ConfigError if that split does not hold ImageNet's validation images.
    """
    if not asks_for_real(cfg):
        return None
    root = _root(cfg)
    found = availability.find_prepared(tasks.TASKS[REAL].dataset, root)
    if collectives.first_problem(None if found else "missing") is not None or found is None:
        warn(KEY, REAL, [REAL], root)
        return None
    key, real = f"{KEY}={REAL}", real_labels.load_real(found.path)
    outputs = _imagenet_outputs(source.classes, key)
    right = tuple(tuple(outputs[number] for number in numbers) for numbers in real.labels)
    return Reassessed(source, dataclasses.replace(real, labels=right), key)


def evaluators(
    model: models.Classifier,
    cfg: config.Config,
    classes: tuple[str, ...],
    pass_over: Callable[[Source], SplitRunner],
) -> dict[str, Evaluator]:
    """Returns an evaluator for each of `sets`, one for all of ImageNet-C; raises likewise."""
    found: dict[str, Evaluator] = {}
    corrupted: dict[str, Evaluator] = {}
    for name, source in sets(cfg, classes).items():
        task, split = tasks.TASKS[name], pass_over(source)
        if task.dataset is OBJECTNET:
            right = _objectnet(_root(cfg), source.classes, classes)
            found[name] = MultiLabel(model, cfg, split, right)
        elif task.restricted:
            found[name] = ClassSubset(model, cfg, split)
        elif name.startswith(IMAGENET_C):
            corrupted[name.removeprefix(IMAGENET_C)] = Classification(model, cfg, split)
        else:
            found[name] = Classification(model, cfg, split)
    if corrupted:
        found[IMAGENET_C.rstrip("/")] = Corruptions(corrupted)
    return found


def _root(cfg: config.Config) -> str | None:
    return cfg.data.root if cfg.data.source == "tfds" else None


def _open(task: Task, root: str | None) -> tuple[Source | None, str | None]:
    """Returns the test split of a task, or the reason it cannot be opened."""
    try:
        return sources.open_task(task, task.test, root), None
    except DataError as error:
        return None, str(error)


def _imagenet_outputs(head: Sequence[str], key: str) -> list[int]:
    """Returns the head's output for each class of ImageNet, in the order of WordNet ids."""
    return class_matching.match(head, class_matching.imagenet(), key, remedy=REMEDY)


def _objectnet(root: str | None, classes: Sequence[str], head: Sequence[str]) -> np.ndarray:
    """Returns the outputs that are right for each of ObjectNet's classes, padded with NONE."""
    found = availability.find_prepared(OBJECTNET, root)
    assert found is not None, "it is open"
    try:
        right = objectnet.right_classes(found.path / objectnet.FOLDER, classes)
    except DataError as error:
        raise DataError(
            f"{KEY}=objectnet: {error}; run `{availability.prepare_command('objectnet', root)}` "
            "with the objectnet-1.0 that was unpacked, which has images and mappings"
        ) from None
    outputs = np.array([*_imagenet_outputs(head, f"{KEY}=objectnet"), NONE])
    return outputs[right]  # NONE is -1, the last


def warn(key: str, entry: str, missing: list[str], root: str | None) -> None:
    """Logs one line for an option's entry with missing data sets."""
    where = availability.directory(root)
    if len(missing) == 1:
        logs.log.warning(
            "%s=%s: not in %s, so it is left out; run `%s`",
            key,
            entry,
            where,
            availability.prepare_command(missing[0], root),
        )
        return
    shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
    logs.log.warning(
        "%s=%s: %d sets are not in %s, so they are left out (%s); "
        "run `vit_jax list --tasks%s`, which says how to have them",
        key,
        entry,
        len(missing),
        where,
        shown,
        f" --data-dir={root}" if root else "",
    )
