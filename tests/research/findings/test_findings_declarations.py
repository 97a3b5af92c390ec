import math
import types

import numpy as np
import pytest

from research import findings
from research.findings import arms, measures
from vit_jax import config, models
from vit_jax.inference import loaded_model, prediction
from vit_jax.inference.inspect import inputs
from vit_jax.inference.inspect import measures as inspected


@pytest.fixture(scope="module", params=["cpu", "cpu-long", "gpu"])
def study(request, tmp_path_factory):
    size = findings.scale(request.param)
    records = findings.open_records(tmp_path_factory.mktemp("findings") / "records.jsonl")
    return findings.FindingsStudy(
        size, findings.declare(findings.Arms(size)), records, records.path.parent
    )


def trainings(study):
    return {one for finding in study.findings for one in finding.trainings}


def test_rates_are_searched_from_three_on_in_the_second_edition(study):
    """But for masked patches: held-out losses of different targets cannot be compared."""
    for one in trainings(study):
        masked = dict(one.options).get("objective.name") == "masked_patches"
        least = 1 if masked else 3 if study.size.edition == 2 else 2
        assert len(one.rates) >= least


def test_scratch_is_trained_as_others_are_fine_tuned(study):
    size = findings.Arms(study.size)
    if study.size.edition == 2:
        for labels in study.size.labels:
            scratch, tuned = size.scratch(labels), size.finetuned(size.base, labels)
            assert (scratch.options, scratch.rates) == (tuned.options, tuned.rates)
            assert (scratch.origin, tuned.origin) == (None, size.base)


def test_no_rate_is_chosen_on_test_images(study):
    for one in trainings(study):
        options = dict(one.options)
        assert options["data.eval_split"] == "train[90%:]"
        images = int(options["data.train_split"].removeprefix("train[:").rstrip("]"))
        assert images <= 45_000


def test_interpolation_is_linear_in_the_logarithm_of_compute(study):
    one, two = sorted(trainings(study), key=lambda training: training.label)[:2]
    ends = [(1.0, one), (100.0, two)]
    (low, first), (high, second) = arms.at_compute(ends, 10.0)
    assert (first, second) == (one, two)
    assert (low, high) == (pytest.approx(0.5), pytest.approx(0.5))
    assert arms.at_compute(ends, 0.5) == [(1.0, one)]
    assert arms.at_compute(ends, 1000.0) == [(1.0, two)]


def test_contrasts_of_differences_cancel(study):
    for finding in study.findings:
        for claim in finding.tested:
            total = math.fsum(term.weight for term in claim.terms)
            one_alone = len(claim.terms) == 1  # a share, not a difference
            assert total == pytest.approx(1.0 if one_alone else 0.0, abs=1e-9)


def test_rows_and_columns_are_told_from_distance():
    rows, columns = np.indices((8, 8)).reshape(2, -1)
    far = np.hypot(rows[:, None] - rows, columns[:, None] - columns)
    only_distance = measures.similarities(np.exp(-far).reshape(8, 8, 8, 8))
    assert only_distance["positions/aligned"] == pytest.approx(only_distance["positions/diagonal"])
    assert only_distance["positions/near"] > only_distance["positions/far"]
    same = (rows[:, None] == rows) | (columns[:, None] == columns)
    lines = measures.similarities(same.astype(np.float32).reshape(8, 8, 8, 8))
    assert lines["positions/aligned"] == 1.0
    assert lines["positions/diagonal"] == 0.0


@pytest.mark.parametrize(("pooling", "registers"), [("token", 0), ("token", 2), ("gap", 0)])
def test_heads_that_attend_uniformly_have_distance_1(pooling, registers, monkeypatch):
    """In units of uniform attention, of which class token and registers take their part."""
    sizes = {"width": 4, "depth": 2, "heads": 1, "mlp_dim": 4, "patch_size": (4, 4)}
    model = models.complete(config.Model(**sizes, pooling=pooling, registers=registers))
    cfg = config.Config(model=model, data=config.Data(image_size=(9, 17)))
    prefix = registers + (pooling == "token")
    far = inspected.distances((2, 4), (8, 16), prefix=prefix)
    tokens = len(far)
    uniform = np.full((2, 3, 1, tokens, tokens), 1 / tokens, np.float32)  # layers, images, heads
    seen = inspected.mean_distance(uniform, far, prefix=prefix).swapaxes(0, 1)
    monkeypatch.setattr(prediction, "read_examples", lambda opened, count: None)
    monkeypatch.setattr(inputs, "preprocess", lambda data, examples: None)
    stats = types.SimpleNamespace(distance=seen)
    monkeypatch.setattr(inspected, "attention_stats", lambda opened, pictures, maps: stats)
    found = measures.attention(types.SimpleNamespace(config=cfg))  # pyright: ignore[reportArgumentType]
    assert found["distance/first_widest"] == pytest.approx(1, rel=1e-6)
    assert found["distance/first_narrowest"] == pytest.approx(1, rel=1e-6)
    assert found["distance/layer2"] == pytest.approx(seen[0, 1, 0])


def test_few_shot_images_differ_by_seed(monkeypatch):
    seen = []

    def record(cfg, *, split):
        seen.append(cfg.data.train_split)
        return types.SimpleNamespace(
            evaluators={"fewshot": lambda params, stop: {"cifar10/10shot": 0.25}}
        )

    monkeypatch.setattr(measures, "open_evaluation", record)
    for seed in range(3):
        data = config.Data(train_split="train[:2000]")
        opened = loaded_model.LoadedModel(
            config=config.Config(data=data, seed=seed), params={}, classes=(), kind="run"
        )
        assert measures.few_shot_by_seed(opened) == {"fewshot": 0.25}
    assert seen == ["train[0:2000]", "train[2000:4000]", "train[4000:6000]"]
