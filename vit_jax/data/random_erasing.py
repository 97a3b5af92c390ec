"""Random erasing (Zhong et al., AAAI 2020): a rectangle of an image becomes noise."""

import dataclasses
import math

import numpy as np


@dataclasses.dataclass(frozen=True)
class RandomErasing:
    """Fills a random rectangle with random pixels, with `probability`; algorithm 1 of the paper.

    Draws one number for the decision; then, until the rectangle lies in the image, its fraction of
    the area, its aspect ratio, its top row and its left column, all uniform; then the pixels. After
    100 attempts the image stays unchanged.
    """

    probability: float
    area: tuple[float, float] = (0.02, 0.33)
    aspect: tuple[float, float] = (0.3, 3.3)

    ATTEMPTS = 100

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Returns the image, or a copy with a part erased."""
        if rng.random() >= self.probability:
            return image
        rows, columns, channels = image.shape
        (least, most), (flattest, tallest) = self.area, self.aspect
        for _ in range(self.ATTEMPTS):
            share, aspect, down, right = rng.random(4).tolist()
            size = (least + (most - least) * share) * rows * columns
            aspect = flattest + (tallest - flattest) * aspect
            height, width = round(math.sqrt(size * aspect)), round(math.sqrt(size / aspect))
            top, left = int(rows * down), int(columns * right)
            if top + height <= rows and left + width <= columns:
                image = image.copy()
                most = np.iinfo(image.dtype).max
                shape = (height, width, channels)
                noise = rng.integers(0, most, shape, image.dtype, endpoint=True)
                image[top : top + height, left : left + width] = noise
                return image
        return image
