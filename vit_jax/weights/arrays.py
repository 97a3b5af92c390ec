"""Named arrays of a weights file, the error for other files, and the limits of all formats."""

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np

from vit_jax import config

# Of the dictionaries and lists of a file, an optimizer's included: ViT-L's has some thousands.
MAX_ENTRIES = 200_000


class WeightsError(config.UserError):
    """Weights that cannot be read, do not fit, or cannot be written in the requested format."""


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """The size of its values in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Arrays by name; `read` loads one of them; `metadata` is further text in the file.

    `read` raises WeightsError, which names the array, if it is damaged.
    """

    specs: Mapping[str, ArraySpec]
    read: Callable[[str], np.ndarray]
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
