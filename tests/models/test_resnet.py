import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import resnet_reference
import vit_reference
from commands import error_line
from vit_jax import config, models
from vit_jax.models import resnet
from vit_jax.training import sharding
from vit_jax.utils import tree_utils
from vit_reference import assert_grads_close, backward, inputs, loss_and_grad, quick_jit

TINY = config.Model(architecture="resnet", resnet_units=(2,), resnet_width=0.5, num_classes=5)


def tiny(image_size=(16, 16), channels=3, dtype="float32", **changes):
    model = dataclasses.replace(TINY, **changes)
    return models.create(model, image_size=image_size, channels=channels, dtype=dtype)


# Values


@pytest.mark.parametrize(
    ("units", "shape", "changes"),
    [
        ((1, 3), (22, 33, 3), {"representation_size": 7}),
        ((3, 1), (17, 38, 1), {"resnet_version": "v2"}),
        ((1,), (16, 16, 3), {"resnet_version": "v2", "resnet_pool": "nothing"}),
    ],
)
def test_equals_a_float64_reimplementation(units, shape, changes):
    """Published weights and outputs are in tests/weights: test_google.py and test_bit.py."""
    classifier = tiny(shape[:2], shape[2], resnet_units=units, **changes)
    params = vit_reference.random_parameters(classifier.shapes())
    images = inputs(classifier, 2)
    logits, out = quick_jit(classifier.apply)(params, images)
    expected = resnet_reference.forward(classifier.config, params, images)
    given = logits, out["pre_logits"], out["features"]
    for array, exact in zip(given, expected, strict=True):
        assert array.dtype == jnp.float32
        assert array.shape == exact.shape
        np.testing.assert_allclose(array, exact, rtol=0, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_standardization_keeps_small_kernels_small_each_in_its_way(version):
    """The features' deviations are 1, 1e-5 and 1e-7: the epsilons are of the size of the last."""
    kernel = np.random.default_rng(0).normal(2, 1, (3, 3, 8, 3)) * [1, 1e-5, 1e-7]
    kernel = kernel.astype(np.float32)
    given = resnet.standardize(jnp.asarray(kernel), version)
    expected = resnet_reference.standardize(kernel.astype(np.float64), version)
    np.testing.assert_allclose(given, expected, rtol=0, atol=1e-5)
    other = resnet_reference.standardize(kernel.astype(np.float64), {"v1": "v2"}.get(version, "v1"))
    assert np.abs(other - expected).max() > 0.1


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_standardization_as_in_timm(version):
    kernel = np.random.default_rng(0).normal(2, 1, (3, 3, 8, 2)) * [1, 1e-4]
    kernel = kernel.astype(np.float32)
    given = resnet.standardize(jnp.asarray(kernel), version, "timm")
    wide = kernel.astype(np.float64)
    axes = {"axis": (0, 1, 2), "keepdims": True}
    expected = (wide - wide.mean(**axes)) / np.sqrt(wide.var(**axes) + 1e-8)
    np.testing.assert_allclose(given, expected, rtol=0, atol=1e-5)
    model = dataclasses.replace(TINY, resnet_version=version, resnet_epsilons="timm")
    assert resnet.GroupNorm(model, 64, rngs=nnx.Rngs(0)).epsilon == 1e-5


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_group_norm_of_faint_maps_equals_float64(version):
    """Their variance is 4e-6, between the epsilons of the two versions."""
    model = dataclasses.replace(TINY, resnet_version=version)
    norm = resnet.GroupNorm(model, 64, rngs=nnx.Rngs(0))
    x = np.random.default_rng(0).normal(0, 2e-3, (2, 4, 3, 64)).astype(np.float32)
    expected = resnet_reference.group_norm(x.astype(np.float64), 1, 0, version)
    np.testing.assert_allclose(norm(jnp.asarray(x)), expected, rtol=0, atol=1e-5)


def test_bfloat16_is_close_and_returns_float32():
    classifier, half = tiny(), tiny(dtype="bfloat16")
    params = vit_reference.random_parameters(classifier.shapes())
    images = inputs(classifier, 2)
    exact, _ = quick_jit(classifier.apply)(params, images)
    logits, out = quick_jit(half.apply)(params, images)
    assert logits.dtype == out["pre_logits"].dtype == jnp.float32
    assert out["features"].dtype == jnp.bfloat16
    difference = np.abs(logits - exact).max() / np.abs(exact).max()
    assert 1e-5 < difference < 0.03


# Unrolling, rematerialization and sharding


@pytest.fixture(scope="module")
def plain():
    classifier = tiny(resnet_units=(3,))
    params = vit_reference.random_parameters(classifier.shapes())
    images = inputs(classifier, batch=8)
    return params, images, loss_and_grad(classifier, params, images)


@pytest.mark.slow
@pytest.mark.parametrize(("remat", "unroll"), [("none", 9), ("full", 2)])
def test_unroll_and_remat_change_nothing(plain, remat, unroll):
    params, images, (loss, grad) = plain
    classifier = tiny(resnet_units=(3,), remat=remat, unroll=unroll)
    given_loss, given_grad = loss_and_grad(classifier, params, images)
    np.testing.assert_allclose(given_loss, loss, rtol=2e-6)
    assert_grads_close(given_grad, grad)


@pytest.mark.parametrize(
    ("units", "unroll", "expected"), [(5, 1, [(4, 1)]), (5, 3, [(4, 3)]), (5, 9, []), (2, 1, [])]
)
def test_equal_units_are_one_loop_unless_unrolled(units, unroll, expected):
    classifier = tiny(resnet_units=(units, 1), unroll=unroll)
    program = jax.make_jaxpr(classifier.apply)(classifier.shapes(), inputs(classifier, 2))
    loops = [e.params for e, _ in vit_reference.equations(program.jaxpr) if "length" in e.params]
    assert [(loop["length"], loop["unroll"]) for loop in loops] == expected


def test_gradients_of_unrolled_units_are_stacked_once():
    classifier = tiny((8, 8), resnet_units=(4,), unroll=3)

    def loss(params):
        return jnp.sum(classifier.apply(params, inputs(classifier))[0])

    program = str(jax.make_jaxpr(jax.grad(loss))(classifier.shapes()))
    # The gradient of an index into a stack is one of the stack's size, mostly zeros: in an R101x1
    # with 16 images of 128 pixels, 1.8 GiB of them.
    assert "pad[" not in program


def test_maps_stay_split_by_image_only():
    """Before and after every unit, and before the head."""
    classifier = tiny(resnet_units=(3, 1))
    with jax.set_mesh(sharding.create_mesh(fsdp=4)):
        program = jax.make_jaxpr(classifier.apply)(classifier.shapes(), inputs(classifier, 8))
    constraints = [
        (equation.params["sharding"].spec[0], times)
        for equation, times in vit_reference.equations(program.jaxpr)
        if equation.primitive.name == "sharding_constraint"
    ]
    assert {axes for axes, _ in constraints} == {("data", "zero", "fsdp")}
    assert sum(times for _, times in constraints) == 2 * 4 + 1


@pytest.mark.slow
@pytest.mark.parametrize(("remat", "again"), [("none", 0), ("dots", 0), ("full", 13)])
def test_remat_repeats_the_convolutions_it_does_not_keep(remat, again):
    """Four units have 3 each, the first a fourth, and the root's stays outside."""
    classifier = tiny(resnet_units=(4,), remat=remat)
    jaxpr = jax.make_jaxpr(backward(classifier))(classifier.shapes()).jaxpr
    convolutions = sum(
        times
        for equation, times in vit_reference.equations(jaxpr)
        if equation.primitive.name == "conv_general_dilated"
    )
    assert convolutions == 14 + 2 * 14 - 1 + again  # no gradient of the images is wanted


@pytest.mark.slow
@pytest.mark.parametrize(("units", "unroll"), [(1, 1), (4, 1), (4, 3)])
def test_remat_is_guarded_from_the_compiler_outside_of_loops(units, unroll):
    """Unrolled, and in the first unit, it would share the repeated convolutions."""
    classifier = tiny(resnet_units=(units,), remat="full", unroll=unroll)
    program = jax.jit(backward(classifier)).lower(classifier.shapes()).as_text()
    guards = program.count("optimization_barrier")
    assert guards > 1 if unroll > 1 else guards == 1


# Initialisation


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_initial_norms_and_head(version):
    classifier = tiny(resnet_units=(2, 3), resnet_version=version, head_bias=-10.0)

    def init():
        flat = tree_utils.flatten(classifier.init(jax.random.key(0)))
        return {n: leaf for n, leaf in flat.items() if "conv" not in n}

    for name, leaf in quick_jit(init)().items():
        if name == "head/bias":
            value = -10
        elif name.endswith("scale"):
            value = 0 if version == "v1" and name.endswith("gn3/scale") else 1
        else:
            value = 0
        np.testing.assert_array_equal(leaf, value, err_msg=name)


@pytest.mark.slow
def test_initial_kernels():
    classifier = tiny(resnet_units=(3,))
    init = quick_jit(lambda key: tree_utils.flatten(classifier.init(key)))
    p, again, other = (jax.device_get(init(jax.random.key(k))) for k in (0, 0, 1))
    for name, leaf in p.items():
        np.testing.assert_array_equal(again[name], leaf)
        if "conv" in name:
            stacked = "/rest/" in name
            deviation = 1 / np.sqrt(np.prod(leaf.shape[stacked:-1]))
            assert abs(leaf.std() / deviation - 1) < 5 / np.sqrt(2 * leaf.size), name
            assert abs(leaf.mean()) < 5 * deviation / np.sqrt(leaf.size), name
            assert np.abs(leaf - other[name]).max() > deviation, name
            if stacked:
                assert np.abs(leaf[0] - leaf[1]).max() > deviation, "units are drawn apart"


# Sizes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "parameters"),
    [
        ("ViT-S/16", 22_050_664),
        ("ViT-Ti/16", 5_717_416),
        ("R50+ViT-L/32", 328_994_856),
        ("R26+ViT-S/32", 36_431_912),
        ("R+ViT-Ti/16", 6_337_704),
        ("R50x1", 25_557_032),  # torchvision's ResNet-50: its BatchNorms are our GroupNorms
    ],
)
def test_sizes_are_those_published(variant, parameters):
    """At 1000 classes and 224 pixels, from the released code's own tests."""
    model = config.Model(variant=variant, num_classes=1000)
    assert models.create(model, image_size=(224, 224)).num_params == parameters


@pytest.mark.parametrize(
    ("width", "message"),
    [
        (0.7, "model.resnet_width=0.7: makes 45 channels, not a multiple of the 32 groups of "
              "GroupNorm; nearest: 0.5"),
        (0.1, "model.resnet_width=0.1: makes 6 channels, not a multiple of the 32 groups of "
              "GroupNorm; nearest: 0.5"),
    ],
)  # fmt: skip
def test_widths_that_groups_do_not_divide(width, message):
    assert error_line(config.ConfigError, tiny(resnet_width=width).shapes) == message
