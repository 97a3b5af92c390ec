"""Padded sequences of patches: grids as SigLIP 2 finds them, and batches of a drawn length."""

import dataclasses
import math

import numpy as np
import pytest

import toys
from vit_jax import config
from vit_jax.data import native_aspect, pipeline, sampling
from vit_jax.data.source import Record

PATCH = (4, 4)
LENGTHS = (9, 16, 30)
DATA = config.Data(
    image_size=(16, 16), aspect="native", lengths=LENGTHS, workers=0, crop_area=(0.3, 1.0)
)


def searched(height, width, patch, most):
    """The grid by bisection of the scale, as SigLIP 2 and timm find it."""

    def grid(scale):
        sides = zip((height, width), patch, strict=True)
        return [max(1, math.ceil(side * scale / own)) for side, own in sides]

    low, high = 1e-6, 100.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if math.prod(grid(middle)) <= most else (low, middle)
    return tuple(grid(low))


@pytest.mark.parametrize("patch", [(16, 16), (8, 16)])
def test_grids_are_the_largest_that_keep_the_aspect_ratio(patch):
    rng = np.random.default_rng(0)
    some = rng.integers([20, 20, 1], [900, 900, 300], (60, 3)).tolist()
    for height, width, most in [*some, (1, 10_000, 64), (10_000, 1, 64)]:
        size = height, width, patch, most
        assert native_aspect.largest_grid(*size) == searched(*size)


def test_patches_are_written_in_raster_order():
    image = np.arange(8 * 12 * 3).reshape(8, 12, 3)
    out = np.zeros((9, 4, 4, 3), int)
    assert native_aspect.write_patches(image, out) == (2, 3)
    np.testing.assert_array_equal(out[4], image[4:8, 4:8])
    np.testing.assert_array_equal(out[2], image[:4, 8:])
    assert not out[6:].any()


SIZES = ((40, 16), (16, 40), (20, 20), (8, 30), (33, 21))


def shown(index):
    """An image of one of many shapes, brighter to the right and below."""
    height, width = SIZES[index % 5]
    rows, columns = np.mgrid[:height, :width]
    image = 255 * np.stack([rows / height, columns / width, 0 * rows], axis=-1)
    return Record(image.astype(np.uint8), index % 2)


def taken(data, steps=8, *, rows=range(6), start=0, seed=3):
    """Batches of a run from a step on."""
    view = pipeline.View("image", data, patch=PATCH)
    options = {"seed": seed, "batch_size": 6, "rows": rows, "start_step": start, "stop_step": steps}
    source = toys.Made(10, shown)
    with pipeline.batches(source, (), data, views=(view,), train=True, **options) as made:
        return list(made)


def test_a_step_draws_a_length_by_seed_and_step():
    found = taken(DATA)
    lengths = [batch["image"].shape[1] for batch in found]
    assert lengths == [sampling.step_choice(3, step, LENGTHS) for step in range(8)]
    assert set(lengths) == set(LENGTHS)
    counts = np.bincount([sampling.step_choice(5, s, (0, 1, 2)) for s in range(3000)])
    assert abs(counts - 1000).max() < 100
    assert [sampling.step_choice(4, s, LENGTHS) for s in range(8)] != lengths


def test_images_keep_their_aspect_and_padding_is_empty():
    data = dataclasses.replace(DATA, train_crop="resize", flip=False)
    for batch in taken(data):
        length = batch["image"].shape[1]
        named = (batch[name] for name in ("index", "grids", "image"))
        for index, grid, patches in zip(*named, strict=True):
            size = shown(index).image.shape[:2]
            assert tuple(grid) == searched(*size, PATCH, length)
            rows, columns = grid
            assert not patches[rows * columns :].any()
            red = patches[: rows * columns, ..., 0].mean(axis=(1, 2)).reshape(rows, columns)
            green = patches[: rows * columns, ..., 1].mean(axis=(1, 2)).reshape(rows, columns)
            assert (np.diff(red, axis=0) > 0).all()
            assert (np.diff(green, axis=1) > 0).all()
        assert batch["grids"].dtype == np.int32


def test_crops_vary_about_the_aspect_of_the_image():
    fit = native_aspect.FitPatches.from_data(DATA, PATCH, 30)
    rng = np.random.default_rng(0)
    for height, width in ((100, 400), (400, 100)):
        drawn = [fit.rectangle(height, width, rng) for _ in range(300)]
        factors = [part[3] / part[2] * height / width for part in drawn]
        assert 0.7 < min(factors) < 0.8
        assert 1.25 < max(factors) < 1.4
        shares = [part[2] * part[3] / (height * width) for part in drawn]
        assert 0.29 < min(shares) < 0.5
        assert max(shares) > 0.8


def test_without_lengths_sequences_are_as_long_as_the_image_size_has_patches():
    assert pipeline.View("image", config.Data(image_size=(16, 24)), patch=PATCH).lengths == (24,)
    assert pipeline.View("image", config.Data()).lengths == ()
