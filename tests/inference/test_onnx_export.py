"""`export --to=onnx`: a file whose logits in onnxruntime are the checkpoint's, or none."""

import dataclasses
import json
import sys
import types
from unittest.mock import Mock

import jax
import numpy as np
import pytest

import foreign
from vit_jax import cli, config
from vit_jax.inference import export, loading, onnx_export

NAME = "cifar10/ViT-6_4"


def test_a_missing_package_is_named_with_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    command = ["export", f"--checkpoint={NAME}", "--to=onnx", f"--output={tmp_path}/a.onnx"]
    assert cli.main(command) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "--to=onnx: needs jax2onnx" in line
    assert "pip install --no-deps jax2onnx==" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", ["--any-size", "--platforms=cpu", "--dtype=bfloat16"])
def test_options_of_another_format_are_refused(flag, tmp_path, capsys):
    command = ["export", f"--checkpoint={NAME}", "--to=onnx", f"--output={tmp_path}/a.onnx", flag]
    assert cli.main(command) == 2
    assert f"{flag.partition('=')[0]}: is for --to=stablehlo" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("off", "expected"),
    [
        ({}, 0.0),
        ({"logits": 6e-4}, 6e-5),  # in units of their range, here 10
        ({"numbers": [5e-5, 5e-4]}, 5e-5),  # in those of each column: 1 and 10
        ({"logits": 6e-4, "numbers": 5e-5}, 6e-5),
        ({"logits": 2e-3}, "differ from the checkpoint's by 2.0e-04, and 1e-04 is the limit"),
        ({"logits": np.nan}, "gives no logits"),
        ({"numbers": np.zeros((3, 1, 1))}, "gives no numbers"),
    ],
)
@pytest.mark.parametrize("batch", [None, 3])
def test_outputs_are_compared_in_units_that_matter(off, expected, batch):
    """With a stand-in of onnxruntime, which is off by so much for every number of images."""
    asked = []

    def program(images):
        shape = (len(images), 2)
        steps = jax.numpy.broadcast_to(jax.numpy.asarray([0.0, 10.0]), shape)
        return {"logits": steps, "numbers": steps}

    class Session:
        def __init__(self, content, options, providers):
            assert (content, providers) == (b"onnx", ["CPUExecutionProvider"])

        def run(self, names, inputs):
            (name,), images = names, inputs["images"]
            asked.append((name, len(images)))
            return [np.asarray(program(images)[name], np.float64) + off.get(name, 0.0)]

    stand_in = types.SimpleNamespace(SessionOptions=types.SimpleNamespace, InferenceSession=Session)
    pixels = jax.ShapeDtypeStruct((batch or 7, 2, 2, 3), np.uint8)
    given = stand_in, b"onnx", program, pixels, batch, ("numbers", (1.0, 10.0))
    if isinstance(expected, str):
        with pytest.raises(config.ConfigError, match=expected):
            onnx_export._compare_outputs(*given)
        return
    assert onnx_export._compare_outputs(*given) == pytest.approx(expected, rel=1e-3)
    counts = [batch] if batch else [1, 3]
    assert asked == [(name, count) for count in counts for name in ("logits", "numbers")]


@pytest.mark.parametrize(("batch", "shown"), [(None, "B"), (4, "4")])
def test_what_the_packages_are_asked_for(batch, shown, tmp_path, monkeypatch):
    """With stand-ins: a translation of images of any number, checked, compared and written."""
    model, asked = Mock(), {}
    model.SerializeToString.return_value = b"a program"
    model.graph.node = [types.SimpleNamespace(op_type=kind) for kind in ("Add", "Mul", "Add")]
    packages = {name: Mock(__version__="1.2") for name in onnx_export.PACKAGES}

    def translate(function, shapes, **options):
        asked.update(options, shape=shapes[0].shape, dtype=shapes[0].dtype)
        return model

    packages["jax2onnx"].to_onnx = translate
    monkeypatch.setattr(onnx_export, "_required", packages.__getitem__)
    monkeypatch.setattr(onnx_export, "_versions", dict)
    monkeypatch.setattr(onnx_export, "_compare_outputs", lambda *given: 2e-6)
    monkeypatch.setattr(export, "create_program", lambda *_, **__: None)
    monkeypatch.setattr(export, "describe_inputs", lambda *_: {"classes": ["é"]})
    network = types.SimpleNamespace(resnet_units=(1,))  # which is translated without its jaxpr
    cfg = types.SimpleNamespace(model=network, data=config.Data(image_size=(8, 6)), loss=None)
    loaded = types.SimpleNamespace(config=cfg, selection="step 3, the newest")
    options = export.ExportOptions(batch=batch)
    rows = dict(onnx_export.write_onnx(loaded, options, tmp_path / "a.onnx"))
    assert [str(side) for side in asked["shape"]] == [shown, "8", "6", "3"]
    assert (asked["dtype"], asked["opset"], asked["input_names"]) == (np.uint8, 23, ["images"])
    assert asked["output_names"] == ["logits", "probabilities"]
    assert (tmp_path / "a.onnx").read_bytes() == b"a program"
    packages["onnx"].checker.check_model.assert_called_once_with(model)
    kept = model.metadata_props.add.return_value
    assert (kept.key, json.loads(kept.value)["classes"]) == ("vit_jax", ["é"])
    assert rows == {
        "file": "a.onnx, 0.0 kB", "input": f"images: uint8 ({shown}, 8, 6, 3)",
        "outputs": "logits, probabilities: float32", "opset": "23, 3 nodes of 2 kinds",
        "proof": "logits and probabilities of onnxruntime 1.2 differ by at most 2.0e-06",
        "checkpoint": "step 3, the newest",
    }  # fmt: skip
    # A file that computes something else is not written.
    differ = Mock(side_effect=config.ConfigError("differ from the checkpoint's"))
    monkeypatch.setattr(onnx_export, "_compare_outputs", differ)
    with pytest.raises(config.ConfigError, match="differ from the checkpoint's"):
        onnx_export.write_onnx(loaded, options, tmp_path / "b.onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["a.onnx"]


@pytest.fixture
def runtime():
    pytest.importorskip("jax2onnx")
    if jax.__version_info__ >= (0, 11):
        pytest.skip("jax2onnx 0.17.1 does not know this jax")
    return pytest.importorskip("onnxruntime")


@pytest.mark.slow
def test_one_command_makes_a_file_that_onnxruntime_runs(tmp_path, capsys, runtime):
    """Any number of images, without a loop; classes and preprocessing are in the file."""
    path = tmp_path / "a.onnx"
    command = ["export", f"--checkpoint={NAME}", "--to=onnx", f"--output={path}"]
    assert cli.main(command) == 0
    assert "differ by at most" in capsys.readouterr().out
    session = runtime.InferenceSession(path)
    model = loading.load(NAME)
    about = json.loads(session.get_modelmeta().custom_metadata_map["vit_jax"])
    assert about["classes"] == list(model.classes)
    assert about["view"]["image_size"] == [32, 32]
    rng = np.random.default_rng(1)
    for count in (1, 2, 5):
        images = rng.integers(0, 256, (count, 32, 32, 3), np.uint8)
        logits, probabilities = session.run(None, {"images": images})
        expected = np.asarray(
            export.create_program(model, export.ExportOptions())(images)["logits"]
        )
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-6)
    import onnx

    kinds = {node.op_type for node in onnx.load(path).graph.node}
    assert kinds.isdisjoint({"Loop", "Scan", "If"})


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["timm_map", "timm_hybrid", "hf_bit", "backbones/hf_beit", "backbones/timm_eva02",
     "backbones/timm_reg4_gap", "backbones/hf_dinov2_classifier", "backbones/timm_qk_norm"],
)  # fmt: skip
def test_every_part_of_a_model_is_translated(name, tmp_path, runtime):
    """Attention pooling, convolutions, relative bias, rotary positions, registers, SwiGLU."""
    described = foreign.record(name)
    model = loading.load(foreign.write(tmp_path, described), described.get("options"))
    rows = dict(onnx_export.write_onnx(model, export.ExportOptions(), tmp_path / "a.onnx"))
    assert "differ by at most" in rows["proof"]


@pytest.mark.slow
def test_numbers_keep_their_scale(tmp_path, runtime):
    model = loading.load(NAME)
    loss = config.Regression(
        name="mse", mean=(*range(10),), std=(*(10.0**k for k in range(-5, 5)),)
    )
    model = dataclasses.replace(model, config=dataclasses.replace(model.config, loss=loss))
    rows = dict(onnx_export.write_onnx(model, export.ExportOptions(), tmp_path / "a.onnx"))
    assert rows["outputs"] == "logits, numbers: float32"
    images = np.random.default_rng(1).integers(0, 256, (3, 32, 32, 3), np.uint8)
    session = runtime.InferenceSession(tmp_path / "a.onnx")
    logits, numbers = session.run(["logits", "numbers"], {"images": images})
    np.testing.assert_allclose(numbers, logits * loss.std + loss.mean, rtol=1e-6)
