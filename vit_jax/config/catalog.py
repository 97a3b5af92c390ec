"""Config files: the names they define, and how a name becomes a config.

A config file is Python with a function `get_config()`, which returns an `ml_collections.ConfigDict`
of the options that differ from the defaults. A file of several has their names in `RUNS` and
`get_config(name)`; `about(name)` may return an `About`: the provenance of the numbers.
"""

import dataclasses
import difflib
import functools
import importlib.machinery
import importlib.util
import logging
import os
import pathlib
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from vit_jax import config
from vit_jax.config import ConfigError, components

if TYPE_CHECKING:
    from ml_collections import config_dict

log = logging.getLogger("vit_jax")

# Lists of sections whose order counts, each with the option that names a member.
ORDERED = {"data.transforms": "name", "train.augmentations": "name", "optimizer.groups": "pattern"}


class Result(NamedTuple):
    """A published number to compare a run with, and the table that prints it."""

    what: str
    value: float
    table: str
    std: float | None = None


class Choice(NamedTuple):
    """A value chosen here because the source is silent or contradicts itself."""

    what: str
    why: str
    change: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransferSettings:
    """How `vit_jax transfer` selects a config's learning rate; final runs use the config's splits.

    Attributes:
      task: target task, by its name in `vit_jax list --tasks`.
      rates: candidate learning rates.
      train: training split of the search; empty: the config's, or the first 90 % of it where there
        is no validation split beside the test split.
      held_out: split that ranks the candidates; empty: the validation split, or those 10 %.
      setups: other candidate settings, options by dotted name.
      choose_seeds: seeds to run each candidate with, ranked by the mean; empty: one run with the
        config's seed, as in the paper.
      seeds: seeds of the final runs.
    """

    task: str = ""
    rates: tuple[float, ...] = ()
    train: str = ""
    held_out: str = ""
    setups: Mapping[str, Mapping[str, object]] = dataclasses.field(default_factory=dict)
    choose_seeds: tuple[int, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class About:
    """Provenance of a config and the published results it should reproduce; empty if unknown.

    Attributes:
      tables: tables and figures that contain it, such as `3`, `D.6`, `figure 4`.
      row: description of the row.
      dataset: common name of the dataset.
      images: number of training images.
      exaflops: compute as printed.
      core_days: TPUv3-core-days as printed.
      results: numbers to compare with.
      measure: the compared quantity and how to measure it, if a run does not by default.
      choices: decisions that its source leaves open.
      origin: config whose weights initialize it.
      warning: line shown when training starts without `init_from`.
      needs: error shown when its dataset is unavailable; suppressed if a `lifted_by` option is
      set.
      lifted_by: options.
      transfer: learning rate search, for fine-tuning configs.
    """

    tables: tuple[str, ...] = ()
    row: str = ""
    dataset: str = ""
    images: int | None = None
    exaflops: float | None = None
    core_days: float | None = None
    results: tuple[Result, ...] = ()
    measure: str = ""
    choices: tuple[Choice, ...] = ()
    origin: str = ""
    warning: str = ""
    needs: str = ""
    lifted_by: tuple[str, ...] = ()
    transfer: TransferSettings | None = None

    def derive(self, **changes: object) -> "About":
        """The provenance of a config derived from this one; compute and results are its own."""
        return dataclasses.replace(self, **{"exaflops": None, "results": ()} | changes)


@functools.cache
def directory() -> pathlib.Path:
    """The folder of the config files: in the installed package or in the checkout."""
    package = pathlib.Path(__file__).resolve().parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def names() -> dict[str, pathlib.Path]:
    """Catalog names, each with its file, in order.

    Logs a broken config file and omits its names; the other files still load.
    """
    found: dict[str, pathlib.Path] = {}
    for path in _files(directory()):
        try:
            found |= dict.fromkeys(_names(path), path)
        except ConfigError as error:
            log.warning("%s", error)
    return found


def load_values(reference: str) -> dict[str, Any]:
    """The options that `NAME`, `FILE.py:NAME` or `FILE.py` sets.

    Raises ConfigError for a missing name or file, or for a file that is not a config file.
    """
    module, name = _locate(reference)
    # The name becomes that of a folder.
    parts = pathlib.PurePath(name).parts
    if not parts or pathlib.PurePath(name).is_absolute() or ".." in parts:
        raise ConfigError(f"--config={reference}: {name!r} cannot name the folder of a run")
    values = _values(module, name)
    if not isinstance(values, Mapping) and not hasattr(values, "items"):
        raise ConfigError(f"--config={reference}: get_config({name!r}) must return a ConfigDict")
    _check_order(values)
    return _plain(values) | {"name": name}


def derive(base: str | None, changes: Mapping[str, Any]) -> "config_dict.ConfigDict":
    """The config `base` (None: the defaults) with other options, by dotted key."""
    from ml_collections import config_dict  # slow to import

    return config_dict.ConfigDict(config.override(load_values(base) if base else {}, changes))


@functools.cache
def _values(module: types.ModuleType, name: str) -> Any:
    """Cached `get_config`: many configs derive from the same base."""
    # One object for all callers, which is safe as `load_values` gives out copies.
    return _call(module, "get_config", *((name,) if hasattr(module, "RUNS") else ()))


def _call(module: types.ModuleType, function: str, *args: str) -> Any:
    try:
        return getattr(module, function)(*args)
    except ConfigError:  # of a config that it builds on
        raise
    except Exception as error:  # a user's file can fail in any way
        called = f"{function}({', '.join(map(repr, args))})"
        line = f"--config={module.__file__}: {called}: {type(error).__name__}: {error}"
        raise ConfigError(line) from error


class Required:
    """Stands for an unset `placeholder(TYPE, required=True)`; no option accepts it as a value."""

    def __str__(self) -> str:
        return "(required)"


def _check_order(values: Any) -> None:
    """Raises ConfigError for an ordered list that a ConfigDict may have sorted by name."""
    from ml_collections import config_dict  # slow to import

    for key, label in ORDERED.items():
        section, _, leaf = key.partition(".")
        given = values.get(section)
        given = given.get(leaf) if isinstance(given, config_dict.ConfigDict) else None
        if isinstance(given, config_dict.ConfigDict) and len(given) > 1:
            names = list(given)
            if names == sorted(names):
                members = ", ".join(f'{{"{label}": "{name}", ...}}' for name in names)
                raise ConfigError(
                    f"{key}={','.join(names)}: a ConfigDict sorts its keys, and here their order "
                    f"counts; write a list in yours: [{members}]"
                )


def _plain(values: Any) -> dict[str, Any]:
    """Copies a ConfigDict to dicts: references resolved, Required for those without a value."""
    from ml_collections import config_dict  # slow to import

    if isinstance(values, config_dict.ConfigDict):
        # Plain access to a required placeholder without a value would raise RequiredValueError.
        values = dict(values.items(preserve_field_references=True))
    result = {}
    for key, value in values.items():
        if isinstance(value, config_dict.FieldReference):
            try:
                value = value.get()
            except config_dict.RequiredValueError:
                value = Required()
        nested = isinstance(value, Mapping) or hasattr(value, "items")
        result[key] = _plain(value) if nested else value
    return result


def about(reference: str) -> About:
    """The `About` of `NAME`, `FILE.py:NAME` or `FILE.py`; raises like `load_values`."""
    module, name = _locate(reference)
    found = _call(module, "about", name) if hasattr(module, "about") else About()
    if not isinstance(found, About):
        raise ConfigError(f"--config={reference}: about({name!r}) must return a catalog.About")
    return found


def summary(path: pathlib.Path) -> str:
    """The first line of a config file's docstring."""
    return (_module(path).__doc__ or "").strip().split("\n")[0]


def _locate(reference: str) -> tuple[types.ModuleType, str]:
    """Resolves a reference to a config file and the name within it."""
    file, _, name = (
        # The last colon, as a path may have others.
        reference.rpartition(":") if ".py:" in reference.lower() else ("", "", reference)
    )
    if reference.lower().endswith(".py"):
        file, name = reference, ""
    if file:
        module = _module(_find_file(file))
        known: Sequence[str] = _runs(module)
        if not name and len(known) > 1:
            raise ConfigError(f"--config={file}: name one of its configs: {_each(file, known)}")
        name = name or next(iter(known), "")
    else:
        path = directory() / f"{_prefix(name)}.py"
        try:
            module, known = _module(path), _names(path)
        except OSError:  # there is no such file
            module, known = None, ()
    if module is None or name not in known:
        known = known if file else tuple(names())  # the nearest name may be in another file
        if len(same := [other for other in known if other.lower() == name.lower()]) == 1:
            return _locate(f"{file}:{same[0]}" if file else same[0])
        hint = _suggest(name, known)
        if not file and reference and pathlib.Path(reference).is_dir():
            hint = (
                f", but a folder; of images: image_folder --config.data.root={reference}; "
                f"of a run: --workdir={reference}"
            )
        raise ConfigError(f"--config={reference}: no such config{hint}")
    return module, name


def _prefix(name: str) -> str:
    """The stem of the config file that defines a bare name: `vtab` for `vtab/x`."""
    return re.split("[/-]", name, maxsplit=1)[0]


def _runs(module: types.ModuleType) -> tuple[str, ...]:
    """The names that a config file defines; one with a single config is called as its file."""
    found = getattr(module, "RUNS", (pathlib.Path(module.__file__ or "").stem,))
    names = isinstance(found, Iterable) and not isinstance(found, str)
    if not names or not all(isinstance(name, str) for name in found):
        line = f"--config={module.__file__}: RUNS={found!r}: must be the names of its configs"
        raise ConfigError(line)
    return tuple(found)


def _names(path: pathlib.Path) -> tuple[str, ...]:
    # The time of change is part of the cache's key, so that an edit is seen.
    return _checked_names(path, path.stat().st_mtime_ns)


@functools.cache
def _checked_names(path: pathlib.Path, modified: int) -> tuple[str, ...]:
    """The names of a catalog file; raises ConfigError for a name without its prefix.

    A name begins with the stem of its file, so it is found without running the others, and no two
    files can have the same.
    """
    found = _runs(_execute(path, modified))
    for name in found:
        if _prefix(name) != path.stem:
            owner = directory() / f"{_prefix(name)}.py"
            raise ConfigError(f"--config={path}: its name {name} belongs to {owner}; rename one")
        if found.count(name) > 1:
            raise ConfigError(f"--config={path}: has the name {name} twice; rename one")
    return found


def _suggest(name: str, known: Sequence[str]) -> str:
    """Suggests the nearest of `known`, or those of a file; else lists all or says how to."""
    hint = config.suggest(name, known)
    if "did you mean" not in hint and (own := [n for n in known if n.startswith(f"{name}/")]):
        return f"; did you mean one of {', '.join(own)}?"
    many = len(known) > 20 and "did you mean" not in hint
    return "; `vit_jax list` shows all" if many else hint


def _each(file: str, known: Sequence[str]) -> str:
    shown = [f"{file}:{name}" for name in known[:20]]
    return ", ".join([*shown, *(["..."] if len(known) > 20 else [])])


def _find_file(file: str) -> pathlib.Path:
    path = pathlib.Path(os.path.expanduser(file))  # noqa: PTH111 (an unknown ~user stays)
    for candidate in (path, directory() / path.name):
        if candidate.is_file():
            return candidate
    known = [other.name for other in _files(directory())]
    # A file of the user's own is no misspelled one of these, unless it is very like it.
    close = difflib.get_close_matches(path.name, known, n=1, cutoff=0.8)
    hint = f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"
    raise ConfigError(f"--config={file}: no such file{hint if file == path.name else ''}")


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")


def _module(path: pathlib.Path) -> types.ModuleType:
    return _execute(path, path.stat().st_mtime_ns)


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles the file's current content.

    Python's byte code stays in use when an edit changes neither the second of the file's time nor
    its size: a seed of 7 made 9 by a script.
    """

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


@functools.cache
def _execute(path: pathlib.Path, modified: int) -> types.ModuleType:
    """Executes a config file and returns the module; cached until the `modified` time changes."""
    # By path, never by import: `configs` is too common a name to claim.
    name = f"{components.CONFIG_FILE}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_Loader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a user's file can fail in any way
        raise ConfigError(f"--config={path}: {type(error).__name__}: {error}") from error
    if not hasattr(module, "get_config"):
        raise ConfigError(f"--config={path}: has no function get_config(); see configs/digits.py")
    return module
