"""What TFDS reads in the folder of a data set, checked before TFDS sees it.

A folder's features.json names Python classes, and TFDS imports the module of each to look for it:
whoever wrote the folder would choose code to run. So `builder` and `builder_of_folder` are the only
ways here to open one. They refuse every class that is not one of TFDS's own kinds of features.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

import tensorflow_datasets as tfds
from etils import epath

from vit_jax.data import availability
from vit_jax.data.source import DataError

FEATURES = "features.json"
MOST_BYTES = availability.MOST_BYTES
DEEPEST = 50  # objects within objects; TFDS writes four for each feature within a feature
MOST_CLASSES = 10**6
CLASS_KEYS = ("type", "pythonClassName", "python_class_name")
COUNT_KEYS = ("num_classes", "numClasses")

_Connector = tfds.features.FeatureConnector
_KINDS = [
    kind
    for kind in vars(tfds.features).values()
    if isinstance(kind, type) and issubclass(kind, _Connector)
]
KNOWN = frozenset(
    name for kind in _KINDS for name in (f"{kind.__module__}.{kind.__name__}", *kind.ALIASES)
)


def builder(name: str, data_dir: str | os.PathLike[str] | None, **options: Any) -> Any:
    """Returns `tfds.builder` of a data set; raises as it does, or DataError for unsafe metadata."""
    for folder in _folders(availability.directory(data_dir) / name.partition(":")[0]):
        _check_size(folder / availability.INFO)
    return tfds.builder(name, data_dir=data_dir, **options)


def builder_of_folder(folder: epath.PathLike) -> Any:
    """Returns `tfds.builder_from_directory`; raises as it does, or DataError."""
    _check_size(epath.Path(folder) / availability.INFO)
    return tfds.builder_from_directory(folder)


def check(folder: epath.PathLike) -> None:
    """Raises DataError where features.json names what is not TFDS's own, or cannot be read."""
    path = epath.Path(folder) / FEATURES
    _check_size(path)
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        raise DataError(f"{path}: is damaged; copy it again") from None
    for key, value in _members(values, path):
        if key in CLASS_KEYS and isinstance(value, str) and value not in KNOWN:
            raise DataError(f"{path}: {key} {value!r} is none of TFDS's features; not imported")
        if key == "names_file":
            raise DataError(f"{path}: {key} {value!r}: names of classes are not read elsewhere")
        if key in COUNT_KEYS and not _is_count(value):
            raise DataError(f"{path}: {key} {value!r}: at most {MOST_CLASSES:,} classes")
        if key.startswith("/") or ".." in key.split("/"):
            raise DataError(f"{path}: a feature of the name {key!r}: is a path outside of it")


def _members(values: Any, path: epath.Path) -> Iterator[tuple[str, Any]]:
    """Yields every key with its value, also of JSON within texts, which older TFDS wrote."""
    waiting = [(values, 0)]
    while waiting:
        value, depth = waiting.pop()
        if depth > DEEPEST:
            raise DataError(f"{path}: objects within objects, more than {DEEPEST} deep")
        if isinstance(value, dict):
            yield from value.items()
            waiting += [(each, depth + 1) for each in value.values()]
        elif isinstance(value, list):
            waiting += [(each, depth + 1) for each in value]
        elif isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
            try:
                waiting.append((json.loads(value), depth + 1))
            except (ValueError, RecursionError):
                raise DataError(f"{path}: has text that looks like JSON and is none") from None


def _is_count(value: object) -> bool:
    """Returns whether this can be a number of classes; protobuf writes large numbers as text."""
    if isinstance(value, str) and len(value) < 20:
        value = int(value) if value.isdecimal() else value
    return isinstance(value, int) and value <= MOST_CLASSES


def _check_size(path: epath.Path) -> None:
    try:
        size = path.stat().length
    except FileNotFoundError:
        return
    if size > MOST_BYTES:
        raise DataError(f"{path}: has {size:,} bytes, more than {MOST_BYTES:,}")


def _folders(root: epath.Path) -> Iterator[epath.Path]:
    """Yields the folders that can be versions of a data set: root/VERSION, root/CONFIG/VERSION."""
    if "://" in str(root) or not root.is_dir():  # of a bucket every listing takes its time
        return
    for folder in root.iterdir():
        if folder.is_dir():
            yield folder
            yield from (each for each in folder.iterdir() if each.is_dir())


_load = vars(_Connector)["from_config"].__func__


def _checked(cls: Any, root_dir: str) -> Any:
    check(root_dir)
    return _load(cls, root_dir)


# TFDS chooses the folder by itself, by versions and configs, and reads this file through here.
_Connector.from_config = classmethod(_checked)  # pyright: ignore[reportAttributeAccessIssue]
