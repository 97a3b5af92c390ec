"""Runs on images with any number of classes."""

import cv2
import jax
import numpy as np
import pytest

import runs
from commands import error_line
from vit_jax import config
from vit_jax.evaluation import metrics
from vit_jax.evaluation.evaluation import open_evaluation
from vit_jax.training import normalization, run_config
from vit_jax.utils.errors import AssumptionWarning

OPTIONS = {
    "data": {"source": "synthetic", "multilabel": True, "num_examples": 101, "rotation": 0.0,
             "train_split": "train", "eval_split": "test"},
    "loss": {"name": "sigmoid"},
    "model": {"num_classes": 5},
    "checkpoint": {"best": "auto"},
}  # fmt: skip


def configure(**changes):
    merged = {name: OPTIONS.get(name, {}) | changes.get(name, {}) for name in {*OPTIONS, *changes}}
    return runs.configure(**merged)


@pytest.mark.slow
def test_outputs_that_nobody_labeled_are_left_out(tmp_path):
    """A head of five classes on images that were only looked through for two of them."""
    (tmp_path / "a").mkdir()
    for index, name in enumerate(("0.png", "1.png", "2.png")):
        assert cv2.imwrite(str(tmp_path / "a" / name), np.full((8, 8), 80 * index, np.uint8))
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").write_text("image,tags\na/0.png,x;y\na/1.png,y\na/2.png,\n")
    data = {"source": "csv", "root": str(tmp_path), "multilabel": True}
    data |= {"train_split": "train", "eval_split": "test"}
    cfg = runs.configure(**OPTIONS | {"data": data})
    head = ("v", "y", "u", "w", "x")
    with pytest.warns(AssumptionWarning, match="has 2 of the head's 5 .* are left out: v, u, w$"):
        evaluation = open_evaluation(cfg, head=head)
    params = evaluation.model.init(jax.random.key(0))
    params["head"]["kernel"] = jax.random.normal(jax.random.key(1), (16, 5))
    results = evaluation.evaluators["test"](params, stop=lambda: False)
    assert [evaluation.source[k].label for k in range(3)] == [(1, 4), (1,), ()]
    pixels = np.stack([cv2.imread(f"{tmp_path}/a/{k}.png", 0)[..., None] for k in range(3)])
    logits, _ = evaluation.model.apply(params, normalization.normalize_pixels(pixels, cfg.data))
    scores = np.asarray(logits, np.float64)[:, [1, 4]]
    labels = np.array([[1, 1], [1, 0], [0, 0]], bool)
    each = np.logaddexp(0, np.where(labels, -scores, scores)).sum(axis=1)
    assert results["loss"] == pytest.approx(each.mean(), rel=1e-5)
    ones = np.ones((1, 3))
    precision = [metrics.curve_areas(scores[:, k], labels[:, k], ones)[1] for k in range(2)]
    assert results["map"] == pytest.approx(np.mean(precision), rel=1e-6)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"loss.name": "softmax"},
         "loss.name=softmax: is for one class per image; set sigmoid"),
        ({"data.classes": "a,b"},
         "data.classes=a,b: does not go with data.multilabel=true; set none"),
        ({"evaluation.tasks": "imagenet"},
         "evaluation.tasks=imagenet: does not go with data.multilabel=true; set ()"),
        ({"objective.name": "masked_patches"},
         "objective.name=masked_patches: does not go with data.multilabel=true; set supervised"),
        ({"evaluation.knn": "self"}, "evaluation.knn=self: needs one class per image, but "
         "data.multilabel=true has several"),
        ({"objective.name": "distillation", "objective.teacher": "x"},
         "objective.target=logits: is for one class per image, but "
         "data.multilabel=true has several; set features or tokens"),
        ({"checkpoint.best": "top5"},
         "checkpoint.best=top5: is not measured with data.multilabel=true; set map"),
    ],
)  # fmt: skip
def test_what_needs_one_class_is_refused(options, line):
    cfg = config.build(config.override(config.to_dict(configure()), options))
    assert error_line(config.ConfigError, run_config.complete, cfg) == line
