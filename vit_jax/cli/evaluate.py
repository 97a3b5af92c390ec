"""`vit_jax evaluate`."""

import argparse

from vit_jax.cli import arguments, tables

HELP = "measure a checkpoint on its whole evaluation split"
TAKES_CONFIG = True
EPILOG = """\
Every example counts once, whatever the batch size and the number of devices. The data's classes are
matched with the head's by name; assumptions are printed, and classes that the head lacks are an
error.
"""


def add_arguments(parser: arguments.Parser) -> None:
    arguments.add_checkpoint(parser)
    parser.add("--json", "print one line of JSON")
    arguments.add_output(
        parser, "FOLDER", "also write images.csv (truth, prediction), classes.csv and confusion.csv"
    )


def run(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    import vit_jax
    from vit_jax.runtime import distributed
    from vit_jax.utils import storage

    results = vit_jax.evaluate(args.checkpoint, overrides, args.step, output=args.output)
    # All processes measure, and one prints.
    if not distributed.is_first():
        return 0
    if args.json:
        print(storage.as_line(results).decode(), end="")
        return 0
    rows = [(key, tables.metric(key, value)) for key, value in results.items()]
    tables.table(("metric", "value"), rows)
    if args.output:
        print(f"written: {args.output}")
    return 0
