import dataclasses
import pathlib

import numpy as np
import pytest
import scipy.ndimage

import foreign
from commands import error_line
from vit_jax import config, models, weights
from vit_jax.utils import tree_utils
from vit_jax.weights import adapting, mapping

FOLDER = pathlib.Path(__file__).parents[1] / "fixtures/weights"

MODEL = config.Model(
    patch_size=(4, 4), width=16, depth=2, mlp_dim=24, heads=2, num_classes=5, representation_size=8
)


def facts(image_size=(16, 16), **model):
    model = models.complete(dataclasses.replace(MODEL, **model))
    return weights.ModelSpec(model=model, data=config.Data(image_size=image_size))


def fitted(source, target, *, keep_head=False):
    params = foreign.parameters(source)
    adapted, report = adapting.fit_params(
        params, source, mapping.create_classifier(target), keep_head=keep_head
    )
    return tree_utils.flatten(params), tree_utils.flatten(adapted), report


@pytest.mark.parametrize("old", [(4, 4), (3, 5), (1, 2), (1, 1)])
@pytest.mark.parametrize("new", [(4, 4), (7, 7), (2, 9), (1, 1)])
def test_grids_are_resized_corner_on_corner(old, new):
    """As the released code does, with scipy."""
    table = np.random.default_rng(0).normal(size=(1, old[0] * old[1], 6)).astype(np.float32)
    given = adapting.resize_grid(table, old, new)
    zoom = (new[0] / old[0], new[1] / old[1], 1)
    expected = scipy.ndimage.zoom(table.reshape(*old, 6).astype(float), zoom, order=1)
    assert given.dtype == np.float32
    np.testing.assert_allclose(given.reshape(expected.shape), expected, rtol=0, atol=1e-6)
    if old == new:
        np.testing.assert_array_equal(given, table)


AUTHORS = np.load(FOLDER / "authors_positions.npz")
WAYS = ("antialiased_bicubic", "bicubic", "bicubic_offset", "antialiased_bilinear", "bilinear")


@pytest.mark.parametrize("number", range(5))
def test_grids_are_resized_as_their_authors_do(number):
    """timm's resample_abs_pos_embed and resize_rel_pos_bias_table, and torch's interpolate."""
    old, new = (tuple(size) for size in AUTHORS[f"sizes{number}"].tolist())
    for way in WAYS:
        given = adapting.resize_grid(AUTHORS[f"table{number}"], old, new, way)
        np.testing.assert_allclose(given, AUTHORS[f"{way}{number}"], rtol=0, atol=5e-6)
    spans = [tuple(2 * side - 1 for side in size) for size in (old, new)]
    given = adapting.resize_grid(AUTHORS[f"biases{number}"][:-3], *spans, "geometric")
    np.testing.assert_allclose(given, AUTHORS[f"geometric{number}"][:-3], rtol=0, atol=5e-6)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("timm_folder", "antialiased_bicubic"),
        ("hf_model", "bicubic"),
        ("backbones/hf_beit", "bicubic"),
        ("backbones/hf_dinov2", "bicubic"),
        ("backbones/hf_dinov2_reg", "antialiased_bicubic"),
        ("backbones/hf_siglip", "bicubic"),
        ("backbones/hf_dinov3", "aligned"),  # rotary alone
        ("backbones/timm_dinov3", "aligned"),
        ("backbones/timm_beit", "antialiased_bicubic"),
        ("backbones/meta_dinov2", "bicubic_offset"),
        ("backbones/meta_dinov2_reg4", "antialiased_bicubic"),
        ("backbones/open_clip", "antialiased_bicubic"),
        ("backbones/tips_scenic", "antialiased_bilinear"),
    ],
)
def test_weights_say_how_their_authors_resize_positions(tmp_path, name, way):
    described = foreign.record(name)
    facts = weights.read_spec(foreign.write(tmp_path, described))
    assert facts.model.position_resize == way
    assert adapting.numerics(facts, keep_head=False)["model.position_resize"] == way


def test_positions_of_another_size_are_resized_as_the_option_says(tmp_path):
    folder = foreign.write(tmp_path, foreign.record("timm_folder"))
    own, size = weights.load(folder), {"data.image_size": "48,48"}
    table = own.params["position"]["table"]
    for way in ("antialiased_bicubic", "aligned"):
        more = {"model.position_resize": way} if way == "aligned" else {}
        given = weights.load(folder, size | more)
        expected = adapting.resize_grid(table, (4, 4), (6, 6), way)
        np.testing.assert_array_equal(given.params["position"]["table"], expected)
        assert given.spec.model.position_resize == way


def test_fine_tuning_takes_all_but_the_head_and_keeps_the_class_row():
    source, target = facts(), facts((24, 32), num_classes=3, representation_size=None)
    given, adapted, report = fitted(source, target)
    assert set(given) - set(adapted) == {
        "head/kernel", "head/bias", "pre_logits/kernel", "pre_logits/bias"
    }  # fmt: skip
    dropped = dict.fromkeys(set(given) - set(adapted), "the head of another task")
    assert report.dropped == dropped
    assert report.fresh == dict.fromkeys(("head/kernel", "head/bias"), "the head is new")
    assert report.resized == {"position/table": "from 4 x 4 to 6 x 8 patches"}
    assert report.used == len(adapted)
    for name in set(adapted) - {"position/table"}:
        np.testing.assert_array_equal(adapted[name], given[name], err_msg=name)
    old, new = given["position/table"], adapted["position/table"]
    assert new.shape == (1, 49, 16)
    np.testing.assert_array_equal(new[:, :1], old[:, :1])
    patches = old[:, 1:].reshape(4, 4, 16).astype(float)
    expected = scipy.ndimage.zoom(patches, (6 / 4, 8 / 4, 1), order=1).reshape(1, 48, 16)
    np.testing.assert_allclose(new[:, 1:], expected, rtol=0, atol=1e-6)
    assert report.lines()[0] == f"used: {report.used} arrays"


def test_a_head_for_the_same_classes_can_stay():
    given, adapted, report = fitted(facts(), facts(), keep_head=True)
    assert set(adapted) == set(given)
    assert not report.dropped
    assert not report.fresh
    assert not report.resized
    others = facts(), facts(num_classes=7)
    assert error_line(weights.WeightsError, fitted, *others, keep_head=True) == (
        "the weights do not fit the model: head/bias is (5,), not (7,); a new head would fit; "
        "head/kernel is (8, 5), not (8, 7); a new head would fit"
    )


def test_class_tokens_come_and_go():
    given, adapted, report = fitted(facts(), facts(pooling="gap"))
    assert "cls" in report.dropped
    np.testing.assert_array_equal(adapted["position/table"], given["position/table"][:, 1:])
    given, adapted, report = fitted(facts(pooling="gap"), facts())
    assert "cls" in report.fresh
    assert "cls" not in adapted
    np.testing.assert_array_equal(adapted["position/table"][:, 1:], given["position/table"])
    np.testing.assert_array_equal(adapted["position/table"][:, 0], 0)


@pytest.mark.parametrize("place", ["stem", "layers"])
def test_rows_and_columns_are_resized_each(place):
    kind = {"position": "learned_2d", "position_place": place}
    given, adapted, report = fitted(facts(**kind), facts((16, 28), **kind))
    prefix = "encoder/position" if place == "layers" else "position"
    np.testing.assert_array_equal(adapted[f"{prefix}/rows"], given[f"{prefix}/rows"])
    np.testing.assert_array_equal(adapted[f"{prefix}/cls"], given[f"{prefix}/cls"])
    old, new = given[f"{prefix}/columns"], adapted[f"{prefix}/columns"]
    zoom = (*(1,) * (old.ndim - 2), 7 / 4, 1)
    expected = scipy.ndimage.zoom(old.astype(float), zoom, order=1)
    np.testing.assert_allclose(new, expected, rtol=0, atol=1e-6)
    assert report.resized == {f"{prefix}/columns": "from 4 to 7 columns"}


def test_what_is_not_the_same_network_is_refused_in_one_line():
    other = facts(mlp_dim=32, patch_size=(8, 8))
    assert error_line(weights.WeightsError, fitted, facts(), other) == (
        "the weights do not fit the model: "
        "embedding/kernel is (4, 4, 3, 16), not (8, 8, 3, 16); "
        "encoder/mlp/fc1/bias is (2, 24), not (2, 32); "
        "encoder/mlp/fc1/kernel is (2, 16, 24), not (2, 16, 32); "
        "encoder/mlp/fc2/kernel is (2, 24, 16), not (2, 32, 16)"
        "; set model.patch_size=4,4 model.mlp_dim=24"
    )
    resnet = config.Model(architecture="resnet", resnet_units=(1, 2))
    sincos = dataclasses.replace(MODEL, position="sincos_2d")
    for source, target, differing in (
        (resnet, sincos, "architecture=resnet model.resnet_units=1,2"),
        (MODEL, dataclasses.replace(MODEL, resnet_units=(1, 2)), "resnet_units=none"),
        (dataclasses.replace(MODEL, pooling="map"), MODEL, "pooling=map"),
    ):
        assert adapting._other_sizes(source, target) == f"model.{differing}"
    other = facts(position="sincos_2d")
    assert error_line(weights.WeightsError, fitted, facts(), other) == (
        "the weights do not fit the model: position/table has no place in the model; "
        "set model.position=learned_1d"
    )
    with pytest.raises(weights.WeightsError, match="position/table is missing"):
        fitted(facts(position="none"), facts())
    with pytest.raises(weights.WeightsError, match="position/table has no place in the model"):
        fitted(facts(), facts(position="none"))
    with pytest.raises(weights.WeightsError, match="offsets between tokens cannot be resized"):
        fitted(facts(position="relative"), facts((8, 8), position="relative"))
    with pytest.raises(weights.WeightsError, match=r"cls is \(1, 1, 8\), not"):
        fitted(facts(width=8), facts())


def test_options_that_belong_to_the_weights():
    source = facts(gelu="erf", norm_epsilon=1e-12)
    source = dataclasses.replace(source, data=config.Data(mean=(0.4, 0.5, 0.6), std=(0.2,)))
    kept, encoder = (weights.numerics(source, keep_head=keep) for keep in (True, False))
    expected = {"model.gelu": "erf", "model.norm_epsilon": 1e-12, "model.registers": 0}
    expected |= {"data.mean": (0.4, 0.5, 0.6), "data.std": (0.2,)}
    assert encoder.items() >= expected.items()
    head = {"pooling": "token", "pooled_layers": 1, "representation_activation": "tanh"}
    assert kept == encoder | {f"model.{key}": value for key, value in head.items()}


def test_positions_and_missing_biases_belong_to_the_weights():
    """Biases of offsets and turned queries are positions enough; a head's bias goes with it."""
    plain = weights.numerics(facts(), keep_head=False)
    assert "model.position" not in plain
    for options in ({"relative_bias": "layers"}, {"rotary": 100.0}):
        source = facts(position="none", **options)
        assert weights.numerics(source, keep_head=False)["model.position"] == "none"
    source = facts(biasless=("key", "head"))
    for keep_head, lacking in ((True, ("key", "head")), (False, ("key",))):
        assert weights.numerics(source, keep_head=keep_head)["model.biasless"] == lacking


def test_positions_without_arrays_and_their_place_belong_to_the_weights():
    """Nothing else would show that a run has others."""
    source = facts(position="sincos_2d_mae")
    for own, has in (("sincos_2d", True), ("none", True), ("learned_1d", False)):
        found = weights.numerics(source, keep_head=False, position=own)
        assert ("model.position" in found) == has
    found = weights.numerics(facts(position_place="shared"), keep_head=False, position="none")
    assert found["model.position"] == "learned_1d"
    assert found["model.position_place"] == "shared"


def test_means_and_deviations_go_with_the_channels():
    data = config.Data(mean=(0.1, 0.2, 0.6), std=(0.5, 0.6, 0.7))
    source = dataclasses.replace(facts(), data=data)
    for channels, mean in ((3, (0.1, 0.2, 0.6)), (1, (0.3,)), (4, (0.1, 0.2, 0.6, 0.1))):
        found = weights.numerics(source, keep_head=False, channels=channels)
        assert found["data.mean"] == pytest.approx(mean)


def test_weights_of_rgb_take_other_channels_as_timm_has_them():
    kernel = np.random.default_rng(0).standard_normal((4, 4, 3, 5)).astype(np.float32)

    def timm(channels):  # adapt_input_conv of timm, in its own order (out, in, height, width)
        weight = kernel.transpose(3, 2, 0, 1)
        if channels == 1:
            return weight.sum(axis=1, keepdims=True).transpose(2, 3, 1, 0)
        repeated = np.tile(weight, (1, -(-channels // 3), 1, 1))[:, :channels]
        return (repeated * (3 / float(channels))).transpose(2, 3, 1, 0)

    for channels in (1, 2, 4, 6, 13):
        found = adapting.for_channels(kernel, (4, 4, channels, 5))
        np.testing.assert_allclose(found, timm(channels), rtol=1e-6)
    assert adapting.for_channels(kernel, (4, 4, 6, 8)) is None
    assert adapting.for_channels(np.ones((4, 4, 13, 5)), (4, 4, 3, 5)) is None
    six = dataclasses.replace(facts(), data=config.Data(image_size=(16, 16), channels=6))
    given, adapted, report = fitted(facts(), six)
    expected = adapting.for_channels(given["embedding/kernel"], (4, 4, 6, 16))
    np.testing.assert_array_equal(adapted["embedding/kernel"], expected)
    assert report.resized == {"embedding/kernel": "from 3 to 6 channels"}


def test_a_class_token_that_the_head_does_not_see_belongs_to_the_weights():
    """The patches attend to it all the same."""
    source = facts(pooling="gap", class_token=True)
    assert weights.numerics(source, keep_head=False)["model.class_token"] is True
    assert "model.class_token" not in weights.numerics(facts(), keep_head=False)
    given, adapted, report = fitted(source, facts(pooling="gap", class_token=True, num_classes=3))
    np.testing.assert_array_equal(adapted["cls"], given["cls"])
    assert "cls" not in report.dropped


def test_positions_of_a_class_token_come_and_go():
    without = facts(class_position=False)
    given, adapted, report = fitted(without, facts())
    np.testing.assert_array_equal(adapted["position/table"][:, 0], 0)
    np.testing.assert_array_equal(adapted["position/table"][:, 1:], given["position/table"])
    assert report.resized == {"position/table": "with a row of zeros for the class token"}
    given, adapted, report = fitted(facts(), without)
    np.testing.assert_array_equal(adapted["position/table"], given["position/table"][:, 1:])
    assert report.resized == {"position/table": "without the row of the class token"}
    given, adapted, report = fitted(without, facts((24, 32), class_position=False))
    assert adapted["position/table"].shape == (1, 48, 16)
    assert report.resized == {"position/table": "from 4 x 4 to 6 x 8 patches"}
