"""A data source: `--config.data.source=stripes --config.data.count=64`."""

import numpy as np

import vit_jax
from vit_jax.data.source import Record
from vit_jax.utils.digests import digest


@vit_jax.register("source", "stripes")
class Stripes:
    """Gray images with stripes: class 0 across, class 1 down."""

    classes = ("across", "down")

    def __init__(self, data, split, *, train=False, count: int = 64):
        self.size, self.split, self.count = data.image_size, split, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        rows, columns = np.indices(self.size)
        lines = (rows if index % 2 == 0 else columns) + index // 2
        return Record((lines % 2 * 255).astype(np.uint8)[:, :, None], index % 2)

    def name(self, index):
        """The name of an example, for messages."""
        return f"stripes {self.split}[{index}]"

    def fingerprint(self):
        """A digest of the data: a run resumes only on equal data."""
        return digest(b"stripes", repr((self.size, self.count)).encode())
