"""ReaL: the reassessed labels of ImageNet's validation images ("Are we done with ImageNet?").

An image has any number of correct classes; images without any count in neither numerator nor
denominator of the accuracy (google-research/reassessed-imagenet).
"""

import dataclasses
import hashlib
import json
import os
import re

import numpy as np

from vit_jax.config import ConfigError
from vit_jax.data.source import DataError, Record, Source
from vit_jax.utils import limits

IMAGES, CLASSES = 50_000, 1000
NAME = "ILSVRC2012_val_{:08d}.JPEG"


@dataclasses.dataclass(frozen=True)
class Real:
    """The correct classes of every validation image, by position or file name."""

    # Correct classes of each image, in the order of ILSVRC2012_val_00000001.JPEG and so on.
    labels: tuple[tuple[int, ...], ...]
    sha256: str  # digest of the source file

    def __len__(self) -> int:
        return len(self.labels)

    def number(self, name: str) -> int:
        """The position of an image by its file name, in any folder; raises KeyError without one."""
        match = re.fullmatch(r"(?:.*/)?ILSVRC2012_val_(\d{8})\.JPEG", name)
        number = int(match[1]) if match else 0
        if not 1 <= number <= len(self):
            raise KeyError(f"{name}: no validation image of ImageNet")
        return number - 1

    @property
    def scored(self) -> int:
        """The number of images with a correct class."""
        return sum(map(bool, self.labels))


def load_real(path: os.PathLike[str], *, images: int = IMAGES) -> Real:
    """Reads real.json: a list of `images` lists of classes, 0 to 999; raises DataError."""
    try:
        data = limits.read_file(path, limits.LABELS)
        values = limits.load_json(data)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; it is real.json of ReaL") from None
    except limits.LimitError as error:
        raise DataError(f"{path}: {error}: not real.json") from None
    except ValueError:
        raise DataError(f"{path}: is not JSON; download real.json of ReaL again") from None
    if not isinstance(values, list) or len(values) != images:
        found = f"{len(values):,} items" if isinstance(values, list) else "no list"
        raise DataError(f"{path}: has {found}, not {images:,} lists of classes: not real.json")
    for number, labels in enumerate(values, start=1):
        if not isinstance(labels, list) or not all(_is_class(label) for label in labels):
            raise DataError(
                f"{path}: {NAME.format(number)}: {json.dumps(labels)[:80]} is not a list of "
                f"classes 0 to {CLASSES - 1}"
            )
    return Real(tuple(map(tuple, values)), hashlib.sha256(data).hexdigest())


def _is_class(label: object) -> bool:
    # In Python, True is an int.
    return type(label) is int and 0 <= label < CLASSES


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
        # TFDS names examples by number, and has the name of the file as a feature.
        self._file_name = getattr(source, "file_name", source.name)
        try:
            # One example tells at once whether these are ImageNet's names, not after hours.
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
        """Original classes (B,) and correct ones (B, M), rows padded with NONE, int32."""
        numbers, labels = np.divmod(codes, len(self.classes))
        return labels, self._right[numbers]

    def name(self, index: int) -> str:
        """The source's name of the example."""
        return self._source.name(index)

    def fingerprint(self) -> str:
        """Covers the source only, because ReaL labels are not trained on."""
        return self._source.fingerprint()
