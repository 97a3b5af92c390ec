"""The evaluation of a config: what it opens, and what it is told of it."""

import dataclasses
import types

import jax
import pytest

import runs
from vit_jax import config, models
from vit_jax.config import ConfigError
from vit_jax.evaluation import runner, task_sets
from vit_jax.evaluation.evaluation import open_evaluation

SYNTHETIC = {
    "source": "synthetic", "image_size": 8, "num_examples": 12,
    "train_split": "train", "eval_split": "test",
}  # fmt: skip


def test_a_model_of_so_many_classes_has_them_from_data_that_draws_them():
    cfg = runs.configure(data=SYNTHETIC, model={"num_classes": 5})
    evaluation = open_evaluation(cfg)
    assert len(evaluation.classes) == evaluation.cfg.model.num_classes == 5


def test_the_evaluation_split_is_measured_first_unless_it_is_not_asked_for():
    cfg = runs.configure(evaluation={"knn": ("self",)}, model={"num_classes": 10})
    evaluation = open_evaluation(cfg)
    assert list(evaluation.evaluators) == ["test", "knn"]
    assert evaluation.brief == ["knn"]  # beside that of the split
    assert list(open_evaluation(cfg, split=False).evaluators) == ["knn"]


def test_a_split_that_is_missing_is_named_by_its_option():
    with pytest.raises(ConfigError, match="^data.eval_split=none:"):
        open_evaluation(runs.configure(data={"eval_split": "none:"}))


def test_nearest_neighbors_of_the_own_splits():
    cfg = runs.configure(data=SYNTHETIC, evaluation={"knn": ("self",), "neighbors": (3,)})
    evaluation = open_evaluation(cfg)
    params = evaluation.model.init(jax.random.key(0))
    (name,) = [name for name in evaluation.evaluators if name == "knn"]
    found = evaluation.evaluators[name](params, stop=lambda: False)
    assert list(found) == ["self/3nn/top1", "self/3nn/top5"]
    assert all(0 <= value <= 1 for value in found.values())


@pytest.mark.parametrize(("measured", "kept"), [(("ece",), None), ((), print)])
def test_real_labels_have_no_metrics_of_all_logits(measured, kept, monkeypatch):
    cfg = runs.configure(data=SYNTHETIC, model={"num_classes": 5})
    evaluation = open_evaluation(cfg)
    evaluation.cfg = dataclasses.replace(
        cfg, evaluation=dataclasses.replace(cfg.evaluation, metrics=measured)
    )
    evaluation._keep = kept
    monkeypatch.setattr(task_sets, "reassess", lambda cfg, source: source)
    with pytest.raises(ConfigError, match="^evaluation.tasks=imagenet-real: its labels have none"):
        evaluation.of_split(evaluation.source, real=True)


def test_views_at_their_own_aspect_have_patches_of_the_models_side():
    model = types.SimpleNamespace(
        config=models.complete(config.Model(variant="ViT-Ti/16", num_classes=5)),
        image_size=(64, 32),
    )
    shapes = runner.native_shapes(model)
    assert all(height % 16 == width % 16 == 0 for height, width in shapes)
    assert max(height * width for height, width in shapes) <= 64 * 32
