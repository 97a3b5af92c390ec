"""`vit_jax embed`."""

import argparse

from vit_jax.cli import arguments

HELP = "write the features of images to a file: the head's input, or every token"
TAKES_CONFIG = True
EPILOG = """\
  vit_jax embed --checkpoint=runs/mine photos/ --output=photos.npz
  vit_jax embed --checkpoint=augreg/ViT-B_16 --output=pets.parquet \\
      --config.data.source=tfds --config.data.name=oxford_iiit_pet

Rows keep the order of the paths or of the dataset, and depend on batch size and devices only by
rounding. FILE.npz has features, names, labels (-1: unknown) and classes; FILE.parquet has the
columns name, label, features. Features are float32; only a few batches are in memory at a time.
A file in a folder named after a class of the model has that label; of several such folders, the
outermost counts. An unreadable image is an error or, within data.max_bad_examples, a row of NaN.
"""


def add_arguments(parser: arguments.Parser) -> None:
    arguments.add_checkpoint(parser)
    parser.add(
        "images FOLDER",
        "image files at any depth, also in a bucket (default: data.eval_split of the config's "
        "dataset)",
        nargs="?",
    )
    arguments.add_output(parser, "FILE.npz|.parquet", "file to write", required=True)
    parser.add(
        "--features",
        "pre_logits: the head's input (default); tokens: all of them, the class token first",
        choices=("pre_logits", "tokens"),
        default="pre_logits",
    )
    parser.add(
        "--batch-size N",
        "images at a time, over all devices (default: 32 per device)",
        type=arguments.positive,
    )


def run(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    from vit_jax.inference import embedding
    from vit_jax.runtime import distributed

    count = embedding.embed(
        args.checkpoint,
        args.output,
        args.images,
        overrides,
        step=args.step,
        features=args.features,
        batch_size=args.batch_size,
    )
    if distributed.is_first():
        print(f"{args.output}: {count:,} images")
    return 0
