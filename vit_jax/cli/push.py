"""`vit_jax push`."""

import argparse

from vit_jax.cli import arguments

HELP = "upload a folder of weights to the Hugging Face Hub"
TAKES_CONFIG = False
EPILOG = """\
The folder is one of `vit_jax convert --to=hf`, `--to=timm` or `--to=flax`, with its model card. The
token is taken from HF_TOKEN or from the login of `hf auth login`, and is never printed. A new
repository is private unless --public is given.

  vit_jax convert --checkpoint=runs/mine --to=hf --license=cc-by-4.0 --output=mine
  vit_jax push mine USER/NAME
"""


def add_arguments(parser: arguments.Parser) -> None:
    parser.add("folder FOLDER", "folder that `vit_jax convert` wrote")
    parser.add("repository USER/NAME", "on the Hub; created if it is new")
    parser.add("--public", "make a new repository public")


def run(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    from vit_jax.weights import push

    for line in push.push(args.folder, args.repository, public=args.public):
        print(line)
    return 0
