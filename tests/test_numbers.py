"""Heads of numbers (`data.targets`), from lists to other projects' files and back."""

import dataclasses
import json
import pathlib

import cv2
import jax
import numpy as np
import pytest

import runs
from vit_jax import config, train_loop
from vit_jax.config import ConfigError
from vit_jax.data import sources
from vit_jax.evaluation import metrics
from vit_jax.inference import conversion, evaluation, export, loading, prediction
from vit_jax.inference.loaded_model import LoadedModel
from vit_jax.training import build
from vit_jax.weights import WeightsError

COLUMNS = ("bright", "tilt")
SCALE = {"mean": (120.0, -3.0), "std": (40.0, 0.5)}


def configure(root, **sections):
    data = {"source": "csv", "root": str(root), "targets": COLUMNS, "rotation": 0.0}
    data |= {"train_split": "train", "eval_split": "val", "flip": False}
    given = {"data": data, "loss": {"name": "mse"}, "checkpoint": {"best": "auto"}}
    given |= {"model": {"gelu": "erf"}}  # as other projects have it
    return runs.configure(**runs.merged(given, sections))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Gray images of a brightness, which is a column, and a ramp, whose slope is another."""
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for split, count in (("train", 48), ("val", 21)):
        lines = ["image,note,bright,tilt"]
        for number in range(count):
            level, slope = rng.uniform(60, 190), rng.uniform(-7, 7)
            pixels = level + slope * (np.arange(8) - 3.5)[:, None] + np.zeros((8, 8))
            name = f"{split}{number}.png"
            assert cv2.imwrite(str(root / name), pixels.round().astype(np.uint8))
            lines.append(f"{name},-,{level!r},{slope / 10 - 3!r}")
        (root / f"{split}.csv").write_text("\n".join(lines) + "\n")
    return root


def opened(root, **changes):
    """A model of numbers with random weights, opened as a checkpoint is."""
    cfg = config.with_classes(configure(root, loss={"name": "mse"} | SCALE), 2)
    params = jax.device_get(build.create_model(cfg).init(jax.random.key(0)))
    rng = np.random.default_rng(1)
    params["head"] = {
        "kernel": rng.normal(0, 0.3, (16, 2)).astype(np.float32),
        "bias": np.float32([0.2, -0.1]),
    }
    made = LoadedModel(config=cfg, params=params, classes=COLUMNS, kind="run")
    return dataclasses.replace(made, **changes)


def truth_and_files(root, split="val"):
    source = sources.open_source(configure(root).data, split)
    return source.targets, [source.name(index) for index in range(len(source))]


def predictions(model, files):
    return np.array([[value for _, value in one.numbers] for one in model.predict(files)])


@pytest.mark.slow
def test_every_command_says_the_same_numbers(photos, tmp_path):
    model = opened(photos)
    (truth, files), own = truth_and_files(photos), tmp_path / "own"
    logits, _ = model.apply(model.params, model.preprocess(files))
    expected = np.asarray(logits, np.float64) * SCALE["std"] + SCALE["mean"]
    np.testing.assert_allclose(predictions(model, files), expected, rtol=2e-6)
    exported = export.create_program(model, export.ExportOptions())
    views = np.stack([model.view(pathlib.Path(file).read_bytes()) for file in files])
    found = jax.jit(exported)(views)
    assert set(found) == {"logits", "numbers"}
    np.testing.assert_allclose(found["numbers"], expected, rtol=2e-6)
    conversion.save_checkpoint(model, model.params, own, "a test")
    measured = metrics.measure_numbers(truth, predictions(model, files), COLUMNS)
    results = evaluation.evaluate(own, {}, output=tmp_path / "tables")
    shown = {name: results[f"val/{name}"] for name in measured}
    assert shown == pytest.approx(measured, rel=1e-6)  # programs of other batch sizes
    assert results["val/count"] == 21
    lines = (tmp_path / "tables" / "images.csv").read_text().splitlines()
    assert lines[0] == "image,bright,bright_predicted,tilt,tilt_predicted"
    assert float(lines[1].split(",")[1]) == truth[0, 0]
    # One column of the two, and both in another order.
    for columns in (("tilt",), ("tilt", "bright")):
        part = evaluation.evaluate(own, {"data.targets": ",".join(columns)})
        assert part["val/mae"] == pytest.approx(
            np.mean([measured[f"{name}/mae"] for name in columns]), rel=1e-6
        )
    with pytest.raises(ConfigError, match="no output for 1 of the 2 columns of the data: note"):
        evaluation.evaluate(own, {"data.targets": "tilt,note"})
    (one,) = prediction.predict(own, examples=1)
    at = [pathlib.Path(file).name for file in files].index(pathlib.Path(one.image).name)
    assert one.truth == f"{truth[at, 0]:.6g}; {truth[at, 1]:.6g}"
    assert prediction.as_dict(one)["numbers"] == dict(one.numbers)
    with pytest.raises(ConfigError, match="^top=1: .* predicts numbers"):
        prediction.predict(own, examples=1, top=1)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [("hf", "hf"), ("timm", "x.safetensors")])
def test_other_projects_get_the_units_of_the_data(photos, tmp_path, kind, name):
    model, (_, files) = opened(photos), truth_and_files(photos)
    conversion.save_checkpoint(model, model.params, tmp_path / "own", "a test")
    expected = predictions(model, files[:5])
    there, back = tmp_path / name, tmp_path / "back"
    conversion.convert(tmp_path / "own", kind, there)
    said = {"model.heads": "2"} if kind == "timm" else {}  # a file alone does not say
    conversion.convert(there, "orbax", back, said)
    for reference, options in ((there, said), (back, {})):
        found = loading.load(reference, options)
        assert (found.config.loss.name, found.classes) == ("mse", COLUMNS)
        np.testing.assert_allclose(predictions(found, files[:5]), expected, rtol=1e-5)
    if kind == "hf":
        given = json.loads((there / "config.json").read_text())
        assert given["problem_type"] == "regression"
        assert given["id2label"] == {"0": "bright", "1": "tilt"}


def test_other_columns_are_called_columns(photos):
    model = opened(photos)
    data = dataclasses.replace(model.config.data, targets=("note",))
    other = dataclasses.replace(model, config=dataclasses.replace(model.config, data=data))
    with pytest.raises(ConfigError, match="^data.targets=note: no column of the data is one of"):
        other.for_columns()


@pytest.mark.slow
def test_another_scale_predicts_the_same(photos):
    model, (_, files) = opened(photos), truth_and_files(photos)
    other = model.rescaled((100.0, 0.0), (7.0, 90.0))
    assert other.config.loss.mean == (100.0, 0.0)
    assert np.abs(other.params["head"]["kernel"] / model.params["head"]["kernel"] - 1).min() > 0.1
    np.testing.assert_allclose(
        predictions(other, files[:4]), predictions(model, files[:4]), rtol=1e-5
    )
    assert model.rescaled(**SCALE) is model
    bare = {**model.params, "head": {"kernel": model.params["head"]["kernel"]}}
    with pytest.raises(WeightsError, match="has no head/bias"):
        dataclasses.replace(model, params=bare).rescaled((0.0,), (1.0,))


@pytest.mark.slow
def test_a_run_learns_and_resumes_bit_for_bit(photos, tmp_path, monkeypatch):
    sections = {
        "optimizer": {"lr": 3e-3},
        "train": {"duration": "60 steps", "mixup": 0.2},
        "evaluation": {"every": "20 steps"},
        "checkpoint": {"every": "20 steps", "best": "mae", "patience": 9},
    }
    cfg = configure(photos, **sections)
    outcome = train_loop.train(cfg, tmp_path / "oracle")
    assert outcome.results["val/spearman"] > 0.5
    record = loading.find_checkpoint(tmp_path / "oracle")[2]
    truth, _ = truth_and_files(photos, "train")
    kept = record["config"]["loss"]
    np.testing.assert_array_equal(kept["mean"], truth.mean(axis=0))
    np.testing.assert_array_equal(kept["std"], truth.std(axis=0))
    assert "the best by val/mae" in record["selection"]
    runs.train_in_parts(monkeypatch, cfg, tmp_path / "run", 27)
    runs.assert_equal_runs(tmp_path / "run", tmp_path / "oracle")
    # A new run on other numbers begins with the head's predictions, in a scale of its own.
    further = configure(
        photos, data={"train_split": "val", "targets": ("tilt",)}, loss={"name": "huber"}
    )
    further = dataclasses.replace(further, init_from=str(tmp_path / "oracle"), init_head="keep")
    scaled = config.with_scale(config.with_classes(further, 1), (-2.0,), (3.0,))
    initial = loading.initial_params(scaled, build.create_model(scaled), ("tilt",))
    before = loading.load(tmp_path / "oracle")
    kernel = np.asarray(before.params["head"]["kernel"])[:, 1:] * kept["std"][1] / 3
    np.testing.assert_allclose(initial.params["head"]["kernel"], kernel, rtol=1e-5)
    assert any("trained with loss.name=mse, continues with huber" in note for note in initial.notes)
    classes = dataclasses.replace(scaled, loss=config.Loss())
    with pytest.raises(ConfigError, match="^init_head=keep: .* loss.name=mse, of which softmax"):
        loading.initial_params(classes, build.create_model(classes), ("tilt",))
