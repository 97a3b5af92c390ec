"""Any folder of images: `--config.data.root=DIR` with DIR/train/CLASS/... and DIR/test/CLASS/...

If DIR/val/CLASS/... (or valid, validation, dev, eval) exists, that split is evaluated while
training and chooses the best checkpoint; the test images are measured once, at the end. A folder
without splits, DIR/CLASS/..., needs `--config.data.holdout=0.1`, the share of each class to
evaluate on. `image_folder` is ViT-S/16 at 224 pixels; `image_folder-32` is a small ViT with 4-pixel
patches for small images such as 32x32; `image_folder-naflex` is ViT-S/16 on images at their own
aspect ratio, of 128, 196 or 256 patches.
"""

import ml_collections

from vit_jax.config import catalog
from vit_jax.config.catalog import Choice

RUNS = ("image_folder", "image_folder-32", "image_folder-naflex")


def get_config(name: str) -> ml_collections.ConfigDict:
    """The config of the run `name`."""
    options = {
        "model": {"variant": "ViT-S/16"},
        "data": {
            "source": "folder",
            "eval_split": "auto",
            "test_split": "auto",
            "resampling": "antialiased_bilinear",
        },
        "train": {"batch_size": 256, "duration": "90 epochs", "clip_norm": 1.0},
        "optimizer": {"lr": 1e-3, "weight_decay": 0.1},
        "schedule": {"warmup": "5 epochs", "name": "cosine"},
        "checkpoint": {"every": "1 epochs", "minutes": 15.0},
        "evaluation": {"every": "1 epochs"},
    }
    if name == "image_folder-32":
        options["model"] = {
            "patch_size": (4, 4),
            "width": 192,
            "depth": 6,
            "mlp_dim": 768,
            "heads": 3,
            "pooling": "gap",
            "position": "sincos_2d",
        }
        # Half of the images: on a CPU a step of 256 takes 6.6 GB.
        options["train"] |= {"batch_size": 128}
        options["data"] |= {"image_size": (32, 32), "crop_area": (0.25, 1.0)}
    if name == "image_folder-naflex":
        options["model"] |= {"pooling": "gap", "position_resize": "antialiased_bicubic"}
        options["data"] |= {"aspect": "native", "lengths": (128, 196, 256)}
    return ml_collections.ConfigDict(options)


def about(name: str) -> catalog.About:
    """The choices of the recipe."""
    return catalog.About(choices=CHOICES + NAFLEX if name.endswith("-naflex") else CHOICES)


CHOICES = (
    Choice(
        "data.resampling=antialiased_bilinear",
        "photos shrink a lot, and without antialiasing most of their pixels are skipped; the "
        "paper's runs keep TensorFlow's plain bilinear",
        "--config.data.resampling=bilinear",
    ),
    Choice(
        "data.eval_split=auto, data.test_split=auto",
        "a validation split chooses, and then test is measured once; without one, test is "
        "evaluated and nothing is chosen on it",
        "--config.data.eval_split=SPLIT --config.data.test_split=SPLIT",
    ),
)

NAFLEX = (
    Choice(
        "data.lengths=128,196,256",
        "the mean is near the 196 patches of 224 pixels, and so is the cost; evaluation is at 256",
        "--config.data.lengths=128,256,576",
    ),
    Choice(
        "model.pooling=gap, model.position_resize=antialiased_bicubic",
        "as in timm's naflexvit_*_gap, without its registers and LayerScale",
        "--config.model.pooling=token --config.model.position_resize=aligned",
    ),
)
