"""Model cards: what the Hub reads of them, and what they keep to themselves."""

import dataclasses
import json
import pathlib
from unittest.mock import Mock

import numpy as np
import pytest
import yaml

import vit_jax
from vit_jax import cli, config, weights
from vit_jax.inference import loading, model_card
from vit_jax.utils.errors import AssumptionWarning
from vit_jax.weights.family import NO_HEAD

WEIGHTS = pathlib.Path(__file__).parents[1] / "fixtures" / "weights" / "hf_vit_tiny"
FILES = {"config.json": {"architectures": ["ViTForImageClassification"]}}


@pytest.fixture(scope="module")
def opened():
    return vit_jax.load(WEIGHTS)


def parts(text):
    """The fields of a card, and the rest of it."""
    _, fields, rest = text.split("---\n", 2)
    return yaml.safe_load(fields), rest


@pytest.mark.parametrize(
    ("kind", "library", "loads"),
    [
        ("hf", "transformers", "import AutoImageProcessor, ViTForImageClassification\n"),
        ("flax", "transformers", "FlaxViTForImageClassification.from_pretrained("),
        ("timm", "timm", 'timm.create_model("local-dir:FOLDER", pretrained=True)'),
    ],
)
def test_the_hub_finds_it_and_people_load_it(opened, kind, library, loads):
    fields, rest = parts(model_card.text(opened, kind, FILES, license_id="cc-by-4.0"))
    assert fields["library_name"] == library
    assert fields["license"] == "cc-by-4.0"
    assert fields["pipeline_tag"] == "image-classification"
    assert "model-index" not in fields
    assert loads in rest
    assert 'vit_jax.load("FOLDER")' in rest
    assert f"{opened.model.num_params:,} parameters" in rest
    assert f"Its {len(opened.classes)} classes are" in rest
    assert "see their authors for license" in rest  # nobody here has trained it


def test_no_license_is_named_unasked_and_none_is_made_up(opened):
    assert "license" not in parts(model_card.text(opened, "hf", FILES))[0]
    model_card.check_license("apache-2.0")
    for wrong in ("my own", "", "MIT\nx", "-mit"):
        with pytest.raises(config.ConfigError, match="not a license identifier"):
            model_card.check_license(wrong)


def test_results_are_those_of_the_step_with_their_split(tmp_path):
    lines = [
        {"step": 30, "validation/top1": 0.5, "validation/split": "valid"},
        {"step": 60, "validation/top1": 0.75, "validation/count": 40, "validation/split": "valid"},
        {"step": 60, "train/loss": 1.0},
        {"step": 90, "validation/top1": 0.7, "validation/split": "valid"},
        {"step": 90, "test/top1": 0.625, "test/step": 60, "test/split": "test"},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    wanted = {"valid": {"top1": 0.75, "count": 40}, "test": {"top1": 0.625, "step": 60}}
    assert model_card.results(tmp_path / "checkpoints", 60) == wanted
    assert model_card.results(tmp_path / "checkpoints", 10) == {}
    assert model_card.results(tmp_path / "mean" / "checkpoints", 60) == {}  # that lies in the run


def test_results_stand_in_the_card_and_in_its_index(opened):
    run = dataclasses.replace(opened, kind="run", step=60, selection="step 60, the best")
    measured = {"valid": {"top1": 0.75, "count": 40}, "test": {"top1": 0.625, "step": 60}}
    fields, rest = parts(model_card.text(run, "hf", FILES, measured=measured))
    (entry,) = fields["model-index"]
    assert [one["dataset"]["split"] for one in entry["results"]] == ["valid", "test"]
    assert entry["results"][1]["metrics"] == [{"type": "accuracy", "name": "top1", "value": 0.625}]
    assert "| test | top1 | 0.6250 |" in rest
    assert "Measured on 40 images of valid; step 60, the best\n" in rest
    assert "license and training" not in rest
    rest = parts(model_card.text(run, "hf", FILES, measured=measured, rounded="float16"))[1]
    assert "the best; before the weights were rounded to float16\n" in rest


def test_results_with_other_views_than_the_folders_say_so(opened):
    """A folder's processor cannot make every view; its numbers are then others."""
    lines = ("data.resampling=bilinear: reads back as box", "model.position_resize=aligned: x")
    measured = {"valid": {"top1": 0.75, "count": 40}}
    for changes, said in ((lines, True), (lines[1:], False)):
        card = model_card.text(opened, "hf", FILES, changes, measured=measured)
        caption = next(line for line in card.splitlines() if line.startswith("Measured on"))
        views = "With preprocessing that this folder cannot express: data.resampling=bilinear"
        assert (views in caption) == said
        assert "aligned" not in caption


def test_a_card_is_made_of_what_its_folder_cannot_express(opened, tmp_path):
    data = dataclasses.replace(opened.config.data, resampling="bilinear")
    spec, card = dataclasses.replace(opened.spec, data=data), lambda _, lines: "\n".join(lines)
    weights.save(opened.params, spec, "hf", tmp_path / "out", card=card)
    written = (tmp_path / "out" / "README.md").read_text()
    assert "data.resampling=bilinear: reads back as antialiased_bilinear" in written


def test_a_projection_has_no_classes(opened):
    """CLIP's, a head without bias, or with timm's, of which nobody names the outputs."""
    assert not opened.projects
    kernel = {"kernel": opened.params["head"]["kernel"]}
    clip = dataclasses.replace(opened, params={**opened.params, "head": kernel})
    assert clip.projects
    zeros = {**kernel, "bias": np.zeros(6, np.float32)}
    clip = dataclasses.replace(opened, params={**opened.params, "head": zeros})
    with pytest.warns(AssumptionWarning, match="wrong if it is CLIP's projection"):
        clip.require_head()
    for changed, headed in (
        ({}, False),
        ({"kind": "run"}, True),
        ({"classes": tuple("abcdef")}, True),
    ):
        card = model_card.text(dataclasses.replace(clip, **changed), "hf", FILES)
        assert ("Its 6 classes are" in card) == headed


def test_an_adapter_was_trained_here(opened):
    rest = parts(model_card.text(dataclasses.replace(opened, kind="adapter"), "hf", FILES))[1]
    assert "see their authors" not in rest


@pytest.mark.slow
def test_results_of_other_options_are_left_out(tmp_path):
    vit_jax.convert(WEIGHTS, "orbax", tmp_path / "run")
    line = {"step": 0, "test/top1": 0.5, "test/split": "test"}
    (tmp_path / "run" / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    crop = {"data.eval_crop": "central", "data.resize_to": "48"}
    for name, options in (("same", {"data.workers": "1"}), ("crop", crop)):
        lines = vit_jax.convert(tmp_path / "run", "hf", tmp_path / name, options)
        left_out = "README.md: leaves out the run's results, of other options" in lines
        fields = parts((tmp_path / name / "README.md").read_text())[0]
        assert (left_out, "model-index" in fields) == ((name == "crop"), (name == "same"))
    one = tmp_path / "run" / "checkpoints" / "00000000"
    vit_jax.convert(one, "hf", tmp_path / "step", dtype="float16")
    fields, rest = parts((tmp_path / "step" / "README.md").read_text())
    assert "model-index" in fields
    assert "; before the weights were rounded to float16\n" in rest


def test_settings_hold_no_path_of_the_machine(opened):
    asked = {"data.source": "folder", "data.root": "/home/me/secret", "init_from": "../b.npz"}
    asked |= {"optimizer.lr": "0.25", "model.variant": "ViT-B/16"}
    cfg = config.build(config.override(config.to_dict(opened.config), asked))
    card = model_card.text(dataclasses.replace(opened, config=cfg), "hf", FILES)
    assert "secret" not in card
    assert "\n# hf_vit_tiny\n" in card
    assert str(WEIGHTS.parent) not in card
    assert "b.npz" not in card
    assert "| optimizer.lr | 0.25 |" in card
    assert "| model.variant | ViT-B/16 |" in card


def test_the_loss_of_numbers_in_the_scale_of_a_run_is_left_out(opened):
    loss = config.build({"loss": {"name": "mse", "mean": [1.0] * 5, "std": [2.0] * 5}}).loss
    run = dataclasses.replace(opened, config=dataclasses.replace(opened.config, loss=loss))
    measured = {"valid": {"mae": 3.25, "loss": 0.75}}
    rest = parts(model_card.text(run, "hf", FILES, measured=measured))[1]
    assert "| valid | mae | 3.2500 |" in rest
    assert "| loss |" not in rest


def test_names_of_classes_are_text(opened):
    odd = dataclasses.replace(opened, classes=("a|b", "<script>", "`x`\ny", "d", "e"))
    rest = parts(model_card.text(odd, "hf", FILES))[1]
    assert r"Its 5 classes are a\|b, \<script\>, \`x\` y, d, e." in rest
    many = dataclasses.replace(opened, classes=tuple(f"c{index}" for index in range(100)))
    assert "Its 100 classes are c0," in (said := model_card.text(many, "hf", FILES))
    assert "c19, ..." in said


def test_images_of_sequences_have_no_size(opened):
    data = dataclasses.replace(opened.config.data, aspect="native", lengths=(9, 16))
    own = dataclasses.replace(opened, config=dataclasses.replace(opened.config, data=data))
    rest = parts(model_card.text(own, "hf", FILES))[1]
    assert "parameters, images at their own aspect ratio, of at most 16 patches, in 3 cha" in rest


@pytest.mark.parametrize("headless", [False, True])
def test_what_has_no_head_of_classes_has_features_and_no_classes(opened, headless):
    cfg = dataclasses.replace(opened.config, objective=config.Dino(name="dino"))
    changed = {"fresh": NO_HEAD} if headless else {"config": cfg}
    measured = {"valid": {"loss": 0.5}}
    card = model_card.text(dataclasses.replace(opened, **changed), "hf", FILES, measured=measured)
    fields, rest = parts(card)
    assert fields["pipeline_tag"] == "image-feature-extraction"
    assert fields["model-index"][0]["results"][0]["task"]["type"] == "image-feature-extraction"
    assert "It has no classes: its outputs are features." in rest
    assert "classes are" not in rest
    assert 'model.embed(["cat.jpg"])' in rest


@pytest.mark.parametrize(
    ("to", "output"), [("google", "x.npz"), ("orbax", "x"), ("timm", "x.safetensors")]
)
def test_a_license_without_a_card_is_refused(to, output, tmp_path, capsys):
    argv = ["convert", f"--checkpoint={WEIGHTS}", f"--to={to}", f"--output={tmp_path / output}"]
    assert cli.main([*argv, "--license=mit"]) == 2
    assert "--license=mit: goes into the model card of a folder" in capsys.readouterr().err


def test_a_card_without_a_license_is_said(tmp_path):
    for more, said in (({}, True), ({"license_id": "mit"}, False)):
        lines = vit_jax.convert(WEIGHTS, "hf", tmp_path / f"{said}", **more)
        assert ("README.md: names no license; --license=ID does" in lines) == said


def test_an_adapter_is_of_a_run_and_its_checkpoint(tmp_path, monkeypatch):
    with pytest.raises(config.ConfigError, match="is not a run; only a run has a base"):
        vit_jax.convert(WEIGHTS, "adapter", tmp_path / "out")
    monkeypatch.setattr(loading, "is_run", lambda reference: True)
    asked = Mock(side_effect=config.ConfigError("enough"))
    monkeypatch.setattr(loading, "find_checkpoint", asked)
    with pytest.raises(config.ConfigError, match="enough"):
        vit_jax.convert(tmp_path / "run", "adapter", tmp_path / "out", step=7)
    asked.assert_called_once_with(tmp_path / "run", 7)
