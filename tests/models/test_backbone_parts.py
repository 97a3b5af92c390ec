"""Parts that the paper's models lack: DINOv2 and v3, CLIP, DeiT, EVA-02, BEiT; off by default."""

import dataclasses
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax import config, models, preflight, weights
from vit_jax.config import catalog
from vit_jax.models import initializers, positions, variants
from vit_jax.utils import tree_utils

TINY = config.Model(patch_size=(4, 4), width=16, depth=3, mlp_dim=24, heads=2, num_classes=5)
DINOV2 = {"layer_scale": 1e-5, "registers": 3, "mlp": "swiglu", "pooling": "token_gap"}
DINOV3 = {"rotary": 100.0, "position": "none", "registers": 2, "biasless": ("key",)}
DEIT = {"distillation": True, "pooling": "distilled"}
BEIT = {"relative_bias": "layers", "position": "none", "layer_scale": 0.1, "biasless": ("key",)}


def tiny(**changes):
    return models.create(dataclasses.replace(TINY, **changes), image_size=(8, 12))


def random(classifier, seed=0):
    """Parameters of which none is at its initial value."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: rng.normal(0, 0.3, leaf.shape).astype(np.float32), classifier.shapes()
    )


IMAGES = np.random.default_rng(1).uniform(-1, 1, (2, 8, 12, 3)).astype(np.float32)


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
    """RoPE-Mixed: two axes of equal length at right angles, pointing elsewhere in each head."""
    rotary = positions.Rotary((2, 3), 1, 8, 10.0, "patches")
    learned = np.asarray(rotary.initial(3, rngs=nnx.Rngs(0)))
    plane = learned[1] + 1j * learned[0]
    expected = np.tile(10.0 ** -np.array([0, 0.5]), 2)
    np.testing.assert_allclose(np.abs(plane), np.tile(expected, (3, 1)), rtol=1e-5)
    np.testing.assert_allclose(plane[:, 2:] / plane[:, :2], 1j, atol=1e-5)
    assert np.abs(np.diff(np.angle(plane[:, 0]))).min() > 0.01


def test_every_norm_of_a_network_is_the_chosen_one():
    parts = {"qk_norm": True, "stem_norm": True, "pooling": "map"}
    plain, rms = (set(tree_utils.flatten(tiny(norm=kind, **parts).shapes()))
                  for kind in ("layer", "rms"))  # fmt: skip
    assert rms < plain
    assert {name for name in plain if "norm" in name and name.endswith("bias")} == plain - rms


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
