r"""A plug-in: one new file adds components, with no edit in vit_jax.

vit_jax train digits --plugins=my_project --config.optimizer.name='lion(b1=0.9,b2=0.95)' \
        --config.data.source='stripes(count=64)' --config.train.loss=squared
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax import components, config
from vit_jax.data.source import Record, digest


@components.register("source", "stripes")
class Stripes:
    """Gray images with stripes: class 0 across, class 1 down."""

    classes = ("across", "down")

    def __init__(
        self, data: config.Data, split: str, *, train: bool = False, count: int = 64
    ) -> None:
        self.size, self.split, self.count = data.image_size, split, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Record:
        rows, columns = np.indices(self.size)
        lines = (rows if index % 2 == 0 else columns) + index // 2
        return Record((lines % 2 * 255).astype(np.uint8)[:, :, None], index % 2)

    def name(self, index: int) -> str:
        """Returns the split and the index."""
        return f"stripes {self.split}[{index}]"

    def fingerprint(self) -> str:
        """Covers the size and the count."""
        return digest(b"stripes", repr((self.size, self.count)).encode())


@components.register("transform", "speckle")
def speckle(share: float = 0.1):
    """Turns a share of the pixels black."""

    def transform(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        kept = rng.random(image.shape[:2]) >= share
        return image * kept[:, :, None].astype(np.uint8)

    return transform


@components.register("batch_augmentation", "jitter")
def jitter(amount: float = 0.1):
    """Shifts the brightness of each image."""

    def augment(key, images, labels):
        shift = jax.random.uniform(key, (images.shape[0], 1, 1, 1), minval=-amount, maxval=amount)
        return images + shift, labels

    return augment


@components.register("loss", "squared")
class Squared:
    """Squared error of the softmax (the Brier score)."""

    def __call__(self, logits, targets):
        """Returns the loss of each example."""
        return jnp.sum((jax.nn.softmax(logits) - targets) ** 2, axis=-1)

    def probabilities(self, logits):
        """Returns the softmax."""
        return jax.nn.softmax(logits)


@components.register("optimizer", "sign_momentum")
def sign_momentum(decay: float = 0.9):
    """Signs of the averaged gradient (signum)."""
    return optax.chain(optax.ema(decay), optax.scale_by_sign())


@components.register("schedule", "triangle")
def triangle(*, lr: float, steps: int, warmup: int):
    """Rises to the middle of the run, then falls."""
    half = max(steps // 2, 1)
    up, down = optax.linear_schedule(0.1 * lr, lr, half), optax.linear_schedule(lr, 0.0, half)
    joined = optax.join_schedules([up, down], [half])
    return lambda step: joined(jnp.asarray(step, jnp.float32))
