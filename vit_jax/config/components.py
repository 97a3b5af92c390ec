"""Components that a config names: the built-in ones, and those that a plug-in registers.

A component is a class or function under a kind and a name. Its arguments are options of the section
that names it: those that the schema declares for a built-in one (`config.Adam`), else the arguments
of its signature. A plug-in is a Python module that calls `register` when it is imported; only
modules that the user names (`--plugins=my_project`) are ever imported. A run records those that its
components come from, so that a message can name them.
"""

import ast
import dataclasses
import functools
import hashlib
import importlib
import inspect
import pathlib
import re
import sys
import traceback
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from vit_jax.config import options
from vit_jax.config.options import Section, arguments, option, suggest
from vit_jax.utils.errors import NO_ROOM, ConfigError, UserError

# What the framework passes to a component of each kind: so many by position, and these by name.
PASSED: dict[str, tuple[int, tuple[str, ...]]] = {
    "model": (0, ()),
    "source": (2, ("train",)),  # data, split
    "transform": (0, ()),
    "batch_augmentation": (0, ()),
    "loss": (0, ()),
    "optimizer": (0, ("learning_rate",)),
    "schedule": (0, ("lr", "steps", "warmup")),
    "evaluator": (1, ()),  # run
    "logger": (1, ()),  # directory
}
KINDS = tuple(PASSED)

# Optimizers of optax and optax.contrib that a config may name. Others need more than gradients, or
# choose the learning rate themselves.
OPTAX_OPTIMIZERS = (
    "adabelief",
    "adadelta",
    "adafactor",
    "adagrad",
    "adamax",
    "adan",
    "ademamix",
    "amsgrad",
    "fromage",
    "lamb",
    "lars",
    "lion",
    "nadam",
    "novograd",
    "radam",
    "rmsprop",
    "sign_sgd",
    "signum",
    "sm3",
    "yogi",
)
# Direction of descent in optax, where it is not called scale_by_NAME.
_SCALES = {
    "adabelief": "scale_by_belief",
    "adagrad": "scale_by_rss",
    "rmsprop": "scale_by_rms",
}

C = TypeVar("C", bound=Callable[..., Any])
_TABLES: dict[str, dict[str, Callable[..., Any]]] = {kind: {} for kind in KINDS}
_MODULES: dict[tuple[str, str], str] = {}  # what to import for a component of a plug-in
_PLUGINS: list[str] = []  # modules that `load_plugins` has imported
_importing: list[str] = []  # those that it is importing


class UnknownComponent(ConfigError):
    """A component that is neither built in nor registered."""


def register(kind: str, name: str) -> Callable[[C], C]:
    """Returns a decorator that makes a class or function a component.

    Raises ValueError for an unknown kind, and for a name that another component has.

    Examples:
        >>> import vit_jax
        >>> @vit_jax.register("schedule", "example_constant")
        ... def constant(*, lr, steps, warmup):
        ...     return lambda step: lr
        >>> cfg = vit_jax.get_config("digits", {"schedule.name": "example_constant"})
        >>> cfg.schedule.name
        'example_constant'
    """
    if kind not in _TABLES:
        raise ValueError(f"{kind}: no such kind of component{suggest(kind, KINDS)}")
    if not re.fullmatch(r"\w+", name):
        raise ValueError(f"{name!r}: a component's name has only letters, digits and _")

    def add(component: C) -> C:
        if is_built_in(kind, name) and not _is_ours(component):
            raise ValueError(f"{kind} {name}: vit_jax has one; register yours by another name")
        other = _TABLES[kind].get(name)
        if other is not None and (other.__module__, other.__qualname__) != (
            component.__module__,
            component.__qualname__,
        ):
            raise ValueError(
                f"{kind} {name}: {component.__module__} and {other.__module__} both register it"
            )
        _TABLES[kind][name] = component
        _MODULES[kind, name] = _importing[-1] if _importing else component.__module__
        return component

    return add


def names(kind: str) -> tuple[str, ...]:
    """Returns the names of the registered components of a kind."""
    return tuple(_TABLES[kind])


def built_in(kind: str) -> tuple[str, ...]:
    """The names of the components of a kind that this package has; they need no plug-in."""
    return (*options.KINDS[kind].classes, *(OPTAX_OPTIMIZERS if kind == "optimizer" else ()))


def is_built_in(kind: str, name: str) -> bool:
    """Whether this package has a component of that name."""
    return name in built_in(kind)


def find(kind: str, name: str, key: str) -> Callable[..., Any]:
    """Returns a component; raises ConfigError, with the option `key` that names it, if unknown."""
    if name in _TABLES[kind]:
        return _TABLES[kind][name]
    if kind == "optimizer" and name in OPTAX_OPTIMIZERS:
        import optax.contrib  # imports jax

        return getattr(optax, _in_optax(name), None) or getattr(optax.contrib, name)
    known = dict.fromkeys((*built_in(kind), *_TABLES[kind]))
    nearest = suggest(name, list(known)) if known else ""
    hint = "" if "did you mean" in nearest else "; --plugins=MODULE adds those of a plug-in"
    raise UnknownComponent(f"{key}={name}: no such {kind.replace('_', ' ')}{nearest}{hint}")


def descends(name: str) -> bool:
    """Whether an optimizer of optax multiplies by minus a learning rate itself."""
    return _in_optax(name) == name


def _in_optax(name: str) -> str:
    import optax

    scale = _SCALES.get(name, f"scale_by_{name}")
    return scale if hasattr(optax, scale) else name


def modules(kind: str, name: str | None) -> set[str]:
    """Returns the module to import for a component: none for built-in ones."""
    module = _MODULES.get((kind, name or ""))
    return {module} if module and module.partition(".")[0] != "vit_jax" else set()


def _section(base: type[Section], name: str, key: str) -> type[Section]:
    """The class of a section with the arguments of a component; raises ConfigError if unknown."""
    component = find(base.kind_of_component.name, name, key)
    for argument in _arguments(base, component):
        shared = argument in (field.name for field in dataclasses.fields(base))
        if shared and name not in OPTAX_OPTIMIZERS:
            raise ConfigError(
                f"{key}={name}: its argument {argument} is an option of every "
                f"{base.kind_of_component.name}; rename it"
            )
    return _from_signature(base, name, component)


Section.from_signature = staticmethod(_section)


def _arguments(base: type[Section], component: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a component that a config can set, by name."""
    positional, passed = PASSED[base.kind_of_component.name]
    try:
        signature = inspect.signature(component, eval_str=True)
    except (NameError, TypeError):  # annotations that only a type checker can resolve
        signature = inspect.signature(component)
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
        one.name: one
        for one in [*signature.parameters.values()][positional:]
        if one.name not in passed and one.kind not in several and _is_simple(one.default)
    }


@functools.cache
def _from_signature(base: type[Section], name: str, component: Callable[..., Any]) -> type[Section]:
    fields, shared = [], {field.name for field in dataclasses.fields(base)}
    for argument, parameter in _arguments(base, component).items():
        if argument in shared:
            continue  # optax's own weight decay: that of the section is decoupled
        default = parameter.default
        if default is inspect.Parameter.empty:
            default = dataclasses.MISSING
        elif isinstance(default, list):
            default = tuple(default)
        declared = option(default, f"Argument of {name}.")
        fields.append((argument, _hint(parameter.annotation), declared))
    made = dataclasses.make_dataclass(
        f"{base.__name__}_{name}",
        fields,
        bases=(base,),
        namespace={"__reduce__": lambda section: _reduced(section, component)},
        frozen=True,
        kw_only=True,
    )
    return made


def _reduced(section: Section, component: Callable[..., Any]) -> Any:
    """Pickles a section whose class has no name to import: with the component, which has one."""
    options = {f.name: getattr(section, f.name) for f in dataclasses.fields(section)}  # pyright: ignore[reportArgumentType]
    return _restored, (component, section.kind_of_component.section, options)


def _restored(component: Callable[..., Any], base: type[Section], options: Any) -> Section:
    return base(**options)  # unpickling `component` has imported its plug-in


def _is_simple(value: Any) -> bool:
    """Whether a config can write a default; a function or an array it cannot."""
    members = value if isinstance(value, tuple | list) else (value,)
    simple = (None, inspect.Parameter.empty)
    return all(
        any(one is known for known in simple) or isinstance(one, bool | int | float | str)
        for one in members
    )


def _hint(annotation: Any) -> Any:
    """The type of an argument, where options have such; else any plain value."""
    scalars = (bool, int, float, str)
    members = typing.get_args(annotation)
    if annotation in scalars:
        return annotation
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        inner = [one for one in members if one is not type(None)]
        return annotation if len(inner) == 1 and inner[0] in scalars else Any
    if typing.get_origin(annotation) is tuple and len(members) == 2 and members[1] is ...:
        return annotation if members[0] in scalars else Any
    return Any


def _is_ours(component: Callable[..., Any]) -> bool:
    """Returns whether a component is defined in this package; in a REPL its module may be None."""
    return (component.__module__ or "").partition(".")[0] == "vit_jax"


def make(section: Section, key: str, /, *given: Any, **named: Any) -> Any:
    """Returns what the component of a section makes of its arguments and of what it is given.

    Raises ConfigError, with the option `key` that names it, where it fails.
    """
    name, kind = str(section.component), section.kind_of_component.name
    own = {argument: getattr(section, argument) for argument in arguments(type(section))}
    try:
        return find(kind, name, key)(*given, **named, **own)
    except (UserError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise
        raise ConfigError(f"{key}={name}: {_described(error)}") from error


def load_plugins(modules: Iterable[str]) -> None:
    """Imports the modules that the user names; raises ConfigError where one cannot be imported."""
    for module in modules:
        _importing.append(module)
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:
            missing = isinstance(error, ModuleNotFoundError) and error.name in _parents(module)
            hint = f"; {_where(module)}" if missing else ""
            raise ConfigError(f"--plugins={module}: {_described(error)}{hint}") from error
        finally:
            _importing.pop()
        if module not in _PLUGINS:
            _PLUGINS.append(module)


def _where(module: str) -> str:
    """Returns the remedy for a module that was not found."""
    name = module.removesuffix(".py").replace("/", ".")
    first = name.partition(".")[0]
    if not first or not any(pathlib.Path(path).exists() for path in (first, f"{first}.py")):
        return "is its folder on PYTHONPATH?"
    given = "" if name == module else f" --plugins={name}"
    return f"it is here; run PYTHONPATH=. vit_jax ...{given}"


def _parents(module: str) -> list[str]:
    """Returns the name of a module and of the packages it is in."""
    parts = module.split(".")
    return [".".join(parts[: end + 1]) for end in range(len(parts))]


def plugins() -> tuple[str, ...]:
    """Returns the modules that `load_plugins` has imported: child processes need them too."""
    return tuple(_PLUGINS)


def digests(modules: Iterable[str]) -> dict[str, str]:
    """SHA-256 of the source of imported plug-ins and of the modules beside them that they import.

    What is installed (site-packages, this package) has a version instead. A component of the main
    script has no digest: its file changes for other reasons.
    """
    found: dict[str, str] = {}
    for first in modules:
        file = getattr(sys.modules.get(first), "__file__", None)
        if first in ("__main__", "__mp_main__") or not file:
            continue
        path = pathlib.Path(file)
        depth = first.count(".") + (path.stem == "__init__")
        root, todo = path.absolute().parents[depth], [first]
        installed = root.name in ("site-packages", "dist-packages")
        while todo:
            name = todo.pop()
            top = name.partition(".")[0]
            source = path if name == first else _source(root, name)
            other = installed and top != first.partition(".")[0]
            if name in found or source is None or other or top == "vit_jax":
                continue
            try:
                text = source.read_bytes()
            except OSError:
                continue
            found[name] = hashlib.sha256(text).hexdigest()
            todo += _imported(text, name, is_package=source.stem == "__init__")
    return dict(sorted(found.items()))


def _source(root: pathlib.Path, module: str) -> pathlib.Path | None:
    """The file of a module below a folder, or None; looks only at names, and imports nothing."""
    base = root.joinpath(*module.split("."))
    files = (base / "__init__.py", base.parent / f"{base.name}.py")
    return next((file for file in files if file.is_file()), None)


def _imported(text: bytes, module: str, *, is_package: bool) -> set[str]:
    """Names that may be modules in the imports of a source, with the packages they are in."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # bytecode, an extension
        return set()
    package = module.split(".") if is_package else module.split(".")[:-1]
    names: set[str] = set(_parents(module)[:-1])
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {parent for one in node.names for parent in _parents(one.name)}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for one in node.names:
                names |= set(_parents(f"{base}.{one.name}".lstrip(".")))
    return names


def needed(recorded: Any) -> str:
    """Returns how to get the components of a record: empty if its modules are imported already.

    Args:
      recorded: names of modules in a file that anyone may have written; they are only shown.
    """
    listed = recorded if isinstance(recorded, list | tuple) else ()
    names = [n for n in listed if isinstance(n, str) and re.fullmatch(r"[A-Za-z_][\w.]*", n)]
    names = [n for n in names if n not in sys.modules and n not in ("__main__", "__mp_main__")]
    if not names:
        return ""
    return f"give --plugins={','.join(names[:9])}, or import it first in Python, if you trust it"


def _described(error: BaseException) -> str:
    """Returns the type and text of an error of a plug-in, and the line of its code that failed."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename != __file__ and "importlib" not in f.filename]
    where = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error}{where}"
