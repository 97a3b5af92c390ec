"""A training loop of your own: own images, Lion, own augmentation, without the command line."""

import jax
import numpy as np
import optax
from my_project.batch_augmentation import jitter
from my_project.source import Stripes

import vit_jax
from vit_jax.training.normalization import normalize_pixels

cfg = vit_jax.get_config("digits", {"model.num_classes": 2})
source = Stripes(cfg.data, "train")
examples = [source[index] for index in range(len(source))]
images, labels = map(np.stack, zip(*examples, strict=True))
model = vit_jax.create_model(cfg)
params = model.init(jax.random.key(cfg.seed))
optimizer, augment = optax.lion(1e-3), jitter(0.2)
moments = optimizer.init(params)


@jax.jit
def step(params, moments, number, images, labels):
    """The parameters and moments after a step, and its loss."""
    key = jax.random.fold_in(jax.random.key(cfg.seed), number)
    images, labels = augment(key, normalize_pixels(images, cfg.data), labels)

    def loss(params):
        logits, _ = model.apply(params, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    value, gradient = jax.value_and_grad(loss)(params)
    updates, moments = optimizer.update(gradient, moments, params)
    return optax.apply_updates(params, updates), moments, value


for number in range(100):  # batches are a function of (seed, step), as everything random is
    rows = np.random.default_rng((cfg.seed, number)).permutation(len(source))[:32]
    params, moments, value = step(params, moments, number, images[rows], labels[rows])
print(f"loss {value:.4f} after {number + 1} steps")
