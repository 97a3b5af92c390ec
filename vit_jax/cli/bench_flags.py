"""The flags of `vit_jax bench`, and which measurement has which."""

import argparse
from typing import Any

from vit_jax import config
from vit_jax.cli import arguments

# What can be measured, and the flags of each.
KINDS = {
    "attention": (),
    "startup": (),
    "input": (
        "data", "threads", "peer_python", "peer_path", "randaugment", "rounds", "feed", "topology",
        "output",
    ),
    "infer": ("models", "sizes", "output", "rounds", "topology"),
    "train": (
        "models", "sizes", "batch", "dtype", "attention", "peer", "peer_python", "peer_path",
        "rounds", "output",
    ),
    "checkpoint": ("models", "workdir", "rounds", "output"),
    "evaluate": ("models", "sizes", "batch", "data", "rounds", "output"),
    "dispatch": ("rounds", "output"),
}  # fmt: skip


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("what", choices=KINDS, help="what to measure; see below")
    parser.add_argument(
        "--data",
        type=arguments.local_path,
        metavar="FOLDER|TAR",
        help="input, evaluate: JPEG files to load (default: generated ones, similar to ImageNet's)",
    )
    parser.add_argument(
        "--threads",
        type=int,
        nargs="+",
        metavar="N",
        help="input: loader threads to try (default: one per core)",
    )
    parser.add_argument(
        "--rounds",
        type=arguments.positive,
        metavar="N",
        help="turns of each; infer: passes of each (default: 5)",
    )
    parser.add_argument(
        "--peer-python",
        metavar="PATH",
        help="input: an interpreter that has TensorFlow; train: one that has the peer's packages "
        "(default: this one)",
    )
    parser.add_argument(
        "--randaugment",
        metavar="N,M",
        help="input: RandAugment of N operations at magnitude M (default: none)",
    )
    parser.add_argument(
        "--feed",
        metavar="MODEL",
        help="input: print how many cores a model needs, such as ViT-B/32, with --topology",
    )
    parser.add_argument(
        "--topology",
        metavar="SLICE",
        help="input: the slice to feed; infer: the one to compile for: v3-8, v5e:2x2, ...",
    )
    parser.add_argument(
        "--models",
        type=arguments.words,
        metavar="MODEL,...",
        help="infer: models by name (default: the paper's eight; on a CPU four small ones); "
        "others: ViTs by name (default: ViT-S/16)",
    )
    parser.add_argument(
        "--sizes",
        type=arguments.image_sizes,
        metavar="PIXELS,...",
        help="infer: sides of the images, rounded to a multiple of a model's patch "
        "(default: 64,128,224,384,512; others: 224)",
    )
    parser.add_argument(
        "--output",
        type=arguments.local_output_path,
        metavar="PATH",
        help="a file of JSON lines to add to; infer: a folder to write infer.csv and infer.png to",
    )
    parser.add_argument(
        "--workdir",
        type=arguments.local_path,
        metavar="FOLDER",
        help="checkpoint: a folder of the file system to measure (default: that of temporary "
        "files); nothing stays there",
    )
    _add_train_arguments(parser)


def _add_train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--batch",
        type=arguments.positive,
        metavar="N",
        help="train: images of a step (default: the largest power of two to 1024 that fits; on a "
        "CPU 16); evaluate: images of a batch (default: 256; on a CPU 32)",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="train: compute type (default: bfloat16, on a CPU float32)",
    )
    parser.add_argument(
        "--attention",
        type=arguments.words,
        metavar="KIND,...",
        help="train: kinds of model.attention to try (default: explicit)",
    )
    parser.add_argument(
        "--peer", choices=("timm", "big_vision"), help="train: whom to take turns with"
    )
    parser.add_argument(
        "--peer-path",
        type=arguments.local_path,
        metavar="CHECKOUT",
        help="train: a checkout of big_vision; input: one whose RandAugment tf.data takes",
    )


def check(args: argparse.Namespace) -> None:
    """Raises ConfigError for a flag that the chosen measurement does not have."""
    for key in dict.fromkeys(flag for flags in KINDS.values() for flag in flags):
        value = getattr(args, key)
        if value is not None and key not in KINDS[args.what]:
            having = ", ".join(f"bench {kind}" for kind, flags in KINDS.items() if key in flags)
            raise config.ConfigError(
                f"--{key.replace('_', '-')}={_shown(value)}: is a flag of {having} only"
            )


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
