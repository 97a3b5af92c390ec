"""`vit_jax predict`."""

import argparse
import csv
import json
import sys

from vit_jax import config
from vit_jax.cli import arguments, tables
from vit_jax.utils import messages

HELP = "classify images, or predict numeric targets"
TAKES_CONFIG = True
EPILOG = """\
Preprocessing and class names come from the checkpoint, or from the JSON file next to it. Classes
without a name, such as those of .npz files, are shown as numbers. A model of numeric targets
(data.targets) predicts them in the units it was trained on.
"""


def add_arguments(parser: arguments.Parser) -> None:
    arguments.add_checkpoint(parser)
    parser.add(
        "images IMAGE_OR_FOLDER",
        "image files, or folders of them, also in a bucket: s3://, gs://, hf://",
        nargs="*",
    )
    parser.add(
        "--examples N",
        "instead of files: N examples of the evaluation split, drawn by --seed",
        type=arguments.positive,
    )
    arguments.add_seed(parser)
    parser.add("--top K", "classes per image (default: 3)", type=arguments.positive)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one line of JSON per image")
    form.add_argument(
        "--csv",
        action="store_true",
        help="print rows image,rank,class,probability, or image and one column per target; "
        "with --examples also truth",
    )


def run(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    if bool(args.images) == bool(args.examples):
        raise config.ConfigError("predict: give image files or folders, or --examples=N")
    from vit_jax.inference import prediction

    predictions = prediction.predict(
        args.checkpoint,
        args.images,
        overrides,
        step=args.step,
        top=args.top,
        examples=args.examples or 0,
        seed=args.seed,
    )
    unreadable, rows, headed = 0, [], False
    writer = csv.writer(sys.stdout, lineterminator="\n")
    known = ("truth",) if args.examples else ()
    for one in predictions:
        # Also in --json, where standard output has the error as well.
        if one.error:
            unreadable += 1
            messages.print_error(f"{one.image}: {one.error}")
        if args.json:
            print(json.dumps(prediction.as_dict(one)))
        elif args.csv and not one.error:
            if not headed:  # the first prediction tells numbers from classes
                own = [name for name, _ in one.numbers] or ["rank", "class", "probability"]
                writer.writerow(("image", *own, *known))
                headed = True
            truth = (one.truth,) if args.examples else ()
            if one.numbers:
                # repr keeps every digit, so that reading the file gives the same number.
                writer.writerow((one.image, *(repr(value) for _, value in one.numbers), *truth))
            writer.writerows(
                (one.image, rank, name, f"{value:.6f}", *truth)
                for rank, (name, value) in enumerate(one.top, start=1)
            )
        elif not one.error and not args.csv:
            found = "  ".join(f"{name} {value:.1%}" for name, value in one.top)
            found = found or "  ".join(f"{name} {value:.6g}" for name, value in one.numbers)
            rows.append((one.image, found, *((one.truth,) if one.truth is not None else ())))
    if rows:
        tables.table(("image", "prediction", "truth")[: len(rows[0])], rows)
    return 2 if unreadable else 0
