"""Photos that shrink to small inputs: image folders average them, the paper's rows sample."""

import cv2
import numpy as np
import pytest
from PIL import Image

from vit_jax import config
from vit_jax.config import catalog
from vit_jax.data import transforms

FOLDERS = [
    "image_folder",
    "image_folder-32",
    "image_csv",
    "image_csv-multilabel",
    "tfds",
    "tfds-32",
]
SHADES = (40, 200)  # of stripes one pixel wide; their mean is 120


def data_of(name, **changes):
    cfg = config.build(catalog.load(name))
    return config.build({"data": config.to_dict(cfg)["data"] | changes}).data


def stripes(height, width):
    image = np.full((height, width, 3), SHADES[0], np.uint8)
    image[:, 1::2] = SHADES[1]
    return image


def seen(steps, image):
    random = np.random.default_rng(0)
    for step in steps:
        image = step(image, random)
    return image


@pytest.mark.parametrize("name", FOLDERS)
def test_fine_stripes_become_their_mean(name):
    data = data_of(name, flip=False, crop_area=(0.9, 1.0))
    height, width = data.image_size
    photo = stripes(7 * height, 7 * width)
    for steps in (transforms.eval_transforms(data), transforms.train_transforms(data)):
        view = seen(steps, photo).astype(int)
        assert view.shape == (height, width, 3)
        inside = view[:, 2:-2]  # the borders see fewer stripes
        assert np.abs(inside - 120).max() <= 8
    plain = data_of(name, resampling="bilinear")
    assert seen(transforms.eval_transforms(plain), photo).astype(int).std() > 40  # aliased


@pytest.mark.parametrize("name", FOLDERS)
def test_views_are_those_of_pillow_and_near_area_averages(name):
    data = data_of(name)
    height, width = data.image_size
    rough = np.random.default_rng(0).integers(0, 256, (height // 4, width // 4, 3), np.uint8)
    photo = cv2.resize(rough, (6 * width, 4 * height), interpolation=cv2.INTER_CUBIC)
    view = seen(transforms.eval_transforms(data), photo).astype(int)
    pillow = Image.fromarray(photo).resize((width, height), Image.Resampling.BILINEAR)
    assert np.abs(view - np.asarray(pillow)).max() <= 1  # rows and columns in another order
    areas = cv2.resize(photo, (width, height), interpolation=cv2.INTER_AREA).astype(int)
    assert np.abs(view - areas).mean() < 8  # a wider kernel, but no other place


def test_the_papers_rows_keep_tensorflows():
    for name in catalog.names():
        if name not in FOLDERS and not name.startswith(("adapt/", "image_csv")):
            assert config.build(catalog.load(name)).data.resampling == "bilinear", name
