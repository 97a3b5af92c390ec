"""Further datasets to evaluate: `evaluation.tasks`, and pairs for frozen features."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from vit_jax import config, models
from vit_jax.config import ConfigError
from vit_jax.data import (
    availability,
    class_matching,
    folder_check,
    objectnet,
    real_labels,
    sources,
    splits,
    tasks,
)
from vit_jax.data.datasets import OBJECTNET
from vit_jax.data.real_labels import NONE, Reassessed
from vit_jax.data.source import WITHOUT_LABELS, DataError, Source, read_names
from vit_jax.data.split_roles import KINDS, OWN
from vit_jax.data.tasks import Task
from vit_jax.evaluation import evaluators
from vit_jax.evaluation.features import Pair
from vit_jax.evaluation.runner import Evaluator, SplitRunner
from vit_jax.runtime import collectives, logs

T = TypeVar("T")

KEY = "evaluation.tasks"
REAL, IMAGENET_C = "imagenet-real", "imagenet-c/"
REMEDY = "choose sets for the same head"
DIGITS = "digits"
FEW_SHOT = "fewshot/"


def create_evaluators(
    model: models.Classifier,
    cfg: config.Config,
    classes: tuple[str, ...],
    pass_over: Callable[[Source], SplitRunner],
) -> dict[str, Evaluator]:
    """An evaluator for each set of `open_sets`, and one for all of ImageNet-C; raises likewise."""
    found: dict[str, Evaluator] = {}
    corrupted: dict[str, Evaluator] = {}
    for name, source in open_sets(cfg, classes).items():
        task, split = tasks.TASKS[name], pass_over(source)
        if task.dataset is OBJECTNET:
            right = objectnet_outputs(_root(cfg), source.classes, classes)
            found[name] = evaluators.several_right(model, cfg, split, right)
        elif task.restricted:
            found[name] = evaluators.class_subset(model, cfg, split)
        elif name.startswith(IMAGENET_C):
            one = evaluators.classification(model, cfg, split)
            corrupted[name.removeprefix(IMAGENET_C)] = one
        else:
            found[name] = evaluators.classification(model, cfg, split)
    # One evaluator for all of them, as the mean corruption error needs all.
    if corrupted:
        found[IMAGENET_C.rstrip("/")] = evaluators.corruptions(corrupted)
    return found


def open_sets(cfg: config.Config, classes: tuple[str, ...]) -> dict[str, Source]:
    """The test split of every available dataset, by task name.

    `classes` are the head's class names, which labels are translated to by name; only those of
    ObjectNet, which are no classes of ImageNet, stay. ReaL is excluded because it shares the images
    of the evaluation split. Raises ConfigError for a set with classes that the head lacks.
    """
    root = _root(cfg)
    found: dict[str, Source] = {}
    for entry in cfg.evaluation.tasks:
        selected = [task for task in tasks.select(entry, f"{KEY}=") if task.name != REAL]
        for task in selected:
            if not task.test:
                raise ConfigError(f"{KEY}={task.name}: has no test images")
        opened = _available(
            KEY, entry, selected, root, lambda task: sources.open_task(task, task.test, root)
        )
        where = f"{KEY}={entry}"  # for the entry, not each task: an assumption is logged once
        for task, source in opened:
            own = task.dataset is OBJECTNET
            found[task.name] = (
                source if own else class_matching.relabel(source, classes, where, remedy=REMEDY)
            )
    return found


def asks_for_real(cfg: config.Config) -> bool:
    """Whether to evaluate ReaL labels on the evaluation split."""
    return any(
        tasks.TASKS[REAL] in tasks.select(entry, f"{KEY}=") for entry in cfg.evaluation.tasks
    )


def reassess(cfg: config.Config, source: Source) -> Reassessed | None:
    """The evaluation split with ReaL labels if requested and available.

    Raises ConfigError if that split does not hold ImageNet's validation images.
    """
    if not asks_for_real(cfg):
        return None
    root = _root(cfg)
    found = availability.find_prepared(tasks.TASKS[REAL].dataset, root)
    # All processes leave it out if one lacks it: they have to run the same programs.
    if collectives.first_problem(None if found else "missing") is not None or found is None:
        _warn(KEY, REAL, [REAL], root)
        return None
    key, real = f"{KEY}={REAL}", real_labels.load_real(found.path)
    outputs = _imagenet_outputs(source.classes, key)
    right = tuple(tuple(outputs[number] for number in numbers) for numbers in real.labels)
    return Reassessed(source, dataclasses.replace(real, labels=right), key)


def open_pairs(
    cfg: config.Config, pass_over: Callable[[Source], SplitRunner]
) -> dict[str, list[Pair]]:
    """The available datasets that each of KINDS names.

    A name is a task with both splits (`imagenet` is `fewshot/imagenet`), a pattern of tasks,
    `digits`, which come with this package, or `self`, the run's own splits. Raises ConfigError for
    other names. A set that several kinds name is one object, so that it is read once for all.
    """
    known: dict[str, Pair] = {}
    opened: dict[str, list[Pair]] = {}
    for kind in KINDS:
        named = dict(_open_pair_sources(cfg, f"evaluation.{kind}"))
        for name, (train, test) in named.items():
            if name not in known:
                known[name] = Pair(name, pass_over(train), pass_over(test), len(train.classes))
        opened[kind] = [known[name] for name in named]
    return opened


def _open_pair_sources(cfg: config.Config, key: str) -> Iterator[tuple[str, tuple[Source, Source]]]:
    """Yields the short name, training and test images of the sets that an option names."""
    root = _root(cfg)
    for name in config.get(cfg, key):
        if name == OWN:
            try:
                pair = _own_splits(cfg, f"{key}={OWN}")
            except DataError as error:  # of a run that has opened them without labels
                why = str(error).partition(WITHOUT_LABELS)[0]
                raise DataError(f"{key}={OWN}: needs labels: {why}") from error
            # With labels, whoever opened the run's splits has said it.
            if not cfg.needs_labels and (skipped := folder_check.left_out(pair)):
                logs.warn_of_assumptions(f"{key}={OWN}", [f"not used: {skipped}"])
            if not cfg.needs_labels and cfg.data.holdout:
                _warn_of_trained(cfg.data, pair[1], f"{key}={OWN}")
            yield name, pair
        elif name == DIGITS:
            yield name, _own_splits(config.Config(data=config.Data(source="digits")))
        else:
            # First the few-shot task of this name: of ImageNet it has 65,000 training images, not
            # all.
            task_name = FEW_SHOT + name if FEW_SHOT + name in tasks.TASKS else name
            selected = tasks.select(task_name, f"{key}=")
            for task in selected:
                if not task.train or not task.test:
                    role = "test" if task.train else "training"
                    raise ConfigError(
                        f"{key}={task.name}: has no {role} images; choose a set with both"
                    )
            for task, pair in _available(
                key,
                name,
                selected,
                root,
                lambda task: (
                    sources.open_task(task, task.whole or task.train, root),
                    sources.open_task(task, task.test, root),
                ),
            ):
                yield task.name.removeprefix(FEW_SHOT), pair


def _warn_of_trained(data: config.Data, test: Source, key: str) -> None:
    """Says how many test images, held out by class, are trained on where labels do not count."""
    train = sources.open_source(data, data.train_split, labels=False, train=True)
    trained = read_names(train)
    if count := sum(test.name(at) in trained for at in range(len(test))):
        logs.log.warning(
            "%s: %d of %d test images are trained on, without their labels, as data.holdout=%g "
            "keeps one of each small class; make folders of splits",
            key, count, len(test), data.holdout,
        )  # fmt: skip


def _own_splits(cfg: config.Config, key: str = DIGITS) -> tuple[Source, Source]:
    data = cfg.data
    if splits.overlap(data.train_split, data.eval_split):
        raise ConfigError(
            f"{key}: data.eval_split={data.eval_split} has images of "
            f"data.train_split={data.train_split}, which would be compared with themselves; set "
            "data.eval_split to another split"
        )
    # The classes of training images are the head's; those of the other split are matched with them.
    train = sources.open_unmatched(cfg, data.train_split, train=True)
    return train, sources.open_source(data, data.eval_split, head=train.classes)


def _available(
    key: str, entry: str, selected: Sequence[Task], root: str | None, open_one: Callable[[Task], T]
) -> Iterator[tuple[Task, T]]:
    """Yields tasks with what `open_one` makes of them; those that are missing cost one warning.

    A run of several processes leaves out what any of them lacks.
    """
    missing = []
    for task in selected:
        try:
            found, problem = open_one(task), None
        except DataError as error:
            found, problem = None, str(error)
        # All processes ask, also one that has found its set: the answer is a collective.
        if collectives.first_problem(problem) is not None or found is None:
            missing.append(task.name)
        else:
            yield task, found
    if missing:
        _warn(key, entry, missing, root)


def _root(cfg: config.Config) -> str | None:
    return cfg.data.root if cfg.data.source == "tfds" else None


def _imagenet_outputs(head: Sequence[str], key: str) -> list[int]:
    """The head's output for each class of ImageNet, in the order of WordNet ids."""
    return class_matching.match(head, class_matching.imagenet(), key, remedy=REMEDY)


def objectnet_outputs(root: str | None, classes: Sequence[str], head: Sequence[str]) -> np.ndarray:
    """The outputs that are right for each of ObjectNet's classes, padded with NONE."""
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


def _warn(key: str, entry: str, missing: list[str], root: str | None) -> None:
    where = availability.directory(root)
    if len(missing) == 1:
        remedy = availability.prepare_command(missing[0], root)
        logs.log.warning("%s=%s: not in %s, so it is left out; run `%s`", key, entry, where, remedy)
        return
    logs.log.warning(
        "%s=%s: %d sets are not in %s, so they are left out (%s); "
        "run `vit_jax list --tasks%s`, which says how to get them",
        key,
        entry,
        len(missing),
        where,
        ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else ""),
        f" --data-dir={root}" if root else "",
    )
