"""`bench evaluate` computes what the commands compute, on the same images."""

import dataclasses
import types

import jax
import numpy as np
import pytest

from vit_jax import config
from vit_jax.benchmarks import evaluate, sample_images


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluate")
    (folder / "jpegs").mkdir()
    sample_images.make(folder / "jpegs", 11)
    images = evaluate.arrange(folder / "jpegs", folder)
    cfg = evaluate.create_config("ViT-Ti/16", 32, 8, images)
    tiny = {"width": 16, "depth": 1, "mlp_dim": 16, "heads": 2, "unroll": 1, "num_classes": 5}
    model = dataclasses.replace(cfg.model, variant=None, **tiny)
    found = evaluate.Programs(dataclasses.replace(cfg, model=model), folder)
    drawn = np.random.default_rng(0)  # a new head is zero, and all images would be alike
    params = jax.tree.map(
        lambda leaf: drawn.standard_normal(leaf.shape, np.float32), found.opened.params
    )
    found.opened = dataclasses.replace(found.opened, params=params)
    return found


@pytest.fixture(scope="module")
def logits(programs):
    return np.concatenate([np.asarray(batch) for batch in programs.forward()])


@pytest.mark.slow
def test_the_forward_pass_sees_every_image_and_the_padding(programs, logits):
    assert programs.images == 11
    assert logits.shape == (16, 5)
    assert len({row.tobytes() for row in logits[:11]}) == 11
    assert len({row.tobytes() for row in logits[11:]}) == 1


@pytest.mark.slow
def test_evaluation_measures_the_logits_of_the_forward_pass(programs, logits):
    results = programs.evaluate()
    labels = np.array([0] * 6 + [1] * 5)  # ordered by class
    logits = logits[:11].astype(np.float64)
    each = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(11), labels]
    assert results["count"] == 11
    assert results["loss"] == pytest.approx(each.mean(), rel=1e-5)
    assert results["top1"] == pytest.approx((logits.argmax(axis=1) == labels).mean())


def test_every_model_and_size_is_compared_twice(monkeypatch, tmp_path):
    class Fake:
        images = 3

        def __init__(self, cfg, folder):
            assert cfg.evaluation.batch_size == 2

        evaluate = embed = forward = lambda self: None

    sample_images.make(tmp_path, 3)
    monkeypatch.setattr(evaluate, "Programs", Fake)
    said = []
    found = evaluate.measure(
        ["ViT-Ti/16", "ViT-S/32"], [32, 64], batch=2, data=tmp_path, rounds=2, say=said.append
    )
    whats = [one.work for compared in found for one in compared]
    assert said == ["ViT-Ti/16 at 32", "ViT-Ti/16 at 64", "ViT-S/32 at 32", "ViT-S/32 at 64"]
    assert whats == [f"{kind} {what}" for what in said for kind in ("evaluate", "embed")]


def test_images_take_turns_in_two_class_folders(tmp_path):
    files = [tmp_path / f"{number}.jpg" for number in range(3)]
    for file in files:
        file.touch()
    top = evaluate.arrange(tmp_path, tmp_path / "new")
    found = {str(one.relative_to(top)): one.resolve() for one in top.rglob("*.jpg")}
    assert found == {
        f"test/{kind}/{number:05}.jpg": files[number] for number, kind in
        enumerate(("even", "odd", "even"))
    }  # fmt: skip


def test_features_are_written_anew(tmp_path, monkeypatch):
    """By a pass that may be the first."""
    written = []
    monkeypatch.setattr(
        evaluate.embedding, "write_features", lambda *given, **more: written.append((given, more))
    )
    one = object.__new__(evaluate.Programs)
    one._features = tmp_path / "features.npz"
    one.opened = types.SimpleNamespace(
        config=config.Config(evaluation=config.Evaluation(batch_size=8))
    )
    for _ in range(2):
        if written:
            one._features.touch()
        assert one.embed() == one._features
        assert not one._features.exists()
    assert written == 2 * [((one.opened, one._features), {"batch_size": 8})]


def test_a_folder_without_images_is_named(tmp_path):
    with pytest.raises(config.ConfigError, match=r"has no \.jpg"):
        evaluate.arrange(tmp_path, tmp_path / "new")
