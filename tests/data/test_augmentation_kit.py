"""3-Augment and repeated augmentation, against what they are by hand."""

import dataclasses
from unittest import mock

import numpy as np
import pytest
import test_pipeline
from PIL import Image, ImageFilter

from vit_jax import config
from vit_jax.data import transforms

SEEDS = range(300)


def changed(image, seed, jitter):
    return transforms.ThreeAugment(jitter)(image, np.random.default_rng(seed))


@pytest.mark.parametrize("channels", [1, 3])
def test_one_of_three_changes(channels):
    image = np.random.default_rng(0).integers(0, 256, (12, 9, channels), np.uint8)
    solarized = np.where(image < 128, image, 255 - image)
    weights = np.array([19595, 38470, 7471])  # of ITU-R 601, in 1 / 65536
    gray = image if channels == 1 else (image @ weights + 2**15 >> 16)[..., None]
    gray = np.broadcast_to(gray, image.shape)
    found = {"gray": 0, "solarized": 0, "blurred": 0}
    for seed in SEEDS:
        result = changed(image, seed, 0.0)
        assert (result.shape, result.dtype) == (image.shape, np.uint8)
        if np.array_equal(result, solarized):
            found["solarized"] += 1
        elif np.array_equal(result, gray):  # of one channel, also a blur of next to nothing
            found["gray"] += 1
        else:
            found["blurred"] += 1
            assert result.std() <= image.std()
            assert abs(result.mean() - image.mean()) < 3
    assert 70 < found["solarized"] < 130
    if channels == 3:
        assert 70 < found["gray"] < 130


def test_the_blur_has_the_deviation_that_is_drawn():
    """Between 0.1 and 2, as in the authors' code; against Pillow's at that deviation."""
    image = np.random.default_rng(0).integers(0, 256, (24, 24, 3), np.uint8)
    drawn = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        if rng.integers(3) < 2:
            continue
        drawn.append(rng.uniform(0.1, 2.0))
        blurred = Image.fromarray(image).filter(ImageFilter.GaussianBlur(drawn[-1]))
        np.testing.assert_array_equal(changed(image, seed, 0.0), np.asarray(blurred))
    assert min(drawn) < 0.6
    assert max(drawn) > 1.5


def test_jitter_multiplies_what_it_is_called():
    image = np.full((4, 4, 3), 60, np.uint8)
    with mock.patch.object(transforms, "ENHANCED", transforms.ENHANCED[:1]):
        means = np.array([changed(image, seed, 0.3).mean() for seed in SEEDS])
    assert 0.69 * 60 - 1 < means.min() < 0.75 * 60
    assert 1.25 * 60 < means.max() < 1.31 * 60 + 1
    np.testing.assert_array_equal(changed(image, 5, 0.3), changed(image, 5, 0.3))


def test_three_augment_is_an_option():
    chosen = config.build({"data": {"transforms": [{"name": "three_augment", "jitter": 0.1}]}})
    data = dataclasses.replace(test_pipeline.DATA, transforms=chosen.data.transforms)
    last = transforms.train_transforms(data)[-1]
    image = np.random.default_rng(1).integers(0, 256, (6, 5, 3), np.uint8)
    ours = last(image, np.random.default_rng(4))
    np.testing.assert_array_equal(ours, changed(image, 4, 0.1))


def test_repeats_are_views_of_the_same_images_in_a_batch():
    data = dataclasses.replace(test_pipeline.DATA, repeats=2)
    plain = test_pipeline.run()
    batches = test_pipeline.run(data=data, steps=(0, 10))
    order = test_pipeline.joined(plain, "index")
    for number, batch in enumerate(batches):
        np.testing.assert_array_equal(batch["index"][:4], batch["index"][4:])
        np.testing.assert_array_equal(batch["label"][:4], batch["label"][4:])
        assert not any(np.array_equal(batch["image"][i], batch["image"][i + 4]) for i in range(4))
        np.testing.assert_array_equal(batch["index"][:4], order[4 * number : 4 * number + 4])
    counts = np.bincount(test_pipeline.joined(batches[:5], "index"), minlength=20)
    assert set(counts) == {2}  # 20 images, each in two views
    every = test_pipeline.joined(batches, "image")
    assert len({image.tobytes() for image in every}) == 80
    test_pipeline.assert_same(test_pipeline.run(data=data, steps=(3, 10)), batches[3:])
    measured = test_pipeline.run(data=data, train=False, steps=(0, 2))
    test_pipeline.assert_same(measured, test_pipeline.run(train=False, steps=(0, 2)))


def test_batches_within_an_image_are_those_of_timms_sampler():
    """DeiT's batches of 1,024 with three repeats: an image's last view comes a batch later."""
    data = dataclasses.replace(test_pipeline.DATA, repeats=3)
    order = test_pipeline.joined(test_pipeline.run(steps=(0, 5)), "index")
    sampler = np.repeat(order, 3)  # as timm's RepeatAugSampler on one host
    batches = test_pipeline.run(data=data, steps=(0, 6))
    for number, batch in enumerate(batches):
        rows = batch["index"].tolist()
        assert sorted(rows) == sorted(sampler[8 * number : 8 * number + 8].tolist())
        assert all(a != b for a, b in zip(rows[::2], rows[1::2], strict=True))  # pairs of mixup
    views = {image.tobytes() for image in test_pipeline.joined(batches, "image")}
    assert len(views) == 48
    test_pipeline.assert_same(test_pipeline.run(data=data, steps=(4, 6)), batches[4:])
