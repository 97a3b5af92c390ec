"""Every evaluator gives the same whatever the batch size and the number of devices."""

import jax
import numpy as np
import pytest

import runs
import toys
from vit_jax import config
from vit_jax.data import real_labels, sources
from vit_jax.data.real_labels import NONE, Reassessed
from vit_jax.evaluation import (
    class_subset,
    classification,
    corruptions,
    features,
    fewshot,
    knn,
    linear_data,
    multilabel,
    probe,
)
from vit_jax.training import build, sharding

OPTIONS = {
    "data": {"train_split": "train[:301]", "eval_split": "test[:101]"},
    "model": {"num_classes": 10, "unroll": 1},
}
RIGHT = np.array([[1, 8], [2, -1], [-1, -1], *([[7, 3]] * 7)], np.int32)  # of each digit
REAL = tuple(((), (1, 7), (3,), (0, 2, 9))[number * 7 % 4] for number in range(101))


class Named(sources.Digits):
    """Digits that are called as ImageNet's validation images are."""

    def name(self, index):
        return f"ILSVRC2012_val_{index + 1:08d}.JPEG"


@pytest.fixture(scope="module")
def parameters():
    """Random parameters with a head that is not zero, so that predictions differ."""
    params = build.create_model(runs.configure(**OPTIONS)).init(jax.random.key(0))
    params["head"]["kernel"] = jax.random.normal(jax.random.key(1), (16, 10))
    return params


def measure(parameters, batch_size, devices):
    """The results of every evaluator."""
    cfg = runs.configure(
        **OPTIONS,
        train={"batch_size": batch_size},
        evaluation={"shots": (1, 5), "fewshot_seeds": 2, "fewshot_l2": (1024.0, 1.0)},
    )
    model, mesh = build.create_model(cfg), sharding.create_mesh(1, jax.devices()[:devices])
    train, test = (
        toys.passing(sources.open_source(cfg.data, split, train=False), cfg, mesh)
        for split in (cfg.data.train_split, cfg.data.eval_split)
    )
    few = toys.passing(sources.Digits("test[3:9]", ""), cfg, mesh)  # six images, some classes
    named = Reassessed(Named("test[:101]", ""), real_labels.Real(REAL, ""), "")
    pair = {"self": linear_data.Pair(train, test, 10)}
    extract = features.Extractor(model, cfg.data, {train: 3, test: 3})
    both = {"fog_1": classification.Classification(model, cfg, few)}
    both["fog_2"] = classification.Classification(model, cfg, test)
    evaluators = {
        "real": classification.Classification(model, cfg, toys.passing(named, cfg, mesh), named),
        "several": multilabel.MultiLabel(model, cfg, test, RIGHT),
        "present": class_subset.ClassSubset(model, cfg, few),
        "imagenet-c": corruptions.Corruptions(both),
        "fewshot": fewshot.FewShot(extract, cfg.evaluation, pair),
        "probe": probe.Probe(extract, pair),
        "knn": knn.NearestNeighbors(extract, (10, 20), pair),
    }
    placed = jax.device_put(parameters)
    return {
        f"{name}/{key}": value
        for name, evaluator in evaluators.items()
        for key, value in evaluator(placed, stop=lambda: False).items()
    }


@pytest.fixture(scope="module")
def expected(parameters):
    """Two batches, the second one partly padding, on one device."""
    return measure(parameters, 64, 1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("batch_size", "devices"), [(1, 1), (7, 1), (64, 8)])
def test_the_same_for_all(batch_size, devices, parameters, expected):
    results = measure(parameters, batch_size, devices)
    assert results.keys() == expected.keys()
    assert results["probe/self/log10_l2"] in range(-5, 1)
    for key, value in results.items():
        if key.endswith("loss"):
            assert value == pytest.approx(expected[key], rel=1e-6)
        else:
            assert value == expected[key], key


def test_the_fifth_counts_and_the_sixth_does_not():
    """Of labels that map to several classes; an image whose label maps to none counts nowhere."""

    class Fixed:
        def apply(self, params, images):
            return params, {}

    logits = np.arange(10.0, dtype=np.float32)[::-1] * np.ones((4, 1), np.float32)
    right = np.array([[4, 9], [5, NONE], [0, 7], [NONE, NONE]], np.int32)
    batch = {"image": np.zeros((4, 2, 2, 1), np.uint8), "right": right}
    sums = multilabel._sums(Fixed(), config.Data(image_size=(2, 2), channels=1), logits, batch)
    assert {name: int(value) for name, value in sums.items()} == {"top1": 1, "top5": 2, "count": 3}
    assert multilabel.ranks(logits, right).tolist() == [4, 5, 0, 10]


def test_they_differ_from_each_other(expected):
    assert expected["real/count"] == 101
    assert expected["real/real/count"] == sum(map(bool, REAL)) == 75
    assert expected["present/count"] == 6
    assert 0 < expected["several/count"] < 101
    accuracies = [value for key, value in expected.items() if key.endswith(("top1", "shot"))]
    assert all(0 < value < 1 for value in accuracies[:2])
    for key in ("fewshot/self/5shot/l2=1024", "fewshot/self/1shot/l2=1", "probe/self/top1"):
        assert 0.2 < expected[key] < 1
    assert expected["probe/self/top1"] > expected["fewshot/self/1shot/l2=1024"]
