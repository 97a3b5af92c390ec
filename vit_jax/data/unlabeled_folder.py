"""All image files below a folder as a source."""

import os
import pathlib
from collections.abc import Sequence

from vit_jax.config import ConfigError
from vit_jax.data import decoding
from vit_jax.data.folders import SUFFIXES, image_files
from vit_jax.data.label_arrays import UNKNOWN
from vit_jax.data.skipped_files import Skipped
from vit_jax.data.source import Record
from vit_jax.runtime.logs import log
from vit_jax.utils.digests import digest


class Loose:
    """All image files below a folder, in the order of their paths; hidden ones are skipped.

    `name` is a path below the folder, with `/`. The label of a file is the class with the name of
    its innermost folder, else UNKNOWN.
    """

    def __init__(self, root: pathlib.Path, classes: Sequence[str], key: str) -> None:
        """Lists the files; raises ConfigError or DataError, which start with `key`."""
        if not root.is_dir():
            what = "not a folder" if root.exists() else "no such folder"
            raise ConfigError(f"{key}={root}: {what}")
        self._root, self.classes = root, tuple(classes)
        skipped = Skipped()
        self._paths = image_files(root, key, skipped=skipped)
        left_out = skipped.describe()
        if not self._paths:
            held = left_out and f"; it holds {left_out}"
            raise ConfigError(f"{key}={root}: holds no {', '.join(SUFFIXES)} files{held}")
        if left_out:
            log.info("%s=%s: %d images; not used: %s", key, root, len(self._paths), left_out)
        self._labels = {name: label for label, name in enumerate(self.classes)}

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Record:
        path = pathlib.PurePosixPath(self._paths[index])
        return Record(decoding.read(self._root / path), self._labels.get(path.parent.name, UNKNOWN))

    def name(self, index: int) -> str:
        """Returns the path of the file below the folder."""
        return self._paths[index]

    def fingerprint(self) -> str:
        """Covers the classes and the paths."""
        return digest(os.fsencode("\0".join((*self.classes, *self._paths))))
