"""Maps ObjectNet's classes to ImageNet's with the files in its folder `mappings`.

`folder_to_objectnet_label.json` maps image folders to labels. `objectnet_to_imagenet_1k.json` maps
a label to the names of correct ImageNet classes, separated by semicolons. Each line of
`imagenet_to_label_2012_v2` is such a name, and `pytorch_to_imagenet_2012_id.json` gives the line of
each class in WordNet order, the order of model heads. In total, 113 of the 313 classes have one or
more ImageNet classes.
"""

import pathlib
from collections.abc import Iterable, Sequence

import numpy as np
from etils import epath

from vit_jax.data.real_labels import NONE
from vit_jax.data.source import DataError
from vit_jax.utils import limits

FOLDER = "mappings"  # in objectnet-1.0, and in the packed dataset
FILES = (
    "folder_to_objectnet_label.json",
    "objectnet_to_imagenet_1k.json",
    "imagenet_to_label_2012_v2",
    "pytorch_to_imagenet_2012_id.json",
)


def right_classes(folder: epath.Path, classes: Sequence[str]) -> np.ndarray:
    """The correct ImageNet classes of each ObjectNet class, by the mappings in a folder.

    (len(classes), M) int32 positions in the order of WordNet ids, rows padded with NONE; rows of
    classes outside of ImageNet contain only NONE. `classes` are called as their folders. Raises
    DataError if a file is missing or invalid.
    """
    texts = [_read_text(folder / name) for name in FILES]
    try:
        labels, names, numbers = (limits.load_json(texts[at]) for at in (0, 1, 3))
        lines = [line.strip() for line in texts[2].splitlines()]
        first = min(numbers.values())  # whether lines count from 0 or from 1
        position = {lines[line - first]: int(at) for at, line in numbers.items()}
        rows = [
            [position[name.strip()] for name in names.get(labels[one], "").split(";") if name]
            for one in classes
        ]
    except (ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        raise DataError(
            f"{folder}: are not ObjectNet's mappings, or not of these images: "
            f"{type(error).__name__} {error}"
        ) from None
    table = np.full((len(rows), max(map(len, rows)) or 1), NONE, np.int32)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    return table


def find_mappings(sources: Iterable[pathlib.Path]) -> pathlib.Path | None:
    """The folder `mappings` that is in a source or next to it, or None."""
    folders = [folder / FOLDER for one in sources for folder in (one, one.parent)]
    complete = (f for f in folders if all((f / name).is_file() for name in FILES))
    return next(complete, None)


def _read_text(path: epath.Path) -> str:
    try:
        return limits.read_file(path, limits.MAPPINGS).decode("utf-8")
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    except OSError:
        raise DataError(f"{path}: no such file, without which its classes are unknown") from None
