import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import special

import vit_reference
from vit_jax import config, models
from vit_jax.models import axial, resnet
from vit_jax.utils import tree_utils
from vit_reference import assert_grads_close, inputs, quick_jit

ENCODER = config.Model(
    architecture="axial_vit", patch_size=(4, 4), width=16, depth=2, mlp_dim=24, heads=2,
    num_classes=5, pooling="gap",
)  # fmt: skip
RESNET = config.Model(
    architecture="axial_resnet", resnet_units=(1, 2), resnet_width=0.5, num_classes=5
)
GRID = (2, 3)


def tiny(model=ENCODER, image_size=(8, 12), dtype="float32", **changes):
    return models.create(dataclasses.replace(model, **changes), image_size=image_size, dtype=dtype)


def filled(module):
    """The module with random parameters, and those by name in float64."""
    graph, state = nnx.split(module)
    params = vit_reference.random_parameters(nnx.to_pure_dict(state))
    nnx.replace_by_pure_dict(state, params)
    flat = {name: leaf.astype(np.float64) for name, leaf in tree_utils.flatten(params).items()}
    return nnx.merge(graph, state), flat


# AxialViT


def layer(model, p, x, *_):
    """An axial layer in float64, line by line."""
    for half in ("row", "column"):
        q = vit_reference.under(p, f"{half}/")
        y = vit_reference.norm(x, q["norm1/scale"], q["norm1/bias"], model.norm_epsilon)
        y = y.reshape(len(x), *GRID, model.width)
        mixed = np.zeros_like(y)
        attend = functools.partial(vit_reference.attend, vit_reference.under(q, "attention/"))
        if half == "row":
            for r in range(GRID[0]):
                mixed[:, r] = attend(y[:, r], y[:, r], model)[0]
        else:
            for c in range(GRID[1]):
                mixed[:, :, c] = attend(y[:, :, c], y[:, :, c], model)[0]
        x = x + mixed.reshape(x.shape)
        y = vit_reference.norm(x, q["norm2/scale"], q["norm2/bias"], model.norm_epsilon)
        x = x + vit_reference.mlp(vit_reference.under(q, "mlp/"), y, model)
    return x, None


def in_the_row_half(params):
    """Parameters in which positions of a layer stand where the reference looks for them."""
    if "position" in params["encoder"].get("row", {}):
        params["encoder"]["position"] = params["encoder"]["row"].pop("position")
    return params


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"position": "learned_2d", "position_place": "layers", "pooling": "map"},
        {"position": "sincos_2d", "gelu": "erf", "norm_epsilon": 0.1, "representation_size": 7},
        {"position": "learned_1d", "position_place": "shared", "attention": "xla"},
    ],
)
def test_axial_vit_equals_a_float64_reimplementation(changes):
    classifier = tiny(**changes)
    params = vit_reference.random_parameters(classifier.shapes())
    images = inputs(classifier)
    logits, out = quick_jit(classifier.apply)(params, images)
    params = in_the_row_half(params)
    expected = vit_reference.forward(classifier.config, params, images, layer)
    for array, exact in zip((logits, out["pre_logits"], out["tokens"]), expected, strict=False):
        assert array.shape == exact.shape
        np.testing.assert_allclose(array, exact, rtol=0, atol=1e-5 * np.abs(exact).max())


def test_no_attention_weights_are_returned():
    classifier = tiny()
    apply = functools.partial(classifier.apply, capture=True)
    _, out = jax.eval_shape(apply, classifier.shapes(), inputs(classifier))
    assert out.keys() == {"tokens", "pre_logits"}


def drawn(**changes):
    """The shapes of all random arrays of an application, each as often as it is drawn."""
    classifier = tiny(**changes)
    apply = functools.partial(classifier.apply, key=jax.random.key(0))
    jaxpr = jax.make_jaxpr(apply)(classifier.shapes(), inputs(classifier)).jaxpr
    return [
        equation.outvars[0].aval.shape
        for equation, times in vit_reference.equations(jaxpr)
        for _ in range(times)
        if equation.primitive.name == "random_bits"
    ]


def test_dropout_and_stochastic_depth_fall_on_both_halves():
    tokens, hidden, images = (3, 6, 8), (3, 6, 12), (3, 1, 1)  # a word for two elements
    assert sorted(drawn(dropout=0.1)) == sorted([tokens] * (1 + 8) + [hidden] * 4)
    assert drawn(stochastic_depth=0.1) == [images] * 8
    assert drawn() == []


# AxialResNet


def group_norm(x, scale, bias):
    """Over 32 groups of the last axis and all of an image."""
    groups = x.reshape(len(x), -1, 32, x.shape[-1] // 32)
    centerd = groups - groups.mean((1, 3), keepdims=True)
    variance = (centerd**2).mean((1, 3), keepdims=True)
    return (centerd / np.sqrt(variance + 1e-4)).reshape(x.shape) * scale + bias


def line_attention(p, x):
    """Attention within the lines of x (B, lines, length, F), query by query and key by key."""
    features, length = x.shape[3], x.shape[2]
    y = group_norm(x @ p["project/kernel"], p["norm/scale"], p["norm/bias"])
    out = np.zeros_like(x)
    v = features // 8
    for h in range(8):
        starts = (h * v // 2, features // 2 + h * v // 2, features + h * v)
        q, k, values = (
            y[..., start : start + width]
            for start, width in zip(starts, (v // 2, v // 2, v), strict=True)
        )
        logits = np.zeros((*x.shape[:2], length, length))
        table = {n: p[f"{n}_offsets/table"] for n in ("query", "key", "value")}
        for i, j in np.ndindex(length, length):
            r = {n: rows[i - j + length - 1] for n, rows in table.items()}
            score = (q[:, :, i] * k[:, :, j]).sum(-1)
            score = score + q[:, :, i] @ r["query"] + k[:, :, j] @ r["key"]
            logits[:, :, i, j] = score / np.sqrt(v // 2)
        weights = special.softmax(logits, axis=-1)
        for i, j in np.ndindex(length, length):
            value = values[:, :, j] + table["value"][i - j + length - 1]
            out[:, :, i, h * v : (h + 1) * v] += weights[:, :, i, j, None] * value
    return out


def mean_2x2(x):
    """Means of 2 x 2 positions, at an odd end of those that are there."""
    rows, columns = range(0, x.shape[1], 2), range(0, x.shape[2], 2)
    means = [[x[:, y : y + 2, z : z + 2].mean((1, 2)) for z in columns] for y in rows]
    return np.moveaxis(np.array(means), 2, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("image_size", "stride"), [((16, 24), 1), ((16, 24), 2), ((17, 12), 2), ((4, 20), 1)]
)
def test_axial_layer_equals_a_float64_reimplementation(image_size, stride):
    """On maps of 4 x 6, 5 x 3 and 1 x 5."""
    unit = resnet.UnitShape(inputs=16, features=32, stride=stride, reduction=4)
    made = axial.AxialLayer(image_size, RESNET, unit, jnp.dtype("float32"), rngs=nnx.Rngs(0))
    made, p = filled(made)
    x = np.random.default_rng(1).normal(size=(2, -(-image_size[0] // 4), image_size[1] // 4, 32))
    given = jax.jit(made)(x.astype(np.float32))
    height, width = (vit_reference.under(p, f"{name}/") for name in ("height", "width"))
    expected = line_attention(height, x.swapaxes(1, 2)).swapaxes(1, 2)
    expected = line_attention(width, expected)
    if stride == 2:
        expected = mean_2x2(expected)
    assert given.shape == expected.shape
    np.testing.assert_allclose(given, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_all_3x3_convolutions_are_replaced_and_nothing_else():
    plain = tree_utils.flatten(tiny(RESNET, (32, 48), architecture="resnet").shapes())
    given = tree_utils.flatten(tiny(RESNET, (32, 48)).shapes())
    replaced = {name for name in plain if plain[name].shape[-4:-2] == (3, 3)}
    assert replaced == {f"resnet/{u}/conv2/kernel" for u in (
        "stage1/first", "stage2/first", "stage2/rest"
    )}  # fmt: skip
    kept = {name: leaf.shape for name, leaf in given.items() if "/conv2/" not in name}
    assert kept == {name: leaf.shape for name, leaf in plain.items() if name not in replaced}
    # Stage 1 has maps of 8 x 12; so has the first unit of stage 2, before its pooling.
    for unit, height, width, features in (("stage1/first", 8, 12, 32), ("stage2/first", 8, 12, 64)):
        axes = {"height": height, "width": width}
        shapes = {n: x.shape for n, x in given.items() if n.startswith(f"resnet/{unit}/conv2/")}
        expected = {}
        for axis, length in axes.items():
            prefix, rows = f"resnet/{unit}/conv2/{axis}", 2 * length - 1
            expected[f"{prefix}/project/kernel"] = (features, 2 * features)
            expected |= {f"{prefix}/norm/{n}": (2 * features,) for n in ("scale", "bias")}
            expected[f"{prefix}/query_offsets/table"] = (rows, features // 16)
            expected[f"{prefix}/key_offsets/table"] = (rows, features // 16)
            expected[f"{prefix}/value_offsets/table"] = (rows, features // 8)
        assert shapes == expected
    assert given["resnet/stage2/rest/conv2/height/value_offsets/table"].shape == (1, 7, 8)


# However they run


MODELS = {
    "vit": (ENCODER, {"position": "learned_2d", "position_place": "layers"}),
    "resnet": (RESNET, {"resnet_units": (3,), "image_size": (16, 16)}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_unrolled_rematerialized_split_or_in_bfloat16_the_loss_is_the_same(name):
    model, changes = MODELS[name]
    plain = tiny(model, **changes)
    params = vit_reference.random_parameters(plain.shapes())
    images = inputs(plain, batch=8)

    def evaluate(classifier):
        def loss(params):
            logits, _ = classifier.apply(params, images)
            return jnp.sum(logits**2), logits

        return quick_jit(jax.value_and_grad(loss, has_aux=True))(params)

    (loss, expected), grad = evaluate(plain)
    (again, _), given = evaluate(tiny(model, **changes, unroll=2, remat="full"))
    np.testing.assert_allclose(again, loss, rtol=2e-6)
    # 6.1e-5 on a CPU with AVX2 but no AVX-512, 1.1e-5 with --xla_cpu_max_isa=AVX: rounding.
    assert_grads_close(given, grad, 1e-4)

    def logits(classifier, params, images):
        return quick_jit(lambda p, x: classifier.apply(p, x)[0])(params, images)

    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("data", "zero", "fsdp"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    with jax.set_mesh(mesh):
        given = logits(plain, *jax.device_put((params, images), whole))
    assert not given.sharding.is_fully_replicated
    size = np.abs(expected).max()
    np.testing.assert_allclose(given, expected, rtol=0, atol=5e-6 * size)
    half = logits(tiny(model, **changes, dtype="bfloat16"), params, images)
    assert 1e-5 < np.abs(half - expected).max() / size < 0.05
