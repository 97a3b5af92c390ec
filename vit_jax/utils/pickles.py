"""A pickle machine that executes nothing: it builds plain values and those that its caller allows.

`pickletools.genops` takes a pickle apart without running it. The operations that build numbers,
text and containers are followed here; a class or function in the pickle is only a name, looked up
in the caller's table and never imported. Everything else is refused by name. Work and memory are
linear in the size of the pickle.
"""

import pickletools
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple, Protocol, cast


class Refused(Exception):
    """A pickle that holds something else than the caller allows; the message says what."""


class Global(NamedTuple):
    """The name of a class or function, `module name`."""

    name: str


class Inert:
    """A placeholder for an object of an allowed class whose content is not needed."""


class Readable(Protocol):
    """A stream to read a pickle from."""

    def read(self, size: int, /) -> bytes:
        """The next `size` bytes."""
        ...

    def readline(self) -> bytes:
        """The next line."""
        ...


# What a name makes of its arguments when it is called.
Globals = Mapping[str, Callable[..., Any]]
Key = str | bytes | int | float | None  # of a dictionary
VALUES = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
LITERALS = frozenset({
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "STRING", "BINSTRING", "SHORT_BINSTRING",
    "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
})  # fmt: skip
PUT = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
GET = frozenset({"GET", "BINGET", "LONG_BINGET"})
IGNORED = frozenset({"PROTO", "FRAME", "STOP"})
MAX_OPERATIONS = 1_000_000  # some seconds; weights with an optimizer's state have a tenth
# What one operation may touch of a value that many name: `_rebuild_tensor_v2` has 7 arguments.
MAX_ARGUMENTS = 16
MAX_KEY = 1_000  # characters of a key, or bits
# Damage shows as an error of the machine's own containers.
DAMAGE = (ValueError, LookupError, TypeError, AttributeError, OverflowError, EOFError)


def load_pickle(
    source: bytes | Readable,
    allowed: Globals = types.MappingProxyType({}),
    persistent: Callable[[object], object] | None = None,
) -> Any:
    """The value of the pickle at the start of `source`, which is read to the pickle's end.

    `allowed` are the names that may be called, `persistent` makes a value of a persistent id.
    Raises Refused, or ValueError for a damaged pickle.
    """
    try:
        with warnings.catch_warnings():  # of escapes in text
            warnings.simplefilter("ignore")
            return _Machine(allowed, persistent).run(source)
    except DAMAGE as error:
        reason = str(error).partition("\n")[0][:100]
        raise ValueError(f"is not a valid pickle: {reason}") from None


class _Machine:
    def __init__(self, allowed: Globals, persistent: Callable[[object], object] | None) -> None:
        self._allowed = allowed
        self._persistent = persistent
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, object] = {}

    def run(self, source: bytes | Readable) -> Any:
        for number, (operation, argument, _) in enumerate(
            pickletools.genops(cast(IO[bytes], source))
        ):
            if number == MAX_OPERATIONS:
                raise Refused(f"more than {MAX_OPERATIONS:,} operations")
            self._step(operation.name, argument)
        # A sound pickle leaves one value; another number is a ValueError, which counts as damage.
        (value,) = self._stack
        return value

    def _step(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in LITERALS:
            stack.append(argument)
        elif name in VALUES:
            stack.append(VALUES[name])
        elif name in EMPTY:
            stack.append(EMPTY[name]())
        elif name in PUT:
            self._memo[int(argument)] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in GET:
            stack.append(self._memo[int(argument)])
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name in TUPLES:
            stack.append(tuple(self._popped(len(stack) - TUPLES[name])))
        elif name in ("TUPLE", "LIST", "DICT"):
            items = self._marked()
            stack.append(
                dict(pairs(items))
                if name == "DICT"
                else (tuple if name == "TUPLE" else list)(items)
            )
        elif name in ("APPEND", "APPENDS"):
            items = self._marked() if name == "APPENDS" else [stack.pop()]
            expect(stack[-1], list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._marked() if name == "SETITEMS" else self._popped(len(stack) - 2)
            expect(stack[-1], dict).update(pairs(items))
        elif name == "POP":
            stack.pop()
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            # GLOBAL has the name in its argument, this one as two texts on the stack.
            if name == "STACK_GLOBAL":
                argument = " ".join(expect(part, str) for part in self._popped(len(stack) - 2))
            if argument not in self._allowed:
                raise Refused(f"the name {argument.replace(' ', '.')[:80]}")
            stack.append(Global(argument))
        elif name in ("REDUCE", "NEWOBJ"):
            arguments, function = stack.pop(), stack.pop()
            made = self._allowed[expect(function, Global).name]
            if len(expect(arguments, tuple)) > MAX_ARGUMENTS:
                raise Refused(f"a call with {len(arguments):,} arguments")
            stack.append(made(*arguments))
        elif name == "BUILD":
            state = stack.pop()
            if hasattr(stack[-1], "build"):
                stack[-1].build(state)
            elif not isinstance(stack[-1], Inert | dict):  # a dict's state is attributes of it
                raise Refused(f"a state for a {type(stack[-1]).__name__}")
        elif name == "BINPERSID" and self._persistent is not None:
            stack.append(self._persistent(stack.pop()))
        elif name not in IGNORED:
            raise Refused(f"the operation {name}")

    def _marked(self) -> list[Any]:
        return self._popped(self._marks.pop())

    def _popped(self, start: int) -> list[Any]:
        if start < 0:
            raise ValueError("the stack is empty")
        items = self._stack[start:]
        del self._stack[start:]
        return items


def expect(value: object, kind: type | types.UnionType) -> Any:
    """The value; raises Refused if it is of another type."""
    if not isinstance(value, kind):
        raise Refused(f"a {type(value).__name__} for a {getattr(kind, '__name__', kind)}")
    return value


def pairs(items: Sequence[object]) -> Iterator[tuple[Key, object]]:
    """The keys and values of a dictionary; keys are plain: a tuple in tuples may hash for ever.

    So may a long number, or a long text that is compared with its like, if many entries name it.
    """
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str | bytes | int | float | None):
            raise Refused(f"a {type(key).__name__} for a key")
        long = key.bit_length() if isinstance(key, int) else 0
        if max(long, len(key) if isinstance(key, str | bytes) else 0) > MAX_KEY:
            raise Refused(f"a key longer than {MAX_KEY:,} characters or bits")
        yield key, value
