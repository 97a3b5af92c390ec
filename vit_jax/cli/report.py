"""`vit_jax report`."""

import argparse

from vit_jax.cli import arguments

HELP = "write a page about runs: curves, metrics, settings, predictions"
TAKES_CONFIG = False
EPILOG = """\
The output is one self-contained HTML file, and the same as Markdown. Several runs are compared
first. An unfinished run is shown up to its last step.
"""


def add_arguments(parser: arguments.Parser) -> None:
    parser.add(
        "workdirs WORKDIR", "directories of runs, or of transfers", nargs="+", type=arguments.path
    )
    parser.add(
        "--output FILE|DIR",
        "one of the two files, or their folder (default: report.html and report.md in the first "
        "WORKDIR)",
        type=arguments.output_path,
    )
    predicted = parser.add_mutually_exclusive_group()
    predicted.add_argument(
        "--images",
        metavar="N",
        help="images of the evaluation split to classify with each model, at most (default: 512)",
        type=arguments.positive,
        default=512,
    )
    arguments.add_seed(parser)
    predicted.add_argument(
        "--no-predictions", action="store_true", help="load no model: quick, needs no jax"
    )


def run(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    from vit_jax.studies import report

    images = 0 if args.no_predictions else args.images
    for path in report.write_report(args.workdirs, args.output, images=images, seed=args.seed):
        print(path)
    return 0
