"""Few-shot: big_vision's accuracies, both forms of the solution, draws, and bounded memory."""

import functools
import logging
import pathlib
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import toys
from vit_jax.evaluation import features, fewshot
from vit_jax.training import sharding

FIXTURE = pathlib.Path(__file__).parent.parent / "fixtures/fewshot.npz"


def placed(values, labels, rows=64):
    """Features as an evaluator extracts them: in batches over eight devices, padded."""
    mesh = sharding.create_mesh(1)
    padding = -len(labels) % rows
    arrays = {
        "values": np.pad(values, ((0, padding), (0, 0))),
        "labels": np.pad(labels.astype(np.int32), (0, padding), constant_values=-1),
    }
    parts = [
        sharding.put_batch(
            {key: array[start : start + rows] for key, array in arrays.items()},
            mesh, rows, np.arange(rows),
        )
        for start in range(0, len(labels) + padding, rows)
    ]  # fmt: skip
    return features.Features(mesh, [p["values"] for p in parts], [p["labels"] for p in parts])


def evaluator(cfg, train, test):
    measure = functools.partial(fewshot.measure, options=cfg.evaluation)
    extract = features.Extractor(toys.Echo(), cfg.data)
    return features.on_features(measure, extract, [features.Pair("toy", train, test, 4)])


@pytest.mark.parametrize("form", ["primal", "dual"])
def test_accuracies_of_big_vision(form):
    with np.load(FIXTURE) as file:
        x, y, test_x, test_y, strengths, expected = (
            file[f"{form}_{name}"]
            for name in ("x_train", "y_train", "x_test", "y_test", "l2", "accuracy")
        )
    assert (len(x) < x.shape[1] + 1) == (form == "dual")
    test = placed(test_x, test_y)
    classes = int(y.max()) + 1
    ours = [fewshot.accuracy(one, test) for one in fewshot.solutions(x, y, classes, strengths)]
    # Theirs are means in float32.
    np.testing.assert_array_equal(np.round(np.array(ours) * 200), np.round(expected * 200))
    np.testing.assert_allclose(ours, expected, rtol=1e-7)


def test_a_nan_is_never_right():
    linear = fewshot.Linear(np.zeros(2), np.ones(2), np.eye(2), np.zeros(2))
    test = placed(np.float32([[np.nan, 0], [0, 1], [0, 1]]), np.array([0, 0, 1]))
    assert fewshot.accuracy(linear, test) == 1 / 3


def test_two_batches_at_most_are_queued(monkeypatch):
    linear = fewshot.Linear(np.zeros(2), np.ones(2), np.eye(2), np.zeros(2))
    test, waited = placed(np.zeros((24, 2), np.float32), np.zeros(24), rows=8), []
    monkeypatch.setattr(jax, "block_until_ready", lambda outputs: waited.append(len(outputs)))
    fewshot.accuracy(linear, test)
    assert waited == [0, 1, 1]


@pytest.mark.parametrize(("number", "width"), [(50, 7), (9, 20), (3, 4)])
def test_the_solution_is_that_of_the_equations(number, width, monkeypatch):
    """By products of features, in the dual form for targets, and for features as there are more."""
    monkeypatch.setattr(fewshot, "CHUNK", 8)
    rng = np.random.default_rng(0)
    x = rng.normal(3, 2, (number, width)).astype(np.float32)
    y = rng.integers(0, 4, number)
    y[y == 2] = 1  # class 2 has no example
    a = np.c_[(x - x.mean(0, np.float64)) / (x.std(0, np.float64) + 1e-5), np.full(number, 100.0)]
    targets = np.where(y[:, None] == np.arange(5), 1.0, -1.0)
    strengths = (3.0, 1024.0, 0.5)
    for l2, linear in zip(strengths, fewshot.solutions(x, y, 5, strengths), strict=True):
        solution = np.linalg.solve(a.T @ a + l2 * np.eye(width + 1), a.T @ targets)
        np.testing.assert_allclose(linear.weights, solution[:-1], rtol=0, atol=1e-12)
        np.testing.assert_allclose(linear.bias, 100 * solution[-1], rtol=0, atol=1e-10)


def test_draws():
    labels = np.random.default_rng(3).integers(0, 7, 200)
    labels[labels == 4] = 5
    one, five = (fewshot.choose_examples(labels, shots, 0) for shots in (1, 5))
    classes, counts = np.unique(labels[five], return_counts=True)
    assert classes.tolist() == [0, 1, 2, 3, 5, 6]
    assert set(counts) == {5}
    assert set(one) < set(five)  # more shots contain fewer
    assert len(set(five)) == 30
    np.testing.assert_array_equal(five, fewshot.choose_examples(labels, 5, 0))
    assert set(five) != set(fewshot.choose_examples(labels, 5, 1))
    # A class with too few gives all it has.
    few = fewshot.choose_examples(np.array([0, 1, 1, 1, 0, 1]), 3, 0)
    assert set(few) > {0, 4}
    assert len(few) == 5


def test_accuracies_are_means_over_draws_by_seed(monkeypatch):
    rng = np.random.default_rng(1)
    centers = rng.integers(60, 190, (4, 4))
    labels = [rng.permutation(np.repeat(np.arange(4), count)) for count in (10, 50)]
    rows = [(centers[y] + rng.normal(0, 60, (len(y), 4))).clip(0, 255) for y in labels]
    cfg = toys.configure(8, shots=(1, 2), fewshot_l2=(1.0, 64.0), fewshot_seeds=5)
    passed = [toys.passing(toys.Toy(x, y), cfg) for x, y in zip(rows, labels, strict=True)]
    measure = evaluator(cfg, *passed)
    products, moments = [], fewshot.moments
    monkeypatch.setattr(fewshot, "moments", lambda x: products.append(len(x)) or moments(x))
    ours = measure(jnp.float32(0), stop=lambda: False)
    assert products == [4] * 5 + [8] * 5  # for both l2 together
    x, test_x = (np.asarray(part, np.uint8) / 127.5 - 1 for part in rows)

    def right(shots, l2, seed):
        few = fewshot.choose_examples(labels[0], shots, seed)
        mean, scale = x[few].mean(0), x[few].std(0) + 1e-5
        a, b = (np.c_[(z - mean) / scale, np.full(len(z), 100.0)] for z in (x[few], test_x))
        targets = 2.0 * np.eye(4)[labels[0][few]] - 1
        scores = b @ np.linalg.solve(a.T @ a + l2 * np.eye(5), a.T @ targets)
        return np.mean(scores.argmax(1) == labels[1])

    each = {
        f"toy/{shots}shot/l2={l2:g}": [right(shots, l2, seed) for seed in range(5)]
        for shots in (1, 2)
        for l2 in (1.0, 64.0)
    }
    assert ours == pytest.approx({key: np.mean(values) for key, values in each.items()}, abs=1e-12)
    assert list(ours) == list(each)
    assert all(len(set(values)) > 2 for values in each.values())  # the draws differ


def test_a_single_strength_is_not_named_and_too_few_images_are(caplog):
    cfg = toys.configure(8, shots=(2, 3), fewshot_l2=(1.0,), fewshot_seeds=1)
    rows, labels = np.random.default_rng(0).integers(0, 256, (11, 4)), np.arange(11) % 4
    split = toys.passing(toys.Toy(rows, labels), cfg)
    measure = evaluator(cfg, split, split)
    with caplog.at_level(logging.WARNING, "vit_jax"):
        found = measure(jnp.float32(0), stop=lambda: False)
    assert list(found) == ["toy/2shot", "toy/3shot"]
    assert [record.message for record in caplog.records] == [
        "evaluation.shots=3: toy has a class with 2 training images; all are used"
    ]
    caplog.clear()  # of images that lack the last class
    few = toys.passing(toys.Toy(rows, labels % 3), cfg)
    with caplog.at_level(logging.WARNING, "vit_jax"):
        evaluator(cfg, few, split)(jnp.float32(0), stop=lambda: False)
    assert "toy has a class with 0 training images" in caplog.text


@pytest.mark.parametrize(
    ("number", "width", "classes"), [(6500, 32, 2184), (40, 64, 2184), (40, 64, 30)]
)
def test_memory_does_not_grow_with_examples_times_classes(number, width, classes):
    """A hundredth or so of ImageNet's 65,000 images and ImageNet-21k's 21,843 classes."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(number, width)).astype(np.float32)
    y = rng.integers(0, classes, number)
    dense = 8 * number * classes
    allowed = 8 * (width + 1) * (3 * (width + 1) + 4 * classes + 4 * min(number, fewshot.CHUNK))
    assert number < 100 or allowed < dense / 10
    tracemalloc.start()
    for _ in fewshot.solutions(x, y, classes, (1024.0, 1.0, 32.0)):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < allowed


def test_a_batch_of_scores_is_all_that_is_on_the_devices():
    """65,000 images, 1,280 features and 21,843 classes in batches of 4,096 on 8 devices."""
    mesh = sharding.create_mesh(1)
    whole, rows = (jax.sharding.NamedSharding(mesh, spec) for spec in (jax.P(), sharding.BATCH))

    def array(*shape, dtype=np.float32, place=whole):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=place)

    linear = array(1280), array(1280), array(1280, 21_843), array(21_843)
    batch = array(4096, 1280, place=rows), array(4096, dtype=np.int32, place=rows)
    with jax.set_mesh(mesh):
        memory = fewshot.count_hits.lower(*linear, *batch).compile().memory_analysis()
    scores, weights = 4 * 4096 * 21_843 / 8, 4 * 1280 * 21_843
    assert memory.argument_size_in_bytes < 1.1 * weights
    assert memory.temp_size_in_bytes < 2.2 * scores


def test_features_are_spread_over_the_devices():
    cfg = toys.configure(8)
    toy = toys.Toy(np.arange(40).reshape(10, 4), [3] * 10)
    extract = features.Extractor(toys.Echo(), cfg.data)
    found = extract(jnp.float32(0), toys.passing(toy, cfg), stop=lambda: False)
    assert [len(part.addressable_shards) for part in found.values] == [8, 8]
    assert {shard.data.shape for shard in found.values[0].addressable_shards} == {(1, 4)}
    x, y = found.gathered()
    np.testing.assert_allclose(x, toy.rows / 127.5 - 1, rtol=0, atol=1e-6)
    assert y.tolist() == [3] * 10
