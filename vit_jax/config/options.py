"""Options: typed, bounded, documented fields of frozen dataclasses, built from values or text.

This is the mechanism behind `config`: every error is one line that names the key, the value and the
nearest valid choice. A `Section` may name a component (`optimizer.name=lion`); its class then has
the arguments of that component, so that no other can be written.
"""

import dataclasses
import difflib
import functools
import hashlib
import inspect
import json
import math
import operator
import os
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from vit_jax.config import components
from vit_jax.config.components import Kind, suggest
from vit_jax.config.durations import Duration
from vit_jax.config.other_names import OTHER_NAMES
from vit_jax.utils.errors import ConfigError

T = TypeVar("T")
Field = dataclasses.Field[Any]

MOST = 10**15  # upper bound of every count: sums and products stay within int64 and float64
# In an option's `when`: any value that asks for something (`is_nothing`); any value but none.
GIVEN, NOT_NONE = "given", "not none"
SCALARS = (bool, int, float, str)
BOUNDS = {
    "above": (operator.gt, "more than"),
    "at_least": (operator.ge, "at least"),
    "below": (operator.lt, "less than"),
    "at_most": (operator.le, "at most"),
}
EXPECTED: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Duration: "a number of steps, epochs or examples, such as '10 epochs'",
    tuple[int, ...]: "whole numbers, such as 3,4,6,3",
    tuple[float, ...]: "numbers, such as 0.3,0.6",
    tuple[str, ...]: "names with commas between them",
    tuple[int, int]: "two whole numbers (or one for both)",
    tuple[float, float]: "two numbers",
    Any: "a number, text, true, false, none, or a list of these",
}


class Text(str):
    """A value as typed on a command line, which the type of its option parses."""


def option(
    default: T,
    doc: str,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    choices: Sequence[object] = (),
    free: bool = False,
    check: Callable[[str, str], object] | None = None,
    kind: str | None = None,
    when: Mapping[str, Any] | None = None,
) -> T:
    """Declares a field: its default, meaning and bounds; `free` ones may change on resume.

    `check(text, key)` replaces the comparison with `choices`, for each text of a tuple; `kind` is
    that of the components it names. `when` has the values of other options (or GIVEN, or
    NOT_NONE), by their keys, with any of which this one is read.
    """
    bounds = {"above": above, "at_least": at_least, "below": below, "at_most": at_most}
    return dataclasses.field(  # pyright: ignore[reportReturnType]
        default=default,
        metadata={
            "doc": doc,
            "bounds": {name: bound for name, bound in bounds.items() if bound is not None},
            "choices": tuple(choices),
            "free": free,
            "check": check,
            "kind": kind,
            "when": when or {},
        },
    )


class _ByComponent(type):
    """Creates a section of the class that has the arguments of the component it names."""

    def __call__(cls: Any, **options: Any) -> Any:
        kind = cls.kind_of_component
        if cls is not kind.section:  # `Adam()` names itself
            named = (name for name, section in kind.classes.items() if section is cls)
            options = {kind.chooser: next(named, None)} | options
        name = options.get(kind.chooser, fields(kind.section)[kind.chooser][0].default)
        section = section_class(kind, name, kind.chooser)
        if section is not cls:  # `dataclasses.replace(adam, name="sgd")`: b1 means nothing to sgd
            dropped = arguments(cls)
            options = {key: value for key, value in options.items() if key not in dropped}
        # Not `section(...)`, which would come back here.
        return type.__call__(section, **options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section(metaclass=_ByComponent):
    """A section that names a component in one option and has its arguments in the others.

    `Optimizer(name="lion", b1=0.9)` is of a subclass of `Optimizer` that has lion's arguments:
    declared in the schema, or made of the signature where the component is not of this package.
    """

    kind_of_component: ClassVar[Kind]

    def __init_subclass__(
        cls,
        *,
        kind: str = "",
        chooser: str = "name",
        given: int = 0,
        given_by_name: Sequence[str] = (),
        components: Sequence[str] = (),
    ) -> None:
        """Declares a kind of component, as `Kind` describes, or the arguments of `components`."""
        if kind:
            cls.kind_of_component = Kind(kind, chooser, cls, given, tuple(given_by_name))
        cls.kind_of_component.classes.update(dict.fromkeys(components, cls))

    @property
    def component(self) -> str | None:
        """The name of the component."""
        return getattr(self, self.kind_of_component.chooser)


@functools.cache
def fields(cls: Any) -> dict[str, tuple[Field, Any]]:
    """Field and type of each option of a class."""
    hints = typing.get_type_hints(cls)
    return {field.name: (field, hints[field.name]) for field in dataclasses.fields(cls)}


def arguments(section: type[Section]) -> list[str]:
    """The options of a section's class that are arguments of its component."""
    shared = fields(section.kind_of_component.section)
    return [name for name in fields(section) if name not in shared]


def section_class(kind: Kind, name: str | None, key: str) -> type[Section]:
    """The class for the component called `name`; raises ConfigError, with its `key`, if unknown."""
    if name is None or name in kind.classes:
        return kind.classes[name] if name else kind.section
    component, shared = components.find(kind.name, name, key), fields(kind.section)
    parameters = _parameters(kind, component)
    # Weight decay is an argument of many of optax's; the one of the section is decoupled.
    if name not in components.OPTAX_OPTIMIZERS and (same := parameters.keys() & shared.keys()):
        raise ConfigError(
            f"{key}={name}: its argument {min(same)} is an option of every {kind.name}; rename it"
        )
    return _from_signature(kind.section, name, component)


def _parameters(kind: Kind, component: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a component that a config can set, by name."""
    try:
        signature = inspect.signature(component, eval_str=True)
    except (NameError, TypeError):  # annotations that only a type checker can resolve
        # The annotations then stay texts, and their options take any value.
        signature = inspect.signature(component)
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
        one.name: one
        for one in [*signature.parameters.values()][kind.given :]
        if one.name not in kind.given_by_name and one.kind not in several and _is_plain(one.default)
    }


def _is_plain(default: object) -> bool:
    """Whether a default can be written in a config, unlike a function or an array."""
    members = default if isinstance(default, tuple | list) else (default,)
    plain = (*SCALARS, types.NoneType)
    return default is inspect.Parameter.empty or all(isinstance(one, plain) for one in members)


@functools.cache
def _from_signature(base: type[Section], name: str, component: Callable[..., Any]) -> type[Section]:
    # Cached: two configs with the same component need the same class to be equal.
    made: list[Any] = []
    for argument, parameter in _parameters(base.kind_of_component, component).items():
        default = parameter.default
        if default is inspect.Parameter.empty:
            default = dataclasses.MISSING
        elif isinstance(default, list):
            default = tuple(default)
        if argument not in fields(base):
            hint, choices = _argument_type(parameter.annotation, parameter.default)
            made.append((argument, hint, option(default, f"Argument of {name}.", choices=choices)))

    def reduce(section: Section) -> Any:
        # The class has no name to import; unpickling the component imports its plug-in.
        return _restored, (component, base, dict(vars(section)))

    return dataclasses.make_dataclass(
        f"{base.__name__}_{name}",
        made,
        bases=(base,),
        namespace={"__reduce__": reduce},
        frozen=True,
        kw_only=True,
    )


def _restored(
    component: Callable[..., Any], base: type[Section], options: Mapping[str, object]
) -> Section:
    return base(**options)


def _argument_type(annotation: Any, default: object) -> tuple[Any, tuple[Any, ...]]:
    """The option type of an argument, and its choices; Any where options have no such type.

    Lists and sequences become tuples; a default of None makes an argument optional.
    """
    inner, optional = _optional(annotation)
    origin, members = typing.get_origin(inner), typing.get_args(inner)
    choices: tuple[Any, ...] = ()
    # Choices of several types have no one type to parse a text as.
    if origin is typing.Literal and len({type(one) for one in members}) == 1:
        inner, choices = type(members[0]), members
    elif origin in (list, Sequence) and members[0] in SCALARS:
        inner = tuple[members[0], ...]
    elif inner in (list, tuple) or (isinstance(default, list | tuple) and not _is_known(inner)):
        inner = tuple[Any, ...]
    if not _is_known(inner):
        return Any, ()
    return (inner | None if optional or default is None else inner), choices


def _is_known(hint: Any) -> bool:
    """Whether options have values of a type, so that others are errors."""
    pairs = (tuple[int, int], tuple[float, float])
    return hint in (*SCALARS, *pairs, *(tuple[one, ...] for one in (*SCALARS, Any)))


@functools.cache
def _optional(hint: Any) -> tuple[Any, bool]:
    """Splits `X | None` into `(X, True)`."""
    inner = [one for one in typing.get_args(hint) if one is not types.NoneType]
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    return (inner[0], True) if is_union and len(inner) == 1 else (hint, False)


def _is_section(hint: Any) -> bool:
    return dataclasses.is_dataclass(hint) and hint is not Duration


def _label(section: type) -> str:
    """The option that names a section: its component, or the member of a list."""
    if issubclass(section, Section):
        return section.kind_of_component.chooser
    return next(iter(fields(section)))


def _listed(hint: Any) -> Any:
    """The section class of a list type's members; None for other types."""
    members = typing.get_args(hint)
    return members[0] if members and _is_section(members[0]) else None


def _has_items(value: object) -> bool:
    return isinstance(value, Mapping) or hasattr(value, "items")  # a ConfigDict is no Mapping


def build(schema: type[T], values: Mapping[str, Any]) -> T:
    """The `schema` that nested `values` describe; unnamed options keep their defaults.

    Raises ConfigError for an unknown key, a wrong type, or a value outside its bounds.
    """
    return _build(schema, schema, values, "")


def override(
    schema: type, values: Mapping[str, Any], assignments: Mapping[str, Any]
) -> dict[str, Any]:
    """Nested `values` with others at dotted keys, such as `optimizer.lr`; `build` checks them.

    Texts are parsed as on a command line (`"3e-4"`), other values must have the option's type.
    Naming another component drops the arguments of the one before. In a list of sections,
    `logging.loggers.wandb.project` is an option of the one called wandb, added where it is missing.

    Raises ConfigError for a member of a list that is there twice, or a section as a whole.
    """
    # A copy: the caller's values stay as they are.
    result = _plain(values)
    choosers = {
        f"{name}.{hint.kind_of_component.chooser}": hint
        for name, (_, hint) in fields(schema).items()
        if _is_section(hint) and issubclass(hint, Section)
    }
    # Names of components, then whole lists: they decide which other keys there are.
    order = sorted(assignments, key=lambda key: (key not in choosers, key.count(".")))
    for key in order:
        value = assignments[key]
        node, cls = result, schema
        *path, leaf = key.split(".")
        if key in fields(schema) and _is_section(fields(schema)[key][1]) and _has_items(value):
            # Replaced whole, a section would lose the options that are not in `value`.
            inner = next(iter(value), next(iter(fields(fields(schema)[key][1]))))
            raise ConfigError(f"{key}: is a section; set its options one by one: {key}.{inner}")
        for part in path:
            hint = fields(cls)[part][1] if cls and part in fields(cls) else None
            if listed := _listed(hint):
                node[part] = _by_name(f"{key.partition(f'.{part}.')[0]}.{part}", node, part, listed)
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise ConfigError(f"{key}: {part}={show(node)} has no options")
            cls = hint if _is_section(hint) else None
        if base := choosers.get(key):
            before = node.get(leaf, fields(base)[leaf][0].default)
            # By their texts, as one may be typed and the other a value.
            if show(before) != show(value):
                for name in node.keys() - fields(base).keys():
                    del node[name]
        # Marked: texts of assignments are parsed, those of a config file have their option's type.
        node[leaf] = Text(value) if isinstance(value, str) else value
    for section, leaf, listed in _lists(schema):
        node = result.get(section)
        if isinstance(node, dict) and leaf in node:
            # A list, as a ConfigDict would sort a mapping's names.
            node[leaf] = _members(f"{section}.{leaf}", node[leaf], listed)
    return result


@functools.cache
def _lists(schema: type) -> tuple[tuple[str, str, Any], ...]:
    """The lists of sections: the section, the option, and the class of their members."""
    lists = []
    for key, _, hint in declared(schema):
        section, _, leaf = key.rpartition(".")
        if listed := _listed(hint):
            lists.append((section, leaf, listed))
    return tuple(lists)


def _plain(values: Any) -> Any:
    if isinstance(values, list | tuple):
        return type(values)(_plain(one) for one in values)
    return {key: _plain(one) for key, one in values.items()} if _has_items(values) else values


def _by_name(key: str, node: Mapping[str, Any], part: str, listed: Any) -> dict[str, Any]:
    """The options of each member of a list of sections, by its name."""
    label = _label(listed)
    found: dict[str, Any] = {}
    for one in _members(key, node.get(part, ()), listed):
        if one[label] in found:
            raise ConfigError(f"{key}: {one[label]} is there twice; set it in a config file")
        found[one.pop(label)] = one
    return found


def _members(key: str, value: Any, listed: Any) -> list[dict[str, Any]]:
    """The members of a list: each a name, a section with a name, or in a mapping by names."""
    label = _label(listed)
    if isinstance(value, str):
        # A text of a command line may list several names, one of a config file is one.
        value = _words(value) if isinstance(value, Text) else (value,)
    elif _has_items(value):
        for name, options in value.items():
            if not _has_items(options):
                raise ConfigError(
                    f"{key}.{name}={show(options)}: write {key}={name}, or set one of its options"
                )
        value = [{label: name, **options} for name, options in value.items()]
    if not isinstance(value, tuple | list):
        raise ConfigError(f"{key}={show(value)}: must be a list of names, or of sections with one")
    found = []
    for one in value:
        member = to_dict(one) if isinstance(one, listed) else one
        member = {label: member} if isinstance(member, str) else member
        if not _has_items(member) or not isinstance(member.get(label), str):
            raise ConfigError(f"{key}={show(one)}: must be a name, or a section with a {label}")
        found.append(dict(member))
    return found


def _build(schema: type, cls: Any, values: Any, prefix: str, named_by: str = "") -> Any:
    """The section `cls` of `values`.

    Args:
      schema: the whole, in which a misspelled key may have its nearest.
      cls: its class, without arguments of a component.
      values: its options.
      prefix: of its keys, such as `optimizer.`.
      named_by: the option that names its component, if it is not one of its own.
    """
    if not _has_items(values):
        raise ConfigError(
            f"{prefix[:-1]}={show(values)}: is a section; set one of its options, such as "
            f"{prefix}{next(iter(fields(cls)))}"
        )
    name: Any = None
    if issubclass(cls, Section):
        kind = cls.kind_of_component
        key, chooser = f"{prefix}{kind.chooser}", fields(cls)[kind.chooser]
        name = chooser[0].default
        # First, as the component decides which other options there are.
        if kind.chooser in values:
            name = _parse(schema, key, values[kind.chooser], *chooser)
        cls = section_class(kind, name, named_by or key)
    result = {}
    for leaf, value in values.items():
        if leaf not in fields(cls):
            _refuse(schema, cls, name, prefix, str(leaf), value, in_list=bool(named_by))
        result[leaf] = _parse(schema, f"{prefix}{leaf}", value, *fields(cls)[leaf])
    for leaf, (field, _) in fields(cls).items():
        if field.default is dataclasses.MISSING and leaf not in result:
            raise ConfigError(f"{prefix}{leaf}: has no default; set it")
    return cls(**result)


def _refuse(
    schema: type, cls: Any, component: str | None, prefix: str, name: str, value: Any, in_list: bool
) -> typing.NoReturn:
    """Raises ConfigError for an option that does not exist, with the nearest that does."""
    if component is not None:
        own = arguments(cls)
        near = difflib.get_close_matches(name, own, n=1, cutoff=0.6)
        classes = cls.kind_of_component.classes.items()
        takers = [other for other, section in classes if name in arguments(section)]
        hint, chooser = "", f"{prefix}{cls.kind_of_component.chooser}"
        # A misspelled argument of its own, unless the name is right for another option.
        if near and not (takers if in_list else namesake(schema, f"{prefix}{name}", value)):
            hint = f"; did you mean {prefix}{near[0]}?"
        elif own and (takers or in_list):
            hint = f"; it takes {', '.join(own)}"
            if takers and not in_list:
                hint += f"; {chooser}={takers[0]} takes {name}"
        elif takers and in_list:
            hint = f"; {', '.join(takers)} would"
        elif takers:  # the component may be the default, which nobody named
            hint = f"; set {chooser}={takers[0]}"
            hint += f", or {', '.join(takers[1:])}" if takers[1:] else ""
        if hint or in_list:
            given = "" if _has_items(value) else f"={show(value)}"
            raise ConfigError(f"{prefix}{name}{given}: {component} does not take it{hint}")
    # Of a section that does not exist, the message names one option with its value.
    while _has_items(value) and value:
        leaf, value = next(iter(value.items()))
        name += f".{leaf}"
    key = f"{prefix}{name}"
    if not in_list and (found := namesake(schema, key, value)):
        near, meant = found
        text = near if meant == value else f"{near}='{meant}'"
    else:
        cutoff = 0.0 if in_list else 0.6
        close = difflib.get_close_matches(name, list(fields(cls)), n=1, cutoff=cutoff)
        text = f"{prefix}{close[0]}" if close else ""
    hint = f"did you mean {text}?" if text else "`vit_jax show NAME --all` lists the options"
    raise ConfigError(f"{key}: unknown key; {hint}")


def namesake(schema: type, key: str, value: Any) -> tuple[str, Any] | None:
    """The option of a key's last part, in its section or else in others, and the value meant.

    A leaf typed without its section is the commonest mistake, then its name in another project;
    `epochs=3` means `('train.duration', '3 epochs')`. None if no option has this name.
    """
    section, _, leaf = key.rpartition(".")
    found = {
        one: hint
        for one, _, hint in declared(schema)
        if leaf in [one.rpartition(".")[2], *OTHER_NAMES.get(one, "").split()]
    }
    own = [one for one in found if one.rpartition(".")[0] == section]
    if not found:
        return None
    # Without a section the first that is declared; objectives have names of other sections, too.
    one = min(own or found, key=lambda one: one.startswith("objective."))
    if section:
        (one,) = difflib.get_close_matches(key, own or found, n=1, cutoff=0.0)
    unit = next((unit for unit in ("epochs", "examples") if unit in leaf), None)
    if unit and found[one] is Duration and str(value).isdigit():
        return one, f"{value} {unit}"  # a number alone counts steps
    return one, value


def _parse(schema: type, key: str, value: Any, field: Field, hint: Any) -> Any:
    """A value or text as its declared type, within its bounds; conversions lose nothing."""
    if _is_section(hint):
        return _build(schema, hint, value, f"{key}.")
    if listed := _listed(hint):
        label = _label(listed)
        members = _members(key, value, listed)
        return tuple(_build(schema, listed, m, f"{key}.{m[label]}.", key) for m in members)
    try:
        result = _converted(value, hint)
    # KeyError: a text that is neither true nor false. OverflowError: an integer beyond any float.
    except (ValueError, KeyError, OverflowError):
        inner, optional = _optional(hint)
        expected = EXPECTED.get(inner, EXPECTED[Any]) + ", or none" * optional
        raise ConfigError(f"{key}={show(value)}: must be {expected}") from None
    if result == "" != field.default:  # as of a variable of the shell that is not set
        raise ConfigError(f"{key}=: is empty; give it a value, or leave it out")
    if isinstance(result, str) and "\0" in result:  # no path and no name has one
        raise ConfigError(f"{key}={result!r}: has a null character")
    _check_bounds(key, result, field)
    return result


def native(value: Any) -> Any:
    """A path as its text, a scalar or array of numpy as a number or list; others as they are."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    # NumPy's float32 is no float, and its bool no bool.
    return value.tolist() if hasattr(value, "tolist") else value


def _converted(value: Any, hint: Any) -> Any:
    """Raises ValueError, KeyError or OverflowError for a value that its type cannot hold."""
    value = native(value)
    inner, optional = _optional(hint)
    is_text = isinstance(value, Text)
    if optional and (value is None or (is_text and value.lower() == "none")):
        return None
    if inner is Any:
        return _literal(value)
    if inner is Duration:
        return Duration.parse(value)
    if typing.get_origin(inner) is tuple:
        member, last = typing.get_args(inner)
        # What a value alone, for a list of one, may be.
        alone = {Any: SCALARS, float: (int, float)}.get(member, member)
        if is_text:
            # Sizes may be typed as 224x224.
            text = re.sub(r"(?<=\d)\s*x\s*(?=\d)", ",", value) if member in (int, float) else value
            value = [Text(word) for word in _words(text)]
        elif isinstance(value, alone):
            value = [value]
        elif member is str and isinstance(value, Mapping):  # weights by class, from Python
            value = [f"{name}:{number}" for name, number in value.items()]
        if not isinstance(value, list | tuple):
            raise ValueError
        if last is not ...:
            # One whole number is both sides of a square; one fraction is no range.
            value = [*value, *value] if len(value) == 1 and member is int else value
            if len(value) != 2:
                raise ValueError
        return tuple(_converted(one, member) for one in value)
    if is_text:
        # By words: bool("false") is True.
        words = {"true": True, "1": True, "false": False, "0": False}
        return words[value.lower()] if inner is bool else inner(value)
    # True is an int in Python; here neither stands for the other.
    accepted = (int, float) if inner is float else inner
    if isinstance(value, accepted) and isinstance(value, bool) == (inner is bool):
        return inner(value)
    raise ValueError


def _words(text: str) -> list[str]:
    """The parts of a text between commas, without brackets around all of it."""
    text = text.strip()
    text = text[1:-1] if text[:1] + text[-1:] in ("()", "[]") else text
    return [word.strip() for word in text.split(",") if word.strip()]


def _literal(value: object) -> object:
    """A value whose type is not known: a number, true, false, none, a list, or text."""
    if isinstance(value, list | tuple):
        return tuple(map(_literal, value))
    if not isinstance(value, Text):
        if value is None or isinstance(value, SCALARS):
            return value
        raise ValueError
    if "," in value:
        return tuple(_literal(Text(word)) for word in _words(value))
    words = {"none": None, "true": True, "false": False}
    if value.lower() in words:
        return words[value.lower()]
    # Whole numbers first: float would read 3, too.
    for number in (int, float):
        try:
            return number(value)
        except ValueError:
            pass
    return str(value)


def _check_bounds(key: str, value: object, field: Field) -> None:
    choices, check = field.metadata["choices"], field.metadata["check"]
    for one in value if isinstance(value, tuple) else (value,):
        if isinstance(one, str) and check:
            check(one, key)
        elif choices and one is not None and one not in choices:
            raise ConfigError(f"{key}={one}: no such choice{suggest(str(one), choices)}")
    amount = value.amount if isinstance(value, Duration) else value
    for number in amount if isinstance(amount, tuple) else (amount,):
        if not isinstance(number, int | float):
            continue
        # A text may be nan or inf, which float reads.
        if isinstance(number, float) and not math.isfinite(number):
            raise ConfigError(f"{key}={show(value)}: must be finite")
        counts = isinstance(number, int) or isinstance(value, Duration)
        if counts and abs(number) > MOST:
            raise ConfigError(f"{key}={value}: must be at most {MOST:.0e}, whatever it counts")
        for name, bound in field.metadata["bounds"].items():
            holds, words = BOUNDS[name]
            if not holds(number, bound):
                raise ConfigError(f"{key}={show(value)}: must be {words} {show(bound)}")


def each(config: object) -> Iterator[tuple[str, Field, Any]]:
    """Yields `(dotted key, field, type)` of every option of a config, as the schema orders them."""
    for name, (field, hint) in fields(type(config)).items():
        if _is_section(hint):
            section = type(getattr(config, name))
            yield from ((f"{name}.{leaf}", f, h) for leaf, (f, h) in fields(section).items())
        else:
            yield name, field, hint


def declared(schema: type) -> Iterator[tuple[str, Field, Any]]:
    """Yields likewise every option of a schema, with the arguments of every component in it."""
    for name, (field, hint) in fields(schema).items():
        if not _is_section(hint):
            yield name, field, hint
            continue
        found = dict(fields(hint))
        if issubclass(hint, Section):
            for section in hint.kind_of_component.classes.values():
                found = fields(section) | found
        yield from ((f"{name}.{leaf}", f, h) for leaf, (f, h) in found.items())


def get(config: object, key: str) -> Any:
    """The value at a dotted key; None for an argument of another component."""
    section, _, name = key.rpartition(".")
    return getattr(getattr(config, section) if section else config, name, None)


def to_dict(config: Any) -> Any:
    """Nested plain values that JSON holds and `build` reads back unchanged."""
    if isinstance(config, Duration):
        return str(config)
    if dataclasses.is_dataclass(config):
        return {f.name: to_dict(getattr(config, f.name)) for f in dataclasses.fields(config)}
    return [to_dict(one) for one in config] if isinstance(config, tuple) else config


def differences(old: object, new: object) -> dict[str, tuple[object, object]]:
    """`{key: (old, new)}` of the options that differ and decide a run's result."""
    fixed = {key for key, field, _ in each(old) if not field.metadata["free"]}
    return {
        key: (get(old, key), get(new, key))
        for key, _, _ in each(new)
        if key in fixed and get(old, key) != get(new, key)
    }


def listed(differences: Mapping[str, tuple[object, object]]) -> str:
    """Options that differ, as `key: old -> new` with commas between them."""
    pairs = differences.items()
    return ", ".join(f"{key}: {show(old)} -> {show(new)}" for key, (old, new) in pairs)


def changed(config: object, *, free: bool = True) -> dict[str, Any]:
    """The options that differ from their defaults, by key; without `free`, those that decide."""
    return {
        key: get(config, key)
        for key, field, _ in each(config)
        if (free or not field.metadata["free"]) and get(config, key) != field.default
    }


def fingerprint(config: object) -> str:
    """16 hex digits of the options that differ from their defaults and decide a run's result.

    A new option at its default leaves the fingerprints of older runs.
    """
    fixed = {key: to_dict(value) for key, value in changed(config, free=False).items()}
    # Sorted, so that an option may move within the schema.
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16]


def is_nothing(value: object) -> bool:
    """Whether an option's value asks for nothing: none, 0, 0 steps, an empty list."""
    # False is 0 in Python, but is a choice: it turns something off that others would turn on.
    return value is not False and getattr(value, "amount", value) in (None, 0, ())


def unread(config: object, key: str, fields: Mapping[str, Field]) -> str:
    """Why an option is not read with the values that others have; empty if it is.

    `fields` are those of the config, by key.
    """
    values, why = {other: get(config, other) for other in fields[key].metadata["when"]}, ""
    # One reader is enough, if it is read itself.
    for other, wanted in fields[key].metadata["when"].items():
        value = values[other]
        if wanted is GIVEN:
            read = not is_nothing(value)
        else:
            read = value is not None if wanted is NOT_NONE else value in wanted
        if read and not (why := unread(config, other, fields)):
            return ""
    if why:
        return why
    shown = " and ".join(f"{other}={show(value)}" for other, value in values.items())
    return f"{shown} do{'es' * (len(values) == 1)} not read it" if values else ""


def show(value: object) -> str:
    """A value as the command line takes it; a section as its name and non-default arguments."""
    if isinstance(value, Duration):
        return str(value)
    if dataclasses.is_dataclass(value):
        label, given = _label(type(value)), vars(value)
        words = [
            f"{name}={show(given[name])}"
            for name, (field, _) in fields(type(value)).items()
            if name != label and given[name] != field.default
        ]
        return " ".join([show(given[label]), *words])
    if isinstance(value, tuple | list):
        return ",".join(show(v) for v in value) or "()"
    # Six digits, for people: `to_dict` keeps all.
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
