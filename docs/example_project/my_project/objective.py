"""LeJEPA, learning without labels: `--config.objective.name=lejepa --config.objective.crops=4`.

After Balestriero and LeCun (2025). Crops of an image agree on its features, which look Gaussian
along random directions over the whole batch: else all images could have the same.
"""

import jax
import jax.numpy as jnp
import numpy as np

import vit_jax
from vit_jax.data.pipeline import View
from vit_jax.training import streams
from vit_jax.training.normalization import normalize_pixels
from vit_jax.training.objectives import Objective

KNOTS = np.linspace(0, 3, 17, dtype=np.float32)  # of the characteristic function


@vit_jax.register("objective", "lejepa")
class LeJepa(Objective):
    """Each argument is an option, such as `--config.objective.crops=4`."""

    needs_labels = False
    whole_batch = True  # devices and microbatches change nothing
    measures = ("invariance", "gaussian")

    def __init__(self, setup, crops: int = 2, directions: int = 64, weight: float = 0.02):
        super().__init__(setup)
        self.crops, self.directions, self.weight = crops, directions, weight

    @property
    def views(self):
        """Random views of an image by the options of `data`: an entry (B, crops, H, W, C)."""
        return (View("crops", self.cfg.data, self.crops),)

    def init(self, key):
        """A projector of two layers beside the model; it trains with it."""
        width, normal = self.cfg.model.width, jax.nn.initializers.lecun_normal()
        first, second = jax.random.split(key)
        return {
            "hidden": {"kernel": normal(first, (width, 4 * width))},
            "output": {"kernel": normal(second, (4 * width, 16))},
        }

    def draw(self, batch, step):
        """Unit vectors (directions, 16), others in each step."""
        key = streams.key(self.cfg.seed, streams.OBJECTIVE, step)
        drawn = jax.random.normal(key, (self.directions, 16))
        return drawn / jnp.linalg.norm(drawn, axis=-1, keepdims=True)

    def forward(self, params, batch, inputs):
        """Projected features of every crop, (B, crops, 16) float32."""
        crops = batch["crops"]
        pixels = normalize_pixels(crops.reshape(-1, *crops.shape[2:]), self.cfg.data)
        _, out = self.model.apply(params, pixels, key=inputs.key)
        own = params["objective"]
        hidden = jax.nn.gelu(out["pre_logits"] @ own["hidden"]["kernel"])
        return (hidden @ own["output"]["kernel"]).reshape(*crops.shape[:2], -1)

    def loss(self, outputs, inputs):
        """Distance between crops, and from a normal distribution over the batch."""
        mean = outputs.mean(axis=1, keepdims=True)
        invariance = jnp.mean(jnp.square(outputs - mean))
        along = jnp.einsum("bvd,md,k->bvmk", outputs, inputs.drawn, KNOTS)
        normal = np.exp(-np.square(KNOTS) / 2)
        off = jnp.square(jnp.cos(along).mean(axis=0) - normal.reshape(1, 1, -1))
        off += jnp.square(jnp.sin(along).mean(axis=0))
        ends = np.where((KNOTS == 0) | (KNOTS == 3), 0.5, 1)  # trapezoids
        gaussian = len(outputs) * jnp.mean(off @ np.float32(normal * ends * KNOTS[1]))
        loss = self.weight * gaussian + (1 - self.weight) * invariance
        return loss, {"invariance": invariance, "gaussian": gaussian}
