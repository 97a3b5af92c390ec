"""The evaluation of a config: what it opens, and what it is told of it."""

import dataclasses
import types

import jax
import numpy as np
import pytest

import runs
from vit_jax import config, models
from vit_jax.config import ConfigError
from vit_jax.evaluation import evaluation as evaluation_module
from vit_jax.evaluation import evaluators, runner, task_sets
from vit_jax.evaluation.evaluation import open_evaluation
from vit_jax.training import sharding

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


@pytest.mark.parametrize(
    ("train", "rows"),
    [
        ({"batch_size": 25}, [16]),  # of 12 images; not 32
        ({"batch_size": 25, "accumulation": 5}, [8, 8]),
        ({"batch_size": 64, "microbatch": 1}, [8, 8]),
        ({"batch_size": 16, "microbatch": 32}, [16]),
    ],
)
def test_a_microbatch_of_training_is_evaluated_at_a_time(train, rows):
    """On these 8 devices, over which the batch need not divide."""
    evaluation = open_evaluation(runs.configure(data=SYNTHETIC, train=train))
    split = evaluation.runner(evaluation.source)
    assert split.outputs(lambda batch: len(batch["image"]), stop=bool) == rows
    found = evaluation.evaluators["test"](evaluation.model.init(jax.random.key(0)), stop=bool)
    assert found["count"] == 12
    with pytest.raises(ConfigError, match="^evaluation.batch_size=9: not a multiple of 8 devices"):
        open_evaluation(runs.configure(data=SYNTHETIC, evaluation={"batch_size": 9}))


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
    with pytest.raises(
        ConfigError, match="^evaluation.tasks=imagenet-real: takes neither evaluation.metrics"
    ):
        evaluation.of_split(evaluation.source, real=True)


@pytest.fixture
def small():
    """The evaluation of three classes."""
    return open_evaluation(runs.configure(data=SYNTHETIC, model={"num_classes": 3}))


@pytest.mark.parametrize(
    ("measured", "kept", "own", "whole"),
    [
        ((), None, True, False),
        ((), print, True, True),
        ((), print, False, False),  # outputs of the evaluation split alone are kept
        (("ece",), None, True, True),
        (("ece",), None, False, True),
    ],
)
def test_logits_of_a_whole_split_are_gathered_where_something_needs_them(
    measured, kept, own, whole, small, monkeypatch
):
    small.cfg = dataclasses.replace(
        small.cfg, evaluation=dataclasses.replace(small.cfg.evaluation, metrics=measured)
    )
    small._keep = kept
    for name in ("classification", "whole_classification"):
        monkeypatch.setattr(evaluators, name, lambda *_, name=name, **__: name)
    source = small.source if own else small.open_split("test[:6]")
    expected = "whole_classification" if whole else "classification"
    assert small.of_split(source, real=False) == expected


@pytest.mark.parametrize(
    ("own", "temperature", "role", "fit"),
    [
        (True, None, "validation", True),
        (False, None, "validation", False),
        (True, 1.5, "validation", False),
        (True, None, "test", False),  # it would flatter the test images
    ],
)
def test_a_temperature_is_fitted_on_validation_images_alone(
    own, temperature, role, fit, small, monkeypatch
):
    small._keep, small._temperature = print, temperature
    small.role = types.SimpleNamespace(role=role)
    small.cfg = dataclasses.replace(
        small.cfg, evaluation=dataclasses.replace(small.cfg.evaluation, metrics=("ece",))
    )
    monkeypatch.setattr(
        evaluators, "whole_classification",
        lambda model, cfg, runner, **given: given | {"of": (model, cfg, runner.order)},
    )  # fmt: skip
    found = small.of_split(small.source if own else small.open_split("test[:6]"), real=False)
    assert (found["fit"], found["temperature"]) == (fit, temperature)
    assert found["of"] == (small.model, small.cfg, None)


def test_ranks_are_places_in_the_order_of_the_classes(small):
    def ranks(order, metrics=("ordinal",)):
        small.cfg = dataclasses.replace(
            small.cfg,
            data=dataclasses.replace(small.cfg.data, classes=order),
            evaluation=dataclasses.replace(small.cfg.evaluation, metrics=metrics),
        )
        return small._ranks()

    first, second, third = small.classes
    assert ranks((third, first, second)).tolist() == [1, 2, 0]
    assert ranks((third, first, second), ("ece",)) is None
    with pytest.raises(ConfigError, match=f"must name the classes of the head, .*: {first}, "):
        ranks((third, first, "good"))


@pytest.mark.parametrize("stops", [False, True])
def test_what_loads_a_split_ends_with_the_pass(stops):
    class Batches:
        closed, left = False, 3

        def __iter__(self):
            return self

        def __next__(self):
            self.left -= 1
            if self.left < 0:
                raise StopIteration
            return {key: np.zeros(2) for key in ("image", "label", "mask")}

        def close(self):
            self.closed = True

    batches = Batches()
    mesh = sharding.create_mesh(1, jax.devices()[:1])
    split = runner.SplitRunner(mesh, 2, lambda: batches)
    found = split.outputs(lambda batch: batch["label"].shape, stop=lambda: stops)
    assert found == (None if stops else 3 * [(2,)])
    assert batches.closed


def test_a_pass_over_planned_batches_loads_these(small, monkeypatch):
    given = {}
    monkeypatch.setattr(runner.pipeline, "batches", lambda *_, **more: given.update(more))
    plan = types.SimpleNamespace(steps=7, rows=np.arange(-1, 15).reshape(2, 8))
    monkeypatch.setattr(evaluation_module, "plan_native", lambda *_: plan)
    split = small.runner(small.source)
    split._batches()
    assert (given["plan"], given["stop_step"], given["train"]) == (plan, 7, False)
    assert split.order.tolist() == list(range(-1, 15))


@pytest.mark.parametrize(("rows", "fitting"), [(10**15, 8), (4, 4)])
def test_a_planned_batch_has_no_more_rows_than_there_are_images(monkeypatch, rows, fitting):
    monkeypatch.setattr(runner, "native_shapes", lambda model: ())
    monkeypatch.setattr(runner.native_aspect, "plan", lambda *given: given[3])
    monkeypatch.setattr(runner.jax, "device_count", lambda: 4)
    assert runner.plan_native(None, range(5), config.Data(aspect="native"), rows) == fitting


def test_views_at_their_own_aspect_have_patches_of_the_models_side():
    model = types.SimpleNamespace(
        config=models.complete(config.Model(variant="ViT-Ti/16", num_classes=5)),
        image_size=(64, 32),
    )
    shapes = runner.native_shapes(model)
    assert all(height % 16 == width % 16 == 0 for height, width in shapes)
    assert max(height * width for height, width in shapes) <= 64 * 32
