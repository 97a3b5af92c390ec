"""Reads the pickles of CIFAR's Python archives without executing them.

`pickletools.genops` takes a pickle apart and executes nothing. Of its operations those are followed
here that build numbers, texts, lists, dictionaries and numpy arrays of bytes; the names of numpy's
that such an array takes are compared as texts, and never imported. All else is refused.
"""

import pickletools
import warnings
from typing import Any, NamedTuple

import numpy as np

from vit_jax.data.source import DataError


class _Name(NamedTuple):
    """The name of a global, as text."""

    text: str


class _Array:
    """An array whose values follow later."""

    values: np.ndarray | None = None


ARRAY = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
TYPE = "numpy dtype"
LATIN = "_codecs encode"  # how Python 3 writes bytes for Python 2
VALUES = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
LITERALS = frozenset({
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES",
})  # fmt: skip
SIMPLE = (str, bytes, int, float, type(None))


def load_dictionary(data: bytes, named: str) -> dict[str, Any]:
    """The dictionary in a pickle: text (bytes as Latin-1), numbers, lists, arrays.

    Raises DataError where the pickle has anything else, or is damaged; `named` is the file.
    """
    try:
        found = _Machine(len(data)).run(data)
        if not isinstance(found, dict):
            raise DataError(f"{named}: its pickle is not a dictionary; use the binary archive")
        return {str(key): _plain(value) for key, value in found.items()}
    except _Refused as error:
        raise DataError(
            f"{named}: its pickle has {error}, which CIFAR's do not; use the binary archive"
        ) from None
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        reason = str(error).partition("\n")[0][:100]
        raise DataError(f"{named}: is not a valid pickle: {reason}") from None


class _Refused(Exception):
    """An unsupported operation or type in a pickle."""


class _Machine:
    """The stack and the memo of a pickle machine."""

    def __init__(self, size: int) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memory: dict[int, Any] = {}
        self._left = size  # characters of texts that may still become bytes

    def run(self, data: bytes) -> Any:
        """The value of a pickle."""
        with warnings.catch_warnings():  # of escapes in texts
            warnings.simplefilter("ignore")
            for operation, argument, _ in pickletools.genops(data):
                self._step(operation.name, argument)
        (found,) = self._stack
        return found

    def _step(self, name: str, argument: Any) -> None:
        stack = self._stack
        match name:
            case _ if name in LITERALS:
                stack.append(argument)
            case _ if name in VALUES:
                stack.append(VALUES[name])
            case _ if name in EMPTY:
                stack.append(EMPTY[name]())
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self._memory[int(argument)] = stack[-1]
            case "MEMOIZE":
                self._memory[len(self._memory)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(self._memory[int(argument)])
            case "MARK":
                self._marks.append(len(stack))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(self._popped(len(stack) - int(name[-1]))))
            case "TUPLE":
                stack.append(tuple(self._marked()))
            case "LIST":
                stack.append(self._marked())
            case "DICT":
                stack.append(_pairs(self._marked()))
            case "APPEND" | "APPENDS":
                items = self._marked() if name == "APPENDS" else [stack.pop()]
                _expect(stack[-1], list).extend(items)
            case "SETITEM" | "SETITEMS":
                items = self._marked() if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
                _expect(stack[-1], dict).update(_pairs(items))
            case "GLOBAL":
                stack.append(_Name(argument))
            case "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(self._call(function, arguments))
            case "BUILD":
                state = stack.pop()
                if isinstance(stack[-1], _Array):
                    stack[-1].values = self._values(state)
            case "PROTO" | "FRAME" | "STOP":
                pass
            case _:
                raise _Refused(f"the operation {name}")

    def _popped(self, at: int) -> list[Any]:
        items = self._stack[at:]
        del self._stack[at:]
        return items

    def _marked(self) -> list[Any]:
        return self._popped(self._marks.pop())

    def _call(self, function: Any, arguments: Any) -> Any:
        """The result of one of the three functions that CIFAR's pickles name."""
        name = function.text if isinstance(function, _Name) else None
        if name in ARRAY:
            return _Array()
        if name == TYPE:
            return _Name(f"{TYPE} {_expect(arguments[0], str)}")
        if name == LATIN and len(arguments) == 2 and arguments[1] == "latin1":
            return self._bytes(arguments[0])
        raise _Refused(f"the name {str(name)[:80]}")

    def _values(self, state: Any) -> np.ndarray:
        """An array of bytes from its pickled numpy state."""
        _, shape, kind, fortran, raw = state
        raw = self._bytes(raw) if isinstance(raw, str) else raw
        if kind != _Name(f"{TYPE} u1") or fortran is not False or not isinstance(raw, bytes):
            raise _Refused("an array of another type than bytes")
        return np.frombuffer(raw, np.uint8).reshape(shape)

    def _bytes(self, text: Any) -> bytes:
        """The bytes of a text; all of them are no more than the pickle has."""
        self._left -= len(_expect(text, str))
        if self._left < 0:
            raise _Refused("a text that stands for many")
        return text.encode("latin-1")


def _expect(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise _Refused(f"a {type(value).__name__} for a {kind.__name__}")
    return value


def _pairs(items: list[Any]) -> dict[str | bytes, Any]:
    """A dictionary; its keys are texts: the hash of tuples in tuples may never end."""
    for key in items[::2]:
        if not isinstance(key, str | bytes):
            raise _Refused(f"a {type(key).__name__} for the name of a value")
    return dict(zip(items[::2], items[1::2], strict=True))


def _plain(value: Any) -> Any:
    if isinstance(value, _Array):
        if value.values is None:
            raise _Refused("an array without values")
        return value.values
    for item in value if isinstance(value, list | tuple) else (value,):
        # A list in lists that are one list may stand for more values than any memory has.
        if not isinstance(item, SIMPLE):
            raise _Refused(f"a {type(item).__name__} within a value")
    return value
