"""`vit_jax prepare`."""

import argparse

from vit_jax import config
from vit_jax.cli import arguments
from vit_jax.utils import machine, messages

HELP = "prepare datasets: download, convert, pack, de-duplicate, verify"
TAKES_CONFIG = False
EPILOG = """\
  vit_jax prepare flowers                          a dataset that can be downloaded
  vit_jax prepare imagenet --from=FOLDER           from your own files: tars, or unpacked
  vit_jax prepare imagenet --from=FOLDER --partial     even if images are missing
  vit_jax prepare cifar10 --from=cifar-10-python.tar.gz
  vit_jax prepare cifar10 --from=OLD --data-dir=NEW    a copy in TFRecord files
  vit_jax prepare my_photos --from=FOLDER          CLASS/IMAGE or SPLIT/CLASS/IMAGE
  vit_jax prepare beans --from=FOLDER              Parquet files of Hugging Face; tars
                                                   of webdataset: 0.jpg, 0.cls
  vit_jax prepare pets2 --from=s3://BUCKET/photos  any of these in a bucket (gs://, hf://)
  vit_jax prepare imagenet21k --from=fall11_whole.tar --max-side=512 \\
      --dedup-against=imagenet,cifar10,pets        class tars; nothing is unpacked
  vit_jax prepare imagenet-real --from=real.json
  vit_jax prepare flowers imagenet --dry-run       what would be read and written, how large
  vit_jax prepare flowers --verify                 read every record again

The same command continues where it was stopped.
"""


def add_arguments(parser: arguments.Parser) -> None:
    parser.add(
        "tasks TASK",
        "tasks, see `vit_jax list --tasks`; 'vtab/*'; a TFDS dataset; a new name for yours",
        nargs="+",
    )
    parser.add("--data-dir DIR", "folder of all datasets (default: TFDS's data_dir)")
    parser.add(
        "--from FOLDER|TAR|ZIP|PARQUET|s3://...",
        "files to prepare it from, also in a bucket: s3://, gs://, hf:// (default: download them)",
        dest="sources",
        nargs="+",
        action="extend",
        default=[],
    )
    parser.add(
        "--cache DIR",
        "folder for copies of buckets, which are removed once they are packed (default: "
        ".buckets in --data-dir)",
    )
    parser.add(
        "--cache-size GB",
        "limit on all copies of buckets together (default: 100)",
        type=arguments.amount,
    )
    parser.add("--verify", "read every record again and name the bad ones")
    parser.add("--partial", "pack a dataset of known size even if images are missing")
    parser.add("--label COLUMN", "column of labels of your Parquet files (default: the only one)")
    parser.add(
        "--no-labels", "pack all images of --from without labels: folder names are not classes"
    )
    parser.add(
        "--holdout FRACTION",
        "fraction of each class of your images to hold out as a validation split, if there is "
        "none (default: 0.1; 0: none)",
        type=arguments.holdout,
    )
    parser.add(
        "--max-side N",
        "shrink images whose longer side exceeds N, as JPEG of quality 95",
        type=arguments.positive,
    )
    parser.add(
        "--dedup-against TASK,...",
        "leave out exact and near duplicates of these tasks' test images",
        nargs="+",
        action="extend",
        default=[],
    )
    parser.add(
        "--dedup-distance N",
        "largest Hamming distance of a near duplicate's 64-bit hash, 0 to 16",
        type=int,
        choices=range(17),
        default=8,
    )
    parser.add(
        "--dry-run", "write nothing: print what would be read, downloaded and written, and its size"
    )
    parser.add("--workers N", "processes (default: one per core)", type=arguments.positive)


def run(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    from vit_jax.data.prepare import command
    from vit_jax.data.prepare.command import Request

    request = Request(
        data_dir=args.data_dir,
        sources=tuple(args.sources),
        verify=args.verify,
        label=args.label,
        labels=not args.no_labels,
        holdout=args.holdout,
        max_side=args.max_side,
        against=tuple(name for names in args.dedup_against for name in names.split(",")),
        distance=args.dedup_distance,
        partial=args.partial,
        cache=args.cache,
        cache_size=args.cache_size,
        dry_run=args.dry_run,
        workers=args.workers or machine.cores(),
    )
    code = 0
    for name in command.names(args.tasks, request):
        try:
            for line in command.prepare(name, request):
                # Flushed: a dataset may take hours.
                print(line, flush=True)
        except config.UserError as error:  # the other tasks can still be prepared
            messages.print_error(str(error))
            code = max(code, error.exit_code)
    return code
