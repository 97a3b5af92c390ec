"""Every evaluator: exact over padded last batches, whatever the batch size and the devices."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import runs
import toys
from vit_jax.config import ConfigError
from vit_jax.data import datasets, real_labels, sources
from vit_jax.data.real_labels import Reassessed
from vit_jax.data.source import DataError, Record
from vit_jax.evaluation import evaluators, features, fewshot, knn, measures, probe
from vit_jax.training import build, normalization, sharding

NEVER = {"stop": lambda: False}
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


class Tagged(sources.Digits):
    """Digits that have any number of classes: a prefix of all."""

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return Record(image, tuple(range(label)))


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
        evaluation={"shots": (1, 5), "fewshot_seeds": 2, "fewshot_l2": (1024.0, 1.0)}
        | {"metrics": ("f1", "auroc", "intervals", "calibration")},
    )
    several = runs.configure(
        data=OPTIONS["data"] | {"source": "synthetic", "multilabel": True},
        model=OPTIONS["model"], train={"batch_size": batch_size},
        loss={"name": "sigmoid"}, checkpoint={"best": "auto"},
    )  # fmt: skip
    model, mesh = build.create_model(cfg), sharding.create_mesh(1, jax.devices()[:devices])
    train, test = (
        toys.passing(sources.open_source(cfg.data, split, train=False), cfg, mesh)
        for split in (cfg.data.train_split, cfg.data.eval_split)
    )
    few = toys.passing(sources.Digits("test[3:9]", ""), cfg, mesh)  # six images, some classes
    tagged = toys.passing(Tagged("test[:101]", ""), several, mesh)
    named = Reassessed(Named("test[:101]", ""), real_labels.Real(REAL, ""), "")
    pairs = [features.Pair("self", train, test, 10)]
    extract = features.Extractor(model, cfg.data, {train: 3, test: 3})

    def on_features(measure, **options):
        return features.on_features(
            lambda *given, stop: measure(*given, stop=stop, **options), extract, pairs
        )

    fog = {"fog_1": few, "fog_2": test}
    every = {
        "real": evaluators.classification(model, cfg, toys.passing(named, cfg, mesh), named),
        "whole": evaluators.whole_classification(model, cfg, test, fit=True),
        "several": evaluators.several_right(model, cfg, test, RIGHT),
        "present": evaluators.class_subset(model, cfg, few),
        "sets": evaluators.label_sets(model, several, tagged, (1, 4, 9)),
        "imagenet-c": evaluators.corruptions(
            {name: evaluators.classification(model, cfg, split) for name, split in fog.items()}
        ),
        "fewshot": on_features(fewshot.measure, options=cfg.evaluation),
        "probe": on_features(probe.measure),
        "knn": on_features(knn.measure, neighbors=(10, 20)),
    }
    placed = jax.device_put(parameters)
    for evaluator in every.values():
        assert evaluator(placed, stop=lambda: True) is None
    return {
        f"{name}/{key}": value
        for name, evaluator in every.items()
        for key, value in evaluator(placed, **NEVER).items()
    }


@pytest.fixture(scope="module")
def expected(parameters):
    """Two batches, the second one partly padding, on one device."""
    return measure(parameters, 64, 1)


def test_classification_of_the_whole_split_in_numpy(parameters, expected):
    cfg = runs.configure(**OPTIONS)
    source = sources.open_source(cfg.data, cfg.data.eval_split, train=False)
    images = np.stack([source[i].image for i in range(101)])
    labels = np.array([source[i].label for i in range(101)])
    logits, _ = jax.jit(build.create_model(cfg).apply)(
        parameters, normalization.normalize_pixels(images, cfg.data)
    )
    logits = np.asarray(logits, np.float64)
    hits = np.argsort(-logits, axis=-1, kind="stable") == labels[:, None]
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    own = {key: expected[f"real/{key}"] for key in ("top1", "top5", "loss", "count")}
    assert own == pytest.approx(
        {"top1": hits[:, 0].mean(), "top5": hits[:, :5].any(-1).mean(),
         "loss": -log_p[np.arange(101), labels].mean(), "count": 101},
        rel=1e-6,
    )  # fmt: skip
    assert {key: expected[f"whole/{key}"] for key in own} == pytest.approx(own, rel=1e-6)
    right = RIGHT[labels]
    hits = (logits.argmax(axis=-1)[:, None] == right).any(axis=-1)[(right >= 0).any(axis=-1)]
    assert (expected["several/top1"], expected["several/count"]) == (hits.mean(), len(hits))
    targets = np.arange(10) < labels[:, None]
    some = np.logaddexp(0, np.where(targets, -logits, logits))[:, [1, 4, 9]].sum(axis=1)
    assert expected["sets/loss"] == pytest.approx(some.mean(), rel=1e-6)


def test_several_right_classes_of_padded_views_too():
    batch = {"image": 0, "grids": 1, "label": np.array([2]), "mask": np.array([True])}
    seen = {}
    split = types.SimpleNamespace(
        outputs=lambda function, *, stop, inputs: seen.update(inputs(batch))
    )
    assert evaluators.several_right(None, runs.configure(), split, RIGHT)(None, **NEVER) is None
    assert (seen["grids"], seen["right"].tolist()) == (1, [[-1, -1]])


@pytest.mark.slow
@pytest.mark.parametrize(("batch_size", "devices"), [(7, 1), (64, 8)])
def test_the_same_for_all(batch_size, devices, parameters, expected):
    results = measure(parameters, batch_size, devices)
    assert list(results) == list(expected)
    assert results["probe/self/log10_l2"] in range(-5, 1)
    for key, value in results.items():
        close = key.endswith("loss") or key.startswith("whole/") or key == "sets/map"
        assert value == (pytest.approx(expected[key], rel=1e-6) if close else expected[key]), key


def test_what_counts(expected):
    assert expected["real/count"] == expected["sets/count"] == 101
    assert expected["real/real/count"] == sum(map(bool, REAL)) == 75
    assert expected["present/count"] == 6
    assert 0 < expected["several/count"] < 101
    for key in ("fewshot/self/5shot/l2=1024", "fewshot/self/1shot/l2=1", "probe/self/top1"):
        assert 0.2 < expected[key] < 1
    assert expected["probe/self/top1"] > expected["fewshot/self/1shot/l2=1024"]
    assert 0 < expected["sets/map"] < 1


def test_means_are_of_the_values_that_count():
    """Several values of an image count each; a prefix without any has its count alone."""

    def measured(setting, params, batch):
        pixels = batch["image"][:, 0, :, 0].astype(jnp.float32)
        return {
            "": ({"first": pixels[:, 0]}, batch["mask"]),
            "pixel": ({"": pixels}, batch["mask"]),
            "none": ({"": pixels[:, 0]}, jnp.zeros_like(batch["mask"])),
        }

    cfg = toys.configure(8)
    split = toys.passing(toys.Toy(ROWS, LABELS), cfg)
    names = {"": ("first",), "pixel": ("",), "none": ("",)}
    found = evaluators.Means(measured, names, toys.Echo(), cfg, split)(None, **NEVER)
    assert found == {
        "first": np.mean(ROWS, axis=0)[0], "count": 6,
        "pixel": pytest.approx(np.mean(ROWS)), "pixel/count": 24, "none/count": 0,
    }  # fmt: skip


def test_imagenet_c_has_the_results_of_every_set():
    every = {
        f"{kind}_{severity}": toys.always({"top1": 0.5, "count": 3})
        for kind in measures.ALEXNET
        for severity in datasets.SEVERITIES
    }
    results = evaluators.corruptions(every)(None, **NEVER)
    expected = sum(0.5 / error for error in measures.ALEXNET.values()) / 15
    assert results["mce"] == pytest.approx(expected, rel=1e-12)
    assert results["fog_3/count"] == 3
    del every["snow_4"]
    assert len(evaluators.corruptions(every)(None, **NEVER)) == 2 * 74


# By hand: the prediction is the largest of a row; ties go to the first class.
ROWS = [[0, 9, 80, 1], [70, 2, 3, 60], [5, 90, 4, 3], [1, 2, 3, 50], [8, 7, 60, 0], [9, 9, 1, 2]]
LABELS = [2, 0, 0, 1, 3, 1]
SEVERAL = ((2, 3), (), (0,), (1, 3), (), (1,))


def reassessed(rows=ROWS, labels=LABELS, right=SEVERAL):
    return Reassessed(toys.Toy(rows, labels), real_labels.Real(right, "digest"), "KEY")


def test_other_images_than_real_has():
    with pytest.raises(ConfigError) as caught:
        reassessed(right=())
    assert str(caught.value) == (
        "KEY: val/ILSVRC2012_val_00000001.JPEG: no validation image of ImageNet, and ReaL has "
        "labels of no others; set data.eval_split=validation"
    )
    source = reassessed(right=SEVERAL[:3])
    assert source[2].label == 2 * 4 + 0
    with pytest.raises(DataError, match="ILSVRC2012_val_00000004"):
        source[3]


def test_real_code_of_the_last_image_fits():
    labels = tuple((index % 1000,) for index in range(50_000))
    source = Reassessed(toys.Toy(ROWS, LABELS, 1000), real_labels.Real(labels, ""), "KEY")
    own, right = source.decode(np.array([49_999 * 1000 + 999, 0], np.int32))
    assert (own.tolist(), right.tolist()) == ([999, 0], [[999], [0]])


# Masked patches


def masked(params, batch_size, devices, seed=0):
    cfg = runs.configure(
        model={"num_classes": 10, "unroll": 1, "patch_size": 2},
        objective={"name": "masked_patches", "target": "color"},
        train={"batch_size": batch_size}, checkpoint={"best": "loss"}, seed=seed,
    )  # fmt: skip
    mesh, model = sharding.create_mesh(1, jax.devices()[:devices]), build.create_model(cfg)
    if params is None:
        params = model.init(jax.random.key(0))
        shape = params["prediction"]["kernel"].shape
        params["prediction"]["kernel"] = jax.random.normal(jax.random.key(1), shape)
    split = toys.passing(sources.Digits("test[:26]", ""), cfg, mesh)
    evaluator = evaluators.masked_patches(model, cfg, split)
    assert evaluator(params, stop=lambda: True) is None
    return evaluator(jax.device_put(params), **NEVER), params


@pytest.mark.slow
def test_masked_patches_are_the_same_for_all():
    results, params = masked(None, 16, 1)
    assert list(results) == ["loss", "error", "count", "accuracy", "accuracy/count"]
    assert (results["count"], results["accuracy/count"]) == (26, 26 * 8)
    assert 0 < results["accuracy"] < 1
    assert 0 < results["error"] < 255
    for batch_size, devices, seed in ((13, 1, 1), (32, 8, 0)):
        given, _ = masked(params, batch_size, devices, seed)
        for key, value in results.items():
            exact = key in ("count", "accuracy", "accuracy/count")
            assert given[key] == (value if exact else pytest.approx(value, rel=1e-6)), key
