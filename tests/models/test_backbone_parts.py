"""Parts that the paper's models lack: DINOv2 and v3, CLIP, DeiT, EVA-02, BEiT; off by default."""

import dataclasses
import importlib.util
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax import cli, config, models, preflight, weights
from vit_jax.config import catalog
from vit_jax.inference import loading
from vit_jax.models import initializers, layers, positions, variants
from vit_jax.utils import tree_utils

TINY = config.Model(patch_size=(4, 4), width=16, depth=3, mlp_dim=24, heads=2, num_classes=5)
DINOV2 = {"layer_scale": 1e-5, "registers": 3, "mlp": "swiglu", "pooling": "token_gap"}
CLIP = {"stem_norm": True, "biasless": ("patches", "head"), "gelu": "quick"}
DINOV3 = {"rotary": 100.0, "position": "none", "registers": 2, "biasless": ("key",)}
DEIT = {"distillation": True, "pooling": "distilled"}
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


def tiny(**changes):
    return models.create(dataclasses.replace(TINY, **changes), image_size=(8, 12))


def random(classifier, seed=0):
    """Parameters of which none is at its initial value."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: rng.normal(0, 0.3, leaf.shape).astype(np.float32), classifier.shapes()
    )


IMAGES = np.random.default_rng(1).uniform(-1, 1, (2, 8, 12, 3)).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "changes"),
    [
        *((DINOV2, {"remat": remat}) for remat in ("full", "dots", "attention")),
        (DINOV2, {"unroll": 3}),
        (DINOV2, {"attention": "xla"}),
        *((parts, {"unroll": 3, "remat": "full"}) for parts in (DINOV2, EVA02, SHARED)),
        *((parts, {"remat": "attention"}) for parts in (EVA02, SHARED)),
    ],
)
def test_unrolled_and_recomputed_they_are_the_same(parts, changes):
    plain, other = tiny(**parts), tiny(**parts, **changes)
    params = random(plain)

    def gradients(classifier):
        def loss(params):
            return (classifier.apply(params, IMAGES)[0] ** 2).sum()

        return jax.jit(jax.value_and_grad(loss))(params)

    with jax.default_matmul_precision("highest"):
        (value, grads), (again, others) = gradients(plain), gradients(other)
    np.testing.assert_allclose(again, value, rtol=1e-5)
    for one, two in zip(jax.tree.leaves(grads), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(two, one, rtol=0, atol=1e-4 * np.abs(one).max() + 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["token", "map"])
@pytest.mark.parametrize("mlp", ["plain", "swiglu"])
def test_dense_layers_without_a_bias(pooling, mlp):
    parts = {
        "patches": {"embedding"},
        **{part: {f"encoder/attention/{part}"} for part in ("query", "key", "value", "out")},
        "mlp": {f"encoder/mlp/{name}" for name in ("gate", "fc1", "fc2")},
        "head": {"head"},
    }
    before = tree_utils.flatten(tiny(pooling=pooling, mlp=mlp).shapes())
    for part, names in parts.items():
        after = tree_utils.flatten(tiny(pooling=pooling, mlp=mlp, biasless=(part,)).shapes())
        lost = {f"{name}/bias" for name in names} & before.keys()
        assert before.keys() - after.keys() == lost
        assert lost


def test_quick_gelu_and_the_norm_of_the_stem():
    """Against formulas: x sigmoid(1.702 x), and tokens that are normalized once they are placed."""
    x = np.linspace(-4, 4, 9, dtype=np.float32)
    quick = layers.ACTIVATIONS["gelu_quick"](x)
    np.testing.assert_allclose(quick, x / (1 + np.exp(-1.702 * x)), rtol=1e-6)
    classifier = tiny(**CLIP)
    module = classifier.bind(random(classifier))
    seen = []
    module.encode = lambda x, *others: (seen.append(x), (x, {}))[1]
    module(IMAGES)
    placed = np.asarray(module.add_positions(module.patches(IMAGES)))
    centered = placed - placed.mean(axis=-1, keepdims=True)
    normed = centered / np.sqrt(centered.var(axis=-1, keepdims=True) + 1e-6)
    expected = normed * module.stem_norm.scale[...] + module.stem_norm.bias[...]
    np.testing.assert_allclose(seen[0], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("span", "reference"),
    [("separate", None), ("max", None), ("min", None), ("separate", (16, 12))],
)
def test_rotary_positions_against_complex_numbers(span, reference):
    """Pair (i, i + d/2) of a head is a complex number, times e^(i angle).

    DINOv3, section 3.2: by positions from -1 to 1, times 2 pi; EVA-02: by patches of a reference
    grid.
    """
    grid, d, base = (2, 3), 8, 10.0
    x = np.random.default_rng(0).normal(size=(2, 1 + 6, 3, d)).astype(np.float32)
    rotary = positions.Rotary(grid, 1, d, base, span, reference)
    turned = np.asarray(rotary.rotate(x))
    np.testing.assert_array_equal(turned[:, 0], x[:, 0])  # the class token stays
    for patch in range(6):
        at = np.array(divmod(patch, 3), float)
        if reference is None:
            length = {"separate": np.array(grid), "max": 3, "min": 2}[span]
            at = 2 * np.pi * (2 * (at + 0.5) / length - 1)
        else:
            at *= np.divide(reference, grid)
        angles = np.concatenate([[axis / base ** (i / 2) for i in range(2)] for axis in at])
        pairs = x[:, 1 + patch, :, :4] + 1j * x[:, 1 + patch, :, 4:]
        given = turned[:, 1 + patch, :, :4] + 1j * turned[:, 1 + patch, :, 4:]
        np.testing.assert_allclose(given, pairs * np.exp(1j * angles), rtol=0, atol=1e-5)


def test_learned_rotary_frequencies_begin_as_those_of_the_base():
    """RoPE-Mixed: each head turns by the product of a frequency per axis and the position."""
    rotary = positions.Rotary((2, 3), 1, 8, 10.0, "patches")
    x = np.random.default_rng(0).normal(size=(1, 7, 3, 8)).astype(np.float32)
    learned = np.asarray(rotary.initial(3, rngs=nnx.Rngs(0)))
    turned = np.asarray(rotary.rotate(x, None, learned))
    np.testing.assert_array_equal(turned[:, 0], x[:, 0])
    pairs, given = (array[..., :4] + 1j * array[..., 4:] for array in (x, turned))
    for patch in range(6):
        row, column = divmod(patch, 3)
        angles = row * learned[0] + column * learned[1]
        expected = pairs[:, 1 + patch] * np.exp(1j * angles)
        np.testing.assert_allclose(given[:, 1 + patch], expected, rtol=0, atol=1e-5)
    # Two axes of equal length at right angles, pointing elsewhere in each head.
    plane = learned[1] + 1j * learned[0]
    expected = np.tile(10.0 ** -np.array([0, 0.5]), 2)
    np.testing.assert_allclose(np.abs(plane), np.tile(expected, (3, 1)), rtol=1e-5)
    np.testing.assert_allclose(plane[:, 2:] / plane[:, :2], 1j, atol=1e-5)
    assert np.abs(np.diff(np.angle(plane[:, 0]))).min() > 0.01


@pytest.mark.slow
def test_rotary_positions_fit_any_size_and_every_attention():
    params = random(tiny(**DINOV3))
    wide = models.create(dataclasses.replace(TINY, **DINOV3), image_size=(20, 8))
    assert tree_utils.flatten(wide.shapes()).keys() == tree_utils.flatten(params).keys()
    assert wide.bind(params).grid == (5, 2)
    logits = jax.jit(tiny(**DINOV3).apply)(params, IMAGES)[0]
    swapped = IMAGES.reshape(2, 2, 4, 12, 3)[:, ::-1].reshape(IMAGES.shape)
    assert np.abs(jax.jit(tiny(**DINOV3).apply)(params, swapped)[0] - logits).max() > 1e-3
    for changes in ({"attention": "xla"}, {"unroll": 3, "remat": "attention"}):
        again = jax.jit(tiny(**DINOV3, **changes).apply)(params, IMAGES)[0]
        np.testing.assert_allclose(again, logits, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_queries_and_keys_are_normalized_by_head():
    """Then logits are at most the root of the width of a head, times the scales."""
    classifier = tiny(qk_norm=True)
    params = classifier.init(jax.random.key(0))
    assert params["encoder"]["attention"]["query_norm"]["scale"].shape == (3, 8)
    kernel = params["encoder"]["attention"]["query"]["kernel"]
    params["encoder"]["attention"]["query"]["kernel"] = 1000 * kernel
    out = jax.jit(classifier.apply, static_argnames="capture")(params, IMAGES, capture=True)[1]
    spread = np.log(np.asarray(out["attention"]))
    assert (spread.max(axis=-1) - spread.min(axis=-1)).max() <= 2 * np.sqrt(8) + 1e-3
    family = models.find_architecture(classifier.config)
    assert not family.reads_in_compute_type("encoder/attention/query_norm/bias")
    assert family.reads_in_compute_type("encoder/attention/query/bias")


def test_rms_norm_is_that_of_its_paper():
    """x / sqrt(mean(x^2) + epsilon) * scale (Zhang and Sennrich 2019), of any type, in float32."""
    rng = np.random.default_rng(0)
    x, scale = rng.normal(3, 2, (4, 16)), rng.normal(1, 0.3, 16)
    norm = layers.create_norm(dataclasses.replace(TINY, norm="rms"), 16, rngs=nnx.Rngs(0))
    norm.scale[...] = scale.astype(np.float32)
    expected = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6) * scale
    found = layers.normalize(norm, x.astype(np.float32))
    np.testing.assert_allclose(found, expected, rtol=3e-6)
    half = layers.normalize(norm, jax.numpy.asarray(x, jax.numpy.bfloat16))
    assert half.dtype == jax.numpy.bfloat16
    np.testing.assert_allclose(np.float64(half), expected, rtol=0.02)


def test_every_norm_of_a_network_is_the_chosen_one(tmp_path):
    parts = {"qk_norm": True, "stem_norm": True, "pooling": "map"}
    plain, rms = (set(tree_utils.flatten(tiny(norm=kind, **parts).shapes()))
                  for kind in ("layer", "rms"))  # fmt: skip
    assert rms < plain
    assert {name for name in plain if "norm" in name and name.endswith("bias")} == plain - rms
    classifier = tiny(norm="rms", **parts)
    params = random(classifier)
    facts = weights.ModelSpec(
        model=classifier.config, data=config.Data(image_size=(8, 12)), classes=tuple("abcde")
    )
    for kind, name in (("timm", "timm"), ("hf", "Hugging Face"), ("google", "Google")):
        with pytest.raises(weights.WeightsError, match=f"^model.norm=rms: {name} models have Lay"):
            weights.save(params, facts, kind, tmp_path / f"x{'.npz' * (kind == 'google')}")


def test_registers_are_seen_but_not_pooled():
    classifier = tiny(registers=2, pooling="gap")
    params = random(classifier)
    _, out = jax.jit(classifier.apply, static_argnames="capture")(params, IMAGES, capture=True)
    assert out["tokens"].shape == (2, 2 + 6, 16)
    assert out["attention"].shape == (3, 2, 2, 8, 8)
    changed = {**params, "registers": params["registers"][..., ::-1]}
    again = jax.jit(classifier.apply)(changed, IMAGES)[1]
    assert np.abs(again["pre_logits"] - out["pre_logits"]).max() > 1e-3
    mean = np.asarray(out["tokens"])[:, 2:].mean(axis=1)
    np.testing.assert_allclose(out["pre_logits"], mean, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_two_heads_read_one_token_each():
    classifier = tiny(**DEIT, head_bias=-3.0)
    initial = classifier.init(jax.random.key(0))
    assert 0.01 < np.asarray(initial["distillation"]).std() < 0.03
    for head in ("head", "head_dist"):
        np.testing.assert_array_equal(initial[head]["bias"], np.full(5, -3, np.float32))
    params = random(classifier)
    with jax.default_matmul_precision("highest"):
        logits, out = jax.jit(classifier.apply)(params, IMAGES)
    one, other = np.asarray(out["tokens"])[:, 0], np.asarray(out["tokens"])[:, 1]
    np.testing.assert_array_equal(out["pre_logits"], np.concatenate([one, other], axis=1))
    answers = [
        seen @ params[head]["kernel"] + params[head]["bias"]
        for seen, head in ((one, "head"), (other, "head_dist"))
    ]
    np.testing.assert_allclose(logits, np.mean(answers, axis=0), rtol=0, atol=1e-5)


@pytest.mark.parametrize("position", ["learned_1d", "learned_2d"])
def test_a_distillation_token_has_a_position(position):
    classifier = tiny(**DEIT, position=position, registers=1)
    table = classifier.bind(random(classifier)).position()[0]
    assert table.shape == (2 + 1 + 6, 16)
    assert np.abs(table[:2]).min() > 0
    np.testing.assert_array_equal(table[2], 0)
    without = tiny(**DEIT, position=position, class_position=False)
    table = without.bind(random(without)).position()[0]
    np.testing.assert_array_equal(table[:2], 0)


def test_token_gap_puts_the_class_token_before_the_mean():
    classifier = tiny(pooling="token_gap", registers=1)
    assert variants.has_class_token(classifier.config)
    out = jax.jit(classifier.apply)(random(classifier), IMAGES)[1]
    tokens = np.asarray(out["tokens"])
    expected = np.concatenate([tokens[:, 0], tokens[:, 2:].mean(axis=1)], axis=1)
    np.testing.assert_allclose(out["pre_logits"], expected, rtol=0, atol=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("position", ["learned_1d", "learned_2d"])
@pytest.mark.parametrize("place", ["stem", "layers", "shared"])
def test_nothing_is_added_to_registers(position, place):
    classifier = tiny(registers=2, position=position, position_place=place)
    module = classifier.bind(random(classifier))
    where = module.position_tables()
    assert where.shape == (3 if place == "layers" else 1, 6, 16)
    if place != "layers":
        table = module.position()[0]
        assert table.shape == (1 + 2 + 6, 16)
        np.testing.assert_array_equal(table[1:3], 0)
        assert np.abs(table[0]).min() > 0


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


def test_relative_biases_are_resized_by_offset():
    """A table that is linear in the offsets stays so; the rows of other tokens are copied."""
    facts = weights.ModelSpec(
        model=models.complete(dataclasses.replace(TINY, **BEIT)),
        data=config.Data(image_size=(12, 16)),
    )
    source = models.create(facts.model, image_size=(12, 16))
    params = random(source)
    down, right = (axis.ravel() for axis in np.mgrid[-2:3, -3:4])
    line = np.stack([down + 10.0 * right, 1 - right / 2], axis=1)
    params["encoder"]["attention"]["relative_bias"]["table"][:, :35] = line
    target = models.create(facts.model, image_size=(20, 28))  # of 5 x 7 patches
    fitted, report = weights.fit_params(params, facts, target, keep_head=True)
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
             "pooling/probe": ("normal", D**-0.5),
             "head/kernel": ("normal", 0.02), "embedding/bias": ("uniform", INPUTS**-0.5)},
    "mae": {"query/kernel": xavier(D, 3 * D), "out/kernel": xavier(D, D),
            "mlp/fc1/kernel": xavier(D, M), "mlp/fc2/kernel": xavier(M, D),
            "cls": ("normal", 0.02), "embedding/kernel": xavier(INPUTS, D),
            "head/kernel": ("normal", 2e-5)},
    "beit": {"query/kernel": ("normal", 0.02), "mlp/fc1/kernel": ("normal", 0.02),
             "cls": ("normal", 0.02), "head/kernel": ("normal", 2e-5)},
}  # fmt: skip


def redrawn(style, *parts):
    """Sixty draws of the parameters whose names have these parts, which were 1."""
    classifier = tiny(init=style, registers=2)
    shapes = tree_utils.flatten(classifier.shapes()) | {"pooling/probe": jnp.ones((1, 1, D))}
    parts = ("embedding/kernel", *parts)  # whose inputs count for its bias
    ones = {
        name: jnp.ones(leaf.shape)
        for name, leaf in shapes.items()
        if any(part in name for part in parts)
    }

    def draw(key):
        return initializers.redraw(classifier.config, tree_utils.nest(ones), key)

    keys = jax.random.split(jax.random.key(0), 60)
    return tree_utils.flatten(jax.device_get(jax.jit(jax.vmap(draw))(keys)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("style", INITIAL)
def test_initial_values_are_those_of_their_authors(style):
    """Deviation, range and quantiles over many draws."""
    kept = ("norm1/bias", "norm1/scale")
    flat = redrawn(style, *INITIAL[style], "query/kernel", "query/bias", "fc1/bias", *kept)
    for part, (kind, size) in INITIAL[style].items():
        name = next(name for name in flat if part in name)
        values = flat[name].ravel()
        wanted = size if kind == "normal" else size / np.sqrt(3)
        slack = 4 / np.sqrt(values.size)
        assert values.std() == pytest.approx(wanted, rel=slack), name
        assert abs(values.mean()) < slack * wanted
        # Within one deviation lie 68 % of a normal distribution, and 58 % of a uniform one.
        share = (np.abs(values) < wanted).mean()
        assert share == pytest.approx(0.6827 if kind == "normal" else 0.5774, abs=slack)
        if kind == "uniform":
            assert np.abs(values).max() <= size
    for name in ("encoder/attention/query/bias", "encoder/mlp/fc1/bias"):
        assert not flat[name].any()
    for part in kept:
        np.testing.assert_array_equal(flat[f"encoder/{part}"], 1)
    assert not np.array_equal(*flat["encoder/attention/query/kernel"][:2])


def test_equal_arrays_are_drawn_apart():
    flat = redrawn("timm", "query/kernel", "key/kernel")
    query, key = (flat[f"encoder/attention/{name}/kernel"] for name in ("query", "key"))
    assert (query != key).all()


def test_what_layers_of_beit_add_falls_with_their_number():
    names = ("attention/out/kernel", "mlp/fc2/kernel")
    for name, drawn in redrawn("beit", *names).items():
        if name.startswith("encoder"):
            kernels = drawn.swapaxes(0, 1).reshape(3, -1)
            wanted = 0.02 / np.sqrt(2 * np.arange(1, 4))
            np.testing.assert_allclose(kernels.std(axis=1), wanted, rtol=0.05)


def test_mimetic_attention_is_near_the_identity():
    """Queries times keys near 0.7 (Z + I), values times projections near 0.4 (Z - I), in float64.

    A head's product has the largest singular values alone, in equal halves.
    """
    width, heads = 32, 4
    size = width // heads
    sizes = dataclasses.replace(TINY, init="mimetic", width=width, heads=heads, depth=12)
    shapes = {"query": (width, heads, size), "key": (width, heads, size),
              "value": (width, heads, size), "out": (heads, size, width)}  # fmt: skip
    ones = {
        "attention": {name: {"kernel": jnp.ones((12, *shape))} for name, shape in shapes.items()},
        "mlp": {"fc1": {"kernel": jnp.ones((12, width, width))}},
    }
    redraw = jax.jit(lambda key: initializers.redraw(sizes, {"encoder": ones}, key))
    found = jax.device_get(redraw(jax.random.key(3)))["encoder"]
    query, key, value, out = (
        found["attention"][name]["kernel"].astype(np.float64) for name in shapes
    )
    np.testing.assert_array_equal(found["mlp"]["fc1"]["kernel"], 1)

    noise = np.einsum("ldhk,lhke->lde", value, out) / 0.4 + np.eye(width)
    assert noise.std() * np.sqrt(width) == pytest.approx(1, rel=4 / np.sqrt(noise.size))
    for numbers in (noise, np.diagonal(noise, axis1=1, axis2=2)):
        assert abs(numbers.mean()) < 4 / np.sqrt(numbers.size * width)
    assert np.abs(np.corrcoef(noise.reshape(12, -1)) - np.eye(12)).max() < 0.2

    values = np.einsum("ldhk,ldhk->lhk", query, query)
    for half in (query, key):
        products = np.einsum("ldhk,ldhj->lhkj", half, half)
        np.testing.assert_allclose(products, values[..., None] * np.eye(size), atol=1e-5)
    drawn = np.random.default_rng(0).normal(size=(200, width, width)) / np.sqrt(width)
    left, expected, right = np.linalg.svd(0.7 * (drawn + np.eye(width)))
    expected = expected[:, :size]
    np.testing.assert_allclose(values.mean(axis=(0, 1)), expected.mean(axis=0), rtol=0.06)
    traces = np.einsum("ndk,nk,nkd->n", left[:, :, :size], expected, right[:, :size])
    own = np.einsum("ldhk,ldhk->lh", query, key)
    assert own.mean() == pytest.approx(traces.mean(), rel=0.06)
    assert own.min() > 0


MODERN = {
    "tokens": DINOV2
    | DINOV3
    | {"stem_norm": True, "qk_norm": True, "gelu": "quick", "norm": "rms"}
    | {"patch_norm": True, "pooling_prefix": True}
    | {"biasless": ("patches", "key"), "pooling": "map"},  # which reads the GELU
    "attention": {"mlp": "swiglu", "sub_norm": ("attention", "mlp"), "layer_scale": 0.1}
    | {"rotary": 10000.0, "rotary_grid": (2, 2), "rotary_learned": True}
    | {"relative_bias": "layers", "init": "beit"}
    | {"pooling": "gap", "norm_place": "pooled"},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODERN)
def test_a_run_of_all_parts_trains_with_everything_split(tmp_path, kind):
    parts = MODERN[kind]
    options = [f"--config.model.{key}={config.show(value)}" for key, value in parts.items()]
    options += [
        "--config.mesh.fsdp=4",
        "--config.mesh.fsdp_min_size=1",
        "--config.model.remat=full",
    ]
    folder = tmp_path / "run"
    arguments = ["train", "finetune/ViT-B_16-i21k-cifar10", "--smoke", f"--workdir={folder}"]
    assert cli.main([*arguments, *options]) == 0
    stored = json.loads((folder / "config.json").read_text())["model"]
    assert {key: stored[key] for key in parts} == json.loads(json.dumps(parts))
    params = loading.load(str(folder)).params
    assert params["encoder"]["scale1"]["scale"].shape == (2, 32)
    assert np.asarray(params["head"]["kernel"]).any()
    if kind == "tokens":
        assert params["registers"].shape == (1, 2, 32)
        assert "bias" not in params["embedding"]
        assert params["stem_norm"]["scale"].shape == (32,)
    else:
        table = np.asarray(params["encoder"]["attention"]["relative_bias"]["table"])
        assert table.any()  # which begins at 0
        assert len(table) == 2


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="libtpu is not installed; pip install 'vit_jax[tpu]'",
)
@pytest.mark.parametrize(
    ("kind", "remat", "unroll"), [("tokens", "full", 1), ("attention", "attention", 2)]
)
def test_all_parts_compile_for_a_slice(kind, remat, unroll):
    sizes = {"patch_size": (4, 4), "width": 128, "depth": 2, "heads": 2, "mlp_dim": 512}
    model = MODERN[kind] | sizes | {"remat": remat, "unroll": unroll}
    values = {f"model.{key}": value for key, value in model.items()}
    values |= {"train.batch_size": 64, "data.image_size": (32, 32)}
    values |= {"mesh.fsdp": 2, "mesh.fsdp_min_size": 1}
    cfg = config.build(
        config.override(catalog.load_values("finetune/ViT-B_16-i21k-cifar10"), values)
    )
    cfg = preflight.prepare_config(cfg)
    report = preflight.measure(cfg, preflight.open_slice("v5e:2x2"), 50_000)
    assert report.fits
    # Computing again what the backward pass needs is at most another forward pass.
    assert 1 < report.compiler_flops / report.model_flops < 1.4
    shapes = models.create(cfg.model, image_size=(32, 32)).shapes()
    count = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert report.params < 1.1 * count  # of four bytes each, on four devices
