"""A transform of one image: `--config.data.transforms.speckle.share=0.2`."""

import vit_jax


@vit_jax.register("transform", "speckle")
class Speckle:
    """Turns a share of the pixels of a training image black."""

    def __init__(self, share: float = 0.1):
        self.share = share

    def __call__(self, image, rng):
        """The image (H, W, C) uint8; all randomness comes from the numpy generator."""
        kept = rng.random(image.shape[:2]) >= self.share
        return image * kept[:, :, None].astype(image.dtype)
