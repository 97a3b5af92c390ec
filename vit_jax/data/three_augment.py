"""3-Augment (Touvron et al. 2022, DeiT III): one of three simple changes, then color jitter.

`data.transforms=three_augment`. As in the authors' code: gray, solarized from 128 on, or a Gaussian
blur of deviation 0.1 to 2, each with probability 1/3; then brightness, contrast and saturation in a
random order, each by a factor of 0.7 to 1.3, as in torchvision.
"""

import dataclasses

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from vit_jax.config import components

SIGMAS = (0.1, 2.0)
ENHANCED = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)


@components.register("transform", "three_augment")
@dataclasses.dataclass(frozen=True)
class ThreeAugment:
    """Changes colors or sharpness.

    Draws which of the three, the deviation of the blur, the order of the jitter as a permutation,
    and its three factors.
    """

    jitter: float = 0.3

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Returns the changed image, of the same shape."""
        gray = image.shape[2] == 1
        changed = Image.fromarray(image[:, :, 0] if gray else np.ascontiguousarray(image))
        which, sigma = rng.integers(3), rng.uniform(*SIGMAS)
        if which == 0:
            changed = ImageOps.grayscale(changed).convert(changed.mode)
        elif which == 1:
            changed = ImageOps.solarize(changed, 128)
        else:
            changed = changed.filter(ImageFilter.GaussianBlur(sigma))
        order = rng.permutation(len(ENHANCED))
        factors = rng.uniform(max(0.0, 1 - self.jitter), 1 + self.jitter, len(ENHANCED))
        for index in order.tolist():
            changed = ENHANCED[index](changed).enhance(float(factors[index]))
        return np.asarray(changed).reshape(image.shape)
