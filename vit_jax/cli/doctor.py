"""`vit_jax doctor`."""

import argparse
import json

from vit_jax.cli import arguments, tables
from vit_jax.inference.doctor import CHECKPOINT, COSINE, KINDS, LEFT_OUT

HELP = "find copies, leaks, wrong labels, outliers and broken files of a folder"
TAKES_CONFIG = True
# chr(10): before Python 3.12 an f-string takes no backslash.
EPILOG = f"""\
  vit_jax doctor photos --fix-list=fix.csv
  vit_jax train image_folder --workdir=runs/mine --config.data.root=photos \\
      --config.data.holdout=0.1 --config.data.exclude=fix.csv

DIR has lists such as train.csv, split folders, class folders, or images alone; nothing in it is
changed. The fix list has a row for each image, with the reason: delete rows you disagree with.

kinds of findings:
{"".join(f"  {kind:10}{meaning}{chr(10)}" for kind, meaning in KINDS.items())}"""


def add_arguments(parser: arguments.Parser) -> None:
    parser.add("folder DIR", "lists, or folders of images, also in a bucket: s3://, gs://, hf://")
    arguments.add_checkpoint(parser, default=CHECKPOINT)
    arguments.add_output(parser, "FILE.html", "page with pictures to write", default="doctor.html")
    parser.add(
        "--fix-list FILE.csv",
        "write the list of images to leave out, for data.exclude",
        type=arguments.local_output_path,
    )
    parser.add(
        "--leave-out KIND,...",
        "kinds of findings in that list",
        type=arguments.words,
        default=LEFT_OUT,
    )
    parser.add(
        "--holdout SHARE",
        "the data.holdout you will train with, for a folder without splits",
        type=arguments.holdout,
        default=0.1,
    )
    parser.add("--no-labels", "folder names are not classes")
    parser.add(
        "--cosine C",
        "lowest cosine of features for near duplicates",
        type=arguments.fraction,
        default=COSINE,
    )
    parser.add("--json", "print one line of JSON per finding")


def run(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    from vit_jax.inference.doctor import page
    from vit_jax.inference.doctor.run import doctor

    found = doctor(
        args.folder,
        args.checkpoint,
        overrides,
        step=args.step,
        output=args.output,
        fix_list=args.fix_list,
        leave_out=args.leave_out,
        holdout=args.holdout,
        labels=not args.no_labels,
        cosine=args.cosine,
    )
    if args.json:
        for rows in found.findings.values():
            for _, finding in rows:
                print(json.dumps(finding._asdict()))
        return 0
    # The layout and the checkpoint; the page has the rest.
    for line in (*page.assumptions(found)[:2], *page.summarize(found)):
        print(line)
    if rows := page.describe(found):
        tables.table(("finding", "images", "in the list", "what it is"), rows)
    else:
        print("nothing was found")
    print(f"{args.output}: a page with pictures, and how this was found")
    if args.fix_list:
        count = f"{len(found.left_out):,} images to leave out"
        print(f"{args.fix_list}: {count}, with --config.data.exclude={args.fix_list}")
    return 0
