"""Masked patch prediction over a split: the same however it is computed, and what it should be."""

import jax
import pytest

import runs
import toys
from vit_jax.data import sources
from vit_jax.evaluation import masked_patches
from vit_jax.training import build, sharding


def measure(params, batch_size, devices, seed=0):
    cfg = runs.configure(
        model={"num_classes": 10, "unroll": 1, "patch_size": 2},
        masked={"target": "color"},
        train={"batch_size": batch_size},
        checkpoint={"best": "loss"},
        seed=seed,
    )
    mesh = sharding.create_mesh(1, jax.devices()[:devices])
    source = sources.Digits("test[:26]", "")
    model = build.create_model(cfg)
    evaluator = masked_patches.MaskedPatches(model, cfg, toys.passing(source, cfg, mesh))
    params = random(model) if params is None else params
    return evaluator(jax.device_put(params), stop=lambda: False), params


def random(model):
    params = model.init(jax.random.key(0))
    kernel = params["prediction"]["kernel"]
    params["prediction"]["kernel"] = jax.random.normal(jax.random.key(1), kernel.shape)
    return params


@pytest.fixture(scope="module")
def expected():
    """Two batches, the second one partly padding, on one device."""
    return measure(None, 16, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("batch_size", "devices", "seed"), [(13, 1, 1), (32, 8, 0)])
def test_the_same_for_all(expected, batch_size, devices, seed):
    results, params = expected
    given, _ = measure(params, batch_size, devices, seed)
    assert given.keys() == results.keys()
    for key, value in given.items():
        exact = key in ("count", "accuracy", "accuracy/count")
        assert value == (results[key] if exact else pytest.approx(results[key], rel=1e-6)), key


@pytest.mark.slow
def test_what_is_counted(expected):
    results, _ = expected
    assert (results["count"], results["accuracy/count"]) == (26, 26 * 8)
    assert 0 < results["accuracy"] < 1
    assert 0 < results["error"] < 255


def test_it_stops_when_asked():
    cfg = runs.configure(
        model={"num_classes": 10, "unroll": 1}, masked={"target": "pixels"},
        checkpoint={"best": "loss"},
    )  # fmt: skip
    model = build.create_model(cfg)
    split = toys.passing(sources.Digits("test[:64]", ""), cfg)
    params = jax.device_put(random(model))
    assert masked_patches.MaskedPatches(model, cfg, split)(params, stop=lambda: True) is None
