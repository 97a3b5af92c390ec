"""Options: typed, bounded, documented fields of frozen dataclasses, parsed from values or text.

This is the mechanism behind `config`: every error is one line that names the key, the value
and the nearest valid choice.
"""

import dataclasses
import difflib
import functools
import hashlib
import json
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from vit_jax.config.durations import Duration
from vit_jax.utils.errors import ConfigError

T = TypeVar("T")


MOST = 10**15  # upper bound of every count


def option(
    default: T,
    doc: str,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    choices: Sequence[Any] = (),
    free: bool = False,
    check: Callable[[str, str], None] | None = None,
    kind: str | None = None,
    later: bool = False,
) -> T:
    """Declares a field: its default, meaning and bounds; `free` ones may change on resume.

    `check(text, key)` replaces the comparison with `choices`, for each text of a tuple; `kind` is
    that of the components it names. `later` marks an option that older runs did not have: at its
    default it is no part of the fingerprint, so theirs stay.
    """
    bounds = {"above": above, "at_least": at_least, "below": below, "at_most": at_most}
    return dataclasses.field(  # pyright: ignore[reportReturnType]
        default=default,
        metadata={
            "doc": doc,
            "bounds": bounds,
            "choices": tuple(choices),
            "free": free,
            "check": check,
            "kind": kind,
            "later": later,
        },
    )


def build(schema: type[T], values: Mapping[str, Any]) -> T:
    """Returns the `schema` that nested `values` describe; unnamed options keep their defaults.

    Raises ConfigError for an unknown key, a wrong type, or a value outside its bounds.
    """
    return _build(schema, schema, values, "")


def override(
    schema: type, values: Mapping[str, Any], assignments: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns nested `values` with others at dotted keys, such as `optimizer.lr`.

    Texts are read as on a command line (`"3e-4"`), other values must have the option's type.

    Raises ConfigError for an unknown key or a value its type cannot hold.
    """
    result = _plain(values)
    for key, text in assignments.items():
        field, hint = _find(schema, key)
        *sections, leaf = key.split(".")
        node = result
        for section in sections:
            node = node.setdefault(section, {})
            if not isinstance(node, dict):
                raise ConfigError(f"{section}={node!r}: is a section and needs named options")
        if isinstance(text, str):
            node[leaf] = _from_text(key, text, hint, field)
        else:
            node[leaf] = _convert(key, text, hint)
            _check_bounds(key, node[leaf], field)
    return result


def each(schema: type) -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """Yields `(dotted key, field, type)` of every option in the order of the schema."""
    for field, hint in _fields(schema).values():
        if _is_section(hint):
            yield from ((f"{field.name}.{f.name}", f, h) for f, h in _fields(hint).values())
        else:
            yield field.name, field, hint


def get(config: Any, key: str) -> Any:
    """Returns the value at a dotted key."""
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def to_dict(config: Any) -> dict[str, Any]:
    """Returns nested plain values that JSON holds and `build` reads back unchanged."""

    def plain(value: Any) -> Any:
        if isinstance(value, Duration):
            return str(value)
        if dataclasses.is_dataclass(value):
            return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return list(value) if isinstance(value, tuple) else value

    return plain(config)


def differences(old: Any, new: Any) -> dict[str, tuple[Any, Any]]:
    """Returns `{key: (old, new)}` for options that differ and decide a run's result."""
    return {
        key: (get(old, key), get(new, key))
        for key, field, _ in each(type(old))
        if not field.metadata["free"] and get(old, key) != get(new, key)
    }


def fingerprint(config: Any) -> str:
    """Returns 16 hex digits that are equal exactly when `differences` is empty."""
    fixed = {
        key: str(value)
        for key, field, _ in each(type(config))
        if not field.metadata["free"]
        # Left out, so that adding such an option changes no fingerprint: an empty list of
        # components, and the default of a later option.
        if ((value := get(config, key)) != () or not field.metadata["check"])
        and not (field.metadata["later"] and value == field.default)
    }
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16]


def suggest(word: str, known: Sequence[Any]) -> str:
    """Returns `; did you mean X?` for the nearest of `known`, or a list of all of them."""
    names = [str(one) for one in known]
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(names)}"


@functools.cache
def _fields(cls: Any) -> dict[str, tuple[dataclasses.Field[Any], Any]]:
    hints = typing.get_type_hints(cls)
    return {field.name: (field, hints[field.name]) for field in dataclasses.fields(cls)}


def _is_section(hint: Any) -> bool:
    return dataclasses.is_dataclass(hint) and hint is not Duration


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Copies nested mappings (a ConfigDict among them) to dicts."""
    return {
        k: _plain(v) if isinstance(v, Mapping) or hasattr(v, "items") else v
        for k, v in values.items()
    }


def _find(schema: type, key: str) -> tuple[dataclasses.Field[Any], Any]:
    known = {name: (field, hint) for name, field, hint in each(schema)}
    if key in known:
        return known[key]
    if any(name.startswith(key + ".") for name in known):
        raise ConfigError(
            f"{key}: is a section; set one of its options, such as {key}."
            f"{next(n for n in known if n.startswith(key + '.')).split('.')[1]}"
        )
    section, _, leaf = key.rpartition(".")
    siblings = [name for name in known if name.rpartition(".")[0] == section]
    # A leaf typed without its section is the commonest mistake: look for it everywhere.
    elsewhere = [name for name in known if name.rpartition(".")[2] == leaf]
    near = difflib.get_close_matches(key, elsewhere or siblings or list(known), n=1, cutoff=0.0)
    raise ConfigError(f"{key}: unknown key; did you mean {near[0]}?")


def _build(schema: type, cls: Any, values: Any, prefix: str) -> Any:
    if not (isinstance(values, Mapping) or hasattr(values, "items")):
        raise ConfigError(f"{prefix.rstrip('.')}={values!r}: is a section and needs named options")
    fields = _fields(cls)
    result = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if name not in fields:
            _find(schema, key)
        field, hint = fields[name]
        if _is_section(hint):
            result[name] = _build(schema, hint, value, key + ".")
        else:
            result[name] = _convert(key, value, hint)
            _check_bounds(key, result[name], field)
    return cls(**result)


@functools.cache
def _optional(hint: Any) -> tuple[Any, bool]:
    """Splits `X | None` into `(X, True)`."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        inner = [a for a in typing.get_args(hint) if a is not type(None)]
        return inner[0], True
    return hint, False


def _expected(hint: Any) -> str:
    inner, optional = _optional(hint)
    names = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
        Duration: "a number of steps, epochs or examples, such as '10 epochs'",
        tuple[int, ...]: "whole numbers, such as 3,4,6,3",
        tuple[float, ...]: "numbers, such as 0.3,0.6",
        tuple[str, ...]: "names with commas between them",
    }
    pair = "two whole numbers (or one for both)" if inner == tuple[int, int] else "two numbers"
    return names.get(inner, pair) + (", or none" if optional else "")


def _convert(key: str, value: Any, hint: Any) -> Any:
    """Returns a Python value as its declared type, accepting only lossless conversions."""
    inner, optional = _optional(hint)
    if value is None and optional:
        return None
    if typing.get_origin(inner) is tuple:
        member = typing.get_args(inner)[0]
        one = member in (int, str) and isinstance(value, member) and not isinstance(value, bool)
        if one:
            value = (value,) if ... in typing.get_args(inner) else (value, value)
        length = 2 if ... not in typing.get_args(inner) else None
        if isinstance(value, tuple | list) and length in (None, len(value)):
            return tuple(_convert(key, v, member) for v in value)
    elif inner is Duration:
        try:
            return Duration.parse(value)
        except ValueError:
            pass
    elif inner is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            pass
    elif (inner in (bool, str) and isinstance(value, inner)) or (
        inner is int and isinstance(value, int) and not isinstance(value, bool)
    ):
        return value
    raise ConfigError(f"{key}={show(value)}: must be {_expected(hint)}")


def _from_text(key: str, text: str, hint: Any, field: dataclasses.Field[Any]) -> Any:
    """Returns a command-line text as a value of the declared type."""
    inner, optional = _optional(hint)
    if optional and text.lower() == "none":
        return None

    def scalar(kind: Any, word: str) -> Any:
        if kind is bool:
            return {"true": True, "1": True, "false": False, "0": False}[word.lower()]
        return kind(word)

    try:
        if inner is Duration:
            value = Duration.parse(text)
        elif typing.get_origin(inner) is tuple:
            member = typing.get_args(inner)[0]
            words = text.strip("()[] ")
            if field.metadata["check"]:  # whose texts may themselves end in brackets
                words = text.strip().removeprefix("[")
                words = words.removesuffix("]") if words != text.strip() else words
            words = "" if words == "()" else words
            words = _split(words) if member is str else words.replace("x", ",").split(",")
            parts = [scalar(member, w.strip()) for w in words if w.strip()]
            value = parts[0] if len(parts) == 1 and member is int else tuple(parts)
        else:
            value = scalar(inner, text)
    except (ValueError, KeyError):
        raise ConfigError(f"{key}={text}: must be {_expected(hint)}") from None
    value = _convert(key, value, hint)
    _check_bounds(key, value, field)
    return value


def _split(text: str) -> list[str]:
    """Splits at commas that stand outside parentheses, brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "([":
            depth += 1
        elif character in ")]":
            depth -= 1
        if character == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def show(value: Any) -> str:
    """Returns a value in the form the command line takes."""
    if isinstance(value, tuple | list):
        return ",".join(show(v) for v in value) or "()"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _check_bounds(key: str, value: Any, field: dataclasses.Field[Any]) -> None:
    choices, bounds = field.metadata["choices"], field.metadata["bounds"]
    for one in value if isinstance(value, tuple) else (value,):
        if one is None:
            continue
        if check := field.metadata["check"]:
            check(one, key)
        elif choices and one not in choices:
            raise ConfigError(f"{key}={one}: no such choice{suggest(str(one), choices)}")
    amount = value.amount if isinstance(value, Duration) else value
    for number in amount if isinstance(amount, tuple) else (amount,):
        if not isinstance(number, int | float):
            continue
        # Sums and products of larger ones would leave what arrays and floats can hold.
        counted = isinstance(number, int) or isinstance(value, Duration)
        if counted and not -MOST <= number <= MOST:
            raise ConfigError(f"{key}={value}: must be at most {MOST:.0e}, whatever it counts")
        if not math.isfinite(number):
            raise ConfigError(f"{key}={show(value)}: must be finite")
        tests = {
            "above": (lambda b, n=number: n > b, "more than"),
            "at_least": (lambda b, n=number: n >= b, "at least"),
            "below": (lambda b, n=number: n < b, "less than"),
            "at_most": (lambda b, n=number: n <= b, "at most"),
        }
        for name, (holds, words) in tests.items():
            if bounds[name] is not None and not holds(bounds[name]):
                raise ConfigError(f"{key}={show(value)}: must be {words} {show(bounds[name])}")
