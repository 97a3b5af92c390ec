"""Sources and models small enough to compute the results of by hand."""

import numpy as np

from vit_jax import config
from vit_jax.data.source import Record
from vit_jax.evaluation import runner
from vit_jax.training import run_config, sharding


class Made:
    """Records that a function makes of their numbers."""

    def __init__(self, number, make, classes=("a", "b")):
        self.number, self.make, self.classes = number, make, classes

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        return self.make(index)

    def name(self, index):
        return f"example {index}"

    def fingerprint(self):
        return "made"


class Toy:
    """Images of one row: pixel k is how much class k is predicted."""

    def __init__(self, rows, labels, classes=4):
        self.rows, self.labels = np.asarray(rows, np.uint8), labels
        self.classes = tuple(f"n{number:08d}" for number in range(classes))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return Record(self.rows[index][None, :, None], self.labels[index])

    def name(self, index):
        return f"val/ILSVRC2012_val_{index + 1:08d}.JPEG"

    def fingerprint(self):
        return "toy"


class Echo:
    """A model whose outputs are the pixels; equal and hashable, as jit needs it."""

    def apply(self, params, images):
        return images[:, 0, :, 0] + params, {"pre_logits": images[:, 0, :, 0]}


def configure(batch_size=4, **evaluation):
    """A config that shows a Toy as it is."""
    return run_config.complete(
        config.build(
            {
                "model": {"patch_size": (1, 4), "width": 8, "depth": 1, "mlp_dim": 8, "heads": 2},
                "data": {
                    "source": "digits", "image_size": (1, 4), "channels": 1, "train_crop": "resize",
                },
                "train": {"batch_size": batch_size},
                "evaluation": evaluation,
            }
        )
    )  # fmt: skip


def passing(source, cfg, mesh=None):
    """A pass over a source as a run makes them, in batches of train.batch_size."""
    mesh = mesh or sharding.create_mesh(1)
    return runner.create_runner(source, cfg, mesh, cfg.train.batch_size)


def always(value):
    """An evaluator that knows its result."""
    return lambda params, *, stop: None if stop() else value
