"""Components that a config names: the built-in ones, and those that a plug-in registers.

A component is a class or function under a kind and a name. A config names it, with arguments where
it takes some: `lion`, or `lion(b1=0.9, b2=0.95)`. Arguments are numbers, text, booleans, none, or
lists of these; nothing is evaluated. A plug-in is a Python module that calls `register` when it is
imported; only modules that the user names (`--plugins=my_project`) are ever imported. A run records
those that its components come from, so that a message can name them.
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
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from vit_jax.config.options import option, suggest
from vit_jax.utils.errors import NO_ROOM, ConfigError, UserError

KINDS = (
    "model",
    "source",
    "transform",
    "batch_augmentation",
    "loss",
    "optimizer",
    "schedule",
    "evaluator",
    "logger",
)

# Optimizers of optax and optax.contrib that an option may name with their arguments. Others need
# more than gradients, or choose the learning rate themselves.
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
    "muon",
    "nadam",
    "novograd",
    "radam",
    "rmsprop",
    "sign_sgd",
    "signum",
    "sm3",
    "yogi",
)
# Components that take no arguments, because options of the config set them.
CONFIGURED: dict[str, tuple[str, ...]] = {
    "model": ("vit", "resnet", "axial_vit", "axial_resnet"),
    "source": ("digits", "folder", "csv", "tfds", "synthetic"),
    "loss": ("softmax", "sigmoid"),
    "optimizer": ("adam", "sgd"),
    "schedule": ("cosine", "linear", "rsqrt", "step", "constant"),
}
# All of the package, by kind: a config is checked before they are imported.
BUILT_IN: dict[str, tuple[str, ...]] = {kind: CONFIGURED.get(kind, ()) for kind in KINDS} | {
    "optimizer": (*CONFIGURED["optimizer"], *OPTAX_OPTIMIZERS),
    "transform": ("three_augment",),
    "evaluator": ("classification", "masked_patches"),
    "logger": ("jsonl", "tensorboard", "wandb", "mlflow"),
}

C = TypeVar("C", bound=Callable[..., Any])
_TABLES: dict[str, dict[str, Callable[..., Any]]] = {kind: {} for kind in KINDS}
_MODULES: dict[tuple[str, str], str] = {}  # what to import for a component of a plug-in
_PLUGINS: list[str] = []  # modules that `load_plugins` has imported
_importing: list[str] = []  # those that it is importing


class UnknownComponent(ConfigError):
    """A component that is neither built in nor registered."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """A component as a config names it: `name(argument=value, ...)`."""

    name: str
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def register(kind: str, name: str) -> Callable[[C], C]:
    """Returns a decorator that makes a class or function a component.

    Raises ValueError for an unknown kind, and for a name that another component has.

    Examples:
        >>> import vit_jax
        >>> @vit_jax.register("schedule", "example_constant")
        ... def constant(*, lr, steps, warmup):
        ...     return lambda step: lr
        >>> cfg = vit_jax.get_config("digits", {"schedule.decay": "example_constant"})
        >>> cfg.schedule.decay
        'example_constant'
    """
    if kind not in _TABLES:
        raise ValueError(f"{kind}: no such kind of component{suggest(kind, KINDS)}")
    if not re.fullmatch(r"\w+", name):
        raise ValueError(f"{name!r}: a component's name has only letters, digits and _")

    def add(component: C) -> C:
        if name in BUILT_IN[kind] and not _is_ours(component):
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


def find(kind: str, name: str, key: str) -> Callable[..., Any]:
    """Returns a component; raises ConfigError, with the option `key` that names it, if unknown."""
    if name not in _TABLES[kind]:
        raise ConfigError(f"{key}={name}: no such {kind}{suggest(name, names(kind))}")
    return _TABLES[kind][name]


def parse(text: str, key: str) -> Spec:
    """Reads `name` or `name(argument=value, ...)`; raises ConfigError."""
    if text.strip().isidentifier():
        return Spec(text.strip())
    wrong = ConfigError(f"{key}={text}: must be NAME or NAME(argument=value, ...)")
    if not re.fullmatch(r"\w+\s*\(.*\)", text.strip(), re.DOTALL):
        raise wrong  # Python's parser sees nothing else: configs come from files of others, too
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise wrong from None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
        raise wrong
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise wrong
        try:
            arguments[keyword.arg] = ast.literal_eval(keyword.value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            raise wrong from None
    return Spec(node.func.id, arguments)


def modules(kind: str, text: str) -> set[str]:
    """Returns the module to import for `NAME` or `NAME(...)`: none for built-in components."""
    module = _MODULES.get((kind, text.partition("(")[0].strip()))
    return {module} if module and module.partition(".")[0] != "vit_jax" else set()


def is_built_in(kind: str, text: str) -> bool:
    """Returns whether `NAME` or `NAME(argument=value, ...)` is a component of this package."""
    return text.partition("(")[0].strip() in BUILT_IN[kind]


def _is_ours(component: Callable[..., Any]) -> bool:
    """Returns whether a component is defined in this package; in a REPL its module may be None."""
    return (component.__module__ or "").partition(".")[0] == "vit_jax"


def call(component: Callable[..., Any], spec: Spec, key: str, /, *given: Any, **named: Any) -> Any:
    """Returns `component(*given, **named, **spec.arguments)`.

    Raises ConfigError for an argument that the component does not take, or lacks, and where it
    fails itself.
    """
    if spec.arguments or not _is_ours(component):  # a signature may be parsed as Python: slow
        try:
            inspect.signature(component).bind(*given, **named, **spec.arguments)
        except TypeError as error:
            raise ConfigError(f"{key}={spec.name}: {error}") from None
    try:
        return component(*given, **named, **spec.arguments)
    except (UserError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise
        raise ConfigError(f"{key}={spec.name}: {_described(error)}") from error


def make(kind: str, text: str, key: str, /, *given: Any, **named: Any) -> Any:
    """Returns what the component `NAME` or `NAME(argument=value, ...)` makes of what it is given.

    Raises ConfigError, with the option `key`, as `parse`, `find` and `call` do.
    """
    spec = parse(text, key)
    return call(find(kind, spec.name, key), spec, key, *given, **named)


def component(default: Any, kind: str, doc: str, **more: Any) -> Any:
    """Declares an option that names components: built in, or registered by a plug-in."""
    known = functools.partial(check, kind=kind)
    return option(default, doc, choices=BUILT_IN[kind], check=known, kind=kind, **more)


def check(text: str, key: str, kind: str) -> None:
    """Raises ConfigError unless `text` is `NAME` or `NAME(argument=value, ...)` of a component."""
    spec = parse(text, key)
    if spec.name in CONFIGURED.get(kind, ()) and text != spec.name:
        raise ConfigError(f"{key}={text}: takes no arguments; write {spec.name}")
    known = (*BUILT_IN[kind], *(name for name in names(kind) if name not in BUILT_IN[kind]))
    if spec.name not in known:
        what = kind.replace("_", " ")
        nearest = suggest(spec.name, known) if known else ""
        hint = "" if "did you mean" in nearest else "; --plugins=MODULE adds those of a plug-in"
        raise UnknownComponent(f"{key}={text}: no such {what}{nearest}{hint}")


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
