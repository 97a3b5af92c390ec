"""Tables of tasks: description, availability, and commands for missing data sets."""

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from vit_jax.data import availability
from vit_jax.data.availability import PreparedDataset
from vit_jax.data.tasks import TASKS, Task

Path = str | os.PathLike[str]
HEADER = ("task", "title", "classes", "train", "held out", "test", "here")
EXTRA = "pip install 'vit_jax[prepare]'"
TOGETHER = "imagenet-c/"  # 95 similar tasks in one row


class TaskGroup(NamedTuple):
    """The tasks of one group: rows under HEADER, and the commands for missing ones."""

    title: str
    rows: list[tuple[str, ...]]
    commands: list[str]


class TaskEntry(NamedTuple):
    """A task and its prepared data set, if any."""

    task: Task
    found: PreparedDataset | None
    command: str

    @property
    def here(self) -> bool:
        """Whether it can be used without preparation."""
        return self.found is not None and self.found.readable


def entries(data_dir: Path | None = None) -> list[TaskEntry]:
    """Returns every task with its availability in TFDS's data_dir."""
    found = {}
    for task in TASKS.values():
        if task.dataset.tfds not in found:
            found[task.dataset.tfds] = availability.find(task.dataset, data_dir)
    return [
        TaskEntry(
            task, found[task.dataset.tfds], _command(task, found[task.dataset.tfds], data_dir)
        )
        for task in TASKS.values()
    ]


def to_dict(entry: TaskEntry) -> dict[str, Any]:
    """Returns values for JSON."""
    task, found, dataset = entry.task, entry.found, entry.task.dataset
    return {
        "title": task.title,
        "group": task.group,
        "classes": task.classes,
        "splits": task.splits,
        "images": {role: task.count(split) for role, split in task.splits.items()},
        "labels": task.labels,
        "mirrored": task.mirrored,
        "cropped": task.cropped,
        "data.name": dataset.name,
        "obtained": dataset.obtained,
        "files": dataset.files,
        "packages": list(dataset.packages),
        "here": entry.here,
        "path": None if found is None else str(found.path),
        "version": None if found is None else found.version,
        "format": None if found is None else found.format,
        "records": None if found is None else found.images,
        "command": None if entry.here else entry.command,
    }


def groups(chosen: list[TaskEntry]) -> Iterator[TaskGroup]:
    """Yields a table for every group of tasks, in order."""
    for title in dict.fromkeys(entry.task.group for entry in chosen):
        members = [entry for entry in chosen if entry.task.group == title]
        missing = [entry for entry in members if not entry.here]
        commands = [_with_files(entry) for entry in missing]
        if members[0].task.name.startswith(TOGETHER):
            task = members[0].task
            here = f"{len(members) - len(missing)} of {len(members)}"
            rows = [(f"{TOGETHER}*", "ImageNet-C", str(task.classes), "", "", task.test, here)]
            more = [f"# and so on for the other {len(missing) - 1}"] if len(missing) > 1 else []
            commands = commands[:1] + more
        else:
            rows = [_row(entry) for entry in members]
        yield TaskGroup(title, rows, commands)


def _row(entry: TaskEntry) -> tuple[str, ...]:
    task, found = entry.task, entry.found
    here = "no"
    if found is not None:
        here = (found.version or "yes") + ("" if found.readable else f" as {found.format}")
    held_out = task.held_out
    return (task.name, task.title, str(task.classes), task.train, held_out, task.test, here)


def _command(task: Task, found: PreparedDataset | None, data_dir: Path | None) -> str:
    if found is not None and not found.readable:
        return availability.conversion(task.dataset.tfds, found.path)
    command = availability.command(task.name, data_dir)
    assert command is not None, "a task has one"
    return command


def _with_files(entry: TaskEntry) -> str:
    """Returns a command, with the files it needs as a comment."""
    if entry.found is not None:
        return entry.command
    dataset = entry.task.dataset
    packages = f"takes {', '.join(dataset.packages)}: {EXTRA}" if dataset.packages else ""
    comment = "; ".join(part for part in (dataset.files, packages) if part)
    return f"{entry.command}  # {comment}" if comment else entry.command
