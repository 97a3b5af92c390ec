"""`vit_jax average`."""

import argparse

from vit_jax.cli import arguments

HELP = "write the mean of checkpoints: the last of a run, or a soup of runs"
TAKES_CONFIG = True
EPILOG = """\
The checkpoints must have one model, the same classes and the same preprocessing. Of each run the
best checkpoint is taken, where a validation split chose one, else the newest. A soup averages runs
that began with the same weights, and may have those among them; measure it on validation images
before you trust it.

  vit_jax average runs/a runs/b runs/c --output=runs/soup
  vit_jax average runs/a --last=3 --output=runs/a-mean
"""


def add_arguments(parser: arguments.Parser) -> None:
    parser.add("checkpoints RUN_OR_FILE", arguments.CHECKPOINT, nargs="+")
    parser.add(
        "--last N",
        "of one run: its N newest checkpoints (checkpoint.keep says how many there are)",
        type=arguments.positive,
    )
    arguments.add_output(
        parser, "DIR", "run directory to write, for every command here", required=True
    )


def run(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    from vit_jax.inference import averaging

    for line in averaging.average(args.checkpoints, args.output, overrides, last=args.last):
        print(line)
    return 0
