"""Principal components and matches of patch features, against numpy in float64."""

import pathlib

import cv2
import numpy as np

import vit_reference
from vit_jax import cli
from vit_jax.inference import loading
from vit_jax.inference.inspect import measures

GOOGLE = pathlib.Path(__file__).parents[2] / "fixtures" / "vit_tiny_token.npz"


def test_components_are_those_of_a_singular_value_decomposition():
    rng = np.random.default_rng(0)
    features = (rng.normal(size=(3, 4, 5, 7)) * np.arange(1, 8) + 2).astype(np.float32)
    found, shares = measures.feature_components(features)
    patches = features.reshape(-1, 7).astype(np.float64)
    patches -= patches.mean(axis=0)
    left, values, _ = np.linalg.svd(patches, full_matrices=False)
    expected = left[:, :3] * values[:3]
    expected *= np.sign(np.take_along_axis(expected, np.abs(expected).argmax(0)[None], axis=0))
    np.testing.assert_allclose(found.reshape(-1, 3), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(shares, (values**2 / (values**2).sum())[:3], rtol=1e-12)


def test_components_of_few_or_equal_numbers():
    found, shares = measures.feature_components(np.arange(8.0).reshape(1, 2, 2, 2))
    np.testing.assert_allclose(shares, [1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(np.abs(found[0, :, :, 0]).ravel() / np.sqrt(2), [3, 1, 1, 3])
    assert (found[..., 2] == 0).all()
    same, shares = measures.feature_components(np.ones((2, 3, 3, 4)))
    assert (same == 0).all()
    assert (shares == 0).all()
    assert (measures.feature_colors(same) == 0.5).all()


def test_colors_stretch_over_all_images():
    line = np.linspace(-3, 5, 202).reshape(2, 101, 1, 1)  # neither image spans them alone
    found = measures.feature_colors(line * np.array([1.0, -2.0, 0.0]))
    low, high = np.percentile(line, measures.SPREAD)
    np.testing.assert_allclose(found[..., :1], np.clip((line - low) / (high - low), 0, 1))
    np.testing.assert_allclose(found[..., 1], 1 - found[..., 0], atol=1e-12)
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

    for name, view in zip("ab", views, strict=False):
        cv2.imwrite(str(tmp_path / f"{name}.png"), view[:, :, ::-1])
    files = "--images", str(tmp_path / "a.png"), str(tmp_path / "b.png")
    out = tmp_path / "out"
    for what in ("features", "matches"):
        command = ["inspect", what, f"--checkpoint={GOOGLE}", *files, f"--output={out}"]
        assert cli.main(command) == 0
    written = np.load(out / "features.npz")
    expected, shares = measures.feature_components(tokens[:2, 1:].reshape(2, *found.shape[1:]))
    np.testing.assert_allclose(written["share_of_variance"], shares, rtol=1e-4)
    np.testing.assert_allclose(written["components"], expected, rtol=0, atol=1e-3)
    pairs, cosines = measures.mutual_matches(found[0], found[1])
    matched = np.load(out / "matches.npz")
    np.testing.assert_array_equal(matched["pairs"], pairs)
    np.testing.assert_allclose(matched["cosine"], cosines, rtol=1e-6)
    assert len((out / "matches.csv").read_text().splitlines()) == len(pairs) + 1
