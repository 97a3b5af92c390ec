"""Adapter folders written for PEFT: array by array what PEFT itself writes, or one line."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest
from safetensors import numpy as safetensors

import foreign
import vit_jax
from vit_jax import config, weights
from vit_jax.inference import conversion, loading
from vit_jax.weights import mapping, peft_export
from vit_jax.weights.arrays import WeightsError

WEIGHTS = pathlib.Path(__file__).parents[1] / "fixtures" / "weights"
BASE = WEIGHTS / "hf_vit_tiny"
OURS = {"query": "q_proj", "value": "v_proj"}
FILE = "adapter_model.safetensors"
RANK, ALPHA = 4, 8.0  # of the folder `plain`


def by_peft(name):
    return safetensors.load_file(WEIGHTS / "peft" / name / FILE)


def adapters(arrays):
    """The adapters of a folder of PEFT, as a run here holds them: layers stacked, (in, out)."""
    found = {}
    for ours, module in OURS.items():
        for side in "ab":
            layers = [
                arrays[
                    f"base_model.model.vit.layers.{i}.attention.{module}.lora_{side.upper()}.weight"
                ]
                for i in range(2)
            ]
            found[f"lora/encoder/attention/{ours}/kernel/{side}"] = np.stack(layers).swapaxes(1, 2)
    return found


@pytest.fixture
def run():
    """The folder `plain` as a run with LoRA on its base, and its arrays that have trained."""
    opened = vit_jax.load(WEIGHTS / "peft" / "plain", {"init_from": str(BASE)})
    lora = config.Lora(rank=RANK, alpha=ALPHA)
    cfg = dataclasses.replace(opened.config, init_from=str(BASE), lora=lora)
    opened = dataclasses.replace(opened, config=cfg, kind="run", selection="step 3, the newest")
    head = {f"head/{name}": np.asarray(array) for name, array in opened.params["head"].items()}
    return opened, {**adapters(by_peft("plain")), **head}


def test_arrays_and_settings_are_those_that_peft_writes(run, tmp_path):
    said = conversion._write_peft(tmp_path / "out", *run)
    written, expected = safetensors.load_file(tmp_path / "out" / FILE), by_peft("plain")
    head = {f"base_model.model.classifier.{part}" for part in ("weight", "bias")}
    assert written.keys() == expected.keys() | head
    for name, values in expected.items():
        np.testing.assert_array_equal(written[name], values, strict=True)
    stored = safetensors.load_file(BASE / "model.safetensors")
    for name in head:
        np.testing.assert_array_equal(written[name], stored[name[17:]], strict=True)
    fields = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    reference = json.loads((WEIGHTS / "peft" / "plain" / "adapter_config.json").read_text())
    names = {name.removeprefix("base_model.model.").partition(".lora")[0] for name in expected}
    assert set(fields.pop("target_modules")) == names
    assert fields.pop("modules_to_save") == ["classifier"]
    assert fields.pop("base_model_name_or_path") is None
    assert fields == {name: reference[name] for name in fields}
    assert said[0].startswith(f"base: vit_jax convert --checkpoint={BASE} --to=hf --output=BASE")
    assert said[1].startswith("classes: load the base with num_labels=6, ignore_mismatched_sizes")
    assert said[-1].endswith("4 layers of LoRA and the head, from run, step 3, the newest)")


def test_a_run_without_a_head_is_its_adapters_alone(run, tmp_path):
    """One that learned without labels; it ended in a KeyError."""
    opened, arrays = run
    params = {name: part for name, part in opened.params.items() if name != "head"}
    objective = config.Dino(name="dino")
    cfg = dataclasses.replace(opened.config, objective=objective)
    opened = dataclasses.replace(opened, params=params, config=cfg, classes=())
    arrays = {name: array for name, array in arrays.items() if not name.startswith("head/")}
    said = conversion._write_peft(tmp_path / "out", opened, arrays)
    written = safetensors.load_file(tmp_path / "out" / FILE)
    assert set(written) == {name.replace("vit.", "") for name in by_peft("plain")}
    fields = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert fields["modules_to_save"] == []
    assert not any("classes" in line for line in said)
    assert said[-1].endswith("(peft, 4 layers of LoRA, from run, step 3, the newest)")


def test_a_head_of_numbers_is_written_in_their_units(run, tmp_path):
    opened, arrays = run
    mean, std = np.arange(6.0), np.full(6, 2.0)
    loss = config.Regression(name="mse", mean=(*mean.tolist(),), std=(*std.tolist(),))
    cfg = dataclasses.replace(opened.config, loss=loss)
    conversion._write_peft(tmp_path / "out", dataclasses.replace(opened, config=cfg), arrays)
    written = safetensors.load_file(tmp_path / "out" / FILE)
    weight, bias = (written[f"base_model.model.classifier.{part}"] for part in ("weight", "bias"))
    stored = safetensors.load_file(BASE / "model.safetensors")
    np.testing.assert_allclose(weight, 2 * stored["classifier.weight"], rtol=1e-6)
    np.testing.assert_allclose(bias, 2 * stored["classifier.bias"] + mean, rtol=1e-6, atol=1e-6)


def test_a_folder_reads_back_bit_for_bit(run, tmp_path):
    opened, arrays = run
    lora = dataclasses.replace(opened.config.lora, alpha=2.5)
    cfg = dataclasses.replace(opened.config, lora=lora)
    conversion._write_peft(tmp_path / "out", dataclasses.replace(opened, config=cfg), arrays)
    fields = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert fields["lora_alpha"] == 2.5
    (tmp_path / "out" / "adapter_config.json").write_text(json.dumps({**fields, "lora_alpha": 8}))
    again = vit_jax.load(tmp_path / "out", {"init_from": str(BASE)})
    for part in ("query", "value"):
        np.testing.assert_array_equal(
            again.params["encoder"]["attention"][part]["kernel"],
            opened.params["encoder"]["attention"][part]["kernel"],
        )


@pytest.mark.parametrize(
    ("options", "names", "said"),
    [
        ({"lora": config.Lora()}, (), "the run has no LoRA; write --to=adapter"),
        ({}, ("encoder_norm/scale",), "encoder_norm/scale is trained too, and PEFT holds only"),
        ({"pooling": "gap"}, (), r"model.pooling=gap: .* has token, and PEFT adds to it as it is"),
    ],
)
def test_what_peft_could_not_add_is_one_line(run, tmp_path, options, names, said):
    opened, arrays = run
    cfg = opened.config
    if "pooling" in options:
        options = {"model": dataclasses.replace(cfg.model, pooling=options["pooling"])}
    opened = dataclasses.replace(opened, config=dataclasses.replace(cfg, **options))
    with pytest.raises(config.ConfigError, match=f"^--to=peft: {said}"):
        conversion._write_peft(tmp_path / "out", opened, {**arrays, **dict.fromkeys(names)})
    assert not (tmp_path / "out").exists()


def test_preprocessing_that_the_base_has_otherwise_is_said(run, tmp_path):
    """Whoever loads the folder takes the base's; a fine-tuned run often has views of its own."""
    opened, arrays = run
    assert not any("the base has" in one for one in conversion._write_peft(tmp_path / "a", *run))
    data = dataclasses.replace(opened.config.data, eval_crop="central", resize_to=40)
    opened = dataclasses.replace(opened, config=dataclasses.replace(opened.config, data=data))
    said = conversion._write_peft(tmp_path / "out", opened, arrays)
    assert "data.eval_crop=central: not stored in this format, and the base has resize" in said
    assert "data.resize_to=40,40: not stored in this format, and the base has none" in said


def test_a_base_of_another_size_is_written_in_that_size(run, tmp_path, monkeypatch):
    opened, arrays = run
    before = loading.describe_checkpoint(str(BASE))
    other = dataclasses.replace(before.data, image_size=(16, 48))
    monkeypatch.setattr(
        loading, "describe_checkpoint", lambda _: dataclasses.replace(before, data=other)
    )
    calibrated = dataclasses.replace(opened, temperature=1.5)
    said = conversion._write_peft(tmp_path / "out", calibrated, arrays)
    assert "temperature=1.5000: not stored in this format" in said[0]
    assert f"--checkpoint={BASE} --config.data.image_size=32,32 --to=hf" in said[1]


def test_modules_are_named_as_transformers_5_runs_them():
    saved = "vit.encoder.layer.3.attention.output.dense"
    for kind, block in (("vit", "layers"), ("beit", "layers"), ("dinov2", "encoder.layer")):
        found = peft_export._trained_name(saved, kind)
        assert found == f"vit.{block}.3.attention.o_proj"
    for name in ("encoder.layer.0.mlp.weights_in", "vision_model.encoder.layers.1.mlp.fc1"):
        assert peft_export._trained_name(name, "dinov2") == name


def test_the_address_of_a_repository_is_the_name_of_the_base(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    monkeypatch.setattr(peft_export.zoo, "resolve", lambda _: tmp_path)
    assert peft_export.repository("https://huggingface.co/me/vit-b") == "me/vit-b"
    for other in (str(BASE), "augreg/S_16", "https://example.org/me/vit-b"):
        assert peft_export.repository(other) is None
    (tmp_path / "config.json").write_text('{"architecture": "vit_small"}')  # timm's
    assert peft_export.repository("https://huggingface.co/me/vit-b") is None


def test_layers_that_transformers_holds_together_are_refused(tmp_path):
    """SwiGLU of DINOv2: two dense layers here are one matrix there."""
    spec = weights.read_spec(foreign.write(tmp_path, foreign.record("backbones/hf_dinov2_giant")))
    model = dataclasses.replace(spec.model, pooling="token_gap", num_classes=3)
    spec = dataclasses.replace(spec, model=model, fresh={})
    shapes = mapping.create_classifier(spec).shapes()
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)
    depth, width, hidden = shapes["encoder"]["mlp"]["fc1"]["kernel"].shape
    name = "encoder/mlp/fc1/kernel"
    pair = {f"{name}/a": np.ones((depth, width, 1)), f"{name}/b": np.ones((depth, 1, hidden))}
    lora = config.Lora(rank=1, alpha=1.0)
    with pytest.raises(WeightsError, match=f"lora.where: {name} is not a separate layer"):
        peft_export.write_peft(tmp_path / "out", params, spec, pair, lora, None)
