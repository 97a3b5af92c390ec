"""Relative position biases, norms inside layers, EVA-02's rotary positions, initial values."""

import dataclasses

import jax
import numpy as np
import pytest
from test_backbone_parts import IMAGES, TINY, random, tiny

from vit_jax import config, models, unread_options, weights
from vit_jax.models import layers, positions
from vit_jax.utils import tree_utils

EVA02 = {
    "rotary": 10000.0,
    "rotary_grid": (16, 16),
    "mlp": "swiglu",
    "sub_norm": ("mlp",),
    "biasless": ("key",),
    "pooling": "gap",
    "class_token": True,
    "norm_place": "pooled",
}
BEIT = {"relative_bias": "layers", "position": "none", "layer_scale": 0.1, "biasless": ("key",)}
SHARED = {**BEIT, "relative_bias": "shared", "registers": 2}  # fmt: skip


@pytest.mark.parametrize("before", [0, 1, 3])
def test_offsets_of_relative_biases_against_loops(before):
    """As BEiT numbers them: a row for each offset, then from, to and among other tokens."""
    grid = (2, 3)
    offsets = positions.relative_offsets(grid, before)
    assert offsets.shape == (before + 6, before + 6)
    for query in range(6):
        for key in range(6):
            down, right = np.subtract(divmod(query, 3), divmod(key, 3))
            expected = (down + 1) * 5 + right + 2
            assert offsets[before + query, before + key] == expected
    np.testing.assert_array_equal(offsets[:before, before:], 15)
    np.testing.assert_array_equal(offsets[before:, :before], 16)
    np.testing.assert_array_equal(offsets[:before, :before], 17)


@pytest.mark.parametrize("parts", [BEIT, SHARED])
def test_biases_are_added_to_the_logits(parts):
    """What a table changes in the logs of weights is its bias, but for a constant of each query."""
    classifier = tiny(**parts)
    params = random(classifier)
    shared = parts["relative_bias"] == "shared"
    owner = params if shared else params["encoder"]["attention"]
    table = owner["relative_bias"]["table"] = np.array(owner["relative_bias"]["table"])
    apply = jax.jit(classifier.apply, static_argnames="capture")
    with jax.default_matmul_precision("highest"):
        given = np.log(apply(params, IMAGES, capture=True)[1]["attention"][0])
        owner["relative_bias"]["table"] = np.zeros_like(table)
        plain = np.log(apply(params, IMAGES, capture=True)[1]["attention"][0])
    offsets = positions.relative_offsets((2, 3), 1 + classifier.config.registers)
    bias = (table if shared else table[0])[offsets].transpose(2, 0, 1)
    difference = given - plain - bias[None]
    spread = difference.max(axis=-1) - difference.min(axis=-1)
    np.testing.assert_allclose(spread, 0, atol=2e-5)


def test_attention_with_a_bias_equals_float64():
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, 2, 5, 3, 8))
    bias = rng.normal(size=(3, 5, 5))
    logits = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(8) + bias[None]
    expected = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    single = [np.float32(array) for array in (q, k, bias)]
    with jax.default_matmul_precision("highest"):
        given = layers.attention_weights(single[0], single[1], bias=single[2])
    np.testing.assert_allclose(given, expected, rtol=2e-6, atol=1e-7)


def test_rotary_positions_by_a_grid_of_reference():
    """EVA-02: radians are patches of 16 x 16, whatever the grid, times 10000^(-4 i / d)."""
    grid, d, base, reference = (2, 3), 8, 10000.0, (16, 12)
    x = np.random.default_rng(0).normal(size=(2, 1 + 6, 3, d)).astype(np.float32)
    turned = np.asarray(positions.Rotary(grid, 1, d, base, "separate", reference).rotate(x))
    np.testing.assert_array_equal(turned[:, 0], x[:, 0])
    for patch in range(6):
        row, column = divmod(patch, 3)
        angles = np.array([at / base ** (i / 2) for at in (row * 8, column * 4) for i in range(2)])
        pairs = x[:, 1 + patch, :, :4] + 1j * x[:, 1 + patch, :, 4:]
        given = turned[:, 1 + patch, :, :4] + 1j * turned[:, 1 + patch, :, 4:]
        np.testing.assert_allclose(given, pairs * np.exp(1j * angles), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("mlp", ["plain", "swiglu"])
def test_norms_stand_before_the_last_dense_layers(mlp):
    """Scaling what they normalize changes nothing; without them it does."""
    logits = []
    for inner in ((), ("attention", "mlp")):
        classifier = tiny(sub_norm=inner, mlp=mlp, norm_epsilon=1e-12)
        names = tree_utils.flatten(classifier.shapes())
        assert {n for n in names if "sub_norm" in n} == {
            f"encoder/{part}/sub_norm/{leaf}" for part in inner for leaf in ("scale", "bias")
        }
        params = random(classifier)
        with jax.default_matmul_precision("highest"):
            before = jax.jit(classifier.apply)(params, IMAGES)[0]
            value = params["encoder"]["attention"]["value"]
            value |= {leaf: 3 * value[leaf] for leaf in ("kernel", "bias")}
            logits.append(np.abs(jax.jit(classifier.apply)(params, IMAGES)[0] - before).max())
    assert logits[0] > 0.1
    assert logits[1] < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("parts", [EVA02, SHARED])
@pytest.mark.parametrize("changes", [{"unroll": 3, "remat": "full"}, {"remat": "attention"}])
def test_unrolled_and_recomputed_they_are_the_same(parts, changes):
    plain, other = tiny(**parts), tiny(**parts, **changes)
    params = random(plain)

    def gradients(classifier):
        return jax.jit(jax.grad(lambda p: (classifier.apply(p, IMAGES)[0] ** 2).sum()))(params)

    with jax.default_matmul_precision("highest"):
        ours, theirs = gradients(plain), gradients(other)
    for one, two in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(two, one, rtol=0, atol=1e-4 * np.abs(one).max() + 1e-5)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(ours))


def test_relative_biases_are_resized_by_offset():
    """A table that is linear in the offsets stays so; the rows of other tokens are copied."""
    facts = weights.Facts(
        model=models.complete(dataclasses.replace(TINY, **BEIT)),
        data=config.Data(image_size=(12, 16)),
    )
    source = models.create(facts.model, image_size=(12, 16))
    params = random(source)
    down, right = (axis.ravel() for axis in np.mgrid[-2:3, -3:4])
    line = np.stack([down + 10.0 * right, 1 - right / 2], axis=1)
    params["encoder"]["attention"]["relative_bias"]["table"][:, :35] = line
    target = models.create(facts.model, image_size=(20, 28))  # of 5 x 7 patches
    fitted, report = weights.fit(params, facts, target, keep_head=True)
    name = "encoder/attention/relative_bias/table"
    assert report.resized[name] == "from offsets of 3 x 4 to 5 x 7 patches"
    table = fitted["encoder"]["attention"]["relative_bias"]["table"]
    down, right = (axis.ravel() for axis in np.mgrid[-4:5, -6:7] / 2)
    expected = np.stack([down + 10 * right, 1 - right / 2], axis=1)
    np.testing.assert_allclose(table[1, :117], expected, rtol=0, atol=1e-5)
    before = params["encoder"]["attention"]["relative_bias"]["table"]
    np.testing.assert_array_equal(table[:, 117:], before[:, 35:])


# Initial values: those that timm 1.0.31 and MAE draw, by deviation (normal) or bound (uniform).
D, M, INPUTS = 16, 24, 4 * 4 * 3


def xavier(inputs, outputs):
    return "uniform", np.sqrt(6 / (inputs + outputs))


INITIAL = {
    "timm": {"query/kernel": ("normal", 0.02), "mlp/fc2/kernel": ("normal", 0.02),
             "cls": ("normal", 1e-6), "registers": ("normal", 1e-6),
             "head/kernel": ("normal", 0.02),
             "embedding/kernel": ("uniform", INPUTS**-0.5)},
    "deit": {"out/kernel": ("normal", 0.02), "cls": ("normal", 0.02),
             "head/kernel": ("normal", 0.02), "embedding/bias": ("uniform", INPUTS**-0.5)},
    "mae": {"query/kernel": xavier(D, 3 * D), "out/kernel": xavier(D, D),
            "mlp/fc1/kernel": xavier(D, M), "mlp/fc2/kernel": xavier(M, D),
            "cls": ("normal", 0.02), "embedding/kernel": xavier(INPUTS, D),
            "head/kernel": ("normal", 2e-5)},
    "beit": {"query/kernel": ("normal", 0.02), "mlp/fc1/kernel": ("normal", 0.02),
             "cls": ("normal", 0.02), "head/kernel": ("normal", 2e-5)},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("style", INITIAL)
def test_initial_values_are_those_of_their_authors(style):
    """Deviation, range and quantiles over many draws."""
    classifier = tiny(init=style, registers=2)
    keys = jax.random.split(jax.random.key(0), 60)
    flat = tree_utils.flatten(jax.jit(jax.vmap(classifier.init))(keys))
    for part, (kind, size) in INITIAL[style].items():
        name = next(name for name in flat if part in name)
        values = np.asarray(flat[name]).ravel()
        wanted = size if kind == "normal" else size / np.sqrt(3)
        slack = 4 / np.sqrt(values.size)
        assert values.std() == pytest.approx(wanted, rel=slack), name
        assert abs(values.mean()) < slack * wanted
        # Within one deviation lie 68 % of a normal distribution, and 58 % of a uniform one.
        share = (np.abs(values) < wanted).mean()
        assert share == pytest.approx(0.6827 if kind == "normal" else 0.5774, abs=slack)
        if kind == "uniform":
            assert np.abs(values).max() <= size
    for name in ("encoder/attention/query/bias", "encoder/mlp/fc1/bias", "encoder/norm1/bias"):
        assert not flat[name].any()
    np.testing.assert_array_equal(flat["encoder/norm1/scale"], 1)
    assert not np.array_equal(*np.asarray(flat["encoder/attention/query/kernel"])[:2])


@pytest.mark.slow
def test_what_layers_of_beit_add_falls_with_their_number():
    classifier = tiny(init="beit")
    keys = jax.random.split(jax.random.key(0), 60)
    flat = tree_utils.flatten(jax.jit(jax.vmap(classifier.init))(keys))
    for name in ("encoder/attention/out/kernel", "encoder/mlp/fc2/kernel"):
        kernels = np.asarray(flat[name]).swapaxes(0, 1).reshape(3, -1)
        wanted = 0.02 / np.sqrt(2 * np.arange(1, 4))
        np.testing.assert_allclose(kernels.std(axis=1), wanted, rtol=0.05)


@pytest.mark.slow
def test_the_initial_values_of_googles_code_are_the_default():
    plain, named = (tiny(**parts).init(jax.random.key(3)) for parts in ({}, {"init": "google"}))
    jax.tree.map(np.testing.assert_array_equal, plain, named)
    other = tiny(init="timm").init(jax.random.key(3))
    np.testing.assert_array_equal(other["position"]["table"], plain["position"]["table"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"relative_bias": "layers", "attention": "xla"},
         "model.attention=xla: relative positions need explicit"),
        ({"rotary": 100.0, "rotary_grid": (4, 4), "rotary_span": "max"},
         "model.rotary_span=max: spans -1 to 1, which model.rotary_grid replaces; set separate"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(config.ConfigError) as raised:
        tiny(**changes)
    assert str(raised.value) == message


def test_options_that_nothing_reads_are_refused():
    cfg = config.Config(model=dataclasses.replace(TINY, rotary_grid=(16, 16)))
    assert unread_options.problem(cfg, "model.rotary_grid") == "model.rotary=none does not read it"
    axial = dataclasses.replace(TINY, architecture="axial_vit", relative_bias="shared")
    why = unread_options.problem(config.Config(model=axial), "model.relative_bias")
    assert why == "model.architecture=axial_vit does not read it"
    resnet = config.Model(architecture="resnet", init="timm")
    assert unread_options.problem(config.Config(model=resnet), "model.init")
