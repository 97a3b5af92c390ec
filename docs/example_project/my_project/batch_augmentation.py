"""An augmentation of a batch: `--config.train.augmentations.jitter.amount=0.2`."""

import jax

import vit_jax


@vit_jax.register("batch_augmentation", "jitter")
def jitter(amount: float = 0.1):
    """Shifts the brightness of each training image, on the device."""

    def augment(key, images, labels):
        """Takes normalized images (B, H, W, C) and labels (B,); all randomness is the key's."""
        shift = jax.random.uniform(key, (images.shape[0], 1, 1, 1), minval=-amount, maxval=amount)
        return images + shift, labels

    return augment
