"""Options: typed, bounded, documented fields of frozen dataclasses, parsed from values or text.

This is the mechanism behind `config`: every error is one line that names the key, the value
and the nearest valid choice. A `Section` may name a component (`optimizer.name=lion`); its class is
then the one that has the arguments of that component, so that no other argument can be written.
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
from typing import Any, ClassVar, TypeVar

from vit_jax.config.durations import Duration
from vit_jax.utils.errors import ConfigError

T = TypeVar("T")


MOST = 10**15  # upper bound of every count


GIVEN = "given"  # of an option's `when`: any value but none or an empty list


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
    when: Mapping[str, Any] | None = None,
) -> T:
    """Declares a field: its default, meaning and bounds; `free` ones may change on resume.

    `check(text, key)` replaces the comparison with `choices`, for each text of a tuple; `kind` is
    that of the components it names. `when` has the values of other options (or GIVEN), by their
    keys, with any of which this one is read.
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
            "when": when or {},
        },
    )


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of component, and the section of the schema that names one.

    Attributes:
      name: such as `optimizer`.
      chooser: the option that names the component.
      section: the class without arguments of a component.
      classes: subclasses by the names of the components whose arguments they declare.
    """

    name: str
    chooser: str
    section: type["Section"]
    classes: dict[str, type["Section"]] = dataclasses.field(default_factory=dict)


KINDS: dict[str, Kind] = {}


class _Choosing(type):
    """Makes a section of the class that has the arguments of the component it names."""

    def __call__(cls: Any, **options: Any) -> Any:
        kind = cls.kind_of_component
        if cls is not kind.section:  # `Adam()` names itself
            named = (name for name, section in kind.classes.items() if section is cls)
            options = {kind.chooser: next(named, None)} | options
        section = cls.of_component(options)
        if section is not cls:  # another component: arguments of this one mean nothing to it
            dropped = arguments(cls)
            options = {key: value for key, value in options.items() if key not in dropped}
        return type.__call__(section, **options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section(metaclass=_Choosing):
    """Options of which one names a component, whose arguments are options of the section too.

    `Optimizer(name="lion", b1=0.9)` is of a subclass of `Optimizer` that has lion's arguments:
    declared in the schema, or made by `from_signature` where the component is not of this package.
    """

    kind_of_component: ClassVar[Kind]

    def __init_subclass__(
        cls, *, kind: str = "", chooser: str = "name", components: Sequence[str] = ()
    ) -> None:
        if kind:
            cls.kind_of_component = KINDS[kind] = Kind(kind, chooser, cls)
        cls.kind_of_component.classes.update(dict.fromkeys(components, cls))

    @classmethod
    def of_component(cls, values: Mapping[str, Any], key: str = "") -> type["Section"]:
        """The class for the component that `values` name; raises ConfigError if there is none.

        Args:
          values: options of the section.
          key: the option that names it, for the error.
        """
        kind = cls.kind_of_component
        name = values.get(kind.chooser, _fields(cls)[kind.chooser][0].default)
        if not isinstance(name, str):  # none; other types are refused as values of the option
            return kind.section
        return kind.classes.get(name) or cls.from_signature(kind.section, name, key or kind.chooser)

    # A method, as `components` above this module replaces it; an annotated attribute would have its
    # text compiled for every class that is made at run time.
    @staticmethod
    def from_signature(base: "type[Section]", name: str, key: str) -> "type[Section]":
        """The section of a component that the schema does not declare."""
        raise NotImplementedError(f"{key}={name}: no {base.kind_of_component.name}")

    @property
    def component(self) -> str | None:
        """The name of the component."""
        return getattr(self, self.kind_of_component.chooser)


def arguments(section: type[Section]) -> list[str]:
    """The options of a section's class that are arguments of its component."""
    shared = _fields(section.kind_of_component.section)
    return [name for name in _fields(section) if name not in shared]


def build(schema: type[T], values: Mapping[str, Any]) -> T:
    """Returns the `schema` that nested `values` describe; unnamed options keep their defaults.

    Raises ConfigError for an unknown key, a wrong type, or a value outside its bounds.
    """
    return _build(schema, schema, values, "")


def override(
    schema: type, values: Mapping[str, Any], assignments: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns nested `values` with others at dotted keys, such as `optimizer.lr`.

    Texts are read as on a command line (`"3e-4"`), other values must have the option's type. Naming
    another component drops the arguments of the one before.

    Raises ConfigError for an unknown key or a value its type cannot hold.
    """
    result = plain(values)
    for key, text in sorted(assignments.items(), key=lambda item: not _chooses(schema, item[0])):
        node, cls, prefix, leaf = _place(schema, result, key)
        if leaf not in _fields(cls):
            _unknown(schema, result, cls, prefix, leaf, text)
        field, hint = _fields(cls)[leaf]
        if _is_section(hint):
            first = next(iter(_fields(hint)))
            raise ConfigError(f"{key}: is a section; set one of its options, such as {key}.{first}")
        value = _from_text(key, text, hint, field) if isinstance(text, str) else text
        value = _convert(key, value, hint)
        _check_bounds(key, value, field)
        if (
            _chooses(schema, key)
            and issubclass(cls, Section)
            and node.get(leaf, field.default) != value
        ):
            for name in {*node} - {*_fields(cls)}:
                del node[name]
        node[leaf] = value
    return result


def _chooses(schema: type, key: str) -> bool:
    """Whether a key names a component, or a list of them: it decides which other keys there are."""
    section, _, leaf = key.rpartition(".")
    hint = _fields(schema)[section][1] if section in _fields(schema) else schema
    if not _is_section(hint) or leaf not in _fields(hint):
        return False
    own = issubclass(hint, Section) and leaf == hint.kind_of_component.chooser
    return own or _listed(_fields(hint)[leaf][1]) is not None


def _place(schema: type, values: dict[str, Any], key: str) -> tuple[dict[str, Any], Any, str, str]:
    """Finds where an option stands: its node of `values`, that one's class, the prefix, its name.

    In a list of components, `logging.loggers.wandb.project` is an option of the one called wandb,
    which is added where it is missing.
    """
    *parts, leaf = key.split(".")
    node, cls, prefix = values, schema, ""
    for part in parts:
        if part not in _fields(cls):
            _unknown(schema, values, cls, prefix, ".".join([part, leaf]), None)
        hint = _fields(cls)[part][1]
        listed = _listed(hint)
        if listed is not None:
            return _member(node, part, listed, key, prefix)
        if not _is_section(hint):
            _unknown(schema, values, cls, prefix, f"{part}.{leaf}", None)
        prefix += f"{part}."
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise ConfigError(f"{part}={node!r}: is a section and needs named options")
        chosen = issubclass(hint, Section) and f"{prefix}{hint.kind_of_component.chooser}" == key
        cls = hint if chosen else _class(hint, node, prefix)
    return node, cls, prefix, leaf


def _member(
    node: dict[str, Any], part: str, listed: type[Section], key: str, prefix: str
) -> tuple[dict[str, Any], Any, str, str]:
    """Finds, or adds, the component of a list that a key such as `loggers.wandb.project` names."""
    name, _, leaf = key.removeprefix(f"{prefix}{part}.").partition(".")
    if not leaf:
        raise ConfigError(f"{key}: is a component; write {prefix}{part}={name}, or set an argument")
    chooser = listed.kind_of_component.chooser
    members = [to_dict(one) for one in _members(f"{prefix}{part}", node.get(part, ()), listed)]
    same = [one for one in members if one[chooser] == name]
    if len(same) > 1:
        raise ConfigError(f"{key}: {name} stands {len(same)} times; set it in a config file")
    if not same:
        same = [{chooser: name}]
        members += same
    node[part] = members
    return same[0], listed.of_component(same[0], f"{prefix}{part}"), f"{prefix}{part}.{name}.", leaf


def _members(key: str, value: Any, listed: type[Section]) -> tuple[Any, ...]:
    """Reads a list of components: each a name, or a section with a name."""
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, tuple | list):
        raise ConfigError(f"{key}={show(value)}: must be a list of names, or of sections with one")
    kind, found = listed.kind_of_component, []
    chooser = kind.chooser
    for one in value:
        if isinstance(one, kind.section):
            found.append(one)
            continue
        named = {chooser: one} if isinstance(one, str) else one
        if not _has_items(named) or not isinstance(named.get(chooser), str):
            raise ConfigError(f"{key}={show(one)}: must be a name, or a section with a name")
        cls = listed.of_component(named, key)
        found.append(_build(cls, cls, named, f"{key}.{named[chooser]}."))
    return tuple(found)


def each(config: Any) -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """Yields `(dotted key, field, type)` of every option of a config, as the schema orders them."""
    for field, hint in _fields(type(config)).values():
        if _is_section(hint):
            section = type(getattr(config, field.name))
            yield from ((f"{field.name}.{f.name}", f, h) for f, h in _fields(section).values())
        else:
            yield field.name, field, hint


def declared(schema: type) -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """Yields likewise every option of a schema, with the arguments of every component in it."""
    for field, hint in _fields(schema).values():
        if not _is_section(hint):
            yield field.name, field, hint
            continue
        fields = dict(_fields(hint))
        if issubclass(hint, Section):
            for section in hint.kind_of_component.classes.values():
                fields = _fields(section) | fields
        yield from ((f"{field.name}.{name}", f, h) for name, (f, h) in fields.items())


def get(config: Any, key: str) -> Any:
    """Returns the value at a dotted key; None for an argument of another component."""
    section, _, name = key.rpartition(".")
    return getattr(getattr(config, section) if section else config, name, None)


def to_dict(config: Any) -> dict[str, Any]:
    """Returns nested plain values that JSON holds and `build` reads back unchanged."""

    def simple(value: Any) -> Any:
        if isinstance(value, Duration):
            return str(value)
        if dataclasses.is_dataclass(value):
            return {f.name: simple(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return [simple(one) for one in value] if isinstance(value, tuple) else value

    return simple(config)


def differences(old: Any, new: Any) -> dict[str, tuple[Any, Any]]:
    """Returns `{key: (old, new)}` for options that differ and decide a run's result."""
    fixed = {key for key, field, _ in each(old) if not field.metadata["free"]}
    return {
        key: (get(old, key), get(new, key))
        for key, _, _ in each(new)
        if key in fixed and get(old, key) != get(new, key)
    }


def changed_in(section: Any) -> dict[str, Any]:
    """The options of one section that differ from their defaults, by name."""
    values = {name: (getattr(section, name), f) for name, (f, _) in _fields(type(section)).items()}
    return {name: value for name, (value, field) in values.items() if value != field.default}


def changed(config: Any, *, free: bool = True) -> dict[str, Any]:
    """The options that differ from their defaults, by key; without `free`, those that decide."""
    return {
        key: get(config, key)
        for key, field, _ in each(config)
        if (free or not field.metadata["free"]) and get(config, key) != field.default
    }


def fingerprint(config: Any) -> str:
    """Returns 16 hex digits of the options that differ from their defaults and decide a result.

    A new option at its default leaves the fingerprints of older runs.
    """
    fixed = {key: to_dict(value) for key, value in changed(config, free=False).items()}
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16]


def unread(config: Any, key: str, field: dataclasses.Field[Any]) -> str:
    """Says why an option is not read with the values that others have; empty if it is."""
    values = {other: get(config, other) for other in field.metadata["when"]}
    for other, wanted in field.metadata["when"].items():
        if values[other] not in (None, ()) if wanted is GIVEN else values[other] in wanted:
            return ""
    shown = " and ".join(f"{other}={show(value)}" for other, value in values.items())
    return f"{shown} do{'es' * (len(values) == 1)} not read it" if values else ""


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


def _class(hint: Any, values: Mapping[str, Any], prefix: str) -> Any:
    """The class of a section that has these values."""
    if not issubclass(hint, Section):
        return hint
    return hint.of_component(values, f"{prefix}{hint.kind_of_component.chooser}")


def _listed(hint: Any) -> type[Section] | None:
    """The section of each member, if a type is that of a list of components."""
    members = typing.get_args(hint)
    one = members[0] if members else None
    return one if isinstance(one, type) and issubclass(one, Section) else None


def _has_items(value: Any) -> bool:
    return isinstance(value, Mapping) or hasattr(value, "items")  # a ConfigDict is no Mapping


def plain(values: Any) -> Any:
    """Copies nested mappings (a ConfigDict among them) to dicts."""
    if isinstance(values, list | tuple):
        return type(values)(plain(one) for one in values)
    return {key: plain(one) for key, one in values.items()} if _has_items(values) else values


def _unknown(
    schema: type, values: Mapping[str, Any], cls: Any, prefix: str, name: str, value: Any
) -> typing.NoReturn:
    """Raises ConfigError for an option that does not exist, with the nearest that does."""
    key, siblings = f"{prefix}{name}", list(_fields(cls))
    if issubclass(cls, Section):
        kind, own = cls.kind_of_component, arguments(cls)
        section, _, member = prefix[:-1].partition(".")
        node = values.get(section, {})
        named = node.get(kind.chooser) or _fields(cls)[kind.chooser][0].default
        takers = [other for other, one in kind.classes.items() if name in arguments(one)]
        near = difflib.get_close_matches(name, own, n=1, cutoff=0.6)
        hint = ""
        if takers and not own:
            hint = f"; {', '.join(takers)} would"
        elif takers or (member and own and not near):
            hint = f"; it takes {', '.join(own)}"
        elif near:
            hint = f"; did you mean {prefix}{near[0]}?"
        if hint or member:
            given = key if value is None else f"{key}={show(value)}"
            chosen = member.rpartition(".")[2] or named
            raise ConfigError(f"{given}: {chosen} does not take it{hint}")
    known = [f"{prefix}{one}" for one in siblings]
    # A leaf typed without its section is the commonest mistake: look for it everywhere.
    everywhere = list(_keys(schema, values))
    elsewhere = [one for one in everywhere if one.rpartition(".")[2] == name.rpartition(".")[2]]
    near = difflib.get_close_matches(key, elsewhere or known or everywhere, n=1, cutoff=0.0)
    raise ConfigError(f"{key}: unknown key; did you mean {near[0]}?")


def _keys(schema: type, values: Mapping[str, Any]) -> Iterator[str]:
    """Yields the key of every option that there is with the components that `values` name."""
    for name, (_, hint) in _fields(schema).items():
        if not _is_section(hint):
            yield name
            continue
        given = values.get(name, {})
        if _has_items(given):
            hint = _class(hint, given, f"{name}.")
        yield from (f"{name}.{leaf}" for leaf in _fields(hint))


def _build(schema: type, cls: Any, values: Any, prefix: str, whole: Any = None) -> Any:
    whole = values if whole is None else whole
    if not _has_items(values):
        raise ConfigError(f"{prefix.rstrip('.')}={values!r}: is a section and needs named options")
    cls = _class(cls, values, prefix)
    fields = _fields(cls)
    result = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if name not in fields:
            _unknown(schema, whole, cls, prefix, name, None if _has_items(value) else value)
        field, hint = fields[name]
        if _is_section(hint):
            result[name] = _build(schema, hint, value, key + ".", whole)
        else:
            result[name] = _convert(key, value, hint)
            _check_bounds(key, result[name], field)
    for name, (field, _) in fields.items():
        if field.default is dataclasses.MISSING and name not in result:
            raise ConfigError(f"{prefix}{name}: has no default; set it")
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
        Any: "a number, text, true, false, none, or a list of these",
    }
    pair = "two whole numbers (or one for both)" if inner == tuple[int, int] else "two numbers"
    return names.get(inner, pair) + (", or none" if optional else "")


def _convert(key: str, value: Any, hint: Any) -> Any:
    """Returns a Python value as its declared type, accepting only lossless conversions."""
    if (listed := _listed(hint)) is not None:
        return _members(key, value, listed)
    if hint is Any:
        if isinstance(value, list | tuple):
            return tuple(_convert(key, one, Any) for one in value)
        if value is None or isinstance(value, int | float | str):
            return value
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
        if inner is Any:
            value = _literal(text)
        elif inner is Duration:
            value = Duration.parse(text)
        elif typing.get_origin(inner) is tuple:
            member = typing.get_args(inner)[0]
            words = text.strip("()[] ")
            if field.metadata["check"]:  # whose texts may themselves end in brackets
                words = text.strip().removeprefix("[")
                words = words.removesuffix("]") if words != text.strip() else words
            words = "" if words == "()" else words
            numbers = member in (int, float)
            words = words.replace("x", ",").split(",") if numbers else _split(words)
            parts = [
                w.strip() if _listed(hint) else scalar(member, w.strip())
                for w in words
                if w.strip()
            ]
            value = parts[0] if len(parts) == 1 and member is int else tuple(parts)
        else:
            value = scalar(inner, text)
    except (ValueError, KeyError):
        raise ConfigError(f"{key}={text}: must be {_expected(hint)}") from None
    return value


def _literal(text: str) -> Any:
    """Reads an argument whose type is not known: a number, true, false, none, a list, or text."""
    words = text.strip()
    if "," in words:
        return tuple(_literal(word) for word in words.strip("()[] ").split(",") if word.strip())
    plain_words = {"none": None, "true": True, "false": False}
    if words.lower() in plain_words:
        return plain_words[words.lower()]
    for number in (int, float):
        try:
            return number(words)
        except ValueError:
            pass
    return words


def _split(text: str) -> list[str]:
    """Splits at commas that stand outside parentheses and brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def show(value: Any) -> str:
    """Returns a value in the form the command line takes; components by name, and how they differ.

    A component of a list has the arguments behind it that are not the defaults.
    """
    if isinstance(value, Section):
        named = value.kind_of_component.chooser
        given = (f"{k}={show(v)}" for k, v in changed_in(value).items() if k != named)
        return " ".join([str(value.component), *given])
    if isinstance(value, tuple | list):
        return ",".join(show(v) for v in value) or "()"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _check_bounds(key: str, value: Any, field: dataclasses.Field[Any]) -> None:
    choices, bounds = field.metadata["choices"], field.metadata["bounds"]
    for one in value if isinstance(value, tuple) else (value,):
        if one is None or isinstance(one, Section):
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
