"""The example project adds each of the nine kinds: trains, resumes exactly, evaluates, reports."""

import json
import subprocess
import sys

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plugins
import runs
import vit_jax
from vit_jax import cli, config, models
from vit_jax.config import components
from vit_jax.inference.inspect import saliency

KINDS = {path.stem for path in (plugins.PROJECT / "my_project").glob("[a-z]*.py")}


def train(workdir, *more):
    options = plugins.flags(plugins.NINE | plugins.SHORT)
    given = ["train", "digits", f"--workdir={workdir}", "--plugins=my_project", *options, *more]
    return cli.main(given)


@pytest.fixture(scope="module", autouse=True)
def project():
    with plugins.loaded() as module:
        yield module


@pytest.fixture(scope="module")
def workdir(project, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plugins") / "run"
    assert train(folder) == 0
    return folder


@pytest.mark.slow
def test_every_component_takes_part(workdir):
    stored = json.loads((workdir / "config.json").read_text())
    assert (stored["model"]["architecture"], stored["model"]["filters"]) == ("convnet", 8)
    assert (stored["optimizer"]["name"], stored["optimizer"]["decay"]) == ("sign_momentum", 0.8)
    assert stored["data"]["transforms"] == [{"name": "speckle", "share": 0.2}]
    assert stored["logging"]["loggers"] == [{"name": "csv", "metric": "train/loss"}]
    lines = (workdir / "train_loss.csv").read_text().splitlines()
    logged = {int(step): float(loss) for step, _, loss in (x.partition(",") for x in lines)}
    assert logged == runs.trace(workdir, "train/loss")
    assert list(logged) == [1, 2, 3, 4, 5, 6]
    rates = list(runs.trace(workdir, "train/lr").values())
    np.testing.assert_allclose(rates, 1e-3 * np.array([0.1, 0.55, 1, 0.75, 0.5, 0.25]), rtol=1e-5)
    assert 0 <= runs.trace(workdir, "worst_class/top1")[6] <= runs.trace(workdir, "test/top1")[6]


@pytest.mark.slow
def test_a_stopped_run_resumes_bit_for_bit(workdir, tmp_path, monkeypatch):
    with runs.stopping_at(monkeypatch, 4):
        assert train(tmp_path / "run") == 75
    resumed = ["train", f"--workdir={tmp_path / 'run'}", "--plugins=my_project"]
    assert cli.main(resumed) == 0
    runs.assert_equal_runs(tmp_path / "run", workdir)


def test_its_model_has_no_head_where_there_are_no_classes():
    """As for its objective, which needs no labels."""
    options = config.Model(architecture="convnet")
    model = models.create(options, image_size=(8, 8), channels=1, headless=True)
    images = jax.ShapeDtypeStruct((2, 8, 8, 1), jnp.float32)
    logits, out = jax.eval_shape(model.apply, model.shapes(), images)
    assert (logits.shape, out["pre_logits"].shape) == ((2, 0), (2, 32))
    assert set(model.shapes()) == {"conv"}


def test_an_edited_plug_in_is_refused(workdir, monkeypatch, capsys):
    (record,) = (json.loads(max(workdir.glob("checkpoints/*/commit.json")).read_text()),)
    sealed = record["commit"]["facts"]["plugins"]
    assert set(sealed) == {"my_project", *(f"my_project.{kind}" for kind in KINDS)}
    other = sealed | {"my_project.loss": "0"}
    monkeypatch.setattr(components, "digests", lambda modules: other)
    assert cli.main(["train", f"--workdir={workdir}", "--plugins=my_project"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "vit_jax: --plugins: my_project.loss changed since step 6; restore it, or choose another "
        "--workdir; --accept=plugins resumes with the change"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_attention_of_ones_own_in_the_built_in_vit(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(plugins.PROJECT))
    short = plugins.SHORT | {"model.architecture": "cosine_vit", "model.scale": "5"}
    named, options = "--plugins=own_attention", plugins.flags(short)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert cli.main(["train", "digits", f"--workdir={whole}", named, *options]) == 0
    with runs.stopping_at(monkeypatch, 4):
        assert cli.main(["train", "digits", f"--workdir={stopped}", named, *options]) == 75
    assert cli.main(["train", f"--workdir={stopped}", named]) == 0
    runs.assert_equal_runs(stopped, whole)

    model = vit_jax.load(whole)
    images = model.preprocess(np.zeros((2, 8, 8, 1), np.uint8))
    _, out = model.apply(model.params, images, capture=True)
    np.testing.assert_allclose(np.asarray(out["attention"]).sum(axis=-1), 1, rtol=1e-5)
    scale = np.asarray(model.params["encoder"]["attention"]["scale"])
    assert scale.shape == (4, 4)  # layers and heads of `digits`
    assert 0 < np.abs(scale - 5).max() < 0.1  # it trains
    assert "FLOPs" in dict(vit_jax.preview("digits", tmp_path / "x", short))["model"]
    there = [f"--checkpoint={whole}", named]
    assert cli.main(["inspect", "rollout", *there, "--count=2"]) == 0
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 1), np.uint8)
    (maps,) = saliency.class_maps(model, pixels, [1])
    assert maps[saliency.GRADIENT_ROLLOUT].any()  # its attention reads `gate`
    capsys.readouterr()
    assert cli.main(["convert", *there, "--to=timm", f"--output={tmp_path / 'timm'}"]) == 2
    said = "model.architecture=cosine_vit: timm has no equivalent"
    assert capsys.readouterr().err.endswith(f"\nvit_jax: {said}\n")


@pytest.mark.slow
def test_loader_processes_make_the_same_images(workdir, tmp_path):
    path = f"{plugins.PROJECT}:{runs.PATHS}"
    options = plugins.flags(plugins.NINE | plugins.SHORT | {"data.workers": "1"})
    where = [f"--workdir={tmp_path / 'run'}", "--plugins=my_project"]
    command = [sys.executable, "-m", "vit_jax", "train", "digits", *where, *options]
    subprocess.run(command, env=runs.environment(8, PYTHONPATH=path), check=True)
    runs.assert_equal_runs(tmp_path / "run", workdir)


def test_it_evaluates(workdir, capsys):
    assert cli.main(["evaluate", f"--checkpoint={workdir}", "--plugins=my_project"]) == 0
    shown = capsys.readouterr().out
    found = vit_jax.evaluate(workdir)
    for name in ("test/top1", "test/loss", "worst_class/top1"):
        assert found[name] == runs.trace(workdir, name)[6]
        assert name in shown


def test_it_reports(workdir, tmp_path):
    given = ["report", str(workdir), "--plugins=my_project", f"--output={tmp_path}"]
    assert cli.main(given) == 0
    page = (tmp_path / "report.md").read_text()
    assert "A convnet with 154 parameters" in page
    assert "| worst_class top-1 |" in page
    assert "sign_momentum" in page


def test_it_predicts(workdir, tmp_path, capsys, project):
    picture = vit_jax.load(workdir).preprocess(np.zeros((8, 8, 3), np.uint8))
    assert picture.shape == (1, 8, 8, 1)
    source = project.source.Stripes(vit_jax.load(workdir).config.data, "test")
    cv2.imwrite(str(tmp_path / "across.png"), source[0].image)
    given = ["predict", f"--checkpoint={workdir}", "--plugins=my_project", str(tmp_path)]
    assert cli.main(given) == 0
    (line,) = (x for x in capsys.readouterr().out.splitlines() if "across.png" in x)
    assert "down" in line


@pytest.mark.slow
def test_a_loop_of_ones_own_trains():
    file = plugins.PROJECT / "own_loop.py"
    done = subprocess.run(
        [sys.executable, str(file)],
        env=runs.environment(PYTHONPATH=runs.PATHS),
        capture_output=True,
        text=True,
        check=True,
    )
    words = done.stdout.split()
    assert float(words[1]) < 0.1
    assert words[2:] == ["after", "100", "steps"]
