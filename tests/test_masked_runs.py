"""Runs of masked patch prediction: resumed, fine-tuned, loaded by every command."""

import jax
import numpy as np
import pytest

import runs
from vit_jax import cli, config, train_loop
from vit_jax.inference import loaded_model, loading
from vit_jax.inference.inspect import measures
from vit_jax.inference.inspect.measures import CannotAnswer
from vit_jax.training import build, run_config
from vit_jax.utils import tree_utils

MASKED = {
    "model": {"patch_size": 2, "depth": 1, "unroll": 1, "dropout": 0.1},
    "data": {"train_split": "train[:64]", "eval_split": "test[:32]"},
    "train": {"duration": "6", "label_smoothing": 0.0},
    "objective": {"name": "masked_patches"},
    "checkpoint": {"every": 3, "best": "loss"},
    "evaluation": {"every": 3},
}  # fmt: skip


def configure(**sections):
    return runs.configure(**runs.merged(MASKED, sections))


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("masked") / "run"
    train_loop.train(configure(), workdir)
    return workdir


@pytest.mark.slow
def test_it_resumes_bit_for_bit(pretrained, tmp_path, monkeypatch):
    workdir = tmp_path / "run"
    runs.train_in_parts(monkeypatch, configure(), workdir, 4)
    for key in ("train/loss", "train/accuracy", "train/error", "test/loss", "test/accuracy"):
        given, expected = runs.trace(workdir, key), runs.trace(pretrained, key)
        assert given.items() <= expected.items()
        assert max(given) == max(expected) == 6
    assert runs.digests(workdir) == runs.digests(pretrained)


@pytest.mark.slow
def test_fine_tuning_drops_what_only_filled_in(pretrained, tmp_path, caplog):
    caplog.set_level("INFO", logger="vit_jax")
    cfg = configure(
        objective={"name": "supervised"}, init_from=str(pretrained), optimizer={"lr": 1e-9},
        train={"duration": "1", "ema": None}, schedule={"warmup": 0},
        checkpoint={"best": "top1"},
    )  # fmt: skip
    train_loop.train(cfg, tmp_path / "run")
    lines = [record.message for record in caplog.records]
    assert (
        "  dropped: mask_token, prediction/bias, prediction/kernel (of masked patch prediction)"
        in lines
    )
    assert "  fresh: head/bias, head/kernel (the head is new)" in lines
    given, ended = (
        tree_utils.flatten(jax.device_get(loading.load(where).params))
        for where in (pretrained, tmp_path / "run")
    )
    assert set(ended) - set(given) == {"head/kernel", "head/bias"}
    for name in set(ended) & set(given):
        np.testing.assert_allclose(ended[name], given[name], rtol=0, atol=1e-7, err_msg=name)


KNOWS_NONE = (
    "learned by objective.name=masked_patches, so it knows no classes; fine-tune it: vit_jax train"
)


@pytest.mark.slow
def test_what_names_classes_says_that_it_knows_none(pretrained, tmp_path, capsys):
    for words in (
        ["predict", "--examples=1"],
        ["export", "--to=stablehlo", f"--output={tmp_path}/x.stablehlo"],
    ):
        assert cli.main([*words, f"--checkpoint={pretrained}"]) == 2
        assert KNOWS_NONE in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_images_are_filled_in(pretrained):
    opened = loading.load(pretrained)
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 1), np.uint8)
    found = measures.predict_masked(opened, images)
    masked = np.zeros((3, 16), bool)
    np.put_along_axis(masked, found["indices"], True, axis=1)
    pixels = masked.reshape(3, 4, 4).repeat(2, axis=1).repeat(2, axis=2)
    for name in ("corrupted", "predicted"):
        np.testing.assert_array_equal(found[name][~pixels], images[~pixels])
    assert found["masked"].sum() == 3 * 6 * 4
    assert (found["corrupted"][found["masked"]] == 127).all()
    assert set(np.unique(found["predicted"][pixels])) <= {*range(16, 256, 32)}
    other = loaded_model.LoadedModel(config=runs.configure(), params={}, classes=(), kind="run")
    with pytest.raises(CannotAnswer, match="the model predicts no masked patches; train one"):
        measures.predict_masked(other, images)


@pytest.mark.slow
def test_what_fills_no_patch_is_not_filled_in():
    cfg = runs.configure(
        model={"patch_size": (4, 4), "patch_remainder": "drop"},
        data={"image_size": (9, 14)},
        objective={"name": "masked_patches"},
        checkpoint={"best": "loss"},
    )
    params = build.create_model(cfg).init(jax.random.key(0))
    opened = loaded_model.LoadedModel(config=cfg, params=params, classes=(), kind="run")
    images = np.random.default_rng(0).integers(0, 256, (2, 9, 14, 1), np.uint8)
    found = measures.predict_masked(opened, images)
    assert found["original"].shape == found["predicted"].shape == (2, 8, 12, 1)
    np.testing.assert_array_equal(found["original"], images[:, :8, :12])
    left = ~found["masked"]
    assert left.any()
    assert found["masked"].any()


# Mistakes


@pytest.mark.parametrize(
    ("options", "line"),
    [  # beside what test_mae.py has of every objective of patches
        ({"model.variant": "R50x1"}, "objective.name={0}: resnet has no patches to mask"),
        ({"train.label_smoothing": "0.1"}, "train.label_smoothing=0.1: objective.name={0}"),
        ({"loss.name": "sigmoid"}, "loss.name=sigmoid: objective.name={0} has a loss of"),
        ({"model.head_bias": "-10"}, "model.head_bias=-10: objective.name={0} has no head"),
        ({"model.representation_size": "8"}, "model.representation_size=8: objective.name"),
        ({"evaluation.tasks": "imagenet"}, "evaluation.tasks=imagenet: objective.name={0}"),
        ({"objective.target": "color_4x4"}, "objective.target=color_4x4: patches of 2,2 pixels"),
        ({"objective.target": "colors"}, "objective.target=colors: no such choice; did you mean "),
        ({"objective.split": "0.8,0.1"}, "objective.split=0.8,0.1: needs three shares that add up"),
        ({"objective.split": "0.8,0.1,0.2"}, "objective.split=0.8,0.1,0.2: needs three shares"),
        ({"objective.rate": "0.03"}, "objective.rate=0.03: masks none of the 16 patches; more"),
    ],
)
def test_what_cannot_work_is_one_line(options, line):
    with pytest.raises(config.ConfigError) as caught:
        run_config.resolve("masked/digits", options)
    assert str(caught.value).startswith(line.format("masked_patches"))
    assert "\n" not in str(caught.value)


def test_it_is_transferred_from_not_transferred(capsys):
    assert cli.main(["transfer", "masked/digits", "--rates=0.1"]) == 2
    assert capsys.readouterr().err == (
        "vit_jax: objective.name=masked_patches: transfer chooses by top-1, and an objective "
        "without labels has none; run `vit_jax train masked/digits`\n"
    )
