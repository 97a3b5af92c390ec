"""`vit_jax list`."""

import argparse
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from vit_jax import config
from vit_jax.cli import arguments, tables

if TYPE_CHECKING:
    from vit_jax.pages.listing import TitledTable

HELP = "list config names, published checkpoints, or tasks"
TAKES_CONFIG = False
EPILOG = """\
A name is all that `vit_jax train` and `vit_jax show` need. exaFLOPs are counted from the model;
`paper` and core-days (TPUv3) are as printed, and so are the results: top-1 in % on ImageNet (IN),
CIFAR-10 and -100 (C10, C100), ... after fine-tuning.
--weights: published checkpoints to start from or predict with; top-1 on ImageNet as their source
reports it, for models trained on ImageNet-21k alone after fine-tuning.
--tasks: datasets with their splits, whether they are on this machine, and the command for each
that is not.
"""


def add_arguments(parser: arguments.Parser) -> None:
    parser.add("--table T", "only this table or figure: table3, figure8 (D.2), augreg, ...")
    parser.add("--model PATTERN", "only these models: 'ViT-L*'")
    parser.add("--weights", "published checkpoints instead of configs")
    parser.add("--tasks", "datasets instead of configs")
    parser.add("--data-dir DIR", "with --tasks: where datasets are (default: TFDS's)")
    parser.add(
        "--augreg-index PATH_OR_URL",
        "index.csv of How to train your ViT; lists its best checkpoints (default: downloaded)",
        nargs="?",
        const="gs://vit_models/augreg/index.csv",
    )
    parser.add("--json", "print one JSON object")


def run(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    if args.tasks:
        return _tasks(args)
    if args.data_dir:
        raise config.ConfigError(f"--data-dir={args.data_dir}: needs --tasks")
    from vit_jax.pages import listing

    if args.table and (args.weights or args.augreg_index):
        raise config.ConfigError(
            f"--table={args.table}: selects configs; drop it, or list without --weights"
        )
    if args.weights or args.augreg_index:
        return _weights(args)
    entries = listing.entries(table=args.table, model=args.model)
    if args.json:
        print(json.dumps({entry.name: listing.to_dict(entry) for entry in entries}))
        return 0
    _print_groups(listing.groups(entries))
    return 0


def _print_groups(groups: Iterable["TitledTable"]) -> None:
    for group in groups:
        print(group.title)
        if group.shared:
            print(f"all: {group.shared}")
        tables.table(group.header, group.rows)
        print()


def _weights(args: argparse.Namespace) -> int:
    from vit_jax.cli import weights_tables

    if args.augreg_index:
        best = weights_tables.augreg_best(args.augreg_index, args.model)
        values = {one.model: one._asdict() for one in best}
        groups = [weights_tables.augreg_group(best)]
    else:
        published = weights_tables.published(args.model)
        values = {entry.name: weights_tables.to_dict(entry) for entry in published}
        groups = weights_tables.groups(published)
    if args.json:
        print(json.dumps(values))
        return 0
    _print_groups(groups)
    return 0


def _tasks(args: argparse.Namespace) -> int:
    for flag in ("table", "model", "weights", "augreg_index"):
        if getattr(args, flag):
            raise config.ConfigError(f"--{flag.replace('_', '-')}: does not go with --tasks")
    from vit_jax.data import availability

    entries = availability.task_entries(args.data_dir)
    if args.json:
        print(json.dumps({entry.task.name: availability.to_dict(entry) for entry in entries}))
        return 0
    for title, rows, commands in availability.task_groups(entries):
        print(title)
        tables.table(availability.HEADER, rows)
        for command in commands:
            print(command)
        print()
    here = sum(entry.here for entry in entries)
    print(f"{here} of {len(entries)} are in {availability.directory(args.data_dir)}")
    return 0
