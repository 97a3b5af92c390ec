"""Image files below a folder as a source, whatever folders they lie in."""

import os
import pathlib
from collections.abc import Sequence

from vit_jax.config import ConfigError
from vit_jax.data import images
from vit_jax.data.examples import Record, digest
from vit_jax.data.folders import SUFFIXES, walk

UNKNOWN = -1  # label of a file that lies in no class's folder


class Loose:
    """All image files below a folder, in the order of their paths; hidden ones are skipped.

    `name` is a path below the folder, with `/`. The label of a file is the class whose name its
    innermost folder has, if any, else UNKNOWN.
    """

    def __init__(self, root: pathlib.Path, classes: Sequence[str], key: str) -> None:
        """Lists the files; raises ConfigError or DataError that begins with `key`."""
        if not root.is_dir():
            what = "not a folder" if root.exists() else "no such folder"
            raise ConfigError(f"{key}={root}: {what}")
        self._root, self.classes = root, tuple(classes)
        paths = (path for path, _ in walk(root, key))
        self._paths = sorted(path for path in paths if path.lower().endswith(SUFFIXES))
        if not self._paths:
            raise ConfigError(f"{key}={root}: holds no {', '.join(SUFFIXES)} files")
        self._labels = {name: label for label, name in enumerate(self.classes)}

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Record:
        path = pathlib.PurePosixPath(self._paths[index])
        return Record(images.read(self._root / path), self._labels.get(path.parent.name, UNKNOWN))

    def name(self, index: int) -> str:
        """Returns the path of the file below the folder."""
        return self._paths[index]

    def fingerprint(self) -> str:
        """Covers the classes and the paths."""
        return digest(os.fsencode("\0".join((*self.classes, *self._paths))))
