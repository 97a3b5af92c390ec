"""Sets to measure beside the evaluation split: those of `evaluation.tasks` that are here."""

from vit_jax import config, logs
from vit_jax.checkpoints import hosts
from vit_jax.config import ConfigError
from vit_jax.data import presence, sources, tasks
from vit_jax.data.examples import DataError, Source
from vit_jax.data.tasks import Task


def sets(cfg: config.Config, classes: tuple[str, ...]) -> dict[str, Source]:
    """Returns the test split of every set that is here, by the name of its task.

    `classes` are those of the head. Sets that are missing are warned of, in a line for each entry
    of `evaluation.tasks`, and left out; in a run of several processes those that any of them lacks.
    Raises ConfigError for a set whose classes are not those.
    """
    root = cfg.data.root if cfg.data.source == "tfds" else None
    found: dict[str, Source] = {}
    for entry in cfg.evaluation.tasks:
        chosen = tasks.select(entry, "evaluation.tasks=")
        for task in chosen:
            _check(task, len(classes))
        missing = []
        for task in chosen:
            source, problem = _open(task, root)
            if hosts.agree(problem) is not None or source is None:
                missing.append(task.name)
                continue
            _check_names(task, source.classes, classes)
            found[task.name] = source
        if missing:
            _warn(entry, missing, root)
    return found


def _open(task: Task, root: str | None) -> tuple[Source | None, str | None]:
    """Returns the test split of a task, or why it cannot be opened."""
    try:
        return sources.open_task(task, task.test, root), None
    except DataError as error:
        return None, str(error)


def _check(task: Task, classes: int) -> None:
    key = f"evaluation.tasks={task.name}"
    if not task.test:
        raise ConfigError(f"{key}: has no test images")
    if task.several:
        raise ConfigError(f"{key}: its images have several right classes; only one is measured")
    if task.classes != classes:
        raise ConfigError(
            f"{key}: has {task.classes} classes, but the head has {classes}; choose sets for the "
            "same head"
        )


def _check_names(task: Task, theirs: tuple[str, ...], ours: tuple[str, ...]) -> None:
    """Raises ConfigError where both have names for their classes, and the names differ."""
    if all(name.isdigit() for name in theirs) or all(name.isdigit() for name in ours):
        return
    for number, (their, our) in enumerate(zip(theirs, ours, strict=True)):
        if their != our:
            raise ConfigError(
                f"evaluation.tasks={task.name}: its class {number} is {their}, but the head's is "
                f"{our}; choose sets for the same head"
            )


def _warn(entry: str, missing: list[str], root: str | None) -> None:
    where = presence.directory(root)
    if missing == [entry]:
        logs.log.warning(
            "evaluation.tasks=%s: not in %s, so it is left out; run `%s`",
            entry,
            where,
            presence.command(entry, root),
        )
        return
    shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
    logs.log.warning(
        "evaluation.tasks=%s: %d sets are not in %s, so they are left out (%s); "
        "run `vit_jax list --tasks%s`, which says how to have them",
        entry,
        len(missing),
        where,
        shown,
        f" --data_dir={root}" if root else "",
    )
