"""Finds the data sets on this machine and the commands for missing ones; needs no TFDS or jax."""

import dataclasses
import fnmatch
import os
from typing import Any, NamedTuple

from etils import epath

from vit_jax.config import ConfigError
from vit_jax.data.datasets import MANUAL, REAL, Dataset
from vit_jax.data.tasks import TASKS
from vit_jax.utils import limits, storage

INFO = "dataset_info.json"
READABLE = ("array_record", "parquet", "json")  # formats with random access
REAL_FILE = "imagenet_real/real.json"  # where `vit_jax prepare imagenet-real` puts it


class PreparedDataset(NamedTuple):
    """A prepared version of a data set: its folder, its format, its images by split."""

    path: Any
    version: str
    format: str
    images: dict[str, int]

    @property
    def readable(self) -> bool:
        """Whether training can read it without conversion."""
        return self.format in READABLE


def directory(data_dir: str | os.PathLike[str] | None) -> Any:
    """Returns TFDS's data_dir: the one given, else $TFDS_DATA_DIR, else TFDS's default.

    Raises ConfigError for an address that is not read.
    """
    path, option = data_dir, "--data-dir"
    if not path and (path := os.environ.get("TFDS_DATA_DIR")):
        option = "TFDS_DATA_DIR"
    return epath.Path(storage.given_path(option, path or "~/tensorflow_datasets"))


def find(
    dataset: Dataset, data_dir: str | os.PathLike[str] | None = None
) -> PreparedDataset | None:
    """Returns the newest suitable prepared version, preferring a readable one; else None.

    Raises DataError if the data_dir is remote and cannot be read.
    """
    where = str(directory(data_dir))
    if "://" not in where:
        return _find(dataset, data_dir)
    from vit_jax.data.source import DataError  # imports numpy

    with storage.readable_errors(f"--data-dir={where}", DataError):
        return _find(dataset, data_dir)


def _find(dataset: Dataset, data_dir: str | os.PathLike[str] | None) -> PreparedDataset | None:
    real = directory(data_dir) / REAL_FILE
    if dataset is REAL and real.is_file():
        return PreparedDataset(real, "", "json", dict(dataset.images))
    folder = directory(data_dir) / dataset.tfds
    if not folder.is_dir():
        return None
    pattern = dataset.version or "*.*.*"
    found = []
    for path in folder.iterdir():
        numbers = path.name.split(".")
        if all(n.isdecimal() for n in numbers) and fnmatch.fnmatchcase(path.name, pattern):
            one = _read(path)
            if one is not None:
                found.append((one.readable, [int(n) for n in numbers], one))
    return max(found)[2] if found else None


def check(name: str, data_dir: str | os.PathLike[str] | None = None) -> None:
    """Raises ConfigError if the data set of a task is missing, before any download of weights.

    Accepts every other `data.name`, which TFDS may know.
    """
    dataset, version = known(name), name.partition(":")[2]
    if dataset is None:
        return
    if find(dataclasses.replace(dataset, version=version), data_dir) is None:
        raise ConfigError(
            f"data.name={name}: not in {directory(data_dir)}; run `{command(name, data_dir)}`"
        )


def known(name: str) -> Dataset | None:
    """Returns the tasks' data set that `data.name` refers to; None if no task uses it."""
    bare = name.partition(":")[0]
    return next((t.dataset for t in TASKS.values() if t.dataset.tfds == bare), None)


def splits(name: str, data_dir: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    """Returns the splits of a prepared data set that probably have labels, from its metadata.

    Includes test splits only for data sets packed by `vit_jax prepare`, which are fully labeled.
    """
    bare, _, version = name.partition(":")
    found = find(Dataset(tfds=bare, classes=0, version=version), data_dir)
    if found is None:
        return ()
    packed = (found.path / "vit_jax.json").exists()
    return tuple(name for name in found.images if packed or not name.startswith("test"))


def command(name: str, data_dir: str | os.PathLike[str] | None = None) -> str | None:
    """Returns the command that prepares a task or `data.name`; None if no task uses it."""
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


def conversion(name: str, path: Any) -> str:
    """Returns the command that converts a prepared data set to a readable format."""
    tasks = [t.name for t in TASKS.values() if name.partition(":")[0] == t.dataset.tfds]
    return f"vit_jax prepare {(tasks or [name])[0]} --from={path} --data-dir=ANOTHER"


def _read(path: Any) -> PreparedDataset | None:
    """Returns the contents of dataset_info.json; None if it is missing or truncated."""
    try:
        file = path / INFO
        info = limits.read_json(file, limits.TABLE)
        images = {s["name"]: sum(map(int, s.get("shardLengths", ()))) for s in info["splits"]}
        return PreparedDataset(path, path.name, info.get("fileFormat", "tfrecord"), images)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
