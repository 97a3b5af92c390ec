"""`vit_jax show`."""

import argparse
import dataclasses
import json

from vit_jax import config
from vit_jax.cli import arguments, tables
from vit_jax.config import catalog

HELP = "print the options of a config that differ from the defaults: value, meaning"
TAKES_CONFIG = True
EPILOG = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    arguments.add_config(parser)
    parser.add_argument("--all", action="store_true", help="print every option; * marks changed")
    parser.add_argument("--json", action="store_true", help="print the resolved config as JSON")


def run(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Prints every option of a config, and the choices that its source left open."""
    reference = arguments.reference(args.name, args.config)
    if reference is None:
        raise config.ConfigError("show: name a config; see `vit_jax list`")
    from vit_jax import listing, models
    from vit_jax.training import run_config

    # Not validated as a whole: a recipe can be shown before its data is configured.
    cfg = config.build(config.override(catalog.load(reference), overrides))
    run_config.check_read(cfg, overrides)
    cfg = dataclasses.replace(cfg, model=models.complete(cfg.model))
    about = catalog.about(reference)
    if args.json:
        print(json.dumps(config.to_dict(cfg) | {"about": listing.about_dict(about)}, indent=2))
        return 0
    tables.table(("option", "value", "meaning"), listing.options(cfg, every=args.all))
    if about.choices:
        print()
        tables.table(("choice", "why", "to change it"), about.choices)
    for line in listing.notes(about):
        print(line)
    return 0
