"""Handwritten digits that come with the package: a whole run in a minute or two on a laptop.

1,797 real 8x8 images (UCI, Optical Recognition of Handwritten Digits): 1,437 to train on, 360 to
test on. `digits` is the default of this framework; `digits-token` is the same run with the class
token and learned position embeddings of the paper.

Batch, label smoothing and augmentation were chosen on the last fifth of the training images
(`--config.data.train_split='train[:80%]' --config.data.eval_split='train[80%:]'`), top-1 of two
seeds: batch 128 without smoothing 93.0, 92.0; batch 64 94.4, 93.7; with smoothing 0.1 95.5, 96.2.
"""

import ml_collections

from vit_jax.config import catalog

RUNS = {"digits": ("gap", "sincos_2d"), "digits-token": ("token", "learned_1d")}


def get_config(name: str) -> ml_collections.ConfigDict:
    """The config of the run `name`."""
    pooling, position = RUNS[name]
    return ml_collections.ConfigDict(
        {
            "model": {
                "num_classes": 10,
                "patch_size": (2, 2),
                "width": 64,
                "depth": 4,
                "mlp_dim": 256,
                "heads": 4,
                "pooling": pooling,
                "position": position,
            },
            "data": {
                "source": "digits",
                "image_size": (8, 8),
                "channels": 1,
                "train_crop": "resize",
                "flip": False,
                "rotation": 10.0,
                "scale": 0.1,
                "shift": 0.1,
            },
            "train": {
                "batch_size": 64,
                "duration": "90 epochs",
                "label_smoothing": 0.1,
                "clip_norm": 1.0,
            },
            "optimizer": {"lr": 1e-3, "weight_decay": 0.1},
            "schedule": {"warmup": "10 epochs", "name": "cosine"},
            "checkpoint": {"every": "10 epochs"},
            "evaluation": {"every": "10 epochs"},
        }
    )


def about(name: str) -> catalog.About:
    """The provenance of the run `name`."""
    return catalog.About(row=f"{name}, the whole training split", dataset="digits", images=1437)
