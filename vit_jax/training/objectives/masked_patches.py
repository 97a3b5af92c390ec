"""Masked patch prediction (ViT, appendix B.1.2): corruption of patches, targets and loss.

The paper corrupts 50 % of the patches. Here that is the same number in every image, rounded, and so
are the numbers of patches that become the mask token, become another patch, or stay: every image
then weighs the same on any device and in any microbatch, and only corrupted patches go through the
head. Which patches is random. Another patch is any other one of the same image, by its uncorrupted
embedding.

Everything here is a function of arrays. Patches are in raster order; P patches of an image, M of
them corrupted, h w their height and width in pixels, T parts of a patch that have a color.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config, models
from vit_jax.config import components
from vit_jax.models import variants
from vit_jax.models.layers import constrain_batch, patchify
from vit_jax.models.variants import required
from vit_jax.training import normalization, streams
from vit_jax.training.objectives.objective import Batch, Inputs, Objective, Setup
from vit_jax.utils.tree_utils import Tree

LEVELS = 2 ** (8 - variants.COLOR_BITS)  # gray levels that are one color

# Names of the measures beside the loss, by target.
MEASURES = {
    "color": ("accuracy", "error"),
    "color_4x4": ("accuracy", "error"),
    "pixels": ("error",),
}


@components.register("objective", "masked_patches")
class MaskedPatches(Objective):
    """Masked patch prediction: the loss on the corrupted patches of each image."""

    needs_labels = False

    def __init__(self, setup: Setup, target: str, rate: float, split: tuple[float, ...]) -> None:
        super().__init__(setup)
        self.target, self.measures = target, MEASURES[target]
        self.masked = required(setup.cfg.masked)  # rate and split

    def prepare(self, batch: Batch, step: jax.Array) -> Batch:
        """Draws the corruption of every image: `source` and `masked`, as `corrupt` has them."""
        drawn = keys(self.cfg.seed, step, self.cfg.train.batch_size)
        return batch | corrupt(drawn, self.model.patches, self.masked)

    def forward(self, params: models.Params, batch: Batch, inputs: Inputs) -> Tree:
        """Loss and measures of each image, as `measure` has them."""
        images, masked, data = batch["image"], batch["masked"], self.cfg.data
        pixels = normalization.normalize_pixels(images, data)
        outputs = self.model.predict_masked(params, pixels, batch["source"], masked, key=inputs.key)
        patch = required(self.cfg.model.patch_size)
        return measure(outputs, images, masked, patch, self.target, data)

    def loss(self, outputs: Tree, inputs: Inputs) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The mean loss, and the means of the measures."""
        means = {name: jnp.mean(value, dtype=jnp.float32) for name, value in outputs.items()}
        return means.pop("loss"), means


def keys(seed: int, step: jax.Array, rows: int) -> jax.Array:
    """Keys that the images of a step are corrupted by, (B,)."""
    key = streams.key(seed, streams.MASKED_PATCHES, step)
    return jax.vmap(jax.random.fold_in, (None, 0))(
        key, constrain_batch(jnp.arange(rows, dtype=jnp.int32))
    )


def keys_of_examples(index: jax.Array) -> jax.Array:
    """The keys of examples by their number (B,) in evaluation, the same every time."""
    # Not of the run's seed: runs of all seeds are measured on the same masks.
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(streams.MASKED_PATCHES), index)


def corrupt(keys: jax.Array, patches: int, masked: config.MaskedPatches) -> dict[str, jax.Array]:
    """Draws the corrupted patches of each image and how each is corrupted.

    Args:
      keys: (B,), one for each image, which alone determines the rest.
      patches: P, of an image.
      masked: rate and split.

    Returns:
      `source` (B, P) int32: the patch that stands in for each, P for the mask token; and `masked`
      (B, M) int32: the corrupted ones, those with the mask token first, then those replaced, then
      those kept.
    """
    count = variants.masked_patches(masked, patches)
    token = round(masked.split[0] * count)
    # The sum is rounded, not the parts, which might then add up to more than all.
    other = round((masked.split[0] + masked.split[1]) * count) - token

    def one(key: jax.Array) -> dict[str, jax.Array]:
        order, place = jax.random.split(key)
        masked_at = jax.random.permutation(order, patches)[:count].astype(jnp.int32)
        # 1 to P - 1 patches further, modulo P: never the patch itself.
        # Of a single patch there is no other, but the range must not be empty.
        away = jax.random.randint(place, (other,), 1, max(patches, 2), jnp.int32)
        replaced = masked_at[token : token + other]
        source = jnp.arange(patches, dtype=jnp.int32).at[masked_at[:token]].set(patches)
        source = source.at[replaced].set((replaced + away) % patches)
        return {"source": source, "masked": masked_at}

    return jax.vmap(one)(keys)


def colors(patches: jax.Array, side: int) -> jax.Array:
    """The colors of the parts of patches, exactly, (B, P, T) int32 in [0, 8^C).

    A patch is down-sized to side x side parts, T of them in raster order; of the mean of each
    channel over a part its upper three bits count, those of the first channel most. Pixels on the
    border of parts belong to both, by their share.

    Args:
      patches: uint8 (B, P, h, w, C).
      side: parts along each side of a patch; 1 gives its mean color.
    """
    h, w, channels = patches.shape[2:]
    # Integer arithmetic: rounding must not move a mean on the border of two colors to the other.
    down, right = (jnp.asarray(_shares(side, n), jnp.int32) for n in (h, w))
    sums = jnp.einsum("sh,tw,bphwc->bpstc", down, right, patches.astype(jnp.int32))
    bits = sums // (h * w * LEVELS)
    classes = bits @ jnp.asarray(_places(channels), jnp.int32)
    return classes.reshape(*patches.shape[:2], side * side)


def paint(classes: jax.Array, patch: tuple[int, int], channels: int) -> jax.Array:
    """Paints colors (B, M, T) int32 as pixels (B, M, h, w, C) float32, of 0 to 255.

    Each is painted as the middle of the gray levels it stands for.
    """
    side = round(classes.shape[-1] ** 0.5)
    places = jnp.asarray(_places(channels), jnp.int32).reshape(1, 1, 1, -1)
    bits = classes[..., None] // places % 2**variants.COLOR_BITS
    gray = (bits.astype(jnp.float32) + 0.5) * LEVELS - 0.5
    gray = gray.reshape(*classes.shape[:-1], side, side, channels)
    down, right = (jnp.asarray(_shares(side, n) / side, jnp.float32) for n in patch)
    return jnp.einsum("sh,tw,bmstc->bmhwc", down, right, gray, precision=jax.lax.Precision.HIGHEST)


def measure(
    outputs: jax.Array,
    images: jax.Array,
    masked: jax.Array,
    patch: tuple[int, int],
    target: str,
    data: config.Data,
) -> dict[str, jax.Array]:
    """Computes loss and measures of each image.

    `loss` (B,) float32: the mean cross-entropy of the colors of its corrupted patches, or the mean
    squared error of their pixels as the model sees them. `error` (B,) float32: how many gray levels
    the pixels of the patches are from what is predicted, on average; colors are painted. Of
    colors `accuracy` (B, M, T) bool: those that were predicted.

    Args:
      outputs: (B, M, outputs) float32, as of `Classifier.predict_masked`.
      images: uint8 (B, H, W, C), uncorrupted.
      masked: (B, M) int32, the corrupted patches.
      patch: height and width.
      target: of `objective.target`.
      data: how pixels are normalized.
    """
    chex.assert_rank([outputs, images, masked], [3, 4, 2])
    chex.assert_shape(outputs, (*masked.shape, None))
    chex.assert_type([outputs, images, masked], [jnp.float32, jnp.uint8, jnp.int32])
    truth = jnp.take_along_axis(patchify(images, patch), masked[:, :, None, None, None], axis=1)
    pixels = truth.astype(jnp.float32)
    guess = predictions(outputs, patch, target, data)
    found = {"error": jnp.mean(jnp.abs(jnp.clip(guess, 0, 255) - pixels), axis=(1, 2, 3, 4))}
    if target == "pixels":
        scale = 255 * np.asarray(data.std, np.float32)
        off = (guess - pixels) / scale.reshape(1, 1, 1, 1, -1)
        return found | {"loss": jnp.mean(off**2, axis=(1, 2, 3, 4))}
    classes = colors(truth, variants.COLOR_SIDES[target])
    logits = jax.nn.log_softmax(_logits(outputs, target))
    own = jnp.take_along_axis(logits, classes[..., None], axis=-1)[..., 0]
    # The largest, for argmax, is a NaN.
    right = (jnp.argmax(logits, axis=-1) == classes) & ~jnp.isnan(own)
    return found | {"loss": -jnp.mean(own, axis=(1, 2)), "accuracy": right}


def predictions(
    outputs: jax.Array, patch: tuple[int, int], target: str, data: config.Data
) -> jax.Array:
    """Predicted pixels (B, M, h, w, C) float32 of outputs (B, M, outputs).

    In levels of gray, of colors 0 to 255; of pixels, which are regressed, a little more or less
    than `data.depth` bits hold.
    """
    if target != "pixels":
        classes = jnp.argmax(_logits(outputs, target), axis=-1)
        return paint(classes, patch, data.channels)
    white = np.float32(np.iinfo(data.pixel_type).max)
    mean, std = (
        white * np.asarray(value, np.float32).reshape(1, 1, 1, 1, -1)
        for value in (data.mean, data.std)
    )
    return outputs.reshape(*outputs.shape[:2], *patch, data.channels) * std + mean


def _logits(outputs: jax.Array, target: str) -> jax.Array:
    """Outputs (B, M, outputs) with the parts of a patch apart, (B, M, T, 8^C)."""
    return outputs.reshape(*outputs.shape[:2], variants.COLOR_SIDES[target] ** 2, -1)


def _places(channels: int) -> np.ndarray:
    """The place value of each channel in the number of a color: 64, 8, 1 of RGB."""
    return 2 ** (variants.COLOR_BITS * np.arange(channels)[::-1])


def _shares(side: int, length: int) -> np.ndarray:
    """Overlaps of `side` equal parts with `length` pixels, (side, length), in pixels / side."""
    part, pixel = np.arange(side)[:, None], np.arange(length)[None]
    begin = np.maximum(part * length, pixel * side)
    return np.maximum(np.minimum((part + 1) * length, (pixel + 1) * side) - begin, 0)
