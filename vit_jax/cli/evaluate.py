"""`vit_jax evaluate`."""

import argparse
import json

from vit_jax.cli import arguments, tables

HELP = "measure a checkpoint on its whole evaluation split"
TAKES_CONFIG = True
EPILOG = """\
Every example counts once, whatever the batch size and the number of devices.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    arguments.add_checkpoint(parser)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")


def run(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Prints the metrics of a checkpoint."""
    from vit_jax import experiment, logs

    logs.setup()
    results = experiment.evaluate(args.checkpoint, overrides, at=args.step)
    if args.json:
        print(json.dumps(results))
        return 0
    rows = [(key, tables.metric(key, value)) for key, value in results.items()]
    tables.table(("metric", "value"), rows)
    return 0
