"""`vit_jax evaluate --output`: the CSV files, by hand."""

import types

import numpy as np

from vit_jax import config
from vit_jax.evaluation.metrics import Outputs
from vit_jax.inference import evaluation
from vit_jax.training import losses

CLASSES = ("cat", "dog", "owl")
SOURCE = types.SimpleNamespace(name=lambda at: f"{at}.png")


def tables(folder, outputs, loss, classes=CLASSES, source=SOURCE):
    opened = types.SimpleNamespace(
        names=classes, config=types.SimpleNamespace(loss=loss), scaled=lambda logits: logits / 2
    )
    evaluation.write_tables(folder, outputs, source, opened)
    return {one.name: one.read_text().splitlines() for one in folder.iterdir()}


def test_the_prediction_is_the_most_probable_class_of_a_plug_in(tmp_path, monkeypatch):
    monkeypatch.setattr(losses, "own_probabilities", lambda loss: lambda logits: 1 / (1 + logits))
    outputs = Outputs(np.float32([[3, 0, 2]]), np.int32([1]), np.array([0]))
    found = tables(tmp_path / "out", outputs, config.Config().loss)
    assert found["images.csv"][1] == "0.png,dog,dog,1.000000,1.000000"


def test_images_classes_and_confusions_of_a_split(tmp_path):
    """Probabilities are those of logits over the temperature, here 2."""
    logits = 2 * np.log(np.float32([[0.7, 0.2, 0.1], [0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]))
    outputs = Outputs(logits, np.int32([0, 1, 1]), np.array([2, 0, 1]))
    found = tables(tmp_path / "out", outputs, config.Config().loss)
    assert found["images.csv"] == [
        "image,truth,prediction,truth_probability,prediction_probability",
        "2.png,cat,cat,0.700000,0.700000",
        "0.png,dog,cat,0.250000,0.500000",
        "1.png,dog,dog,0.800000,0.800000",
    ]
    assert found["classes.csv"] == [
        "class,images,precision,recall,f1,auroc,average_precision",
        "cat,1,0.500000,1.000000,0.666667,1.000000,1.000000",
        "dog,2,1.000000,0.500000,0.666667,1.000000,1.000000",
        "owl,0,,,,,",
    ]
    assert found["confusion.csv"] == ["truth,cat,dog,owl", "cat,1,0,0", "dog,1,1,0", "owl,0,0,0"]


def test_images_of_several_classes_have_all_of_them(tmp_path):
    logits = np.float32([[2, -2, 2], [-2, -2, -2]])
    outputs = Outputs(logits, np.int32([[1, 0, 1], [0, 1, 0]]), np.array([1, 0]))
    found = tables(tmp_path / "out", outputs, config.build({"loss": {"name": "sigmoid"}}).loss)
    assert found["images.csv"][1:] == [
        "1.png,cat; owl,cat; owl,0.731059; 0.731059,0.731059; 0.731059",
        "0.png,dog,,0.268941,",
    ]
    assert found["classes.csv"][1:] == [
        "cat,1,1.000000,1.000000,1.000000,1.000000,1.000000",
        "dog,1,,0.000000,0.000000,0.500000,0.500000",
        "owl,1,1.000000,1.000000,1.000000,1.000000,1.000000",
    ]
    assert "confusion.csv" not in found
    some = types.SimpleNamespace(name=SOURCE.name, outputs=(0, 2))  # of a head that has others
    loss = config.build({"loss": {"name": "sigmoid"}}).loss
    again = tables(tmp_path / "some", outputs, loss, source=some)
    assert again["classes.csv"] == [*found["classes.csv"][:2], "dog,,,,,,", found["classes.csv"][3]]


def test_classes_are_ranked_by_the_probabilities_that_are_shown(tmp_path):
    """One class per image, but a sigmoid: other logits of an image do not count."""
    logits = np.float32([[1, 3, 0], [0.5, -2, 0], [-1, 0, 2]])
    outputs = Outputs(logits, np.int32([0, 1, 2]), np.array([0, 1, 2]))
    found = tables(tmp_path / "out", outputs, config.Loss(name="sigmoid"))
    assert found["classes.csv"][1] == "cat,1,0.000000,0.000000,0.000000,1.000000,1.000000"


def test_numbers_have_their_truth_beside_them(tmp_path, monkeypatch):
    truth = np.array([[1.5, 2.5], [3.5, 4.5]])
    monkeypatch.setattr(evaluation, "read_targets", lambda source: truth)
    loss = config.Regression(mean=(0.0, 1.0), std=(1.0, 2.0))
    outputs = Outputs(np.float32([[1.0, 1.0], [2.0, 0.0]]), np.zeros((2, 2)), np.array([1, 0]))
    found = tables(tmp_path / "out", outputs, loss, ("width", "height"))
    assert found == {
        "images.csv": [
            "image,width,width_predicted,height,height_predicted",
            "1.png,3.5,1.0,4.5,3.0",
            "0.png,1.5,2.0,2.5,1.0",
        ]
    }
