"""Finds the datasets on this machine and the commands for missing ones; needs no TFDS or jax."""

import dataclasses
import fnmatch
import os
from collections.abc import Iterator
from typing import NamedTuple

from etils import epath

from vit_jax.config import ConfigError
from vit_jax.data.datasets import MANUAL, REAL, Dataset
from vit_jax.data.tasks import TASKS, Task
from vit_jax.utils import limits, storage

INFO = "dataset_info.json"
HEADER = ("task", "title", "classes", "train", "held out", "test", "here")
EXTRA = "pip install 'vit_jax[prepare]'"
TOGETHER = "imagenet-c/"  # 95 similar tasks in one row
READABLE = ("array_record", "parquet", "json")  # formats with random access
REAL_FILE = "imagenet_real/real.json"  # where `vit_jax prepare imagenet-real` puts it

Folder = str | os.PathLike[str]


class PreparedDataset(NamedTuple):
    """A prepared version of a dataset: its folder, its format, its images by split."""

    path: epath.Path
    version: str
    format: str
    images: dict[str, int]

    @property
    def readable(self) -> bool:
        """Whether training can read it without conversion."""
        return self.format in READABLE


def directory(data_dir: Folder | None) -> epath.Path:
    """TFDS's data_dir: the one given, else $TFDS_DATA_DIR, else TFDS's default.

    Raises ConfigError for an address that is not read.
    """
    path, option = data_dir, "--data-dir"
    if path is None and (path := os.environ.get("TFDS_DATA_DIR") or None):
        option = "TFDS_DATA_DIR"
    path = "~/tensorflow_datasets" if path is None else path
    return epath.Path(storage.given_path(option, path))


def find_prepared(dataset: Dataset, data_dir: Folder | None = None) -> PreparedDataset | None:
    """The newest suitable prepared version, preferring a readable one; else None.

    Raises ConfigError if the data_dir is remote and cannot be read.
    """
    root = directory(data_dir)
    with storage.readable_errors(f"--data-dir={root}"):
        real = root / REAL_FILE
        if dataset is REAL and real.is_file():
            return PreparedDataset(real, "", "json", dict(dataset.images))
        if not (root / dataset.tfds).is_dir():
            return None
        found = []
        for path in (root / dataset.tfds).iterdir():
            # A folder that is being prepared, such as `.1.0.0.part`, is no version.
            numbers = path.name.split(".")
            suitable = fnmatch.fnmatchcase(path.name, dataset.version or "*.*.*")
            if suitable and all(n.isdecimal() for n in numbers) and (one := read_info(path)):
                found.append((one.readable, [int(n) for n in numbers], one))
        # Numbers, not texts: 10.0.0 is newer than 9.0.0.
        return max(found)[2] if found else None


def check_prepared(name: str, data_dir: Folder | None = None) -> None:
    """Raises ConfigError if the dataset of a task is missing, before any download of weights.

    Accepts every other `data.name`, which TFDS may know.
    """
    dataset, version = known_dataset(name), name.partition(":")[2]
    if dataset is None:
        return
    if find_prepared(dataclasses.replace(dataset, version=version), data_dir) is None:
        raise ConfigError(
            f"data.name={name}: not in {directory(data_dir)}; "
            f"run `{prepare_command(name, data_dir)}`"
        )


def known_dataset(name: str) -> Dataset | None:
    """The tasks' dataset that `data.name` refers to; None if no task uses it."""
    bare = name.partition(":")[0]
    return next((t.dataset for t in TASKS.values() if t.dataset.tfds == bare), None)


def labeled_splits(name: str, data_dir: Folder | None = None) -> tuple[str, ...]:
    """The splits of a prepared dataset that probably have labels, from its metadata.

    Includes test splits only for datasets packed by `vit_jax prepare`, which are fully labeled.
    """
    bare, _, version = name.partition(":")
    found = find_prepared(Dataset(tfds=bare, classes=0, version=version), data_dir)
    if found is None:
        return ()
    # TFDS gives the images of an official test split without labels the label -1.
    packed = (found.path / "vit_jax.json").exists()
    return tuple(name for name in found.images if packed or not name.startswith("test"))


def prepare_command(name: str, data_dir: Folder | None = None) -> str | None:
    """The command that prepares a task or `data.name`; None if no task uses it."""
    bare = name.partition(":")[0]
    tasks = [t for t in TASKS.values() if name == t.name or bare == t.dataset.tfds]
    if not tasks:
        return None
    dataset, where = tasks[0].dataset, f" --data-dir={data_dir}" if data_dir else ""
    files = ""
    if dataset.files:
        manual = "real.json" if dataset is REAL else "FOLDER"
        files = f" --from={manual if dataset.obtained == MANUAL else 'FOLDER_OR_TARS'}"
    return f"vit_jax prepare {tasks[0].name}{files}{where}"


def conversion_command(name: str, path: epath.Path) -> str:
    """The command that converts a prepared dataset to a readable format."""
    tasks = [t.name for t in TASKS.values() if name.partition(":")[0] == t.dataset.tfds]
    return f"vit_jax prepare {(tasks or [name])[0]} --from={path} --data-dir=ANOTHER"


def read_info(path: epath.Path) -> PreparedDataset | None:
    """The contents of dataset_info.json; None if it is missing or truncated."""
    try:
        file = path / INFO
        info = limits.read_json(file, limits.TABLE)
        # Protobuf's JSON writes 64-bit integers as strings.
        images = {s["name"]: sum(map(int, s.get("shardLengths", ()))) for s in info["splits"]}
        return PreparedDataset(path, path.name, info.get("fileFormat", "tfrecord"), images)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


class TaskEntry(NamedTuple):
    """A task and its prepared dataset, if any."""

    task: Task
    found: PreparedDataset | None
    command: str

    @property
    def here(self) -> bool:
        """Whether it can be used without preparation."""
        return self.found is not None and self.found.readable


def task_entries(data_dir: Folder | None = None) -> list[TaskEntry]:
    """Every task with its availability in TFDS's data_dir."""
    found: dict[str, PreparedDataset | None] = {}
    entries = []
    for task in TASKS.values():
        name = task.dataset.tfds
        if name not in found:
            # Tasks share datasets, and looking may take a round trip to a bucket.
            found[name] = find_prepared(task.dataset, data_dir)
        here = found[name]
        if here is not None and not here.readable:
            todo = conversion_command(name, here.path)
        else:
            todo = prepare_command(task.name, data_dir)
        assert todo is not None, "a task has a command"
        entries.append(TaskEntry(task, here, todo))
    return entries


def to_dict(entry: TaskEntry) -> dict[str, object]:
    """Values for JSON."""
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


def task_groups(
    entries: list[TaskEntry],
) -> Iterator[tuple[str, list[tuple[str, ...]], list[str]]]:
    """Yields each group's title, its rows under HEADER, and the commands for missing tasks."""
    for title in dict.fromkeys(entry.task.group for entry in entries):
        members = [entry for entry in entries if entry.task.group == title]
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
        yield title, rows, commands


def _row(entry: TaskEntry) -> tuple[str, ...]:
    task, found = entry.task, entry.found
    here = "no"
    if found is not None:
        here = (found.version or "yes") + ("" if found.readable else f" as {found.format}")
    held_out = task.held_out
    return (task.name, task.title, str(task.classes), task.train, held_out, task.test, here)


def _with_files(entry: TaskEntry) -> str:
    """A command, with the files it needs as a comment."""
    if entry.found is not None:
        return entry.command
    dataset = entry.task.dataset
    packages = f"takes {', '.join(dataset.packages)}: {EXTRA}" if dataset.packages else ""
    comment = "; ".join(part for part in (dataset.files, packages) if part)
    return f"{entry.command}  # {comment}" if comment else entry.command
