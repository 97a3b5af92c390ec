"""Means of checkpoints: of every number, and of like models alone."""

import dataclasses
import pathlib

import jax
import numpy as np
import pytest

import vit_jax
from vit_jax import cli, config
from vit_jax.config import ConfigError
from vit_jax.inference import averaging, conversion, loaded_model
from vit_jax.utils import tree_utils

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    """Three files of one model with other numbers."""
    folder, random = tmp_path_factory.mktemp("soup"), np.random.default_rng(0)
    with np.load(FIXTURES / "vit_tiny_token.npz") as file:
        arrays = dict(file)
    files = []
    for number in range(3):
        changed = {
            name: array + random.normal(size=array.shape).astype(array.dtype)
            for name, array in arrays.items()
        }
        files.append(folder / f"{number}.npz")
        np.savez(files[-1], **changed)
    return files


def opened(*numbers, classes=("cat", "dog"), fresh=(), **sections):
    """A loaded model of an array or two."""
    return loaded_model.LoadedModel(
        config=config.build(sections),
        params={f"a{i}": np.float32([number]) for i, number in enumerate(numbers)},
        classes=classes,
        kind="run",
        temperature=1.5,
        fresh=dict.fromkeys(fresh, "missing"),
    )


@pytest.fixture
def soup(monkeypatch):
    """Averages loaded models by name; returns what would be written, and what was loaded how."""

    def cook(models, references=None, **options):
        written, asked = [], []
        monkeypatch.setattr(
            averaging.loading, "load", lambda *given: asked.append(given) or models[given[0]]
        )
        monkeypatch.setattr(averaging.conversion, "check_free", lambda output: None)
        monkeypatch.setattr(
            averaging.conversion, "save_checkpoint", lambda *given: written.append(given)
        )
        given = references or list(models)
        cook.said = averaging.average(given, "out", {"data.crop_pct": "0.9"}, **options)
        ((whole, params, _, _),) = written
        assert whole.params is params
        return whole, asked

    return cook


def test_a_mean_is_rounded_once_and_has_no_temperature(soup):
    """In float32, 2^24 + 1 + 1 stays 2^24."""
    whole, asked = soup({"a": opened(2.0**24), "b": opened(1.0), "c": opened(1.0)})
    assert whole.params["a0"] == np.float32((2.0**24 + 2) / 3)
    assert whole.params["a0"].dtype == np.float32
    assert whole.temperature is None
    assert [line for line in soup.said if line.startswith("temperature: left out, as each was fit")]
    assert asked == [(name, {"data.crop_pct": "0.9"}, None) for name in "abc"]


def test_the_newest_checkpoints_of_a_run_are_its_last(soup, monkeypatch):
    monkeypatch.setattr(averaging.loading, "is_run", lambda reference: True)
    monkeypatch.setattr(averaging.loading, "find_checkpoint", lambda path: (path, 30, {}))
    monkeypatch.setattr(averaging.records, "readable", lambda folder: {10: {}, 30: {}, 20: {}})
    whole, asked = soup({"run": opened(4.0)}, last=2)
    assert [step for _, _, step in asked] == [30, 20]  # the mean is called step 30
    assert whole.params["a0"] == 4
    with pytest.raises(ConfigError, match="--last=4: run has 3 checkpoints"):
        soup({"run": opened(4.0)}, last=4)
    with pytest.raises(ConfigError, match="--last=2: is for the checkpoints of one run"):
        soup({"run": opened(4.0), "other": opened(4.0)}, last=2)


@pytest.mark.parametrize(
    ("other", "line"),
    [
        (
            opened(1.0, data={"std": (0.25,)}),
            "data.std 0.5 and 0.25; --config.data.std=0.5 sets it for all",
        ),
        (opened(1.0, data={"channels": 1}), "data.channels 3 and 1"),
        (opened(1.0, model={"pooling": "gap"}), "model.pooling token and gap"),
        (opened(1.0, loss={"name": "sigmoid"}), "loss.name softmax and sigmoid"),
        (opened(1.0, classes=("dog", "cat")), "other classes, or in another order"),
        (opened(1.0, 2.0), "other parameters"),
        (opened(1.0, fresh=["head/bias", "head/kernel"]), "one of them has no head/bias"),
        pytest.param(
            opened(1.0, data={"eval_resampling": "area"}),
            r"data.eval_resampling (\w+) and area; "
            r"--config.data.eval_resampling=\1 sets it for all",
            id="resampling",
        ),
    ],
)
def test_unlike_models_are_named(soup, other, line):
    with pytest.raises(ConfigError, match=f"^b: is unlike a \\({line}\\); average"):
        soup({"a": opened(1.0), "b": other})


def test_runs_that_trained_otherwise_are_a_soup(soup):
    """And published weights, which give each channel's mean, with a run that began with them."""
    other = {"init": "mimetic", "dropout": 0.1, "stochastic_depth": 0.2, "dtype": "bfloat16"}
    other |= {"patch_remainder": "drop", "position_resize": "bicubic", "variant": "ViT-Ti/16"}
    one = opened(1.0, model={"layer_scale": 0.1, "head_bias": -9.0})
    weights = opened(3.0, model=other | {"layer_scale": 1e-5}, data={"mean": (0.5, 0.5, 0.5)})
    whole, _ = soup({"a": one, "b": weights})
    assert whole.params["a0"] == 2
    assert whole.config.model.layer_scale == 0.1


def test_what_loading_says_and_what_is_left_behind_is_said_once(soup, monkeypatch):
    def behind(run):
        return ("its own head stays",) if run.params["a0"] == 1 else ()

    monkeypatch.setattr(averaging.conversion, "left_behind", behind)
    noted = [dataclasses.replace(opened(float(n)), notes=("heads: assumed",)) for n in range(3)]
    soup(dict(zip("abc", noted, strict=True)))
    assert soup.said[3:5] == ["heads: assumed", "its own head stays"]


def flat(reference):
    return tree_utils.flatten(jax.device_get(vit_jax.load(reference).params))


@pytest.mark.slow
def test_the_last_checkpoints_of_a_run(tmp_path, capsys):
    options = {
        "train.duration": "9 steps", "schedule.warmup": "2 steps", "checkpoint.every": "3 steps",
        "checkpoint.keep": "2", "logging.tensorboard": "false",
    }  # fmt: skip
    run = tmp_path / "run"
    vit_jax.train("digits", run, options)
    assert cli.main(["average", str(run), "--last=2", f"--output={tmp_path}/mean"]) == 0
    first, second = (
        tree_utils.flatten(jax.device_get(vit_jax.load(run, step=step).params)) for step in (6, 9)
    )
    for name, leaf in flat(tmp_path / "mean").items():
        expected = (np.asarray(first[name], np.float64) + second[name]) / 2
        np.testing.assert_array_equal(leaf, expected.astype(np.float32))
    assert vit_jax.load(tmp_path / "mean").classes == vit_jax.load(run).classes
    assert cli.main(["average", str(run), "--last=3", f"--output={tmp_path}/more"]) == 2
    assert "has 2 checkpoints; checkpoint.keep=3" in capsys.readouterr().err


def test_mistakes(members, tmp_path):
    for one in (members[0], str(members[0]), members[:1]):
        with pytest.raises(ConfigError, match=r"--last=2: is for the checkpoints of one run"):
            averaging.average(one, tmp_path / "x", last=2)
        with pytest.raises(ConfigError, match="needs two checkpoints"):
            averaging.average(one, tmp_path / "x")
    with pytest.raises(ConfigError, match="exists already"):
        averaging.average(members, tmp_path)
    with pytest.raises(ConfigError, match=r"0\.npz is no folder$"):
        averaging.average(members, members[0] / "x")
    with pytest.raises(ConfigError, match=r"0\.npz: is named twice; name each checkpoint once"):
        averaging.average([*members[:2], f"{members[0].parent}/./0.npz"], tmp_path / "x")
    (members[0].parent / "link.npz").symlink_to(members[0])
    with pytest.raises(ConfigError, match=r"link\.npz: is named twice; name each checkpoint once"):
        averaging.average([*members[:2], members[0].parent / "link.npz"], tmp_path / "x")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["optimizer.lr=1", "data.flip=0", "data.phases.small.until=9"])
def test_what_training_alone_reads_is_refused(option, tmp_path):
    given = dict([option.split("=")])
    with pytest.raises(ConfigError, match=f"{option}: is read in training alone; leave it out"):
        averaging.average(["gone", "too"], tmp_path / "x", given)
    with pytest.raises(ConfigError, match=f"{option}: is read in training alone; leave it out"):
        conversion.convert("gone", "adapter", tmp_path / "x", given)
