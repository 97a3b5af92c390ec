"""`vit_jax show`."""

import argparse
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from vit_jax import config
from vit_jax.cli import arguments, tables
from vit_jax.config import catalog, options

HELP = "print the options of a config that differ from the defaults: value, meaning"
TAKES_CONFIG = True
EPILOG = """\
A config of your own begins as a copy:
  vit_jax show finetune/ViT-B_16-i21k-pets --python > mine.py
  vit_jax train --config=mine.py
"""


def add_arguments(parser: arguments.Parser) -> None:
    arguments.add_config(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--all", action="store_true", help="print every option; * marks changes")
    form.add_argument("--json", action="store_true", help="print the resolved config as JSON")
    form.add_argument(
        "--python", action="store_true", help="print a complete config file, to copy and change"
    )


def run(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    reference = arguments.reference(args.name, args.config)
    if reference is None:
        raise config.ConfigError("show: name a config; see `vit_jax list`")
    from vit_jax import models
    from vit_jax.pages import listing
    from vit_jax.training import run_config

    # Not validated as a whole: a recipe can be shown before its data is configured.
    values = run_config.named_values(reference, overrides)
    cfg = run_config.build(config.override(values, overrides))
    run_config.check_read(cfg, overrides)
    about = catalog.about(reference)
    if args.python:
        print(config_file(cfg, about, reference), end="")
        return 0
    cfg = dataclasses.replace(cfg, model=models.complete(cfg.model))
    if args.json:
        print(json.dumps(config.to_dict(cfg) | {"about": listing.about_dict(about)}, indent=2))
        return 0
    tables.table(("option", "value", "meaning"), listing.options(cfg, every=args.all))
    if not cfg.needs_labels:
        from vit_jax.training import build

        if described := build.describe_run(cfg):
            print()
        for label, text in described:
            print(f"{label}: {text}")
    if about.choices:
        print()
        tables.table(("choice", "why", "to change it"), about.choices)
    if cfg.init_from is not None:
        print(
            "init_from: options that belong to its weights, such as model.gelu and data.mean, are "
            "read from them as the run starts, or by train --dry-run"
        )
    for line in listing.notes(about):
        print(line)
    return 0


def config_file(cfg: config.Config, about: catalog.About, reference: str) -> str:
    """A Python file that makes the config of `reference` by itself: one `get_config()`."""
    values: dict[str, Any] = {}
    given = config.changed(cfg)
    if cfg.data.source in config.FILES:  # left out, it would be the one that is there
        given["data.eval_split"] = cfg.data.eval_split
    for key, value in given.items():
        section, _, name = key.rpartition(".")
        node = values.setdefault(section, {}) if section else values
        node[name] = value
    del values["name"]  # that of the file
    lines = "\n".join(_lines(values, " " * 12))
    return f'''"""{cfg.name}{about.row and f": {about.row}"}.

`vit_jax show {reference}` says what each option means, and why it has its value;
with --all, also those that are left out here, at their defaults.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """The options that differ from the defaults."""
    return ml_collections.ConfigDict(
        {{
{lines}
        }}
    )
'''


def _lines(values: dict[str, Any], indent: str) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from (f'{indent}"{key}": {{', *_lines(value, f"{indent}    "), f"{indent}}},")
        # A string stays on one line, even if ruff allows none so long.
        elif len(line := f'{indent}"{key}": {_literal(value)},') <= 100 or isinstance(value, str):
            yield line
        else:
            members = (f"{indent}    {_literal(member)}," for member in value)
            yield from (f'{indent}"{key}": (', *members, f"{indent}),")


def _literal(value: object) -> str:
    """A value as ruff would write it."""
    value = options.to_dict(value)
    if isinstance(value, str):
        # Double quotes, as ruff formats Python; JSON's escapes are Python's too.
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_literal(k)}: {_literal(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        # Options are tuples, which to_dict has made lists for JSON.
        return f"({', '.join(map(_literal, value))}{',' * (len(value) == 1)})"
    return repr(value)
