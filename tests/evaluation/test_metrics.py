"""Metrics of a whole split, against scikit-learn's numbers and by definition."""

import dataclasses
import json
import pathlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import runs
import toys
import vit_jax
from vit_jax import config
from vit_jax.config import ConfigError
from vit_jax.evaluation import evaluators, metrics
from vit_jax.runtime import logs
from vit_jax.training import losses
from vit_jax.training.objectives.supervised import Supervised

# scikit-learn 1.9.1; its averages over classes with images, of which class 4 has none.
FIXTURE = pathlib.Path(__file__).parents[1] / "fixtures/classification_metrics.json"


@pytest.fixture(scope="module")
def reference():
    return json.loads(FIXTURE.read_text())


def outputs(case):
    logits = np.float32(case["logits"])
    return metrics.Outputs(logits, np.array(case["labels"]), np.arange(len(logits)))


@pytest.mark.parametrize("kind", ["single", "several"])
def test_equal_to_scikit_learn(reference, kind):
    case = reference[kind]
    groups = ("f1", "auroc", "calibration") if kind == "single" else ("f1", "auroc")
    assert metrics.measure(outputs(case), groups) == pytest.approx(case["expected"], rel=1e-12)


CASES = json.loads(FIXTURE.read_text())["degenerate"]


@pytest.mark.parametrize("name", CASES)
def test_what_lacks_images_predictions_or_an_order_is_as_of_scikit_learn(name):
    """Areas are means over the classes that have one, for which scikit-learn says NaN, or 0."""
    case = CASES[name]
    given = outputs(case)
    ranks = np.arange(given.logits.shape[1])
    found = metrics.measure(given, ("f1", "auroc", "ordinal", "intervals"), ranks=ranks)
    expected = {key: np.nan if v is None else v for key, v in case["expected"].items()}
    values = {key: value for key, value in found.items() if "/" not in key}
    assert values == pytest.approx(expected, rel=1e-12, nan_ok=True)
    for key in expected:
        low, high = found[f"{key}/low"], found[f"{key}/high"]
        assert low <= high or np.isnan([low, high]).all()


def test_a_weighted_image_counts_as_often(reference):
    case, weights = reference["single"], np.array([reference["single"]["weights"]])
    logits, labels, _ = outputs(case)
    found = metrics.f1(labels, metrics.predicted(logits, several=False), 5, weights)
    found |= metrics.ranking(metrics.scores(logits, several=False), labels, weights)
    for name, value in case["weighted"].items():
        assert found[name].item() == pytest.approx(value, rel=1e-12), name


def test_each_class_and_the_confusion_matrix(reference):
    case = reference["single"]
    logits, labels, _ = outputs(case)
    best = metrics.predicted(logits, several=False)
    counts = metrics.count(labels, best, 5, np.ones((1, len(labels))))
    found = [counts.precision, counts.recall, counts.f1, counts.support]
    np.testing.assert_allclose(np.concatenate(found), case["per_class"], rtol=1e-12)
    assert metrics.confusion(labels, best, 5).tolist() == case["confusion"]


def test_errors_of_ordered_classes_are_those_of_scikit_learn(reference):
    case = reference["single"]
    given = outputs(case)
    best, labels = metrics.predicted(given.logits, several=False), given.labels
    for order in reference["ordinal"].values():
        ranks, ones = np.array(order["ranks"]), np.ones(len(labels))
        measured = metrics.measure(given, ("ordinal",), ranks=ranks)
        assert measured == pytest.approx(order["expected"], rel=1e-12)
        rows = metrics.ordinal(labels, best, ranks, np.array([ones, case["weights"]]))
        for name, value in order["weighted"].items():
            assert rows[name].tolist() == pytest.approx([measured[name], value], rel=1e-12)


def test_ordered_classes_without_a_kappa():
    """All of one class, where scikit-learn has none either; an output with a NaN."""
    labels, ranks = np.zeros(2, np.int64), np.arange(3)
    for logits, mae in ((np.eye(3)[[0, 0]], 0.0), (np.full((2, 3), np.nan), np.nan)):
        given = metrics.Outputs(np.float32(logits), labels, labels)
        found = metrics.measure(given, ("ordinal",), ranks=ranks)
        np.testing.assert_equal(found, {"mae": mae, "kappa": np.nan})
    far = metrics.Outputs(np.eye(3, dtype=np.float32)[[2, 0]], np.array([0, 2]), labels)
    assert metrics.measure(far, ("ordinal",), ranks=ranks) == {"mae": 2.0, "kappa": -1.0}


def test_what_has_no_value_is_nan():
    logits, labels = np.float32([[np.nan, 1], [2, 1]]), np.array([0, 0])
    found = metrics.measure(metrics.Outputs(logits, labels, labels), ("f1", "auroc", "calibration"))
    assert found["recall"] == 0.5  # an output with a NaN is wrong
    assert all(np.isnan(found[name]) for name in ("auroc", "average_precision", "ece"))
    auroc, precision = metrics.curve_areas(np.zeros(2), np.ones(2, bool), np.ones((1, 2)))
    assert (np.isnan(auroc).tolist(), precision.tolist()) == ([True], [1.0])
    # Of several classes, one NaN is no reason to leave a class out of the mean.
    several = metrics.Outputs(np.float32([[np.nan, 1], [2, 0]]), np.eye(2), labels)
    found = metrics.measure(several, ("auroc",))
    assert all(np.isnan(value) for value in found.values())
    empty = metrics.Outputs(logits[:0], labels[:0], labels[:0])
    assert metrics.measure(empty, ("f1", "intervals")) == {}


def test_an_output_with_a_nan_is_of_no_class_and_has_no_temperature():
    best = metrics.predicted(np.float32([[np.nan, 1], [0, 1]]), several=False)
    assert metrics.confusion(np.array([1, 1]), best, 2).tolist() == [[0, 0], [0, 1]]
    assert metrics.fit_temperature(np.float32([[np.nan, 1], [0, 1]]), np.array([1, 1])) is None


def test_calibration_by_hand():
    """A probability of 5/15 is the last of its bin, where 0.3 is too."""
    logits = np.log([[1 / 3, 1 / 3, 1 / 3, 1e-300], [0.3, 0.25, 0.25, 0.2]])
    labels, weights = np.array([0, 1]), np.array([[1, 1], [2, 2], [1, 3]])
    found = metrics.calibration_error(logits, labels, weights)
    gap, other = 1 - 1 / 3, -0.3
    expected = [(gap + other) / 2, (gap + other) / 2, abs(gap + 3 * other) / 4]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_large_logits_do_not_overflow():
    found = metrics.scores(np.float32([[2000, 0], [-2000, 0]]), several=False)
    assert found.tolist() == [[1, 0], [0, 1]]


def test_the_temperature_is_where_the_loss_is_least():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 400)
    logits = np.float32(3 * (rng.normal(0, 1, (400, 3)) + np.eye(3)[labels]))
    found = metrics.fit_temperature(logits, labels)

    def loss(temperature):
        chances = metrics.scores(logits / np.float64(temperature), several=False)
        return -np.log(chances[np.arange(400), labels]).mean()

    grid = np.geomspace(found / 1.01, found * 1.01, 21)
    assert 1.5 < found < 6
    assert min(grid, key=loss) == pytest.approx(found, rel=1e-12)
    for factor in (2, 1 / 8):
        scaled = metrics.fit_temperature(np.float32(logits * factor), labels)
        assert scaled == pytest.approx(factor * found, rel=1e-6)
    outputs = metrics.Outputs(logits, labels, labels)
    fitted = metrics.measure(outputs, ("calibration",), fit=True)
    assert fitted["temperature"] == found
    assert fitted["ece_scaled"] < fitted["ece"] / 2
    given = metrics.measure(outputs, ("calibration",), temperature=found)
    assert given == {name: fitted[name] for name in ("ece", "ece_scaled")}
    # All right, all wrong, or no better than chance: none.
    for given in (np.eye(3), -np.eye(3), np.ones((3, 3))):
        assert metrics.fit_temperature(np.float32(given), np.arange(3)) is None


def test_intervals_cover_as_often_as_they_say():
    rng, covered = np.random.default_rng(0), 0
    for seed in range(40):
        right = rng.random(60) < 0.7
        labels = np.arange(60) % 2
        logits = np.eye(2, dtype=np.float32)[np.where(right, labels, 1 - labels)]
        found = metrics.measure(
            metrics.Outputs(logits, labels, labels), ("f1", "intervals"), seed=seed
        )
        low, high = found["balanced_accuracy/low"], found["balanced_accuracy/high"]
        assert low < found["balanced_accuracy"] < high
        covered += low <= 0.7 <= high
    assert covered >= 34  # of 40; 38 are expected
    first = metrics.measure(metrics.Outputs(logits, labels, labels), ("f1", "intervals"), seed=1)
    assert first != found
    again = metrics.measure(metrics.Outputs(logits, labels, labels), ("f1", "intervals"), seed=39)
    assert again == found


def test_intervals_are_of_draws_alone_and_the_value_of_the_split():
    rng = np.random.default_rng(3)
    logits, labels = rng.normal(size=(30, 3)).astype(np.float32), rng.integers(0, 3, 30)
    given = metrics.Outputs(logits, labels, labels)
    found = metrics.measure(given, ("calibration", "intervals"), seed=4)
    drawn = np.random.default_rng(4).integers(0, 30, (1000, 30))
    often = (drawn[:, :, None] == np.arange(30)).sum(axis=1)
    values = metrics.calibration_error(logits, labels, often)
    bounds = np.percentile(values, (2.5, 97.5))
    assert [found["ece/low"], found["ece/high"]] == pytest.approx(bounds, rel=1e-12)
    assert found["ece"] == metrics.measure(given, ("calibration",))["ece"]
    # A draw of one class has no area, and does not count.
    few = metrics.Outputs(np.eye(2, dtype=np.float32)[[0, 1, 1]], np.array([0, 1, 1]), labels[:3])
    found = metrics.measure(few, ("auroc", "intervals"))
    assert found["auroc/low"] == found["auroc/high"] == 1


def test_intervals_of_means_over_images():
    right, loss = np.arange(20) % 3 == 0, np.linspace(0, 2, 20, dtype=np.float32)
    given = metrics.Outputs(np.eye(2, dtype=np.float32)[right * 1], right * 1, right)
    found = metrics.measure(given, ("intervals",), seed=4, each={"top1": right, "loss": loss})
    drawn = np.random.default_rng(4).integers(0, 20, (1000, 20))
    for name, values in (("top1", right), ("loss", loss.astype(np.float64))):
        bounds = np.percentile(values[drawn].mean(axis=1), (2.5, 97.5))
        assert [found[f"{name}/low"], found[f"{name}/high"]] == pytest.approx(bounds, rel=1e-12)
    loss[3] = np.inf  # no draw is finite because it happens to lack this image
    found = metrics.measure(given, ("intervals",), each={"loss": loss})
    assert np.isnan([found["loss/low"], found["loss/high"]]).all()


def test_every_positive_label_is_one(reference):
    logits, labels, index = outputs(reference["several"])
    half = metrics.Outputs(logits, labels / 2, index)
    expected = metrics.measure(metrics.Outputs(logits, labels, index), ("f1", "auroc"))
    assert metrics.measure(half, ("f1", "auroc")) == expected


@pytest.mark.parametrize(("name", "expected"), [("softmax", 0.5), ("sigmoid", 1.0)])
def test_images_are_ranked_by_the_loss_of_the_head(name, expected):
    """Of class 0, which the second image has less of, but more of than of other classes."""
    cfg = dataclasses.replace(toys.configure(8, metrics=("auroc",)), loss=config.Loss(name=name))
    source = toys.Toy([[200, 255, 0, 0], [150, 10, 0, 0], [50, 60, 250, 9]], [0, 1, 1])
    split = toys.passing(source, cfg)
    found = evaluators.whole_classification(toys.Echo(), cfg, split)
    first = found(jnp.float32(0), stop=lambda: False)["auroc"] * 2  # with class 1, 0 either way
    assert first == expected


def test_a_plug_ins_classes_are_the_most_probable_ones(monkeypatch):
    """Its outputs are distances, of which the least is best."""
    monkeypatch.setattr(losses, "own_probabilities", lambda loss: lambda logits: -logits)
    cfg = toys.configure(8, metrics=("f1",))
    source = toys.Toy([[200, 255, 9, 99], [150, 10, 99, 80], [3, 60, 250, 9]], [2, 1, 0])
    for evaluator in (evaluators.whole_classification, evaluators.class_subset):
        found = evaluator(toys.Echo(), cfg, toys.passing(source, cfg))
        results = found(jnp.float32(0), stop=lambda: False)
        assert (results["top1"], results.get("f1", 1)) == (1, 1)
    network = types.SimpleNamespace(apply=lambda params, images, key: (images[:, 0, :, 0], {}))
    run = types.SimpleNamespace(
        cfg=cfg, model=network, _augmentations=(), _log_shares=None, _weights=None
    )
    batch = {"image": jnp.uint8(source.rows)[:, None, :, None], "label": jnp.asarray(source.labels)}
    each, _ = Supervised.classify(run, {}, batch, types.SimpleNamespace(drawn=None, key=None))
    assert each["correct"].all()


def test_calibration_is_of_a_softmax(monkeypatch):
    given = toys.Echo(), toys.configure(8, metrics=("calibration",)), types.SimpleNamespace(mesh=0)
    evaluators.whole_classification(*given)
    monkeypatch.setattr(losses, "own_probabilities", lambda loss: abs)
    with pytest.raises(ConfigError, match="loss.name=softmax has probabilities of its own; leave"):
        evaluators.whole_classification(*given)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"evaluation": {"metrics": ("f2",)}}, "evaluation.metrics=f2: .*f1"),
        ({"checkpoint": {"best": "auroc"}}, "best=auroc: is not measured; set .*metrics=auroc"),
        (
            {"evaluation": {"metrics": ("ordinal",)}},
            "ordinal: needs the order of the classes, .* such as data.classes=poor,fair,good",
        ),
        (
            {"evaluation": {"metrics": ("f1",)}, "checkpoint": {"best": "kappa"}},
            "best=kappa: is not measured; set evaluation.metrics=f1,ordinal",
        ),
        ({"checkpoint": {"best": "mae"}}, "best=mae: needs data.targets; set top1"),
        (
            {"evaluation": {"metrics": ("calibration",)}, "loss": {"name": "sigmoid"}},
            "calibration needs one class per image and a softmax",
        ),
        (
            {"evaluation": {"metrics": ("f1",)}, "objective": {"name": "masked_patches"},
             "checkpoint": {"best": "loss"}},
            r"objective.name=masked_patches has no classes; set \(\)",
        ),
    ],
)  # fmt: skip
def test_mistakes(sections, message):
    with pytest.raises(ConfigError, match=message):
        runs.configure(**sections)


@pytest.mark.slow
def test_a_fitted_temperature_stays_with_its_checkpoint(tmp_path):
    """And the metric that chose a checkpoint need not be measured again."""
    options = {
        "train.duration": "30 steps", "schedule.warmup": "2 steps", "evaluation.every": "10 steps",
        "checkpoint.every": "10 steps", "data.train_split": "train[:900]",
        "data.eval_split": "train[900:]", "checkpoint.best": "balanced_accuracy",
        "evaluation.metrics": "f1,calibration", "logging.tensorboard": "false",
    }  # fmt: skip
    vit_jax.train("digits", tmp_path / "run", options)
    model = vit_jax.load(tmp_path / "run")
    lines = logs.read_metrics(tmp_path / "run/metrics.jsonl")
    (best,) = [line for line in lines if line["step"] == model.step and "validation/f1" in line]
    assert model.temperature == best["validation/temperature"]
    images = np.random.default_rng(0).integers(0, 255, (3, 8, 8, 1), np.uint8)
    logits, _ = model.apply(model.params, model.preprocess(images))
    chances = np.asarray(jax.nn.softmax(logits / model.temperature))
    for one, row in zip(model.predict(list(images), top=1), chances, strict=True):
        assert one.top[0][1] == pytest.approx(row.max(), rel=1e-6)
    few = {"evaluation.metrics": "intervals", "data.eval_split": "test[:50]"}
    found = vit_jax.evaluate(tmp_path / "run", few)
    assert found["test/top1/low"] < found["test/top1"] < found["test/top1/high"]
    assert "test/f1" not in found


# scikit-learn 1.9.1 and scipy 1.17.1: the first column has ties.
NUMBERS = json.loads(FIXTURE.with_name("number_metrics.json").read_text())


def test_errors_of_numbers_are_those_of_scikit_learn_and_scipy():
    case = NUMBERS
    found = metrics.measure_numbers(
        np.array(case["truth"]), np.array(case["predictions"]), ("age", "weight")
    )
    assert found == pytest.approx(case["expected"], rel=1e-12)
    one = metrics.measure_numbers(
        np.array(case["truth"])[:, :1], np.array(case["predictions"])[:, :1], ("age",)
    )
    named = {name: value for name, value in case["expected"].items() if name.startswith("age/")}
    assert {f"age/{name}": value for name, value in one.items()} == pytest.approx(named, rel=1e-12)


def test_errors_of_draws_are_those_of_repeated_images():
    case = NUMBERS
    truth, predictions = (np.array(case[name])[:, 0] for name in ("truth", "predictions"))
    found = metrics.errors(truth, predictions, np.array([case["weights"]]))
    for name, value in case["weighted"].items():
        assert found[name].item() == pytest.approx(value, rel=1e-12), name


def test_what_a_constant_or_a_nan_has_no_error_of():
    ones = np.ones((3, 4))
    steady = metrics.errors(np.full(4, 0.1), np.arange(4.0), ones)
    assert np.isnan(steady["r2"]).all()
    assert np.isnan(steady["spearman"]).all()
    assert np.isfinite(steady["mae"]).all()
    guess = metrics.errors(np.arange(4.0), np.full(4, 0.1), ones)
    assert np.isnan(guess["spearman"]).all()
    assert np.isfinite(guess["r2"]).all()
    broken = metrics.errors(np.arange(4.0), np.array([0, np.nan, 1, 2]), ones)
    assert all(np.isnan(values).all() for values in broken.values())
    found = metrics.measure_numbers(np.full((3, 1), 2.0), np.ones((3, 1)), ("a",), ("intervals",))
    assert np.isnan([found["r2"], found["r2/low"], found["r2/high"]]).all()
    assert (found["mae"], found["mae/low"]) == (1, 1)
    assert metrics.measure_numbers(np.zeros((0, 1)), np.zeros((0, 1)), ("a",)) == {}
