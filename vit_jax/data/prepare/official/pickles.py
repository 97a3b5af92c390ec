"""Reads the dictionaries in the pickles of CIFAR's Python archives; nothing is executed."""

from collections.abc import Callable
from typing import Any

import numpy as np

from vit_jax.data.source import DataError
from vit_jax.utils import pickles
from vit_jax.utils.pickles import Inert, Refused, expect

SIMPLE = (str, bytes, int, float, type(None))


def load_dictionary(data: bytes, named: str) -> dict[str, Any]:
    """The dictionary in a pickle: text (bytes as Latin-1), numbers, lists, arrays of bytes.

    Raises DataError where the pickle has anything else, or is damaged; `named` is the file.
    """
    left = len(data)

    def encode(text: Any, encoding: Any = "latin1") -> bytes:
        """Bytes as Python 3 writes them for Python 2; all of them are no more than the pickle."""
        nonlocal left
        # Memo entries let one text of a pickle stand for thousands of large arrays.
        left -= len(expect(text, str))
        if left < 0 or encoding != "latin1":
            raise Refused("a text that stands for many")
        return text.encode("latin-1")

    allowed = {
        "_codecs encode": encode,
        "numpy dtype": _Type,
        "numpy ndarray": _Type,
        "numpy.core.multiarray _reconstruct": lambda *_: _Array(encode),
        "numpy._core.multiarray _reconstruct": lambda *_: _Array(encode),
    }
    try:
        found = pickles.load_pickle(data, allowed)
        if not isinstance(found, dict):
            raise DataError(f"{named}: its pickle is not a dictionary; use the binary archive")
        return {str(key): _plain(value) for key, value in found.items()}
    except Refused as error:
        raise DataError(
            f"{named}: its pickle has {error}, which CIFAR's do not; use the binary archive"
        ) from None
    except ValueError as error:
        raise DataError(f"{named}: {error}") from None


class _Type(Inert):
    """A NumPy type by its name."""

    def __init__(self, name: object, *_: object) -> None:
        self.name = name


class _Array:
    """An array whose values follow as its state."""

    values: np.ndarray | None = None

    def __init__(self, encode: Callable[[str], bytes]) -> None:
        self._encode = encode

    def build(self, state: object) -> None:
        """Sets the values from shape, type, order and bytes, which Python 2 wrote as text."""
        _, shape, kind, fortran, raw = expect(state, tuple)
        if isinstance(raw, str):
            raw = self._encode(raw)
        if not isinstance(kind, _Type) or kind.name != "u1" or fortran or type(raw) is not bytes:
            raise Refused("an array of another type than bytes")
        self.values = np.frombuffer(raw, np.uint8).reshape(shape)


def _plain(value: Any) -> Any:
    if isinstance(value, _Array):
        if value.values is None:
            raise Refused("an array without values")
        return value.values
    for item in value if isinstance(value, list | tuple) else (value,):
        # A list in lists that are one list may stand for more values than any memory has.
        if not isinstance(item, SIMPLE):
            raise Refused(f"a {type(item).__name__} within a value")
    return value
