"""`vit_jax segment`."""

import argparse
import json

from vit_jax.cli import arguments

HELP = "measure patch features by linear segmentation"
TAKES_CONFIG = True
EPILOG = """\
  vit_jax segment --checkpoint=runs/mine --data=VOCdevkit/VOC2012
  vit_jax segment --checkpoint=MODEL --data=DIR --test=test --config.data.image_size=448

A linear classifier on frozen patch features learns the training masks and is measured at
the full size of the test images: intersection over union by class, its mean, and pixel accuracy.

DIR has TRAIN/images/NAME.jpg and TRAIN/masks/NAME.png, or the layout of Pascal VOC (JPEGImages,
SegmentationClass, ImageSets/Segmentation), or that of ADE20K's scene parsing (images,
annotations). A mask is a PNG with the number of a class for every pixel, 255 where there is none.
"""


def add_arguments(parser: arguments.Parser) -> None:
    arguments.add_checkpoint(parser)
    parser.add("--data DIR", "images and masks, also in a bucket", required=True)
    parser.add("--train SPLIT", "split to learn from", default="train")
    parser.add("--test SPLIT", "split to measure on", default="val")
    arguments.add_output(
        parser, "DIR", "folder for segmentation.json and segmentation.png (default: none)"
    )


def run(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    from vit_jax.inference import segmentation
    from vit_jax.inference.inspect import outputs
    from vit_jax.runtime import logs
    from vit_jax.utils import storage

    result = segmentation.measure(
        args.checkpoint,
        args.data,
        overrides,
        splits=(args.train, args.test),
        step=args.step,
        say=logs.log.info,
    )
    found = result.as_dict()
    print("class       IoU  pixels")
    for number, (iou, pixels) in enumerate(zip(found["iou"], found["pixels"], strict=True)):
        print(f"{number:5}  {'-' if iou is None else format(iou, '8.4f'):>8}  {pixels:,}")
    print(f"mean IoU        {found['miou']:.4f}")
    print(f"pixel accuracy  {found['pixel_accuracy']:.4f}")
    if args.output is not None:
        with storage.writing("--output", args.output):
            args.output.mkdir(parents=True, exist_ok=True)
            text = json.dumps(found, indent=1) + "\n"
            storage.write_atomically(args.output / "segmentation.json", text)
            storage.write_atomically(
                args.output / "segmentation.png", outputs.encode_figure(result.figure, "png")
            )
        print(args.output / "segmentation.png")
    return 0
