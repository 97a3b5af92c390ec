"""`vit_jax search`."""

import argparse
import json

from vit_jax.cli import arguments, tables

HELP = "find the images most like a given one"
TAKES_CONFIG = True
EPILOG = """\
Every image of the index is compared, by the cosine of features. Search a folder directly, or write
its features once:

  vit_jax embed --checkpoint=augreg/ViT-S_16 photos --output=photos.npz
  vit_jax search --checkpoint=augreg/ViT-S_16 --index=photos.npz --query=cat.jpg
"""


def add_arguments(parser: arguments.Parser) -> None:
    arguments.add_checkpoint(parser)
    parser.add(
        "--index FILE_OR_FOLDER",
        "table of features from `vit_jax embed`, or a folder of images, also in a bucket",
        required=True,
    )
    parser.add("--query IMAGE", "image file", required=True)
    parser.add("--top N", "images", type=arguments.positive, default=9)
    parser.add("--images FOLDER", "with --output and a table: the folder that was embedded")
    arguments.add_output(parser, "FILE.html", "page with pictures to write")
    parser.add("--json", "print one line of JSON per image")


def run(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    from vit_jax.inference import search

    found = search.search(
        args.checkpoint,
        args.index,
        args.query,
        overrides,
        step=args.step,
        top=args.top,
        images=args.images,
        output=args.output,
    )
    if args.json:
        for one in found:
            print(json.dumps(one._asdict()))
        return 0
    tables.table(("image", "similarity"), [(one.image, f"{one.similarity:.4f}") for one in found])
    if args.output:
        print(f"{args.output}: a page with pictures")
    return 0
