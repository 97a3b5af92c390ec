"""The evaluation of a config: what it opens, and what it is told of it."""

import jax
import pytest

import runs
from vit_jax.config import ConfigError
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
    assert list(open_evaluation(cfg).evaluators) == ["test", "knn"]
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
