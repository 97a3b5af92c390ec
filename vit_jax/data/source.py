"""The protocol of sources of labeled images, splits, and errors."""

import re
from typing import NamedTuple, Protocol

import numpy as np

from vit_jax.config import ConfigError, UserError
from vit_jax.data.label_arrays import Label
from vit_jax.utils.storage import reason as reason


class DataError(UserError):
    """Data that is missing, unreadable, or inconsistent with the config."""


class Record(NamedTuple):
    """One example: an encoded file, or uint8 or uint16 pixels `H W C`, and its class.

    With `data.multilabel` the label is a tuple of any number of classes.
    """

    image: bytes | np.ndarray
    label: Label


class Source(Protocol):
    """Random access to labeled images; must be picklable for the loader processes."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names; a label is an index into them."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Record:
        """Returns an example; raises `decoding.BadImage` or OSError if unreadable."""
        ...

    def name(self, index: int) -> str:
        """Returns the file name or the id of an example, for messages."""
        ...

    def fingerprint(self) -> str:
        """Returns 16 hex digits that are equal for equal data, on any machine, under any root."""
        ...


class Split(NamedTuple):
    """A split expression such as `train[:80%]`: its name and bounds."""

    name: str
    low: str
    high: str

    @classmethod
    def parse(cls, text: str, key: str) -> "Split":
        """Reads `name`, or `name[low:high]` with bounds as counts or percentages, either empty.

        A negative bound counts from the end. Raises ConfigError, which names the option `key`.
        """
        match = re.fullmatch(r"([^\[\]]+)(?:\[(-?\d+%?)?:(-?\d+%?)?\])?", text)
        if not match:
            raise ConfigError(f"{key}={text}: not a split; write train, train[:80%] or train[100:]")
        return cls(*(part or "" for part in match.groups()))

    def select(self, length: int, key: str) -> range:
        """Returns the chosen part of `length` examples; a percentage rounds to the nearest one."""

        def position(bound: str, default: int) -> int:
            if not bound:
                return default
            number = int(bound.rstrip("%"))
            number = round(number * length / 100) if bound.endswith("%") else number
            return number + length if bound.startswith("-") else number

        low, high = position(self.low, 0), position(self.high, length)
        if not 0 <= low < high <= length:
            raise ConfigError(
                f"{key}={self.name}[{self.low}:{self.high}]: selects nothing, or more than the "
                f"{length} examples of {self.name}"
            )
        return range(low, high)
