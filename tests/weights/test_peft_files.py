"""Adapter folders of PEFT: its own logits, and one line for what is none of LoRA."""

import json
import pathlib
import shutil

import numpy as np
import pytest
from safetensors import numpy as safetensors

import vit_jax
from vit_jax.weights import peft_files
from vit_jax.weights.arrays import WeightsError

WEIGHTS = pathlib.Path(__file__).parents[1] / "fixtures" / "weights"
BASE = {"init_from": str(WEIGHTS / "hf_vit_tiny")}
CONFIG, FILE = "adapter_config.json", "adapter_model.safetensors"


@pytest.fixture(scope="module")
def by_peft():
    with np.load(WEIGHTS / "peft" / "logits.npz") as file:
        return dict(file)


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(WEIGHTS / "peft" / "head", tmp_path / "mine")
    return tmp_path / "mine"


def settings(folder, **changed):
    fields = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(fields | changed))


def arrays(folder, change):
    found = safetensors.load_file(folder / FILE)
    change(found)
    safetensors.save_file(found, folder / FILE)


# Rank and alpha of one layer other than of the rest, a convolution; biases and a new head; by rank.
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["scaled", "head", "plain"])
def test_logits_are_those_of_peft(name, by_peft):
    model = vit_jax.load(WEIGHTS / "peft" / name, BASE)
    logits = np.asarray(model.apply(model.params, by_peft["images"])[0])
    np.testing.assert_allclose(logits, by_peft[name], rtol=0, atol=1e-6)


def test_the_names_of_a_saved_model_are_taken_too(folder, by_peft):
    """Version 4 of transformers trains under the names that it saves."""

    def older(found):
        pairs = {"layers": "encoder.layer", "attention.q_proj": "attention.attention.query",
                 "mlp.fc2": "output.dense"}  # fmt: skip
        for name in list(found):
            new = name
            for one, other in pairs.items():
                new = new.replace(f".{one}.", f".{other}.")
            found[new] = found.pop(name)

    arrays(folder, older)
    model = vit_jax.load(folder, BASE)
    logits = np.asarray(model.apply(model.params, by_peft["images"])[0])
    np.testing.assert_allclose(logits, by_peft["head"], rtol=0, atol=1e-6)


def test_trained_names_are_found_under_those_that_are_saved():
    """DINOv2's layers keep their name in version 5 of transformers, their parts do not."""
    for name, saved in (
        (
            "encoder.layer.1.attention.q_proj.weight",
            "encoder.layer.1.attention.attention.query.weight",
        ),
        ("vit.layers.0.mlp.fc2.bias", "vit.encoder.layer.0.output.dense.bias"),
        ("encoder.layer.0.mlp.fc1.weight", "encoder.layer.0.mlp.fc1.weight"),
    ):
        located = peft_files._locator(name, {saved: None})
        assert located(name) == saved
        assert located("other.weight") is None


def test_a_path_in_the_folder_is_not_followed(folder):
    for name in ("me/my-vit", BASE["init_from"], None, 3):
        settings(folder, base_model_name_or_path=name)
        with pytest.raises(WeightsError, match="published name; set --config.init_from=PATH"):
            vit_jax.load(folder)
    with pytest.raises(WeightsError, match="is an adapter too; name the weights below it"):
        vit_jax.load(folder, {"init_from": str(folder)})
    (folder / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(WeightsError, match="run: is a run, and PEFT adds to .* --to=hf --output="):
        vit_jax.load(folder, {"init_from": str(folder / "run")})


@pytest.mark.parametrize(
    ("field", "value"),
    [("peft_type", "IA3"), ("use_dora", True), ("fan_in_fan_out", True), ("lora_bias", True),
     ("use_qalora", True), ("some_new_variant", {"k": 1}), ("init_lora_weights", "pissa"),
     ("layer_replication", [[0, 2]])],
)  # fmt: skip
def test_other_arithmetic_is_refused_by_name(folder, field, value):
    settings(folder, **{field: value})
    with pytest.raises(WeightsError, match=rf"{field}=.*: is not supported; merge it with PEFT"):
        vit_jax.load(folder, BASE)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"lora_alpha": None}, "lora_alpha=None: must be a number"),
        ({"lora_alpha": float("inf")}, "lora_alpha=inf: must be a number"),
        ({"alpha_pattern": {".*q": 2}}, "alpha_pattern: is not numbers by name"),
        ({"alpha_pattern": {"q_proj": "2"}}, "lora_alpha='2': must be a number"),
        ({"lora_alpha": 10**400}, r"lora_alpha=10+\.\.\.: must be a number"),
    ],
)
def test_a_scale_is_a_number(folder, changed, said):
    settings(folder, **changed)
    with pytest.raises(WeightsError, match=said):
        vit_jax.load(folder, BASE)


@pytest.mark.parametrize(
    ("pattern", "alpha"),
    [({"q_proj": 2, "attention.q_proj": 8}, 2), ({"attention.q_proj": 8, "q_proj": 2}, 8),
     ({"proj": 8}, 1), ({"vit.layers.0.attention.q_proj": 4}, 4)],
)  # fmt: skip
def test_of_several_patterns_the_first_that_fits_gives_the_scale(pattern, alpha):
    fields = {"lora_alpha": 1, "alpha_pattern": pattern}
    assert peft_files._scale(fields, "vit.layers.0.attention.q_proj", 2) == alpha / 2


PREFIX = "base_model.model."
LAYER = f"{PREFIX}vit.layers.0.attention.q_proj"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda found: found.pop(f"{LAYER}.lora_B.weight"), "has lora_A alone"),
        (lambda found: found.update({f"{LAYER}.lora_magnitude_vector": np.ones(4, "f4")}),
         "lora_magnitude_vector: is not supported"),
        (lambda found: found.update({f"{LAYER}.lora_B.weight": np.ones((24, 5), "f4")}),
         r"lora_B \(24, 5\) times lora_A"),
        (lambda found: found.update({f"{LAYER}.lora_A.weight": np.ones((0, 24), "f4"),
                                     f"{LAYER}.lora_B.weight": np.ones((24, 0), "f4")}),
         r"lora_B \(24, 0\) times lora_A \(0, 24\)"),
        (lambda found: found.update({f"{LAYER}.lora_A.other.weight": np.ones((3, 24), "f4")}),
         "has two adapters; merge it"),
        (lambda found: found.update({f"{LAYER}.base_layer.weight": np.ones((24, 24), "f4")}),
         "is adapted and replaced; merge it"),
        (lambda found: found.update({f"{PREFIX}classifier{part}.weight": np.ones((3, 24), "f4")
                                     for part in ("", ".modules_to_save.default")}),
         "classifier.weight: is there twice"),
        (lambda found: found.update({f"{LAYER}x.lora_B.weight": np.ones((24, 3), "f4")}),
         "q_projx.lora_B.weight: the base has no such layer"),
        (lambda found: [found.pop(name) for name in list(found) if "lora" in name],
         "has no layers of LoRA"),
    ],
)  # fmt: skip
def test_arrays_that_make_no_layer_are_refused(folder, change, said):
    arrays(folder, change)
    with pytest.raises(WeightsError, match=said):
        vit_jax.load(folder, BASE)


def test_a_folder_without_its_arrays_is_one_line(folder):
    (folder / FILE).unlink()
    with pytest.raises(WeightsError, match=f"has no {FILE}"):
        vit_jax.load(folder, BASE)
