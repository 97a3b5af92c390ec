"""Components that a config names: the built-in ones, and those that a plug-in registers.

A component is a class or function under a kind and a name. Its arguments are options of the section
that names it: those that the schema declares for a built-in one (`config.Adam`), else the arguments
of its signature. A plug-in is a Python module that calls `register` when it is imported; only
modules that the user names (`--plugins=my_project`) are ever imported. A run records those that its
components come from, so that a message can name them.
"""

import ast
import contextlib
import dataclasses
import difflib
import functools
import hashlib
import importlib
import os
import pathlib
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

from vit_jax.utils.errors import NO_ROOM, ConfigError, UserError

# Optimizers of optax and optax.contrib that a config may name. Others need more than gradients,
# choose the learning rate themselves, or have updates that are not in proportion to it (fromage).
OPTAX_OPTIMIZERS = (
    "adabelief", "adadelta", "adafactor", "adagrad", "adamax", "adan", "ademamix", "amsgrad",
    "lion", "nadam", "novograd", "radam", "rmsprop", "sign_sgd", "signum", "sm3", "yogi",
)  # fmt: skip
# Direction of descent in optax, where it is not called scale_by_NAME.
_SCALES = {"adabelief": "belief", "adagrad": "rss", "rmsprop": "rms"}

PACKAGE = f"{pathlib.Path(__file__).parents[1]}{os.sep}"  # not a neighbor such as vit_jax_mine

C = TypeVar("C", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of component, and the section of the schema that names one.

    Attributes:
      name: such as `optimizer`.
      chooser: the option that names the component.
      section: the class without arguments of a component.
      given: number of arguments that the framework passes by position.
      given_by_name: those that it passes by name.
      classes: subclasses by the names of the components whose arguments they declare.
    """

    name: str
    chooser: str
    section: Any
    given: int = 0
    given_by_name: tuple[str, ...] = ()
    classes: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        KINDS[self.name] = self


CONFIG_FILE = "vit_jax_config_"  # before the stem of a config file, the name of its module
KINDS: dict[str, Kind] = {}  # as the schema declares them
# By kind and name: the component, and the module whose import registers it.
_REGISTERED: dict[tuple[str, str], tuple[Callable[..., Any], str]] = {}
_PLUGINS: list[str] = []  # modules that `load_plugins` has imported
_importing: list[str] = []  # those that it is importing


class UnknownComponent(ConfigError):
    """A component that is neither built in nor registered."""


def suggest(word: str, known: Sequence[object]) -> str:
    """`; did you mean X?` for the nearest of `known`, or a list of all of them."""
    names = [str(one) for one in known]
    near = difflib.get_close_matches(word, names, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(names)}"


def register(kind: str, name: str) -> Callable[[C], C]:
    """Makes a class or function a component, as a decorator.

    Raises ValueError for an unknown kind, for a name that another component has, and in a config
    file.

    Examples:
        >>> import vit_jax
        >>> @vit_jax.register("schedule", "example_constant")
        ... def constant(*, lr, steps, warmup):
        ...     return lambda step: lr
        >>> cfg = vit_jax.get_config("digits", {"schedule.name": "example_constant"})
        >>> cfg.schedule.name
        'example_constant'
    """
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"{kind}: no such kind of component{suggest(str(kind), [*KINDS])}")
    # A comma or an equals sign could not be typed on a command line.
    if not isinstance(name, str) or not re.fullmatch(r"\w+", name):
        raise ValueError(f"{name!r}: a component's name has only letters, digits and _")

    def add(component: C) -> C:
        module = component.__module__ or ""  # None in some REPLs
        if module.startswith(CONFIG_FILE):
            # Commands that read the run's checkpoints do not execute the config file.
            raise ValueError(
                f"{kind} {name}: is defined in a config file, where no command but train finds it; "
                "move it to a module, and name that with --plugins"
            )
        if name in built_in(kind) and module.partition(".")[0] != "vit_jax":
            raise ValueError(f"{kind} {name}: vit_jax has one; register yours by another name")
        other, _ = _REGISTERED.get((kind, name), (component, ""))
        # A reload registers the same name of the same module again.
        if (other.__module__, other.__qualname__) != (component.__module__, component.__qualname__):
            raise ValueError(f"{kind} {name}: {module} and {other.__module__} both register it")
        _REGISTERED[kind, name] = component, _importing[-1] if _importing else module
        return component

    return add


def built_in(kind: str) -> tuple[str, ...]:
    """The names of the components of a kind that this package has; they need no plug-in."""
    of_optax = OPTAX_OPTIMIZERS if kind == "optimizer" else ()
    return tuple(dict.fromkeys((*KINDS[kind].classes, *of_optax)))


def find(kind: str, name: str, key: str) -> Callable[..., Any]:
    """The component called `name`; raises ConfigError, with its option `key`, if there is none."""
    if (kind, name) in _REGISTERED:
        return _REGISTERED[kind, name][0]
    if kind == "optimizer" and name in OPTAX_OPTIMIZERS:
        import optax.contrib  # imports jax

        return getattr(optax, _in_optax(name), None) or getattr(optax.contrib, name)
    known = dict.fromkeys((*built_in(kind), *(one for k, one in _REGISTERED if k == kind)))
    nearest = suggest(name, list(known)) if known else ""
    hint = "" if "did you mean" in nearest else "; --plugins=MODULE adds those of a plug-in"
    raise UnknownComponent(f"{key}={name}: no such {kind.replace('_', ' ')}{nearest}{hint}")


def descends(name: str) -> bool:
    """Whether an optimizer of optax multiplies by minus a learning rate itself."""
    return _in_optax(name) == name


def _in_optax(name: str) -> str:
    import optax

    scale = f"scale_by_{_SCALES.get(name, name)}"
    return scale if hasattr(optax, scale) else name


def modules(kind: str, name: str | None) -> set[str]:
    """The module to import for a component: none for built-in ones."""
    _, module = _REGISTERED.get((kind, name or ""), (None, ""))
    return {module} if module and module.partition(".")[0] != "vit_jax" else set()


def make(section: Any, key: str, /, *given: Any, **named: Any) -> Any:
    """Calls the component that a section names, with the section's arguments and further ones.

    Raises ConfigError, with the option `key` that names it, where it fails.
    """
    kind = section.kind_of_component
    shared = {field.name for field in dataclasses.fields(kind.section)}
    # The shared options are not arguments: whoever calls the component reads them.
    own = {name: value for name, value in vars(section).items() if name not in shared}
    with calling(key, section.component):
        return find(kind.name, section.component, key)(*given, **named, **own)


@contextlib.contextmanager
def calling(key: str, name: str) -> Iterator[None]:
    """Makes an error of a component's code a ConfigError with the option that names it.

    Those of a full disk, of memory and of devices stay.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise
        if type(error).__name__ == "JaxRuntimeError":  # by name: jax need not be imported
            raise
        raise ConfigError(f"{key}={name}: {_described(error)}") from error


def guarded(key: str, name: str) -> Callable[[C], C]:
    """A decorator of a component's functions: each is called within `calling`."""

    def guard(function: C) -> C:
        @functools.wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            with calling(key, name):
                return function(*given, **named)

        return cast(C, call)

    return guard


def load_plugins(modules: Iterable[str]) -> None:
    """Imports the modules that the user names; raises ConfigError where one cannot be imported."""
    for module in modules:
        # What this module imports registers components in its name, too.
        _importing.append(module)
        try:
            importlib.import_module(module)
        # A script that is meant to be run may end by sys.exit while it is imported.
        except (Exception, SystemExit) as error:
            # Not for a module that the plug-in itself lacks: its path is no remedy for that.
            missing = isinstance(error, ModuleNotFoundError) and error.name in _parents(module)
            hint = f"; {_where(module)}" if missing else ""
            raise ConfigError(f"--plugins={module}: {_described(error)}{hint}") from error
        finally:
            _importing.pop()
        if module not in _PLUGINS:
            _PLUGINS.append(module)


def _where(module: str) -> str:
    """The remedy for a module that was not found."""
    name = module.removesuffix(".py").replace("/", ".")
    first = name.partition(".")[0]
    if not first or not any(pathlib.Path(path).exists() for path in (first, f"{first}.py")):
        return "is its folder on PYTHONPATH?"
    given = "" if name == module else f" --plugins={name}"
    return f"it is here; run PYTHONPATH=. vit_jax ...{given}"


def _parents(module: str) -> list[str]:
    """The name of a module and of the packages it is in."""
    parts = module.split(".")
    return [".".join(parts[: end + 1]) for end in range(len(parts))]


def plugins() -> tuple[str, ...]:
    """The modules that `load_plugins` has imported: child processes need them too."""
    return tuple(_PLUGINS)


def digests(modules: Iterable[str]) -> dict[str, str]:
    """SHA-256 of the source of imported plug-ins and of the neighboring modules they import.

    What is installed (site-packages, this package) has a version instead. A component of the main
    script has no digest: its file changes for other reasons.
    """
    found: dict[str, str] = {}
    for first in modules:
        file = getattr(sys.modules.get(first), "__file__", None)
        if first in ("__main__", "__mp_main__") or not file:
            continue
        path = pathlib.Path(file)
        # The folder that Python imported it from: above its outermost package.
        depth = first.count(".") + (path.stem == "__init__")
        root, todo = path.absolute().parents[depth], [first]
        # Of an installed plug-in only its own package counts: its neighbors there have versions.
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
            # One dot is the package itself, each further one the package above.
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for one in node.names:
                names |= set(_parents(f"{base}.{one.name}".lstrip(".")))
    return names


def needed(recorded: object) -> str:
    """How to import the components that a record needs; empty if they are imported.

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
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        # Names in angle brackets are of no file, such as those of frozen importlib.
        frame for frame in frames
        if not frame.filename.startswith((PACKAGE, "<"))
        and not {"importlib", "site-packages"} & {*pathlib.Path(frame.filename).parts}
    ]  # fmt: skip
    # The last frame of the plug-in's own code, not of a library that it called.
    where = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    # chr(10), as an f-string before Python 3.12 cannot hold a backslash.
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}{where}"
