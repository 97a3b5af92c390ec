"""16 bits and any number of channels: no bit is lost, and every transform works at that depth."""

import dataclasses
import io

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest

import tiffs
import toys
from vit_jax import cli, config
from vit_jax.data import decoding, pipeline, transforms
from vit_jax.data.source import Record
from vit_jax.training import normalization


def samples(channels, kind=np.uint16, shape=(31, 45), seed=0):
    return np.random.default_rng(seed).integers(0, np.iinfo(kind).max, (*shape, channels), kind)


def png(pixels):
    order = {1: [0], 3: [2, 1, 0], 4: [2, 1, 0, 3]}[pixels.shape[2]]
    return cv2.imencode(".png", pixels[:, :, order])[1].tobytes()


def decode(data, channels, depth):
    return decoding.load_view(data, config.Data(channels=channels, depth=depth))


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_png_of_16_bits_loses_none(channels):
    pixels = samples(channels)
    found = decode(png(pixels), channels, 16)
    assert found.dtype == np.uint16
    np.testing.assert_array_equal(found, pixels)
    np.testing.assert_array_equal(decode(png(pixels), channels, 8), pixels >> 8)


def test_8_bits_fill_the_range_of_16():
    pixels = samples(3, np.uint8)
    stream = io.BytesIO()
    PIL.Image.fromarray(pixels).save(stream, "JPEG")
    for data in (png(pixels), tiffs.tiff(pixels, photometric=2), stream.getvalue()):
        eight, sixteen = decode(data, 3, 8), decode(data, 3, 16)
        assert (eight.dtype, sixteen.dtype) == (np.uint8, np.uint16)
        np.testing.assert_array_equal(sixteen, eight.astype(np.uint16) * 257)
    np.testing.assert_array_equal(decoding.with_channels(pixels, 3, 16), pixels.astype("u2") * 257)


def test_both_depths_are_the_same_numbers_to_the_network():
    pixels = samples(3, np.uint8)[None]
    data = config.Data(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
    deep = dataclasses.replace(data, depth=16)
    shallow = normalization.normalize_pixels(jnp.asarray(pixels), data)
    np.testing.assert_allclose(
        normalization.normalize_pixels(jnp.asarray(pixels.astype(np.uint16) * 257), deep),
        shallow, atol=1e-6,
    )  # fmt: skip
    exact = (pixels / 255 - np.array(data.mean)) / np.array(data.std)
    np.testing.assert_allclose(shallow, exact, atol=1e-6)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
@pytest.mark.parametrize("size", [(20, 24), (62, 50)])
def test_bilinear_is_that_of_half_pixel_centers(kind, size):
    pixels = samples(13, kind)
    found = transforms.Resize(*size)(pixels, np.random.default_rng(0))
    assert found.dtype == kind
    exact = jax.image.resize(pixels.astype(np.float32), (*size, 13), "linear", antialias=False)
    assert np.abs(found - np.asarray(exact)).max() < (0.8 if kind == np.uint8 else 1.0)


@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
def test_antialiased_is_that_of_jax_at_16_bits(kind):
    pixels = samples(4)
    for size in ((12, 17), (50, 60)):
        found = transforms.Resize(*size, f"antialiased_{kind}")(pixels, np.random.default_rng(0))
        exact = jax.image.resize(
            pixels.astype(np.float32), (*size, 4), "linear" if kind == "bilinear" else "cubic"
        )
        assert np.abs(found - np.clip(exact, 0, 65535)).max() < 1.0
        assert found.dtype == np.uint16


@pytest.mark.parametrize("channels", [4, 6])
def test_antialiased_8_bits_are_the_same_for_each_channel(channels):
    pixels = samples(channels, np.uint8)
    step = transforms.Resize(12, 17, "antialiased_bicubic")
    found = step(pixels, np.random.default_rng(0))
    for first in (0, channels - 3):
        three = step(pixels[:, :, first : first + 3], np.random.default_rng(0))
        np.testing.assert_array_equal(found[:, :, first : first + 3], three)


@pytest.mark.parametrize("channels", [2, 13])
def test_every_transform_treats_channels_alike(channels):
    data = config.Data(
        channels=channels, depth=16, image_size=(16, 16), rotation=20.0, scale=0.1, shift=0.1
    )
    pixels = samples(channels)

    def view(image, steps):
        rng = np.random.default_rng(5)
        for step in steps:
            image = step(image, rng)
        return image

    for crop in ("inception", "random", "resize"):
        steps = transforms.train_transforms(dataclasses.replace(data, train_crop=crop))
        together = view(pixels, steps)
        assert (together.shape, together.dtype) == ((16, 16, channels), np.uint16)
        for channel in range(channels):
            alone = view(pixels[:, :, channel : channel + 1], steps)
            # OpenCV resizes 16 bits in float32, by other instructions for other channels.
            np.testing.assert_allclose(together[:, :, channel : channel + 1], alone, atol=1)


def test_erasing_draws_from_the_whole_range():
    step = transforms.RandomErasing(1.0)
    for kind, least in ((np.uint8, 250), (np.uint16, 64_000)):
        black = np.zeros((32, 32, 3), kind)
        assert least < step(black, np.random.default_rng(1)).max() <= np.iinfo(kind).max


@pytest.mark.parametrize(
    ("option", "value", "other"),
    [
        ("data.randaugment", "2,10", "data.depth=16"),
        ("data.transforms", "three_augment", "data.channels=4"),
        ("objective.name", "masked_patches", "data.depth=16"),
    ],
)
def test_what_is_made_for_photos_is_refused(capsys, option, value, other):
    arguments = [f"--config.{other}", f"--config.{option}={value}", "--dry-run"]
    assert cli.main(["train", "image_folder", "--config.data.root=x", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"vit_jax: {option}={value}: is for gray or RGB of 8 bits, not {other}")
    assert said.count("\n") == 1


@pytest.mark.parametrize("train", [False, True])
def test_batches_have_all_bits_and_channels(train):
    data = config.Data(channels=13, depth=16, image_size=(12, 16), workers=0)
    pixels = samples(13)
    source = toys.Made(2, lambda index: Record(tiffs.tiff(pixels), index))
    steps = transforms.train_transforms(data) if train else transforms.eval_transforms(data)
    options = {"seed": 0, "batch_size": 2, "rows": range(2), "train": train, "stop_step": 1}
    with pipeline.batches(source, steps, data, **options) as batches:
        image = next(batches)["image"]
    assert (image.dtype, image.shape) == (np.uint16, (2, 12, 16, 13))
    assert image.max() > 50_000
    if not train:
        view = transforms.Resize(12, 16)(pixels, np.random.default_rng(0))
        np.testing.assert_array_equal(image, [view, view])
