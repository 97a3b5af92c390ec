"""The reference pages of the site, as Markdown made from the code: `PAGES` maps a path to one.

python docs/site/reference.py DIR      writes them to DIR; `mkdocs build` does so by itself
"""

import ast
import dataclasses
import os
import pathlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import vit_jax
from vit_jax import cli, config
from vit_jax.config import components
from vit_jax.config.durations import Duration
from vit_jax.pages import listing

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECTIONS = {"": "the run", "mesh": "devices"}  # headings other than the name of a section
TYPES = {int: "integer", float: "number", bool: "boolean", str: "text", Duration: "duration"}
# Classes that functions of the API return, raise or take, beside `vit_jax.__all__`.
CLASSES = (
    "vit_jax.inference.loaded_model.LoadedModel",
    "vit_jax.inference.loaded_model.Prediction",
    "vit_jax.runs.evaluating.Outcome",
    "vit_jax.config.Config",
    "vit_jax.models.architecture.Architecture",
    "vit_jax.data.source.Source",
    "vit_jax.runtime.logs.Logger",
    "vit_jax.utils.errors.UserError",
    "vit_jax.utils.errors.ConfigError",
)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(
        f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |\n" for row in lines
    )


def options() -> str:
    """The page of options: type, default and meaning of each, and what takes it."""
    sections: dict[str, list[tuple[str, ...]]] = {}
    for key, field, hint in config.declared():
        default = config.show(field.default)
        default = default.lower() if isinstance(field.default, bool) else default
        meaning = _meaning(field.metadata)
        if takers := _takers(key):
            meaning = f"{', '.join(f'`{name}`' for name in takers)}: {meaning}"
        row = (f"`{key}`", _type(hint), f"`{default}`", meaning)
        sections.setdefault(key.rpartition(".")[0], []).append(row)
    text = (
        "# Options\n\n"
        "Set an option on the command line with `--config.KEY=VALUE`, in Python with\n"
        '`{"KEY": VALUE}`. `vit_jax show NAME` prints the values of a config.\n\n'
        "A duration is a number of steps, epochs or examples, such as `10 epochs`. An option that\n"
        "is *free on resume* may change when a run resumes; any other change needs a new run\n"
        "directory.\n"
    )
    for section, rows in sections.items():
        head = ("option", "type", "default", "meaning")
        text += f"\n## {SECTIONS.get(section, section)}\n\n{table(head, rows)}"
    return text


def _takers(key: str) -> list[str]:
    """The components of which an option is an argument; none where every one has it."""
    section, _, name = key.partition(".")
    base = type(getattr(config.Config(), section))
    if not issubclass(base, config.Section):
        return []
    classes = base.kind_of_component.classes
    return [one for one, section in classes.items() if name in config.arguments(section)]


def _type(hint: Any) -> str:
    if dataclasses.is_dataclass(next(iter(getattr(hint, "__args__", ())), None)):
        return "sections by name"
    parts = [part for part in getattr(hint, "__args__", ()) if part is not type(None)]
    optional = ", or none" * (type(None) in getattr(hint, "__args__", ()))
    if hint in TYPES:
        return TYPES[hint]
    inner = parts[0] if optional else hint
    if inner in TYPES:
        return TYPES[inner] + optional
    members = inner.__args__
    return ("list" if ... in members else "pair") + f" of {TYPES[members[0]]}s" + optional


def _meaning(metadata: Any) -> str:
    kind, choices = metadata["kind"], metadata["choices"]
    text = metadata["doc"]
    if choices:
        text += f" Choices: {', '.join(f'`{choice}`' for choice in choices)}."
    if kind:
        text += f" Plug-ins: kind `{kind}`."
    return text + " *Free on resume.*" * metadata["free"]


def catalog_rows() -> str:
    """The page of configs: the command of each, its cost, and the published results."""
    entries = listing.entries()
    transferred = {e.name for e in entries if e.about.transfer and e.about.transfer.rates}
    text = (
        "# Every config\n\n"
        f"{len(entries)} names. Run one by its command; add `--smoke` to try a tiny copy for two\n"
        "steps, offline. `vit_jax transfer` chooses the learning rate on held-out training images\n"
        "and tests once.\n\n"
        "- *exaFLOPs* are counted from the model; *paper* and *core-days* (TPUv3) are as printed.\n"
        "- Results are the source's: top-1 in % on ImageNet (IN), CIFAR-10 and CIFAR-100 (C10,\n"
        "  C100) and so on.\n"
        "- No row of the paper has been run at full size yet, so there is no column for ours.\n"
        "  Measured results: [records](../records/README.md), [findings](../findings.md).\n"
    )
    for group in listing.groups(entries):
        file, _, summary = group.title.partition(": ")
        text += f"\n## {file.removesuffix('.py')}\n\n{_sentence(summary)}\n\n"
        if group.shared:
            text += f"All: {group.shared}.\n\n"
        rows = [
            (f"`vit_jax {'transfer' if row[0] in transferred else 'train'} {row[0]}`", *row[1:])
            for row in group.rows
        ]
        text += table(("command", *group.header[1:]), rows)
    return text


def _sentence(text: str) -> str:
    return text if text.endswith((".", "`")) else f"{text}."


def commands() -> str:
    """The page of commands: the help of each."""
    os.environ["COLUMNS"] = "80"  # read by argparse, which leaves two free
    text = "# Commands\n\nWhat `vit_jax COMMAND --help` prints.\n"
    for name in cli.COMMANDS:
        text += f"\n## {name}\n\n```text\n{cli.command_parser(name).format_help().rstrip()}\n```\n"
    return text


def errors() -> str:
    """The page of errors: the exit codes, and the classes that end with each."""
    text = (
        "# Errors and exit codes\n\n"
        "A mistake is one line on standard error that names the option or file, its value and\n"
        "the remedy. In Python it is a subclass of `vit_jax.config.UserError`.\n\n"
    )
    classes = sorted(_error_classes(), key=lambda found: (found[1], found[0]))
    meanings = exit_codes()
    text += table(("exit code", "meaning"), [(str(c), m) for c, m in sorted(meanings.items())])
    text += "\nCommands with nothing to save end with 130 at Ctrl-C, 143 at SIGTERM, and 129 "
    text += "when their terminal closes.\n\n## Classes\n\n"
    rows = [(f"`{name}`", str(code), doc) for name, code, doc in classes]
    return text + table(("class", "exit code", "meaning"), rows)


def exit_codes() -> dict[int, str]:
    """The meaning of each exit code, from the help of `vit_jax`."""
    words = " ".join(cli.EXITS.removeprefix("exit codes: ").split())
    return {int(code): text for code, text in re.findall(r"(\d+) (.+?)(?:, (?=\d)|$)", words)}


def _error_classes() -> Iterator[tuple[str, int, str]]:
    """Yields the name, exit code and first line of every subclass of UserError in the package."""
    found: dict[str, tuple[list[str], int | None, str, str]] = {}
    for path in sorted((ROOT / "vit_jax").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
                continue
            bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
            doc = (ast.get_docstring(node) or "").partition("\n")[0]
            found[node.name] = bases, _code(node), doc, module
    for name, (_, _, doc, module) in found.items():
        lineage = list(_lineage(name, found))
        if "UserError" in lineage:
            codes = (found[ancestor][1] for ancestor in lineage)
            yield f"{module}.{name}", next(code for code in codes if code is not None), doc


def _lineage(name: str, found: Any) -> Iterator[str]:
    if name in found:
        yield name
        for base in found[name][0]:
            yield from _lineage(base, found)


def _code(node: ast.ClassDef) -> int | None:
    """The exit code that a class sets itself; a name stands for a constant of its file."""
    for line in node.body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "exit_code":
            if isinstance(line.value, ast.Constant):
                return int(str(line.value.value))
            from vit_jax.runtime import distributed

            return int(getattr(distributed, ast.unparse(line.value)))
    return None


def python() -> str:
    """The page of the Python API: a directive of mkdocstrings for each public name."""
    modules = vit_jax._MODULES
    names = [f"vit_jax.{modules.get(name, 'api')}.{name}" for name in vit_jax.__all__]
    text = (
        "# Python API\n\n"
        "`import vit_jax` takes milliseconds; jax is imported by the first call that needs it.\n"
        "Every function below is `vit_jax.NAME`. [A tour](../api.md) shows them together.\n\n"
        "## Functions\n"
    )
    text += "".join(f"\n::: {path}\n" for path in names)
    return text + "\n## Classes\n" + "".join(f"\n::: {path}\n" for path in CLASSES)


def built_in() -> str:
    """The page of components: the names that each option takes."""
    text = (
        "# Components\n\n"
        "The names that options take without a plug-in. [Plug-ins](../plugins.md) add more.\n\n"
    )
    keys = {field.metadata["kind"]: key for key, field, _ in config.fields()}
    rows = [
        (kind, f"`{keys[kind]}`", ", ".join(f"`{name}`" for name in components.built_in(kind)))
        for kind in components.KINDS
    ]
    text += table(("kind", "option", "built in"), rows)
    text += "\nArguments of components in lists, such as `logging.loggers.wandb.project`:\n\n"
    rows = [
        (f"`{name}`", f"`{argument}`", f"`{config.show(field.default)}`", field.metadata["doc"])
        for kind in ("transform", "evaluator", "logger")
        for name, section in config.KINDS[kind].classes.items()
        for argument in config.arguments(section)
        for field in [section.__dataclass_fields__[argument]]
    ]
    return text + table(("component", "argument", "default", "meaning"), rows)


PAGES: dict[str, Callable[[], str]] = {
    "reference/options.md": options,
    "reference/catalog.md": catalog_rows,
    "reference/commands.md": commands,
    "reference/components.md": built_in,
    "reference/errors.md": errors,
    "reference/python.md": python,
}


def write(directory: pathlib.Path) -> None:
    """Writes every page below a directory."""
    for path, make in PAGES.items():
        file = directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]))
