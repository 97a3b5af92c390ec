"""Programs that leave the house: the same numbers in a process that has only jax and numpy."""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import commands
import runs
from vit_jax import cli, config
from vit_jax.data import transforms
from vit_jax.inference import export, export_resizing, loaded_model, loading
from vit_jax.training import build, normalization
from vit_jax.utils import tree_utils

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"

# Runs programs on images, all batches asked for, as somebody without vit_jax would.
ELSEWHERE = """
import pathlib, sys
import jax, numpy as np
from jax import export

folder, results = pathlib.Path(sys.argv[1]), {}
for file in sorted(folder.glob("*.stablehlo")):
    call = jax.jit(export.deserialize(bytearray(file.read_bytes())).call)
    with np.load(file.with_suffix(".npz")) as images:
        for name in images:
            for key, value in call(images[name]).items():
                results[f"{file.stem}/{name}/{key}"] = np.asarray(value)
np.savez(folder / "results.npz", **results)
print(*(m for m in sys.modules if m.split(".")[0] in ("vit_jax", "flax", "optax", "cv2", "PIL")))
"""


def rng():
    return np.random.default_rng(0)


@pytest.fixture(scope="module")
def digits():
    """A model for gray digits of 8 x 8, as a run of that config would leave it."""
    cfg = runs.configure(model={"num_classes": 10})
    model, random = build.create_model(cfg), rng()
    params = jax.tree.map(
        lambda leaf: random.normal(0, 0.2, leaf.shape).astype(np.float32), model.shapes()
    )
    return loaded_model.LoadedModel(
        config=cfg, params=params, classes=tuple(map(str, range(10))), kind="run"
    )


def with_loss(predictor, loss):
    cfg = dataclasses.replace(predictor.config, loss=config.Loss(name=loss))
    return dataclasses.replace(predictor, config=cfg)


@pytest.fixture(scope="module")
def exported(digits, tmp_path_factory):
    """Predictors and forms by name, written to a folder and run in another process."""
    vit = loading.load(FIXTURES / "vit_tiny_token.npz")
    hybrid = loading.load(FIXTURES / "hybrid_tiny.npz")
    grown = jax.tree.map(lambda leaf: leaf * np.float32(1.5), vit.params)  # to feel bfloat16
    cases = {
        "vit": (vit, export.ExportOptions()),
        "fives": (with_loss(vit, "sigmoid"), export.ExportOptions(batch=5, platforms=("cpu",))),
        "half": (
            dataclasses.replace(vit, params=grown),
            export.ExportOptions(dtype="bfloat16", batch=5),
        ),
        "hybrid": (hybrid, export.ExportOptions()),
        "digits": (digits, export.ExportOptions(any_size=True)),
    }
    folder = tmp_path_factory.mktemp("programs")
    for name, (predictor, form) in cases.items():
        export.write_program(predictor, form, folder / f"{name}.stablehlo")
        images = {}
        for batch in (1, 5) if form.batch is None else (form.batch,):
            sizes = [predictor.config.data.image_size, *([(21, 13)] if form.any_size else [])]
            for height, width in sizes:
                shape = (batch, height, width, predictor.config.data.channels)
                images[f"{batch}x{height}x{width}"] = rng().integers(0, 256, shape, np.uint8)
        np.savez(folder / f"{name}.npz", **images)
    process = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(folder)],
        cwd=folder, env=os.environ | {"PYTHONPATH": ""}, capture_output=True, text=True,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == []  # nothing of ours was imported
    with np.load(folder / "results.npz") as results:
        return cases, folder, dict(results)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "fives", "half", "hybrid", "digits"])
def test_a_program_gives_what_the_model_gives(exported, name):
    cases, folder, results = exported
    predictor, form = cases[name]
    sizes = dataclasses.replace(predictor.model.config, dtype=form.dtype)
    model = dataclasses.replace(predictor.model, config=sizes)

    @jax.jit
    def logits_of(params, pixels):
        return model.apply(params, normalization.normalize_pixels(pixels, predictor.config.data))[0]

    with np.load(folder / f"{name}.npz") as images:
        assert len(images) == {"fives": 1, "half": 1, "digits": 4}.get(name, 2)
        for key in images:
            batch = images[key]
            for transform in transforms.eval_transforms(predictor.config.data):
                batch = np.stack([transform(image, rng()) for image in batch])
            logits = np.asarray(logits_of(predictor.params, batch))
            got = results[f"{name}/{key}/logits"]
            assert got.dtype == np.float32
            if not key.endswith("x".join(map(str, predictor.config.data.image_size))):
                tolerance = 0.02  # resized inside, some pixels by a gray level more or less
            else:
                tolerance = 1e-6 if name == "hybrid" else 0
            np.testing.assert_allclose(got, logits, rtol=0, atol=tolerance)
            assert np.ptp(got) > 0.1
            wide = got.astype(np.float64)
            if predictor.config.loss.name == "sigmoid":
                expected = 1 / (1 + np.exp(-wide))
            else:
                expected = np.exp(wide) / np.exp(wide).sum(axis=1, keepdims=True)
            probabilities = results[f"{name}/{key}/probabilities"]
            np.testing.assert_allclose(probabilities, expected, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_bfloat16_is_stored_where_it_changes_nothing(exported):
    cases, folder, results = exported
    size = {name: (folder / f"{name}.stablehlo").stat().st_size for name in ("vit", "half")}
    kernels = sum(
        leaf.nbytes
        for name, leaf in tree_utils.flatten(cases["vit"][0].params).items()
        if name.startswith("encoder/") and name.endswith("kernel")
    )
    assert size["vit"] - size["half"] == pytest.approx(kernels / 2, rel=0.1)
    halves = results["half/5x32x32/logits"]
    assert np.abs(halves - results["vit/5x32x32/logits"]).max() > 1e-4


def described(predictor, **changes):
    data = dataclasses.replace(predictor.config.data, **changes)
    cfg = dataclasses.replace(predictor.config, data=data)
    return export.describe_inputs(
        dataclasses.replace(predictor, config=cfg), export.ExportOptions()
    )


def test_the_view_of_a_program_is_described(digits):
    whole = described(digits)
    assert whole["view"]["resize_to"] is whole["view"]["fill"] is None
    assert whole["input"]["axes"] == ["image", "row", "column", "gray"]
    assert "pixels from 0 to 255" in whole["input"]["meaning"]
    short = described(digits, eval_crop="central", image_size=(16, 24))
    assert short["view"]["resize_to"] == (27, 27)  # the short side, not both
    cut = described(digits, eval_crop="border", resize_to=9, depth=16, mean=(0.1,))
    assert (cut["view"]["resize_to"], cut["view"]["fill"]) == ((9, 9), (6554,))
    assert "pixels from 0 to 65535" in cut["input"]["meaning"]


def test_a_description_has_the_temperature_and_no_places_of_a_machine(digits):
    focal = dataclasses.replace(digits.config, loss=config.Focal(name="focal"))
    begun = dataclasses.replace(focal, init_from="/home/me/x.npz")
    about = described(dataclasses.replace(digits, config=begun, temperature=1.25))
    assert about["outputs"]["probabilities"]["meaning"] == "softmax of the logits divided by 1.25"
    assert config.build(about["config"]) == focal


@pytest.mark.slow
def test_float32_is_float32_on_every_platform():
    products, stored = {}, {}
    for name, file, dtype in (
        ("vit", "vit_tiny_token", "float32"),
        ("hybrid", "hybrid_tiny", "float32"),
        ("half", "vit_tiny_token", "bfloat16"),
    ):
        options = export.ExportOptions(dtype=dtype, platforms=("cpu", "tpu"))
        program = export.trace(loading.load(FIXTURES / f"{file}.npz"), options)
        assert program.platforms == ("cpu", "tpu")
        text = program.mlir_module()
        products[name] = re.findall(r"stablehlo\.(?:dot_general|convolution).*", text)
        stored[name] = set(
            re.findall(r"stablehlo\.constant dense<\"0x.*tensor<[x\d]+x(\w+)>", text)
        )
    assert len(products["vit"]) >= 8
    assert any("convolution" in line for line in products["hybrid"])
    for line in products["vit"] + products["hybrid"]:
        assert line.count("HIGHEST") == 2, line
    assert not any("HIGHEST" in line for line in products["half"])
    whole = [line for line in products["half"] if "bf16" not in line]
    # Only the layer before the head, and the head, see float32: what is left of an image, (B, D).
    assert whole
    assert all("(tensor<?x24xf32>" in line for line in whole)
    assert stored == {"vit": {"f32"}, "hybrid": {"f32"}, "half": {"f32", "bf16"}}


EVEN = {"crop_rounding": "even", "crop_pct": 0.86}


def differences(image, data, view):
    """How far each pixel of a program's view of an image is from that of evaluation."""
    expected = image
    for transform in transforms.eval_transforms(data):
        expected = transform(expected, rng())
    (seen,) = np.asarray(view(image[None]))
    assert (seen.shape, seen.dtype) == (expected.shape, np.uint8)
    return np.abs(seen.astype(int) - expected).ravel()


@pytest.mark.parametrize(
    ("size", "fields"),
    [
        ((37, 61), {"image_size": (32, 48)}),
        ((16, 700), {"eval_crop": "central", "resize_to": 37}),
        ((36, 61), {"eval_crop": "central", "resize_to": 37, "resampling": "antialiased_bicubic"}),
        ((64, 50), {"eval_crop": "central", "resize_to": 37, "eval_resampling": "area"}),
        ((64, 50), {"eval_crop": "border", "resampling": "antialiased_bilinear", **EVEN,
                    "fill": (0.2,)}),
        ((47, 64), {"eval_crop": "central", "resampling": "lanczos", **EVEN}),
        ((64, 50), {"eval_crop": "squash", "resampling": "hamming", **EVEN}),
        ((48, 48), {"resampling": "nearest"}),
    ],
)  # fmt: skip
def test_a_view_of_one_size_is_that_of_evaluation(size, fields):
    data = config.Data(**{"image_size": (32, 32), **fields})
    image = rng().integers(0, 256, (*size, 3), np.uint8)
    off = differences(image, data, jax.jit(lambda images: export_resizing.view(images, data)))
    assert off.max() <= 1
    assert off.mean() < 0.15


def test_sides_are_rounded_as_python_rounds():
    pairs = [(n, d) for d in (1, 2, 3, 4, 6, 40) for n in range(300)]
    numerators, denominators = (np.array(values, np.int32) for values in zip(*pairs, strict=True))
    rounded = export_resizing.rounded_ratio(jnp.asarray(numerators), jnp.asarray(denominators))
    assert rounded.tolist() == [round(n / d) for n, d in pairs]


def test_one_command_makes_a_program(tmp_path, capsys):
    source, output = FIXTURES / "vit_tiny_gap.npz", tmp_path / "gap.stablehlo"
    arguments = ["export", "--checkpoint", str(source), "--to=stablehlo", f"--output={output}"]
    more = ["--platforms=tpu,cpu", "--batch=2", "--any-size", "--dtype=bfloat16"]
    assert cli.main([*arguments, *more]) == 0
    printed = capsys.readouterr().out
    assert "uint8 (2, h, w, 3)" in printed
    assert "float32 (2, 7)" in printed
    content = output.read_bytes()
    assert jax.export.deserialize(bytearray(content)).platforms == ("tpu", "cpu")
    assert {p.name for p in tmp_path.iterdir()} == {output.name, f"{output.name}.json"}
    about = json.loads((tmp_path / f"{output.name}.json").read_text())
    digest = hashlib.sha256(content).hexdigest()
    assert about["file"] == {"name": output.name, "bytes": len(content), "sha256": digest}
    assert (about["input"]["shape"], about["input"]["dtype"]) == ([2, "h", "w", 3], "uint8")
    assert about["outputs"]["logits"] == {"shape": [2, 7], "dtype": "float32"}
    assert about["outputs"]["probabilities"]["meaning"] == "softmax of the logits"
    assert about["classes"] == [f"class {number}" for number in range(7)]
    assert about["platforms"] == ["tpu", "cpu"]
    assert about["versions"]["jax"] == jax.__version__
    assert config.build(about["config"]).model.num_classes == 7


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--platforms=cpu,gpu", "--platforms=gpu: no such platform; known: cpu, cuda, rocm, tpu"),
        ("--platforms=cpu,", "--platforms=: no such platform; known: cpu, cuda, rocm, tpu"),
        ("--batch=0", "--batch=0: must be a whole number, at least 1"),
        ("--output=OLD", "--output=OLD: OLD exists; remove it or name another"),
        ("--output=DESCRIBED", "--output=DESCRIBED: DESCRIBED.json exists; remove it or"),
        ("--output=none/x", "--output=none/x: no such folder as none"),
        ("--output=OLD/x", "--output=OLD/x: no such folder as OLD"),
    ],
)
def test_mistakes_are_said_in_one_line(option, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("OLD", "DESCRIBED.json"):
        pathlib.Path(name).write_text("precious")
    arguments = ["export", "--checkpoint", "nowhere.npz", "--to=stablehlo", "--output=new", option]
    assert commands.woe(commands.run(capsys, *arguments)).startswith(message)
    assert {p.read_text() for p in tmp_path.iterdir()} == {"precious"}


def test_a_model_too_large_for_a_program_is_refused(digits, monkeypatch):
    size = 4 * digits.model.num_params
    monkeypatch.setattr(export, "MAX_BYTES", size - 1)
    said = f"unnamed: has {size / 1e9:.2f} GB of parameters, and a program holds at most 0.00 GB"
    refused = config.ConfigError, export.trace, digits, export.ExportOptions()
    line = f"{said}; set --dtype=bfloat16, which takes half"
    assert commands.error_line(*refused) == line
    monkeypatch.setattr(export, "MAX_BYTES", 100)
    assert commands.error_line(*refused) == said


@pytest.mark.slow
def test_attention_of_one_kind_of_device_is_left_behind(digits):
    model = dataclasses.replace(digits.config.model, attention="cudnn")
    predictor = dataclasses.replace(digits, config=dataclasses.replace(digits.config, model=model))
    exported = export.trace(predictor, export.ExportOptions(dtype="bfloat16"))
    assert "cudnn" not in exported.mlir_module()
    assert exported.platforms == ("cpu", "cuda", "tpu")
