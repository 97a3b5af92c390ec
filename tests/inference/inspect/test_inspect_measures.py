"""Measures of attention, positions, filters and features: closed forms, and float64 references."""

import dataclasses
import math
import pathlib

import cv2
import jax
import numpy as np
import pytest

import runs
import vit_reference
from vit_jax import cli, config
from vit_jax.inference import loaded_model, loading
from vit_jax.inference.inspect import figures, inputs, measures, saliency, view
from vit_jax.inference.inspect.measures import CannotAnswer
from vit_jax.training import build, run_config
from vit_jax.training.objectives import mae
from vit_jax.utils import tree_utils

GOOGLE = pathlib.Path(__file__).parents[2] / "fixtures" / "vit_tiny_token.npz"


def softmax(shape):
    """Random attention, float64."""
    x = np.exp(2 * np.random.default_rng(0).normal(size=shape))
    return x / x.sum(-1, keepdims=True)


def reach(weights, grid, size, token):
    far = measures.distances(grid, size, prefix=token)
    return measures.mean_distance(weights, far, prefix=token)


@pytest.mark.parametrize("token", [False, True])
def test_distance_equals_loops_in_float64(token):
    grid, size = (3, 4), (24, 64)
    weights = softmax((2, 3, 2, 12 + token, 12 + token))
    expected = np.zeros((2, 3, 2))
    for one in np.ndindex(expected.shape):
        for q, k in np.ndindex(12, 12):
            (y, x), (v, u) = divmod(q, 4), divmod(k, 4)
            far = math.hypot((y - v) * 8, (x - u) * 16)
            expected[one] += weights[one][q + token, k + token] * far / 12
    found = reach(weights.astype(np.float32), grid, size, token)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_rollout_multiplies_the_last_layer_from_the_left():
    weights = softmax((3, 2, 4, 6, 6))
    expected = []
    for image in range(2):
        product = np.eye(6)
        for layer in range(3):
            mean = sum(weights[layer, image, head] for head in range(4)) / 4
            product = (mean + np.eye(6)) / 2 @ product
        expected.append(product)
    found = measures.rollout(weights.astype(np.float32))
    np.testing.assert_allclose(found, expected, rtol=2e-6)
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-6)


def test_components_are_the_directions_of_most_variance():
    """Filters spread by known amounts along known axes, off their mean by much more."""
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(2 * 3 * 3, 3)))[0]
    places = np.linalg.qr(rng.normal(size=(40, 4)) - 0.0)[0]
    places = np.linalg.qr(places - places.mean(0))[0][:, :3]  # uncorrelated, with mean 0
    points = axes @ np.diag([3.0, 2.0, 1.0]) @ places.T + 50
    found, shares = measures.filter_components(points.reshape(2, 3, 3, 40).astype(np.float32), 3)
    assert found.shape == (3, 2, 3, 3)
    np.testing.assert_allclose(shares, np.array([9, 4, 1]) / 14, rtol=1e-4)
    for one, axis in zip(found, axes.T, strict=True):
        assert abs(one.ravel() @ axis) == pytest.approx(1, abs=1e-4)
        assert one.ravel()[np.abs(one).argmax()] > 0


def test_similarity_of_known_positions():
    rows, columns = np.indices((2, 3))
    table = np.stack([np.eye(2)[rows], 0 * np.eye(2)[rows]], -1).reshape(2, 3, 4)
    found = measures.position_similarity(table.astype(np.float32))
    for r, c, i, j in np.ndindex(2, 3, 2, 3):
        assert found[r, c, i, j] == (r == i)
    signed = np.where(columns == 1, -2.0, 1.0)[..., None] * np.ones((2, 3, 4))
    signed[1, 2] = 0  # an embedding of zeros is like nothing
    found = measures.position_similarity(signed.astype(np.float32))
    assert found[0, 0].tolist() == [[1, -1, 1], [1, -1, 0]]
    assert not found[1, 2].any()


def opened(image_size=(8, 12), **options):
    """A tiny model with random parameters as if from a checkpoint."""
    tiny = {"patch_size": (4, 4), "width": 8, "depth": 2, "mlp_dim": 8, "heads": 2}
    model = dataclasses.replace(config.Config().model, num_classes=3, **tiny | options)
    data = dataclasses.replace(config.Config().data, image_size=image_size)
    cfg = run_config.complete(dataclasses.replace(config.Config(), model=model, data=data))
    classifier = build.create_model(cfg)
    params = vit_reference.random_parameters(classifier.shapes())
    return loaded_model.LoadedModel(config=cfg, params=params, classes=("a", "b", "c"), kind="run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "layers"),
    [
        ({}, 1),
        ({"position": "learned_2d"}, 1),
        ({"position_place": "layers", "position": "learned_2d", "pooling": "gap"}, 2),
        ({"architecture": "axial_vit", "pooling": "gap", "position_place": "layers"}, 2),
        ({"position": "sincos_1d"}, 1),
        ({"position": "sincos_2d", "pooling": "gap"}, 1),
    ],
    ids=str,
)
def test_tables_are_the_patches_embeddings(options, layers):
    one = opened(**options)
    tables = measures.position_tables(one)
    assert tables.shape == (layers, 2, 3, 8)
    place = options.get("position_place", "stem")
    flat = tree_utils.flatten(one.params)
    for layer, table in enumerate(tables):
        if one.config.model.position == "sincos_1d":
            expected = vit_reference.sincos_1d(6, 8)
        elif one.config.model.position == "sincos_2d":
            expected = vit_reference.sincos(2, 3, 8)
        else:
            own = "encoder/" if place == "layers" else ""
            own += "row/" if one.config.model.architecture == "axial_vit" else ""
            p = vit_reference.under(flat, f"{own}position/")
            p = {name: leaf[layer] for name, leaf in p.items()} if own else p
            token = one.config.model.pooling == "token"
            expected = vit_reference.learned(p, (2, 3))[token:]
        np.testing.assert_allclose(table.reshape(6, 8), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("what", "options", "words"),
    [
        ("positions", {"position": "none"}, "no position embedding"),
        ("positions", {"position": "relative"}, "only relative positions"),
        ("positions", {"architecture": "resnet", "resnet_units": (1,), "pooling": "gap"}, "ResNet"),
        ("attention", {"architecture": "axial_vit", "pooling": "gap"}, "within rows and columns"),
        ("attention", {"architecture": "resnet", "resnet_units": (1,)}, "ResNet"),
        ("attention", {"architecture": "axial_resnet", "resnet_units": (1,)}, "ResNet"),
    ],
)
def test_models_without_what_is_asked_for_say_so(what, options, words):
    answers = {
        "positions": measures.position_tables,
        "attention": lambda one: measures.require(one.config.model, "attention"),
    }
    with pytest.raises(CannotAnswer, match=words):
        answers[what](opened(**options))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"unroll": 2, "remat": "full", "attention": "xla"},
        {"pooling": "gap", "position": "sincos_2d"},
        {"pooling": "map", "position": "relative"},
    ],
    ids=str,
)
def test_batches_of_attention_are_those_of_the_model(options):
    one = opened(**options)
    views = np.random.default_rng(0).integers(0, 256, (5, 8, 12, 3), np.uint8)
    size = measures.bytes_per_image(one.config)
    tokens = 6 + (one.config.model.pooling == "token")
    assert size == 4 * 2 * 2 * tokens**2
    batches = list(measures.attention_weights(one, views, at_most=2 * size + 1))
    assert [batch.shape[1] for batch in batches] == [2, 2, 1]
    found = np.concatenate(batches, axis=1)
    assert found.dtype == np.float32
    images = views / 127.5 - 1
    *_, expected = vit_reference.forward(one.config.model, one.params, images)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-6)


def test_the_output_looks_from_the_class_token_or_from_everywhere():
    rows = np.arange(49, dtype=np.float32).reshape(1, 7, 7)
    seen = measures.output_attention(rows, opened().config)
    assert seen.tolist() == [[[1, 2, 3], [4, 5, 6]]]
    rows = np.arange(36, dtype=np.float32).reshape(1, 6, 6)
    seen = measures.output_attention(rows, opened(pooling="gap").config)
    assert seen.tolist() == [[[15, 16, 17], [18, 19, 20]]]
    seen = measures.output_attention(rows, opened(pooling="first").config)
    assert seen.tolist() == [[[0, 1, 2], [3, 4, 5]]]
    rows = np.arange(49, dtype=np.float32).reshape(1, 7, 7)  # a register asks and gets nothing
    seen = measures.output_attention(rows, opened(pooling="gap", registers=1).config)
    assert seen.tolist() == [[[25.5, 26.5, 27.5], [28.5, 29.5, 30.5]]]


def test_filters_are_of_the_layer_that_sees_pixels():
    one = opened()
    np.testing.assert_array_equal(measures.filter_kernel(one), one.params["embedding"]["kernel"])
    for options in (
        {"resnet_units": (), "patch_size": (1, 1)},
        {"architecture": "resnet", "resnet_units": (1,)},
    ):
        one = opened(**options)
        found = measures.filter_kernel(one)
        assert found.shape == (7, 7, 3, 64)
        np.testing.assert_array_equal(found, one.params["resnet"]["conv_root"]["kernel"])


# Features of patches


def test_components_are_those_of_a_singular_value_decomposition():
    rng = np.random.default_rng(0)
    features = (rng.normal(size=(3, 4, 5, 7)) * np.arange(1, 8) + 2).astype(np.float32)
    palette = measures.create_palette(features)
    found, shares = palette.components(features), palette.shares
    patches = features.reshape(-1, 7).astype(np.float64)
    patches -= patches.mean(axis=0)
    left, values, _ = np.linalg.svd(patches, full_matrices=False)
    expected = left[:, :3] * values[:3]
    expected *= np.sign(np.take_along_axis(expected, np.abs(expected).argmax(0)[None], axis=0))
    np.testing.assert_allclose(found.reshape(-1, 3), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(shares, (values**2 / (values**2).sum())[:3], rtol=1e-12)


def test_components_of_few_or_equal_numbers():
    line = np.arange(8.0).reshape(1, 2, 2, 2)
    palette = measures.create_palette(line)
    found = palette.components(line)
    np.testing.assert_allclose(palette.shares, [1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(np.abs(found[0, :, :, 0]).ravel() / np.sqrt(2), [3, 1, 1, 3])
    assert (found[..., 2] == 0).all()
    same = np.ones((2, 3, 3, 4))
    palette = measures.create_palette(same)
    assert (palette.components(same) == 0).all()
    assert (palette.shares == 0).all()
    assert (palette.colors(same) == 0.5).all()


def test_colors_stretch_over_all_images():
    line = np.linspace(-3, 5, 202).reshape(2, 101, 1, 1)  # neither image spans them alone
    other = np.sin(np.arange(202)).reshape(line.shape)
    features = np.concatenate([9 * line, other], axis=-1)
    palette = measures.create_palette(features)
    found, components = palette.colors(features), palette.components(features)
    low, high = np.percentile(components[..., :2], measures.SPREAD, axis=(0, 1, 2))
    expected = np.clip((components[..., :2] - low) / (high - low), 0, 1)
    np.testing.assert_allclose(found[..., :2], expected)
    assert expected[0, 0, 0, 0] == 0.0
    assert expected[1, 100, 0, 0] == 1.0
    assert (found[..., 2] == 0.5).all()


def test_matches_are_mutual_and_the_best_come_first():
    rng = np.random.default_rng(1)
    first, noise = rng.normal(size=(3, 4, 16)), rng.normal(size=(12, 16))
    order = rng.permutation(12)
    second = (first.reshape(12, 16)[order] * 7 + 0.3 * noise).reshape(4, 3, 16)
    pairs, cosines = measures.mutual_matches(first, second)
    one, other = first.reshape(12, 16), second.reshape(12, 16)
    table = (one @ other.T) / np.linalg.norm(one, axis=1)[:, None] / np.linalg.norm(other, axis=1)
    expected = [
        (table[i, j], *divmod(i, 4), *divmod(j, 3))
        for i in range(12)
        for j in range(12)
        if table[i, j] == table[i].max() == table[:, j].max()
    ]
    expected.sort(reverse=True)
    assert len(expected) == 12
    np.testing.assert_array_equal(pairs, [place for _, *place in expected])
    np.testing.assert_allclose(cosines, [value for value, *_ in expected], rtol=1e-12)
    # A third patch that is most like a first one, but less than another, has no match.
    three, two = np.array([[[1.0, 0.0], [0.0, 1.0], [0.9, 0.1]]]), np.eye(2)[None]
    assert measures.mutual_matches(three, two)[0].tolist() == [[0, 0, 0, 0], [0, 1, 0, 1]]
    back = sorted(pairs.tolist(), key=lambda pair: pair[2:])
    assert [4 * row + column for row, column, _, _ in back] == order.tolist()


def test_features_of_a_model_are_its_tokens_of_patches(tmp_path):
    opened = loading.load(str(GOOGLE))
    size = opened.config.data.image_size
    views = np.random.default_rng(2).integers(0, 256, (3, *size, 3), np.uint8)
    found = measures.patch_features(opened, views)
    mean, std = (np.asarray(v) for v in (opened.config.data.mean, opened.config.data.std))
    images = (views / 255 - mean) / std
    _, _, tokens, _ = vit_reference.forward(opened.config.model, opened.params, images)
    np.testing.assert_allclose(found.reshape(3, -1, found.shape[-1]), tokens[:, 1:], atol=2e-5)

    for name, image in zip("ab", views, strict=False):
        cv2.imwrite(str(tmp_path / f"{name}.png"), image[:, :, ::-1])
    files = str(tmp_path / "a.png"), str(tmp_path / "b.png")
    out = tmp_path / "out"
    for what in ("features", "matches"):
        command = ["inspect", what, f"--checkpoint={GOOGLE}", *files, f"--output={out}"]
        assert cli.main(command) == 0
    written = np.load(out / "features.npz")
    features = tokens[:2, 1:].reshape(2, *found.shape[1:])
    palette = measures.create_palette(features)
    np.testing.assert_allclose(written["share_of_variance"], palette.shares, rtol=1e-4)
    expected = palette.components(features)
    np.testing.assert_allclose(written["components"], expected, rtol=0, atol=1e-3)
    pairs, cosines = measures.mutual_matches(found[0], found[1])
    matched = np.load(out / "matches.npz")
    np.testing.assert_array_equal(matched["pairs"], pairs)
    np.testing.assert_allclose(matched["cosine"], cosines, rtol=1e-6)
    assert len((out / "matches.csv").read_text().splitlines()) == len(pairs) + 1


# Images as people see them


def gradient(height, width, channels=3):
    """A smooth image, of which every resizing keeps the colors."""
    rows, columns = np.linspace(20, 220, height), np.linspace(0, 30, width)
    return np.repeat((rows[:, None] + columns)[:, :, None], channels, axis=2).astype(np.uint8)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("data", "size", "factor"),
    [
        ({}, (300, 451), 8),
        ({}, (200, 451), 4),  # 8 times 32 are more rows than there are
        ({}, (32, 32), 1),
        ({}, (20, 500), 1),
        ({"eval_crop": "central"}, (300, 451), 8),
        ({"eval_crop": "central", "resize_to": 40}, (300, 451), 8),
        ({"resampling": "antialiased_bilinear"}, (300, 451), 8),
        ({"channels": 1}, (300, 451), 8),
        ({"image_size": (48, 24)}, (300, 451), 4),  # 8 times 48 are more than 256
        ({"image_size": (224, 224)}, (3000, 4000), 1),
        ({}, (1200, 1200), 8),  # 16 times 32 are more than 256
        ({"image_size": (48, 24), "eval_crop": "squash"}, (300, 451), 4),
    ],
)
def test_a_photo_is_the_same_part_of_the_image(data, size, factor):
    data = config.Data(**({"image_size": (32, 32)} | data))
    pixels = gradient(*size, data.channels)
    view, photo = inputs.see(pixels, data)
    height, width = data.image_size
    assert view.shape == (height, width, data.channels)
    assert photo.shape == (factor * height, factor * width, data.channels)
    blocks = photo.reshape(height, factor, width, factor, data.channels)
    # A crop starts at a whole pixel: the view's may be half of one away from the photo's.
    half = 0.5 * np.ptp(pixels) / min(height, width) if data.eval_crop != "resize" else 0.0
    np.testing.assert_allclose(blocks.mean(axis=(1, 3)), view, atol=1.5 + half)


def test_photos_of_files_of_several_sizes_are_of_one_size():
    small, large = gradient(32, 32), gradient(64, 100)
    encoded = cv2.imencode(".png", large)[1].tobytes()
    data = config.Data(image_size=(32, 32))
    shown = inputs.preprocess(data, [("small", small, None), ("large", encoded, None)])
    assert shown.photos.shape == (2, 64, 64, 3)
    np.testing.assert_array_equal(shown.photos[0], small.repeat(2, axis=0).repeat(2, axis=1))
    np.testing.assert_array_equal(shown.photos[1], inputs.see(large, data)[1])
    np.testing.assert_array_equal(shown.views[0], small)
    assert shown.first(1).photos.shape == (1, 64, 64, 3)


@pytest.mark.parametrize(("side", "seen"), [(31, 16), (32, 32), (63, 32), (64, 64)])
@pytest.mark.parametrize("axis", [0, 1])
def test_people_see_the_pixels_that_a_file_has(axis, side, seen):
    """As many times those of the model as there are in both directions."""
    size = [64, 64, 1]
    size[axis] = side
    data = config.Data(image_size=(16, 16), channels=1)
    view, photo = inputs.see(np.zeros(size, np.uint8), data)
    assert view.shape == (16, 16, 1)
    assert photo.shape == (seen, seen, 1)


# Masked patches


@pytest.mark.parametrize(("depth", "channels"), [(8, 2), (16, 4)])
def test_what_a_masked_autoencoder_predicts_is_drawn_in_the_levels_of_its_images(
    depth, channels, monkeypatch
):
    """If it predicted the very patches, they would be those of the image."""
    cfg = runs.configure(
        data={"source": "folder", "root": "x", "channels": channels, "depth": depth},
        objective={"name": "mae", "decoder_width": 4, "decoder_depth": 1, "decoder_heads": 1},
        checkpoint={"best": "loss"},
    )  # fmt: skip
    images = np.random.default_rng(0).integers(0, 100 << depth - 8, (1, 8, 8, channels))
    images = images.astype(f"uint{depth}")

    def perfect(model, options, params, pixels, rank):
        return mae.targets(pixels, cfg.model.patch_size, norm_pix=options.norm_pix)[0]

    monkeypatch.setattr(mae, "reconstruct", perfect)
    opened = loaded_model.LoadedModel(config=cfg, params={}, classes=(), kind="run")
    found = measures.predict_masked(opened, images)
    np.testing.assert_array_equal(found["predicted"], images)
    assert (found["corrupted"][found["masked"]] == 2**depth // 2 - 1).all()
    (axes,) = figures.reconstruction(found).axes
    original, corrupted, predicted = (
        axes.images[0].get_array()[:, x : x + 112] for x in (0, 119, 238)
    )
    np.testing.assert_array_equal(original, predicted)
    assert original.max() == {8: images[..., 0].max(), 16: 255}[depth]
    where = found["masked"][0].repeat(14, axis=0).repeat(14, axis=1)
    np.testing.assert_array_equal(corrupted[~where], original[~where])
    assert (corrupted[where] == figures.MASKED).all()


@pytest.mark.parametrize(
    "measure",
    [
        lambda opened, views: list(measures.attention_weights(opened, views)),
        measures.patch_features,
        lambda opened, views: saliency.explain(opened, views[0]),
        lambda opened, views: view.Viewer(opened).examine(("a", views[0], None)),
    ],
    ids=["attention", "features", "saliency", "view"],
)
def test_a_model_that_has_diverged_has_no_figures(measure):
    """Its weights are finite, its activations are not."""
    opened = loading.load(GOOGLE)
    large = jax.tree.map(lambda x: x * np.float32(1e30), opened.params)
    views = np.ones((1, *opened.config.data.image_size, 3), np.uint8)
    with pytest.raises(loaded_model.NotFinite, match="not finite; its training has diverged"):
        measure(dataclasses.replace(opened, params=large), views)


@pytest.mark.parametrize(
    "objective",
    [
        {"name": "mae", "decoder_width": 4, "decoder_depth": 1, "decoder_heads": 1},
        {"name": "masked_patches"},
    ],
    ids=lambda options: options["name"],
)
def test_patches_that_are_not_finite_are_not_drawn(objective):
    cfg = runs.configure(objective=objective, checkpoint={"best": "loss"})
    params = jax.device_get(build.build(cfg, 160).init_state()["params"])
    large = jax.tree.map(lambda x: x * np.float32(1e30), params)
    opened = loaded_model.LoadedModel(config=cfg, params=large, classes=(), kind="run")
    with pytest.raises(loaded_model.NotFinite, match="not finite; its training has diverged"):
        measures.predict_masked(opened, np.ones((1, *cfg.data.image_size, 1), np.uint8))
