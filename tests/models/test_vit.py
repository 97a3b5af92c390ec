import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vit_reference
from vit_jax import config, models
from vit_jax.utils import tree_utils
from vit_reference import assert_grads_close, backward, inputs, loss_and_grad, quick_jit

TINY = config.Model(patch_size=(4, 4), width=16, depth=2, mlp_dim=24, heads=2, num_classes=5)


def tiny(image_size=(8, 8), channels=3, dtype="float32", **changes):
    model = dataclasses.replace(TINY, **changes)
    return models.create(model, image_size=image_size, channels=channels, dtype=dtype)


# Values


MAP = {"pooling": "map", "pooling_prefix": True, "pooling_heads": 4, "pooling_mlp_dim": 20}
WIDE = {"image_size": (8, 12)}  # 2 rows of 3 tokens, so that neither may pass for the other


PARTS = [  # many at once, of later models
    ({"registers": 2, "distillation": True, "pooling": "distilled", "layer_scale": 0.1}
     | {"mlp": "swiglu", "stem_norm": True, "patch_norm": True}, WIDE),
    (MAP | {"class_token": True, "norm": "rms", "qk_norm": True, "gelu": "quick"}, WIDE),
    ({"rotary": 100.0, "rotary_grid": (16, 12), "rotary_offset": 1.0, "norm_place": "none"}
     | {"sub_norm": ("attention", "mlp"), "biasless": ("key", "mlp", "head")}, WIDE),
    ({"relative_bias": "shared", "position": "none", "registers": 1, "pooling": "map"}, WIDE),
]  # fmt: skip
ALONE = [
    ({"pooling": "gap", "position": "sincos_2d", "gelu": "erf"}, {}),
    ({"pooling": "map", "gelu": "erf", "norm_epsilon": 0.1, "representation_size": 7}, {}),
    ({"norm_epsilon": 0.1}, {"image_size": (8, 20), "channels": 1}),
    ({"patch_size": (2, 4), "pooling": "gap", "depth": 1}, {"image_size": (6, 8)}),
    ({"activation": "silu", "pooling": "map"}, {}),
    ({"pooling": "first", "class_token": True, "norm_place": "pooled"}, {}),
    ({"pooling": "max"}, {}),
    ({"pooling": "gap_max", "norm_place": "pooled", "class_token": True}, {}),
    ({"pooling": "map", "class_token": True, "class_position": False}, {}),
    ({"pooled_layers": 2, "depth": 3, "unroll": 3, "pooling": "token_gap"}, {}),
    ({"class_position": False, "position": "learned_2d"}, {}),
    ({"representation_size": 7, "representation_activation": "relu", "activation": "relu"}, {}),
    ({"representation_size": 7, "representation_activation": "silu"}, {}),
    ({"patch_remainder": "drop"}, {"image_size": (11, 14)}),
    *(({"rotary": 100.0, "rotary_span": span, "position": "none", "registers": 1}, WIDE)
      for span in ("max", "patches")),
    *(({"rotary": 10.0, "rotary_learned": True, "rotary_span": span}, WIDE)
      for span in ("patches", "max")),
    ({"relative_bias": "layers", "position": "none", "registers": 1, "pooling": "map"}, WIDE),
    *(
        (dict(zip(("position", "position_place", "pooling"), kind.split(), strict=True)), WIDE)
        for kind in (
            "none stem token", "learned_1d layers token", "learned_1d shared gap",
            "learned_2d stem token", "learned_2d layers map", "learned_2d shared token",
            "relative stem token", "relative stem map", "sincos_1d stem gap",
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "shape"),
    [({}, {}), *PARTS, *(pytest.param(*one, marks=pytest.mark.slow) for one in ALONE)],
)
def test_equals_a_float64_reimplementation(changes, shape):
    """Published weights and their outputs are in tests/weights/test_google.py."""
    classifier = tiny(**shape, **changes)
    params = vit_reference.random_parameters(classifier.shapes())
    images = inputs(classifier)
    logits, out = quick_jit(lambda p, x: classifier.apply(p, x, capture=True))(params, images)
    expected = vit_reference.forward(classifier.config, params, images)
    given = logits, out["pre_logits"], out["tokens"], out["attention"]
    for array, exact in zip(given, expected, strict=True):
        assert array.dtype == jnp.float32
        assert array.shape == exact.shape
        np.testing.assert_allclose(array, exact, rtol=0, atol=1e-5 * np.abs(exact).max())
    np.testing.assert_allclose(out["attention"].sum(-1), 1, rtol=1e-6)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("position", "place", "pooling", "names"),
    [
        ("none", "stem", "token", {}),
        ("sincos_1d", "stem", "gap", {}),
        ("learned_1d", "stem", "token", {"position/table": (1, 7, 16)}),
        ("learned_1d", "shared", "gap", {"position/table": (1, 6, 16)}),
        ("learned_1d", "layers", "token", {"encoder/position/table": (2, 1, 7, 16)}),
        (
            "learned_2d",
            "layers",
            "map",
            {"encoder/position/rows": (2, 2, 8), "encoder/position/columns": (2, 3, 8)},
        ),
        (
            "learned_2d",
            "stem",
            "token",
            {"position/rows": (2, 8), "position/columns": (3, 8), "position/cls": (1, 16)},
        ),
        ("relative", "stem", "token", {"encoder/attention/offsets/table": (2, 13, 8)}),
        ("relative", "stem", "map", {"encoder/attention/offsets/table": (2, 11, 8)}),
    ],
)
def test_where_positions_are_kept(position, place, pooling, names):
    classifier = tiny(**WIDE, position=position, position_place=place, pooling=pooling)
    plain = tiny(**WIDE, position="none", pooling=pooling)
    given, rest = tree_utils.flatten(classifier.shapes()), tree_utils.flatten(plain.shapes())
    assert {name: given[name].shape for name in given if name not in rest} == names


def test_bfloat16_is_close_and_returns_float32():
    classifier, half = tiny(), tiny(dtype="bfloat16")
    params = vit_reference.random_parameters(classifier.shapes())
    images = inputs(classifier)
    exact, _ = quick_jit(classifier.apply)(params, images)
    logits, out = quick_jit(lambda p, x: half.apply(p, x, capture=True))(params, images)
    assert logits.dtype == out["pre_logits"].dtype == out["attention"].dtype == jnp.float32
    assert out["tokens"].dtype == jnp.bfloat16
    difference = np.abs(logits - exact).max() / np.abs(exact).max()
    assert 1e-5 < difference < 0.03


def test_bfloat16_matmul_rounds_what_dense_layers_multiply_and_nothing_else():
    classifier, rounded = tiny(), tiny(dtype="bfloat16_matmul")
    params = vit_reference.random_parameters(classifier.shapes())
    images = inputs(classifier)
    exact, _ = quick_jit(classifier.apply)(params, images)
    logits, out = quick_jit(rounded.apply)(params, images)
    assert logits.dtype == out["tokens"].dtype == jnp.float32
    difference = np.abs(logits - exact).max() / np.abs(exact).max()
    assert 1e-5 < difference < 0.02
    program = jax.make_jaxpr(rounded.apply)(params, images)
    products = {}
    for equation, times in vit_reference.equations(program.jaxpr):
        if equation.primitive.name == "dot_general":
            dtype = {str(operand.aval.dtype) for operand in equation.invars}
            products.setdefault((*dtype, str(equation.outvars[0].aval.dtype)), []).append(times)
    # The patches; in each of two layers query, key, value, out, and two of the MLP. In float32: the
    # two products of attention, and the head.
    assert products == {("bfloat16", "float32"): [1, *[2] * 6], ("float32", "float32"): [2, 2, 1]}


def test_attention_implementations_agree_and_all_return_weights():
    explicit, xla = tiny(), tiny(attention="xla")
    params = vit_reference.random_parameters(explicit.shapes())
    images = inputs(explicit)
    (loss, grad), (xla_loss, xla_grad) = (loss_and_grad(c, params, images) for c in (explicit, xla))
    np.testing.assert_allclose(xla_loss, loss, rtol=2e-6)
    assert_grads_close(xla_grad, grad)
    assert "attention" not in jax.eval_shape(xla.apply, params, images)[1]
    weights = quick_jit(lambda p, x: xla.apply(p, x, capture=True)[1]["attention"])(params, images)
    expected = vit_reference.forward(xla.config, params, images)[3]
    np.testing.assert_allclose(weights, expected, rtol=0, atol=1e-5)


def test_what_cannot_run_is_refused():
    with pytest.raises(config.ConfigError, match="^model.num_classes=none: not known; set the num"):
        tiny(num_classes=None)
    with pytest.raises(config.ConfigError) as raised:
        tiny(attention="cudnn")
    message = "model.attention=cudnn: needs model.dtype=bfloat16; set it, or explicit"
    assert str(raised.value) == message
    classifier = tiny(attention="cudnn", dtype="bfloat16")
    with pytest.raises(config.ConfigError) as raised:
        jax.eval_shape(classifier.apply, classifier.shapes(), inputs(classifier))
    message = "model.attention=cudnn: needs an NVIDIA GPU, this is cpu; set explicit"
    assert str(raised.value) == message


# Unrolling and rematerialization


LAYERS = {"position": "learned_2d", "position_place": "layers", "pooling": "gap"}
SHARED = {"position": "learned_1d", "position_place": "shared", "stochastic_depth": 0.2}
KINDS = {
    "layers": (LAYERS, {}),
    "shared": (SHARED | {"dropout": 0.2}, {}),
    **dict(zip(("tokens", "map", "rotary", "biases"), PARTS, strict=True)),
}


@functools.cache
def plain(kind):
    changes, shape = KINDS[kind]
    classifier = tiny(**shape, **changes)
    params = vit_reference.random_parameters(classifier.shapes())
    images, key = inputs(classifier), jax.random.key(4)
    return params, images, key, loss_and_grad(classifier, params, images, key)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "remat", "unroll"),
    [
        ("layers", "full", 2),
        ("layers", "attention", 2),
        ("shared", "dots_no_batch", 1),
        ("tokens", "dots", 1),
        ("rotary", "full", 2),
        ("biases", "attention", 1),
    ],
)
def test_unroll_and_remat_change_nothing(kind, remat, unroll):
    params, images, key, (loss, grad) = plain(kind)
    changes, shape = KINDS[kind]
    classifier = tiny(**shape, **changes, remat=remat, unroll=unroll)
    given_loss, given_grad = loss_and_grad(classifier, params, images, key)
    np.testing.assert_allclose(given_loss, loss, rtol=2e-6)
    assert_grads_close(given_grad, grad)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("remat", "again"),
    [
        ("none", 0),
        ("dots", 0),
        ("attention", 5 * 5 * 16),  # the weights; what they mix is kept
        ("dots_no_batch", 2 * 5 * 5 * 16),  # attention: weights, and weights times values
        ("full", 2 * 5 * 5 * 16 + 4 * 5 * 16 * 16 + 5 * 16 * 24),  # also q, k, v, out and fc1
    ],
)
def test_remat_repeats_the_matrix_products_it_does_not_keep(remat, again):
    classifier = tiny(remat=remat)
    once = 3 * classifier.flops // 2 - 8 * 8 * 3 * 16  # no gradient of the images is wanted
    given = vit_reference.macs(jax.make_jaxpr(backward(classifier))(classifier.shapes()).jaxpr)
    assert given == once + classifier.config.depth * again


@pytest.mark.slow
@pytest.mark.parametrize(("remat", "unroll"), [("full", 1), ("full", 2), ("attention", 2)])
def test_remat_is_guarded_from_the_compiler_when_unrolled(remat, unroll):
    """Unrolled, it would share the repeated products; in a loop the guard would be for nothing."""
    classifier = tiny(remat=remat, unroll=unroll, activation="relu")  # GELU has a guard of its own
    program = jax.jit(backward(classifier)).lower(classifier.shapes()).as_text()
    assert ("optimization_barrier" in program) == (unroll == 2)


# Dropout


def masks(classifier, **arguments):
    """The shapes of all random arrays an application draws, each as often as it does."""
    images = jnp.zeros((3, *classifier.image_size, 3))
    apply = jax.make_jaxpr(lambda p, x: classifier.apply(p, x, **arguments)[0])
    jaxpr = apply(classifier.shapes(), images).jaxpr
    drawn = []
    for equation, times in vit_reference.equations(jaxpr):
        if equation.primitive.name == "random_bits":
            drawn += [equation.outvars[0].aval.shape] * times
    return drawn


def test_dropout_falls_on_the_four_places():
    """After the positions; in each layer after attention, after GELU and after the second dense."""
    key = jax.random.key(0)
    tokens, hidden = (3, 5, 8), (3, 5, 12)  # a word of the generator for two elements
    expected = [tokens] + [tokens] * 2 + [hidden] * 2 + [tokens] * 2
    assert masks(tiny(dropout=0.1, representation_size=7), key=key) == expected
    assert masks(tiny(dropout=0.1)) == []
    assert masks(tiny(dropout=0.0), key=key) == []


def test_dropout_is_a_function_of_the_key():
    classifier = tiny(dropout=0.3)
    params = vit_reference.random_parameters(classifier.shapes())
    images = inputs(classifier)
    apply = quick_jit(lambda key: classifier.apply(params, images, key=key)[0])
    with jax.debug_key_reuse(True):
        one, again, other = (apply(jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - other).min() > 0
    exact = vit_reference.forward(classifier.config, params, images)[0]
    assert np.abs(one - exact).min() > 0


# Stochastic depth


def test_stochastic_depth_rises_from_layer_to_layer():
    """Each branch adds to a feature of its own; in an image that skips it, that one stays empty."""
    classifier = tiny(depth=3, stochastic_depth=0.4, pooling="gap", position="none")
    params = jax.tree.map(lambda s: np.zeros(s.shape, np.float32), classifier.shapes())
    for layer in range(3):
        params["encoder"]["attention"]["out"]["bias"][layer, 2 * layer] = 1
        params["encoder"]["mlp"]["fc2"]["bias"][layer, 2 * layer + 1] = 1
    params["encoder_norm"]["scale"] += 1
    images = np.zeros((4000, 8, 8, 3), np.float32)
    _, out = quick_jit(lambda key: classifier.apply(params, images, key=key))(jax.random.key(0))
    tokens = np.asarray(out["tokens"])
    np.testing.assert_array_equal(tokens, tokens[:, :1] + np.zeros_like(tokens))  # whole images
    gains = tokens[:, 0, :6] - tokens[:, 0, 6:7]  # an unused feature is zero before LayerNorm
    kept = gains > 1e-6
    rates = np.repeat([0.0, 0.2, 0.4], 2)
    spread = 3 * np.sqrt(rates * (1 - rates) / len(images))
    assert np.all(np.abs(1 - kept.mean(0) - rates) <= spread)
    # Layer 0 is never skipped, so its gain, 1 before LayerNorm, is the measure of the others'.
    expected = kept / (1 - rates)
    np.testing.assert_allclose(gains / gains[:, :1], expected, rtol=0, atol=1e-5)
    independent = np.abs(np.corrcoef(kept[:, 2:].T)[np.triu_indices(4, 1)])
    assert independent.max() < 3.5 / np.sqrt(len(images))


# Initialisation


@pytest.mark.slow
def test_initial_parameters_are_those_of_the_released_code():
    classifier = tiny(
        patch_size=(8, 8), image_size=(128, 128), width=64, mlp_dim=160, heads=4, depth=3,
        num_classes=9, representation_size=50, head_bias=-10.0,
    )  # fmt: skip
    init = jax.jit(classifier.init)
    p, again, other = (
        jax.device_get(tree_utils.flatten(init(jax.random.key(k)))) for k in (0, 0, 1)
    )
    for name in p:
        np.testing.assert_array_equal(again[name], p[name])
    assert np.abs(other["embedding/kernel"] - p["embedding/kernel"]).max() > 0.1

    for name, value in {
        "cls": 0, "embedding/bias": 0, "head/kernel": 0, "head/bias": -10, "pre_logits/bias": 0,
        "encoder/norm1/scale": 1, "encoder/norm1/bias": 0, "encoder/norm2/scale": 1,
        "encoder/norm2/bias": 0, "encoder_norm/scale": 1, "encoder_norm/bias": 0,
        **{f"encoder/attention/{n}/bias": 0 for n in ("query", "key", "value", "out")},
    }.items():  # fmt: skip
        np.testing.assert_array_equal(p.pop(name), value, err_msg=name)

    def normal(name, std):
        leaf = p.pop(name)
        assert abs(leaf.mean()) < 5 * std / np.sqrt(leaf.size), name
        assert abs(leaf.std() / std - 1) < 5 / np.sqrt(2 * leaf.size), name

    normal("position/table", 0.02)
    normal("encoder/mlp/fc1/bias", 1e-6)
    normal("encoder/mlp/fc2/bias", 1e-6)
    normal("embedding/kernel", np.sqrt(1 / (8 * 8 * 3)))
    normal("pre_logits/kernel", np.sqrt(1 / 64))

    def uniform(name, fan_in, fan_out):
        bound = np.sqrt(6 / (fan_in + fan_out))
        for layer in (leaf := p.pop(name)):
            assert 0.998 * bound < np.abs(layer).max() <= bound, name
            assert abs(layer.std() / (bound / np.sqrt(3)) - 1) < 0.05, name
        assert np.abs(leaf[0] - leaf[1]).max() > bound / 2, "layers are drawn apart"

    for n in ("query", "key", "value", "out"):
        uniform(f"encoder/attention/{n}/kernel", 64, 64)
    uniform("encoder/mlp/fc1/kernel", 64, 160)
    uniform("encoder/mlp/fc2/kernel", 160, 64)
    assert not p, "every parameter is checked"


# Shapes and sizes


@pytest.mark.parametrize(
    ("variant", "parameters", "gmacs"),
    [
        ("ViT-B/16", 86_567_656, 17.58),
        ("ViT-B/32", 88_224_232, 4.42),
        ("ViT-L/16", 304_326_632, 61.57),
        ("ViT-L/32", 306_535_400, 15.40),
        ("ViT-H/14", 632_045_800, 167.32),
    ],
)
def test_sizes_are_those_of_the_paper(variant, parameters, gmacs):
    """Parameters at 1000 classes without pre_logits; GMACs with pre_logits and JFT's head."""
    model = models.complete(config.Model(variant=variant, num_classes=1000))
    assert models.create(model, image_size=(224, 224)).num_params == parameters
    jft = dataclasses.replace(model, num_classes=18_291, representation_size=model.width)
    assert round(models.create(jft, image_size=(224, 224)).flops / 2e9, 2) == gmacs


def test_shapes_are_those_of_init_and_belong_to_the_caller():
    classifier = tiny(representation_size=7)
    spec = lambda tree: {n: (x.shape, x.dtype) for n, x in tree_utils.flatten(tree).items()}  # noqa: E731
    shapes = classifier.shapes()
    assert spec(shapes) == spec(jax.eval_shape(classifier.init, jax.random.key(0)))
    assert shapes["encoder"]["attention"]["query"]["kernel"].shape == (2, 16, 2, 8)
    assert shapes["encoder"]["attention"]["out"]["kernel"].shape == (2, 2, 8, 16)
    del shapes["head"]
    assert "head" in classifier.shapes()


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 8, 12, 3), np.float32), "images are (2, 8, 12, 3); the model takes"),
        (np.zeros((8, 8, 3), np.float32), "images are (8, 8, 3); the model takes"),
        (np.zeros((2, 8, 8, 3), np.uint8), "images are uint8; the model takes floats"),
        (np.zeros((0, 8, 8, 3), np.float32), "images are (0, 8, 8, 3); the model takes"),
        ("photo.png", "images are a str; the model takes an array"),
    ],
)
def test_wrong_images(images, message):
    with pytest.raises(ValueError, match=".") as raised:
        jax.eval_shape(lambda params: tiny().apply(params, images), tiny().shapes())
    assert str(raised.value).startswith(message)


# Binding


def renamed_head(params):
    params["classifier"] = params.pop("head")


def wrong_things(params):
    params["cls"] = jnp.zeros((1, 16))
    params["position"] = {"table": jnp.zeros((1, 5, 16), jnp.bfloat16)}
    params["head"]["bias"] = 0.0
    params["encoder"]["mlp"]["fc1"]["kernel"] = np.zeros((2, 16, 24))


def layers_apart(params):  # which nnx.merge alone would bind to the wrong places
    params["encoder"] = {str(layer): params["encoder"] for layer in range(2)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p["encoder"]["norm1"].pop("bias"), "encoder/norm1/bias is missing$"),
        (lambda p: p.update(scale=jnp.zeros(3)), "scale is unknown$"),
        (renamed_head, "head/bias is missing; head/kernel is missing; classifier/bias is unknown; "
                       "classifier/kernel is unknown$"),
        pytest.param(
            wrong_things, r"cls is float32\[1,16\], not float32\[1,1,16\]; "
                          r"encoder/mlp/fc1/kernel is float64\[2,16,24\], not float32\[2,16,24\]; "
                          r"head/bias is float, not float32\[5\]; "
                          r"position/table is bfloat16\[1,5,16\], not float32\[1,5,16\]$",
            id="wrong_things",
        ),
        (layers_apart, "encoder/attention/key/bias is missing; .*; "
                       "encoder/1/norm2/scale is unknown$"),
    ],
)  # fmt: skip
def test_binding_names_every_difference(change, message):
    params = tiny().shapes()
    change(params)
    with pytest.raises(models.ParameterError, match=f"^parameters do not fit the model: {message}"):
        tiny().bind(params)


def test_apply_goes_through_the_binding():
    classifier = tiny()
    params = classifier.shapes()
    del params["head"]["bias"]
    with pytest.raises(models.ParameterError, match="the model: head/bias is missing"):
        jax.eval_shape(classifier.apply, params, inputs(classifier))


# Devices and modes


def test_shapes_do_not_remember_a_mesh():
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("data", "zero", "fsdp"))
    classifier = tiny(depth=1, width=8)
    with jax.set_mesh(mesh):
        shapes = classifier.shapes()
    assert all(leaf.sharding is None for leaf in jax.tree.leaves(shapes))
