"""Checks the metadata in the folder of a dataset before TFDS reads it.

A folder's features.json names Python classes, and TFDS imports their modules, so the author of the
folder could run code. Therefore this package opens folders only with `builder` and
`builder_of_folder`, which reject every class that is not a feature type of TFDS.
"""

import os
from collections.abc import Iterator
from typing import Any

import tensorflow_datasets as tfds
from etils import epath

from vit_jax.data import availability
from vit_jax.data.source import DataError
from vit_jax.utils import limits

FEATURES = "features.json"
MOST_BYTES = limits.TABLE
DEEPEST = 50  # nesting depth; TFDS nests four objects per nested feature
MOST_CLASSES = 10**6
CLASS_KEYS = ("type", "pythonClassName", "python_class_name")
COUNT_KEYS = ("num_classes", "numClasses")

_Connector = tfds.features.FeatureConnector
_KINDS = [
    kind
    for kind in vars(tfds.features).values()
    if isinstance(kind, type) and issubclass(kind, _Connector)
]
# Metadata may name a class by its path, or by one that it had in an older TFDS.
KNOWN = frozenset(
    name for kind in _KINDS for name in (f"{kind.__module__}.{kind.__name__}", *kind.ALIASES)
)


def builder(name: str, data_dir: str | os.PathLike[str] | None, **options: Any) -> Any:
    """`tfds.builder` of a dataset; raises as it does, or DataError for unsafe metadata."""
    for folder in _folders(availability.directory(data_dir) / name.partition(":")[0]):
        _check_size(folder / availability.INFO)
    return tfds.builder(name, data_dir=data_dir, **options)


def builder_of_folder(folder: epath.PathLike) -> Any:
    """`tfds.builder_from_directory`; raises as it does, or DataError."""
    _check_size(epath.Path(folder) / availability.INFO)
    return tfds.builder_from_directory(folder)


def check_features(folder: epath.PathLike) -> None:
    """Raises DataError if features.json is unreadable or names classes outside of TFDS."""
    path = epath.Path(folder) / FEATURES
    try:
        values = limits.read_json(path, MOST_BYTES)
    except limits.LimitError as error:
        raise DataError(f"{path}: {error}") from None
    except (OSError, ValueError):
        raise DataError(f"{path}: is damaged; copy it again") from None
    # Each of these would have TFDS import a module, open a file, or make a huge list of names.
    for key, value in _members(values, path):
        if key in CLASS_KEYS and isinstance(value, str) and value not in KNOWN:
            raise DataError(f"{path}: {key} {value!r} is none of TFDS's features; not imported")
        if key == "names_file":
            raise DataError(f"{path}: {key} {value!r}: names of classes are not read elsewhere")
        if key in COUNT_KEYS and not _is_count(value):
            raise DataError(f"{path}: {key} {value!r}: at most {MOST_CLASSES:,} classes")
        if key.startswith("/") or ".." in key.split("/"):
            raise DataError(f"{path}: feature {key!r}: is a path outside of the dataset")


def _members(values: Any, path: epath.Path) -> Iterator[tuple[str, Any]]:
    """Yields every key with its value, including JSON inside strings, as in older TFDS."""
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
                waiting.append((limits.load_json(value), depth + 1))
            except ValueError:
                raise DataError(f"{path}: has text that looks like JSON but is not") from None


def _is_count(value: object) -> bool:
    """Whether a value is a valid number of classes; protobuf stores large ones as text."""
    # An int64 has at most 19 digits, and int() refuses more than 4,300.
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
    """Yields possible versions of a dataset: root/VERSION and root/CONFIG/VERSION."""
    if "://" in str(root) or not root.is_dir():  # listing a bucket is slow
        return
    for folder in root.iterdir():
        if folder.is_dir():
            yield folder
            yield from (each for each in folder.iterdir() if each.is_dir())


# The function itself, to be called with the class that it is called on.
_load = vars(_Connector)["from_config"].__func__


def _checked(cls: Any, root_dir: str) -> Any:
    check_features(root_dir)
    return _load(cls, root_dir)


# TFDS selects the folder by version and config, and reads the file with this function.
_Connector.from_config = classmethod(_checked)  # pyright: ignore[reportAttributeAccessIssue]
