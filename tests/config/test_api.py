"""The Python API as a user meets it: its examples run, it imports lightly, scripts type-check."""

import dataclasses
import doctest
import logging
import pathlib
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest

import foreign
import runs
import vit_jax
from vit_jax import api, config, train_loop
from vit_jax.config import components
from vit_jax.data import decoding
from vit_jax.inference import conversion, embedding, loading, prediction
from vit_jax.runtime import backend, logs
from vit_jax.studies.transfer import study
from vit_jax.training import build, run_config
from vit_jax.utils.errors import AssumptionWarning, UserError

ROOT = pathlib.Path(__file__).resolve().parents[2]
OPTIONS = {
    "model.width": 16,
    "model.depth": 1,
    "model.mlp_dim": 32,
    "model.heads": 2,
    "model.unroll": 1,
    "data.eval_split": "test[:100]",
    "train.duration": "2",
    "train.batch_size": 16,
    "schedule.warmup": "1",
    "checkpoint.every": "2",
    "evaluation.every": None,
    "logging.tensorboard": False,
}
WEIGHTS = ROOT / "tests/fixtures/vit_tiny_token.npz"  # of seven classes
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 20, 30, 3), np.uint8)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two steps on the digits, from Python; its folder is that of the examples."""
    workdir = tmp_path_factory.mktemp("api") / "runs" / "digits"
    assert vit_jax.train("digits", workdir, OPTIONS).steps == 2
    return workdir


def find_examples():
    modules = (vit_jax, api, build, components, conversion, embedding, loading, prediction)
    found = (t for m in modules for t in doctest.DocTestFinder().find(m) if t.examples)
    return {test.name.removeprefix("vit_jax."): test for test in found}


EXAMPLES = find_examples()


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name, run, monkeypatch):
    """As a reader would paste it: below a run of the digits, with no name defined before."""
    monkeypatch.chdir(run.parent.parent)
    test = EXAMPLES[name]
    test.globs = {}
    assert doctest.DocTestRunner().run(test).failed == 0


def test_the_names_stay_functions():
    """No module of the package takes the place of a public function once it is imported."""
    modules = {path.stem for path in (ROOT / "vit_jax").iterdir()}
    assert not modules & set(vit_jax.__all__)


@pytest.mark.parametrize(
    ("images", "line"),
    [
        (np.full((8, 8, 1), -1, np.float32), "images: is float32 with values from -1 to -1"),
        (np.zeros((8, 8, 4), np.uint8), "images: has 4 channels, not data.channels=3"),
        ([IMAGES[0], np.zeros(8, np.uint8)], r"images\[1\]: is uint8 \(8,\); expected \(H, W\)"),
        (7, "images: has type int; expected a path"),
        ([], "images: is empty; expected at least one image"),
        ("nofile.png", "nofile.png: No such file"),
    ],
)
def test_other_images_are_one_line(images, line):
    with pytest.raises(decoding.BadImage, match=line) as caught:
        vit_jax.load(WEIGHTS).preprocess(images)
    assert "\n" not in str(caught.value)


def test_training_says_what_the_command_says(tmp_path, monkeypatch, capsys):
    """Such as that the test split is measured while training."""
    monkeypatch.setattr(logs.log, "level", logging.NOTSET)
    monkeypatch.setattr(train_loop, "train", lambda *_, **__: logs.log.info("a note"))
    monkeypatch.setattr(study, "create_plan", lambda *_, **__: None)
    monkeypatch.setattr(study, "perform", lambda *_: logs.log.info("of a transfer"))
    for level, lines in ((logging.NOTSET, "a note\nof a transfer\n"), (logging.ERROR, "")):
        logs.log.setLevel(level)
        vit_jax.train("digits", tmp_path / "run")
        vit_jax.transfer("digits", tmp_path / "transfer")
        assert capsys.readouterr().err == lines
        assert logs.log.level == level


@pytest.mark.slow
def test_a_config_trains_like_its_name(run, tmp_path):
    cfg = vit_jax.get_config("digits", OPTIONS)
    assert repr(cfg).startswith("Config(\n  name='digits',\n")
    assert vit_jax.train(cfg, tmp_path / "run").steps == 2
    assert runs.digests(tmp_path / "run") == runs.digests(run)
    with pytest.raises(config.ConfigError, match="holds another run"):
        vit_jax.train(cfg, tmp_path / "run", {"seed": 1})


def test_a_config_whose_name_needs_weights_says_that_it_has_none(tmp_path):
    cfg = vit_jax.get_config("home/ResNet-digits")
    with pytest.warns(AssumptionWarning, match="digits: init_from=none: begins with random weigh"):
        vit_jax.preview(cfg, tmp_path / "run")
    with warnings.catch_warnings(action="error"):
        vit_jax.preview(vit_jax.get_config("digits"), tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"variant": "ViT-L/16"}, "variant=ViT-L/16: the config sets other sizes, which"),
        ({"resnet_version": "v2"}, "version=v2: model.resnet_units=none does not read it"),
    ],
    ids=["variant", "unread"],
)
def test_what_changes_a_config_is_checked_like_an_option(changes, line, tmp_path):
    cfg = vit_jax.get_config("pretrain/ViT-B_16-i21k-90ep")
    cfg = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, **changes))
    with pytest.raises(config.ConfigError, match=re.escape(line)):
        vit_jax.preview(cfg, tmp_path / "run")


@pytest.mark.filterwarnings("ignore::vit_jax.utils.errors.AssumptionWarning")
def test_options_that_weights_set_in_a_config_pass(tmp_path):
    path = foreign.write(tmp_path, foreign.record("timm_hybrid"))
    cfg = vit_jax.get_config("digits", {"init_from": path, "model.heads": 4})
    assert cfg.model.resnet_epsilons == "timm"  # which a ViT without a ResNet does not read
    assert run_config.from_config(cfg, {}) == cfg
    changed = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, variant="ViT-L/16"))
    with pytest.raises(config.ConfigError, match="variant=ViT-L/16: the config sets other sizes"):
        run_config.from_config(changed, {})


def test_decay_of_optax_is_refused_of_a_config_too(tmp_path):
    cfg = vit_jax.get_config("digits", {"optimizer.name": "adafactor"})
    optimizer = dataclasses.replace(cfg.optimizer, weight_decay_rate=0.1)
    with pytest.raises(config.ConfigError, match="weight_decay_rate=0.1: set optimizer.weight_de"):
        vit_jax.preview(dataclasses.replace(cfg, optimizer=optimizer), tmp_path / "run")


def test_a_path_and_a_number_of_numpy_mean_what_their_texts_do(run, tmp_path):
    body = (
        "from vit_jax.config import catalog\ndef get_config(): return catalog.derive('digits', {})"
    )
    (tmp_path / "mine.py").write_text(body)
    assert vit_jax.get_config(tmp_path / "mine.py") == vit_jax.get_config(f"{tmp_path}/mine.py")
    assert dict(vit_jax.preview(tmp_path / "mine.py", tmp_path / "r"))["config"] == "mine"
    for step in (2, "2", np.int64(2)):
        assert loading.find_checkpoint(run, step)[1] == 2
    with pytest.raises(UserError, match="no sound checkpoint of step 3; choose step 2"):
        loading.find_checkpoint(run, "3")


def test_one_part_is_accepted_by_its_name(run):
    changed = {"optimizer.lr": 0.5}
    assert vit_jax.preview(None, run, changed, accept="config")
    with pytest.raises(UserError, match="^--accept=konfig: must be among"):
        vit_jax.preview(None, run, changed, accept="konfig")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"name_or_config": None, "workdir": "x", "smoke": True}, "smoke=True: needs the name of"),
        ({"name_or_config": None, "workdir": None}, "workdir=None: needs the name of a config"),
    ],
)
def test_what_names_no_run_is_a_line(given, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(config.ConfigError, match=line):
        vit_jax.train(**given)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_script_of_a_user_type_checks(tmp_path):
    script = ROOT / "tests" / "fixtures" / "api_script.py"
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(script)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", vit_jax.__all__)
def test_a_name_is_looked_up_once_the_backend_is_chosen(name, monkeypatch):
    """What only reads configs opens no devices."""
    chosen = []
    monkeypatch.setattr(backend, "choose_platform", lambda *, opens: chosen.append(opens))
    assert callable(vit_jax.__getattr__(name))
    assert chosen == [name not in ("get_config", "list_configs", "register")]


def test_names_that_are_not_there(monkeypatch):
    with pytest.raises(AttributeError, match="^module 'vit_jax' has no attribute 'trian'$"):
        vit_jax.__getattr__("trian")
    assert api.list_configs("digits*") == ["digits", "digits-token"]
    assert api.list_configs("nothing") == []
