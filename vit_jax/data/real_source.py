"""ImageNet's validation images with original and ReaL labels, evaluated in one pass."""

import numpy as np

from vit_jax.config import ConfigError
from vit_jax.data.real_labels import Real
from vit_jax.data.source import DataError, Record, Source

NONE = -1  # pads the right classes of an image to the same number


class Reassessed:
    """A source whose label encodes two numbers: the position in ReaL and the original class.

    The label is position x K + class for K classes; `decode` splits it.
    """

    def __init__(self, source: Source, real: Real, key: str) -> None:
        """Joins the labels by file name; raises ConfigError, which names `key`, if that fails.

        The classes of `real` are indices into those of the source.
        """
        self.classes = source.classes
        self._source, self._real = source, real
        self._file_name = getattr(source, "file_name", source.name)
        try:
            self._number(0)
        except DataError as error:
            raise ConfigError(f"{key}: {error}") from None
        width = max(map(len, real.labels))
        self._right = np.full((len(real), width), NONE, np.int32)
        for number, right in enumerate(real.labels):
            self._right[number, : len(right)] = right

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Record:
        image, label = self._source[index]
        assert isinstance(label, int)  # ImageNet's images have one class each
        return Record(image, self._number(index) * len(self.classes) + label)

    def _number(self, index: int) -> int:
        try:
            return self._real.number(self._file_name(index))
        except KeyError as error:
            raise DataError(
                f"{error.args[0]}, and ReaL has labels of no others; set data.eval_split=validation"
            ) from None

    def decode(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns original classes (B,) and correct ones (B, M), rows padded with NONE, int32."""
        numbers, labels = np.divmod(codes, len(self.classes))
        return labels, self._right[numbers]

    def name(self, index: int) -> str:
        """Returns the source's name of the example."""
        return self._source.name(index)

    def fingerprint(self) -> str:
        """Covers the source only, because ReaL labels are not trained on."""
        return self._source.fingerprint()
