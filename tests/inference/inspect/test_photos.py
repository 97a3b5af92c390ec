"""What people see of the images beside what the model sees of them."""

import cv2
import numpy as np
import pytest

from vit_jax import config
from vit_jax.inference.inspect import inputs


def gradient(height, width, channels=3):
    """Returns a smooth image, of which every resizing keeps the colors."""
    rows, columns = np.linspace(20, 220, height), np.linspace(0, 30, width)
    return np.repeat((rows[:, None] + columns)[:, :, None], channels, axis=2).astype(np.uint8)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("data", "size", "factor"),
    [
        ({}, (300, 451), 8),
        ({}, (200, 451), 4),  # 8 times 32 are more rows than there are
        ({}, (32, 32), 1),
        ({}, (20, 500), 1),
        ({"eval_crop": "central"}, (300, 451), 8),
        ({"eval_crop": "central", "resize_to": 40}, (300, 451), 8),
        ({"resampling": "antialiased_bilinear"}, (300, 451), 8),
        ({"channels": 1}, (300, 451), 8),
        ({"image_size": (48, 24)}, (300, 451), 4),  # 8 times 48 are more than 256
        ({"image_size": (224, 224)}, (3000, 4000), 1),
    ],
)
def test_a_photo_is_the_same_part_of_the_image(data, size, factor):
    data = config.Data(**({"image_size": (32, 32)} | data))
    pixels = gradient(*size, data.channels)
    view, photo = inputs.seen(pixels, data), inputs.photo(pixels, data)
    height, width = data.image_size
    assert view.shape == (height, width, data.channels)
    assert photo.shape == (factor * height, factor * width, data.channels)
    blocks = photo.reshape(height, factor, width, factor, data.channels)
    # A crop starts at a whole pixel: the view's may be half of one away from the photo's.
    half = 0.5 * np.ptp(pixels) / height if data.eval_crop == "central" else 0.0
    np.testing.assert_allclose(blocks.mean(axis=(1, 3)), view, atol=1.5 + half)


def test_photos_of_files_of_several_sizes_are_of_one_size():
    small, large = gradient(32, 32), gradient(64, 100)
    encoded = cv2.imencode(".png", large)[1].tobytes()
    data = config.Data(image_size=(32, 32))
    shown = inputs.preprocessed(data, [("small", small, None), ("large", encoded, None)])
    assert shown.photos.shape == (2, 64, 64, 3)
    np.testing.assert_array_equal(shown.photos[0], small.repeat(2, axis=0).repeat(2, axis=1))
    np.testing.assert_array_equal(shown.photos[1], inputs.photo(large, data))
    np.testing.assert_array_equal(shown.views[0], small)
    assert shown.first(1).photos.shape == (1, 64, 64, 3)
