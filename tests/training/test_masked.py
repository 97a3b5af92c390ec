"""Masked patch prediction: what is corrupted, what is right, what is lost, and the step on it."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stepping import Stepper, assert_same_training, configure, losses_of
from vit_jax import config
from vit_jax.training import objectives
from vit_jax.training.objectives import masked_patches

RGB = config.Data(image_size=(8, 8))


# Targets


@pytest.mark.parametrize("patch", [(4, 8), (6, 14), (5, 7)])
def test_parts_share_the_pixels_on_their_borders(patch):
    """Against means over patches in which every pixel is drawn 4 x 4 times as large."""
    h, w = patch
    patches = np.random.default_rng(1).integers(0, 256, (2, 3, h, w, 3), np.uint8)
    large = patches.repeat(4, axis=2).repeat(4, axis=3).astype(np.int64)
    sums = large.reshape(2, 3, 4, h, 4, w, 3).sum(axis=(3, 5))
    bits = sums // (h * w) // 32
    expected = bits[..., 0] * 64 + bits[..., 1] * 8 + bits[..., 2]
    given = masked_patches.colors(jnp.asarray(patches), 4)
    np.testing.assert_array_equal(given, expected.reshape(2, 3, 16))


def test_colors_are_painted_as_the_middle_of_what_they_stand_for():
    painted = np.asarray(masked_patches.paint(jnp.array([[[0, 1, 511, 64]]]), (2, 2), 3))[0, 0]
    low, high = 15.5, 239.5
    np.testing.assert_array_equal(painted[0, 0], [low, low, low])
    np.testing.assert_array_equal(painted[0, 1], [low, low, low + 32])
    np.testing.assert_array_equal(painted[1, 0], [high, high, high])
    np.testing.assert_array_equal(painted[1, 1], [low + 32, low, low])


# Corruption

PAPER = config.MaskedPatches()


def corrupted(rows, patches, cfg=PAPER, *, seed=0, number=0):
    @jax.jit
    def draw(number):
        return masked_patches.corrupt(masked_patches.keys(seed, number, rows), patches, cfg)

    found = draw(number)
    return np.asarray(found["source"]), np.asarray(found["masked"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("cfg", "patches", "counts"),
    [
        (PAPER, 196, (78, 10, 10)),  # ViT-B/16: 98 of 196
        (dataclasses.replace(PAPER, rate=0.15), 196, (23, 3, 3)),
        (PAPER, 16, (6, 1, 1)),
        (PAPER, 4, (2, 0, 0)),
        (dataclasses.replace(PAPER, rate=0.75, split=(0.0, 1.0, 0.0)), 16, (0, 12, 0)),
        (dataclasses.replace(PAPER, split=(0.0, 0.0, 1.0)), 16, (0, 0, 8)),
        (dataclasses.replace(PAPER, split=(0.5, 0.25, 0.25)), 14, (4, 1, 2)),  # sums are rounded
    ],
)
def test_every_image_has_the_same_numbers_of_each_kind(cfg, patches, counts):
    source, indices = corrupted(64, patches, cfg)
    assert source.dtype == indices.dtype == np.int32
    token, other, _ = counts
    assert indices.shape == (64, sum(counts))
    own = np.arange(patches)
    for stands, predicted in zip(source, indices, strict=True):
        assert len(set(predicted)) == sum(counts)
        assert (np.delete(stands, predicted) == np.delete(own, predicted)).all()
        drawn = stands[predicted]
        assert (drawn[:token] == patches).all()
        replaced = drawn[token : token + other]
        assert (replaced != predicted[token : token + other]).all()
        assert ((replaced >= 0) & (replaced < patches)).all()
        assert (drawn[token + other :] == predicted[token + other :]).all()


@pytest.mark.slow
def test_every_patch_is_as_likely_and_so_is_every_other():
    rows, patches = 8192, 10
    source, indices = corrupted(rows, patches, dataclasses.replace(PAPER, split=(0.4, 0.6, 0.0)))
    often = np.bincount(indices.ravel(), minlength=patches) / rows
    spread = math.sqrt(0.25 / rows)
    np.testing.assert_allclose(often, 0.5, rtol=0, atol=4 * spread)
    replaced = indices[:, 2:]
    away = (np.take_along_axis(source, replaced, 1) - replaced) % patches
    often = np.bincount(away.ravel(), minlength=patches) / away.size
    assert often[0] == 0
    np.testing.assert_allclose(often[1:], 1 / 9, atol=4 * math.sqrt(8 / 81 / away.size))


@pytest.mark.slow
def test_corruption_is_a_function_of_seed_step_and_row():
    first = corrupted(8, 16, seed=1, number=5)[0]
    np.testing.assert_array_equal(corrupted(32, 16, seed=1, number=5)[0][:8], first)
    for other in (corrupted(8, 16, seed=2, number=5)[0], corrupted(8, 16, seed=1, number=6)[0]):
        assert (other != first).any(axis=1).all()
    assert len({tuple(row) for row in first}) == 8


# Loss


class Blind:
    """A model of patches of 4 x 4 that predicts zeros; it keeps what it was given."""

    patches = 16

    def predict_masked(self, params, pixels, source, masked, *, key):
        self.given = pixels, source, masked, key
        return jnp.zeros((*masked.shape, 48))


def test_a_step_corrupts_by_its_number_and_shows_normalized_pixels():
    cfg = configure(
        model={"num_classes": None}, data={"image_size": 16, "channels": 3},
        objective={"name": "masked_patches", "target": "pixels"},
    )  # fmt: skip
    made = objectives.create_objective(objectives.Setup(cfg, Blind(), None, 160))
    assert not made.needs_labels
    images = np.random.default_rng(0).integers(0, 256, (16, 16, 16, 3), np.uint8)
    key = jax.random.key(7)

    @jax.jit
    def step(images, number):
        batch = made.prepare({"image": images}, number)
        outputs = made.forward({}, batch, objectives.Inputs(number, key))
        drawn = masked_patches.corrupt(masked_patches.keys(cfg.seed, number, 16), 16, cfg.masked)
        return made.model.given[:3], drawn, outputs, made.loss(outputs, None)

    (pixels, source, masked), drawn, outputs, (loss, measures) = step(images, 3)
    np.testing.assert_allclose(pixels, images / 127.5 - 1, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(source, drawn["source"])
    np.testing.assert_array_equal(masked, drawn["masked"])
    assert made.model.given[3] is key
    np.testing.assert_allclose(loss, np.mean(outputs["loss"]), rtol=1e-6)
    assert measures.keys() == {"error"}


def reference(outputs, images, indices, target):
    """Loss and error of each image in float64, patch by patch, of 4 x 4 pixels of RGB."""
    losses, errors = [], []
    for out, image, numbers in zip(outputs.astype(np.float64), images, indices, strict=True):
        loss, error = [], []
        for row, number in zip(out, numbers, strict=True):
            top, left = 4 * (number // 2), 4 * (number % 2)
            patch = image[top : top + 4, left : left + 4].astype(np.float64)
            if target == "pixels":
                guess = row.reshape(4, 4, 3)
                loss.append(np.mean((guess - (patch / 127.5 - 1)) ** 2))
                error.append(np.mean(np.abs(np.clip((guess + 1) * 127.5, 0, 255) - patch)))
                continue
            parts = (
                [patch]
                if target == "color"
                else [patch[i : i + 1, j : j + 1] for i in range(4) for j in range(4)]
            )
            for part, logits in zip(parts, row.reshape(-1, 512), strict=True):
                r, g, b = (int(x // 32) for x in part.mean(axis=(0, 1)))
                loss.append(np.log(np.exp(logits).sum()) - logits[64 * r + 8 * g + b])
                best = int(logits.argmax())
                painted = np.array([best // 64, best // 8 % 8, best % 8]) * 32 + 15.5
                error.append(np.mean(np.abs(part - painted)))
        losses.append(np.mean(loss))
        errors.append(np.mean(error))
    return losses, errors


@pytest.mark.parametrize(("target", "outputs"), [("color", 512), ("color_4x4", 8192),
                                                  ("pixels", 48)])  # fmt: skip
def test_losses_against_float64(target, outputs):
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (2, 8, 8, 3), np.uint8)
    indices = np.array([[3, 0], [1, 2]], np.int32)
    given = rng.normal(size=(2, 2, outputs)).astype(np.float32)
    measure = jax.jit(lambda *arrays: masked_patches.measure(*arrays, (4, 4), target, RGB))
    found = measure(given, images, indices)
    loss, error = reference(given, images, indices, target)
    np.testing.assert_allclose(found["loss"], loss, rtol=1e-6)
    np.testing.assert_allclose(found["error"], error, rtol=1e-6)
    assert set(found) == {"loss", *masked_patches.MEASURES[target]}


@pytest.mark.slow
def test_accuracy_counts_the_colors_predicted():
    image = np.zeros((1, 4, 8, 1), np.uint8)
    image[:, :, 4:] = 255
    logits = np.zeros((1, 2, 8), np.float32)
    logits[0, :, 7] = 1  # bright both times
    data = config.Data(image_size=(4, 8), channels=1)
    indices = jnp.array([[0, 1]], jnp.int32)
    found = masked_patches.measure(
        jnp.asarray(logits), jnp.asarray(image), indices, (4, 4), "color", data
    )
    assert found["accuracy"].tolist() == [[[False], [True]]]
    assert found["error"].tolist() == [(239.5 + 15.5) / 2]


# The step

MASKED = {
    "model": {"num_classes": None, "pooling": "token"},
    "data": {"channels": 3},
    "objective": {"name": "masked_patches", "rate": 0.75, "split": (0.34, 0.33, 0.33)},
}


def masked(**sections):
    return configure(
        **{key: MASKED.get(key, {}) | sections.get(key, {}) for key in MASKED | sections}
    )


@pytest.fixture(scope="module")
def alone():
    """One device, everything at once."""
    stepper = Stepper(masked(), devices=1)
    return stepper.run(4), stepper.params


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "options", "traffic"),
    [
        (8, {"mesh": {"fsdp": 4}}, {"all-gather", "all-reduce"}),
        (4, {"train": {"accumulation": 4}, "mesh": {"zero": False}}, {"all-reduce"}),
        (1, {"model": {"unroll": 2}}, set()),
    ],
)
def test_however_it_is_computed_it_is_the_same(alone, devices, options, traffic):
    expected, params = alone
    stepper = Stepper(masked(**options), devices=devices)
    assert stepper.collectives == traffic  # nothing of the corruption moves
    first, *_ = Stepper(masked(**options), devices=devices).run(1)
    for key in ("error", "accuracy", "grad_norm"):
        np.testing.assert_allclose(first[key], expected[0][key], rtol=3e-6, err_msg=key)
    assert_same_training(stepper, losses_of(expected), params, steps=4, rtol=3e-6)
