"""The network of masked patch prediction: what is looked at, and what is predicted of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vit_reference
from vit_jax import config, models
from vit_jax.utils import tree_utils
from vit_reference import quick_jit

MODEL = config.Model(patch_size=(4, 4), width=16, depth=2, mlp_dim=24, heads=2)
COLOR = config.MaskedPatches(target="color")
PATCHES = 6


def create(masked=COLOR, channels=3, **changes):
    model = config.Model(**vars(MODEL) | changes)
    return models.create(model, image_size=(8, 12), channels=channels, masked=masked)


@pytest.fixture(scope="module")
def model():
    return create()


@pytest.fixture(scope="module")
def params(model):
    return vit_reference.random_parameters(model.shapes())


@pytest.fixture(scope="module")
def predict_masked(model, params):
    return quick_jit(
        lambda images, source, indices: model.predict_masked(params, images, source, indices)
    )


IMAGES = np.random.default_rng(0).uniform(-1, 1, (2, 8, 12, 3)).astype(np.float32)
OWN = np.tile(np.arange(PATCHES, dtype=np.int32), (2, 1))
CHOSEN = np.array([[4, 0, 1], [5, 2, 3]], np.int32)


def with_patches(images, source):
    """Images whose patches are those of `source`, and black where that is PATCHES."""
    found = images.copy()
    for image, new, numbers in zip(images, found, source, strict=True):
        for place, number in enumerate(numbers):
            at, of = (np.s_[4 * (n // 3) : 4 * (n // 3) + 4, 4 * (n % 3) : 4 * (n % 3) + 4]
                      for n in (place, number % PATCHES))  # fmt: skip
            new[at] = 0 if number == PATCHES else image[of]
    return found


def test_what_is_predicted_comes_from_the_token_of_each_patch(model, params, predict_masked):
    """Uncorrupted, against the float64 reimplementation of the classifier."""
    plain = models.create(config.Model(**vars(MODEL) | {"num_classes": 1}), image_size=(8, 12))
    encoder = {name: leaf for name, leaf in tree_utils.flatten(params).items()
               if not name.startswith(("mask_token", "prediction"))}  # fmt: skip
    head = {"head/kernel": np.zeros((16, 1)), "head/bias": np.zeros(1)}
    _, _, tokens, _ = vit_reference.forward(plain.config, tree_utils.nest(encoder | head), IMAGES)
    seen = np.take_along_axis(np.asarray(tokens)[:, 1:], CHOSEN[..., None], axis=1)
    expected = seen @ params["prediction"]["kernel"].astype(float) + params["prediction"]["bias"]
    given = predict_masked(IMAGES, OWN, CHOSEN)
    assert given.dtype == jnp.float32
    np.testing.assert_allclose(given, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_what_replaces_a_patch_is_seen_as_if_it_stood_there(model, params):
    """The embedding of a black patch is the bias; a token equal to that shows black patches."""
    same = params | {"mask_token": params["embedding"]["bias"].reshape(1, 1, -1)}
    function = quick_jit(lambda images, source: model.predict_masked(same, images, source, CHOSEN))
    source = OWN.copy()
    source[0, [0, 1, 4]], source[1, [2, 5]] = [PATCHES, 5, PATCHES], [PATCHES, 1]
    given, expected = function(IMAGES, source), function(with_patches(IMAGES, source), OWN)
    np.testing.assert_allclose(given, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert np.abs(given - function(IMAGES, OWN)).max() > 0.01
    hidden = function(IMAGES, np.full_like(OWN, PATCHES))
    np.testing.assert_array_equal(hidden[0, 1], function(IMAGES[::-1], np.full_like(OWN, 6))[0, 1])


def test_without_corruption_it_is_the_encoder(model, params):
    """As few-shot, attention maps and the like use it: features, and logits of no classes."""
    logits, out = quick_jit(lambda x: model.apply(params, x))(IMAGES)
    assert logits.shape == (2, 0)
    assert out["pre_logits"].shape == (2, 16)
    np.testing.assert_array_equal(out["pre_logits"], out["tokens"][:, 0])


@pytest.mark.parametrize(
    ("masked", "channels", "outputs"),
    [
        (COLOR, 3, 512),
        (COLOR, 1, 8),
        (config.MaskedPatches(target="color_4x4", rate=0.4), 3, 16 * 512),
        (config.MaskedPatches(target="pixels", rate=0.2), 3, 48),
    ],
)
def test_outputs_and_macs_are_those_of_the_program(masked, channels, outputs):
    one = create(masked, channels, pooling="gap")
    assert one.shapes()["prediction"]["kernel"].shape == (16, outputs)
    count = round(masked.rate * PATCHES)
    images = jnp.zeros((1, 8, 12, channels))
    jaxpr = jax.make_jaxpr(lambda p: one.predict_masked(p, images, OWN[:1], CHOSEN[:1, :count]))
    assert one.flops == 2 * vit_reference.macs(jaxpr(one.shapes()).jaxpr)
