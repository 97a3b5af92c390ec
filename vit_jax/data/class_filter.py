"""Restricts a source to some of its classes: `data.classes`."""

from collections.abc import Sequence

import numpy as np

from vit_jax import config
from vit_jax.config import ConfigError
from vit_jax.data.source import Record, Source
from vit_jax.utils.digests import digest


class Subset:
    """The examples of some classes, in the order of the source; a label is an index into `classes`.

    Reads every example once at construction, for its label.
    """

    def __init__(self, source: Source, classes: Sequence[str], key: str) -> None:
        """Takes the source of the split that the option `key` names; raises ConfigError."""
        shown = f"data.classes={','.join(classes)}"
        for name in classes:
            if name not in source.classes:
                raise ConfigError(
                    f"{shown}: the data has no class {name}{config.suggest(name, source.classes)}"
                )
        if len(set(classes)) < max(len(classes), 1):
            raise ConfigError(f"{shown}: must name some classes, each once; none keeps all")
        self._source, self.classes = source, tuple(classes)
        labels = np.array([source[index].label for index in range(len(source))])
        places = np.full(len(source.classes), -1)
        places[[source.classes.index(name) for name in classes]] = np.arange(len(classes))
        self._labels = places[labels]
        self._positions = np.flatnonzero(self._labels >= 0)
        if not len(self._positions):
            raise ConfigError(f"{shown}: no example of {key} is of these classes")

    @property
    def source(self) -> Source:
        """The unfiltered source."""
        return self._source

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: int) -> Record:
        position = int(self._positions[index])
        return Record(self._source[position].image, int(self._labels[position]))

    def name(self, index: int) -> str:
        """Returns the source's name of the example."""
        return self._source.name(int(self._positions[index]))

    def fingerprint(self) -> str:
        """Covers the source's fingerprint and the classes."""
        return digest(self._source.fingerprint().encode(), repr(self.classes).encode())
