"""16 bits and any number of channels: no bit is lost, and every transform works at that depth."""

import dataclasses
import io
import json

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest

import runs
import tiffs
import vit_jax
from vit_jax import cli, config, models, train_loop, weights
from vit_jax.data import decoding, sources, transforms
from vit_jax.inference import loading
from vit_jax.models import variants
from vit_jax.training import normalization


def samples(channels, kind=np.uint16, shape=(31, 45), seed=0):
    return np.random.default_rng(seed).integers(0, np.iinfo(kind).max, (*shape, channels), kind)


def png(pixels):
    order = {1: [0], 3: [2, 1, 0], 4: [2, 1, 0, 3]}[pixels.shape[2]]
    return cv2.imencode(".png", pixels[:, :, order])[1].tobytes()


def decode(data, channels, depth):
    return decoding.decode_image(data, channels=channels, max_pixels=10**6, depth=depth)


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


def folder(root):
    """TIFFs of 13 channels and two classes, told apart by the last channel alone."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 20), ("test", 9)):
        for label, name in enumerate("ab"):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                shape = (*rng.integers(9, 14, 2).tolist(), 13)
                pixels = rng.integers(0, 4000, shape).astype(np.uint16)
                pixels[..., -1] = 3000 * label + rng.integers(0, 900, shape[:2])
                data = tiffs.tiff(pixels, compression="deflate", predictor=2)
                (root / split / name / f"{number}.tif").write_bytes(data)
    return root


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    top = tmp_path_factory.mktemp("deep")
    cfg = runs.configure(
        data={
            "source": "folder", "root": str(folder(top / "data")), "train_split": "train",
            "eval_split": "test", "mean": (0.03,), "std": (0.02,), "depth": 16, "channels": 13,
            "train_crop": "inception", "erase": 0.2, "flip": True,
        },
        train={"batch_size": 8, "duration": "12 steps"},
        schedule={"warmup": 1},
        optimizer={"lr": 3e-3},
    )  # fmt: skip
    train_loop.train(cfg, top / "run")
    return cfg, top / "run"


@pytest.mark.slow
def test_a_run_on_such_files_resumes_to_the_same_bits(trained, tmp_path, monkeypatch):
    cfg, workdir = trained
    runs.train_in_parts(monkeypatch, cfg, tmp_path / "run", 5)
    runs.assert_equal_runs(tmp_path / "run", workdir)


@pytest.mark.slow
def test_evaluation_prediction_and_features_are_those_of_the_samples(trained, tmp_path, capsys):
    cfg, workdir = trained
    opened = loading.load(workdir)
    source = sources.open_source(cfg.data, "test")
    logits, features = [], []
    for index in range(len(source)):
        pixels = decode(source[index].image, cfg.data.channels, 16)
        view = cv2.resize(pixels, cfg.data.image_size[::-1], interpolation=cv2.INTER_LINEAR)
        seen = (view.reshape(1, *cfg.data.image_size, -1) / 65535 - 0.03) / 0.02
        one, out = opened.apply(opened.params, jnp.asarray(seen, jnp.float32))
        logits.append(np.asarray(one)[0])
        features.append(np.asarray(out["pre_logits"])[0])
    labels = [source[index].label for index in range(len(source))]
    right = np.mean(np.argmax(logits, axis=1) == labels)
    assert vit_jax.evaluate(workdir, {})["test/top1"] == pytest.approx(right)
    np.testing.assert_allclose(
        opened.embed([source.name(i) for i in range(len(source))]), features, atol=2e-5
    )
    images = str(cfg.data.root) + "/test"
    assert cli.main(["embed", f"--checkpoint={workdir}", f"{images}",
                     f"--output={tmp_path / 'e.npz'}"]) == 0  # fmt: skip
    np.testing.assert_allclose(np.load(tmp_path / "e.npz")["features"], features, atol=2e-5)
    capsys.readouterr()
    assert cli.main(["predict", f"--checkpoint={workdir}", "--json", source.name(0)]) == 0
    best = json.loads(capsys.readouterr().out.splitlines()[0])["top"][0]
    exact = np.exp(logits[0] - np.max(logits[0]))
    assert best["probability"] == pytest.approx(float(exact.max() / exact.sum()), abs=1e-5)


@pytest.mark.slow
def test_a_run_of_13_channels_begins_with_weights_of_rgb():
    model = variants.complete(
        config.Model(patch_size=(4, 4), width=16, depth=1, mlp_dim=32, heads=2, num_classes=3)
    )
    rgb = models.create(model, image_size=(8, 8))
    data = config.Data(image_size=(8, 8))
    facts = weights.ModelSpec(model=model, data=data, classes=(), fresh={})
    params = jax.device_get(rgb.init(jax.random.key(0)))
    target = models.create(model, image_size=(8, 8), channels=6)
    fitted, report = weights.fit_params(params, facts, target, keep_head=True)
    assert [line for line in report.lines() if "from 3 to 6 channels" in line]
    image = np.random.default_rng(0).standard_normal((2, 8, 8, 3)).astype(np.float32)
    np.testing.assert_allclose(
        target.apply(fitted, jnp.asarray(np.tile(image, 2)))[0],
        rgb.apply(params, jnp.asarray(image))[0], atol=1e-5,
    )  # fmt: skip
