"""Train/test splits for linear evaluation."""

from collections.abc import Callable
from typing import NamedTuple

from vit_jax import config
from vit_jax.config import ConfigError
from vit_jax.data import sources, tasks
from vit_jax.data.source import DataError, Source
from vit_jax.data.tasks import Task
from vit_jax.evaluation import registry
from vit_jax.evaluation.runner import SplitRunner
from vit_jax.runtime import collectives

OWN, DIGITS = "self", "digits"
KINDS = ("fewshot", "probe", "knn")  # of evaluators of frozen features, and options that name sets
FEW_SHOT = "fewshot/"


class Pair(NamedTuple):
    """The two splits of a data set, read in order and without augmentation."""

    train: SplitRunner
    test: SplitRunner
    classes: int


Sources = tuple[Source, Source]


def asks_for_own(cfg: config.Config) -> bool:
    """Returns whether linear evaluation uses the run's own splits."""
    return any(OWN in getattr(cfg.evaluation, kind) for kind in KINDS)


def open_pairs(
    cfg: config.Config, pass_over: Callable[[Source], SplitRunner]
) -> dict[str, dict[str, Pair]]:
    """Returns the available data sets that each of KINDS names, by their short names.

    A name is a task with both splits (`imagenet` is `fewshot/imagenet`), a pattern of tasks,
    `digits`, which come with this package, or `self`, the run's own splits. Missing sets are
    skipped with a warning. Raises ConfigError for other names. A set that several kinds name is
    one object.
    """
    known: dict[str, Pair] = {}
    asked = {kind: _open(cfg, f"evaluation.{kind}") for kind in KINDS}
    for opened in asked.values():
        for name, (train, test) in opened.items():
            if name not in known:
                known[name] = Pair(pass_over(train), pass_over(test), len(train.classes))
    return {kind: {name: known[name] for name in opened} for kind, opened in asked.items()}


def _open(cfg: config.Config, key: str) -> dict[str, Sources]:
    found: dict[str, Sources] = {}
    root = cfg.data.root if cfg.data.source == "tfds" else None
    for name in config.get(cfg, key):
        if name == OWN:
            try:
                found[name] = _of_splits(cfg.data)
            except DataError as error:  # of a run that has opened them without labels
                why = str(error).partition("; to train without labels")[0]
                raise DataError(f"{key}={OWN}: needs labels: {why}") from error
            continue
        if name == DIGITS:
            found[name] = _of_splits(config.Data(source="digits"))
            continue
        missing = []
        for task in _tasks(name, key):
            pair, problem = _of_task(task, root)
            if collectives.first_problem(problem) is not None or pair is None:
                missing.append(task.name)
            else:
                found[task.name.removeprefix(FEW_SHOT)] = pair
        if missing:
            registry.warn(key, name, missing, root)
    return found


def _tasks(name: str, key: str) -> list[Task]:
    chosen = tasks.select(FEW_SHOT + name if FEW_SHOT + name in tasks.TASKS else name, f"{key}=")
    for task in chosen:
        if not task.train or not task.test:
            role = "test" if task.train else "training"
            raise ConfigError(f"{key}={task.name}: has no {role} images; choose a set with both")
    return chosen


def _of_task(task: Task, root: str | None) -> tuple[Sources | None, str | None]:
    """Returns the images of a task, or why they cannot be opened."""
    try:
        train = sources.open_task(task, task.whole or task.train, root)
        return (train, sources.open_task(task, task.test, root)), None
    except DataError as error:
        return None, str(error)


def _of_splits(data: config.Data) -> Sources:
    train = sources.open_source(data, data.train_split, train=True)
    return train, sources.open_source(data, data.eval_split, head=train.classes)
