"""Data sets packed from official archives against those that TFDS's own builders make of them."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
import tensorflow_datasets as tfds

import official_fakes
import tfds_reference
from vit_jax import cli
from vit_jax.prepare.official import recipes

SETS = {
    "imagenet": "imagenet2012",
    "cifar10": "cifar10",
    "cifar100": "cifar100",
    "pets": "oxford_iiit_pet",
    "flowers": "oxford_flowers102",
    "fewshot/caltech101": "caltech101",
}
FAKES = {"imagenet": official_fakes.imagenet}


def fake(task, root):
    """Writes small archives; returns how many images they have by split."""
    root.mkdir(parents=True, exist_ok=True)
    name = SETS[task].partition("/")[0]
    return FAKES.get(task, getattr(official_fakes, name, None))(root)


@pytest.fixture
def sized(monkeypatch):
    """Makes a recipe expect other numbers of images than the official ones."""

    def change(task, splits):
        name = SETS[task]
        small = dataclasses.replace(recipes.RECIPES[name], splits=splits)
        monkeypatch.setitem(recipes.RECIPES, name, small)

    return change


@pytest.fixture
def prepare(capsys, tmp_path):
    """Runs the command; returns exit code, lines printed, lines of woe."""

    def run(*arguments, data_dir="data", workers=1):
        capsys.readouterr()
        code = cli.main(
            ["prepare", *arguments, f"--data_dir={tmp_path / data_dir}", f"--workers={workers}"]
        )
        captured = capsys.readouterr()
        return code, captured.out.splitlines(), captured.err.splitlines()

    return run


def woe(result):
    """The one line of an error."""
    code, lines, errors = result
    assert (code, lines) == (2, [])
    (line,) = errors
    return line.removeprefix("vit_jax: ")


def examples(builder, split):
    """All examples of a split in their order; images as bytes."""
    skip = {
        name: tfds.decode.SkipDecoding()
        for name, feature in builder.info.features.items()
        if isinstance(feature, tfds.features.Image)
    }
    return list(builder.as_data_source(split, decoders=skip))


def assert_same(ours, theirs, path=()):
    assert type(ours) is type(theirs), path
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), path
        for name, value in ours.items():
            assert_same(value, theirs[name], (*path, name))
    elif isinstance(ours, np.ndarray):
        np.testing.assert_array_equal(ours, theirs, str(path))
        assert ours.dtype == theirs.dtype, path
    else:
        assert ours == theirs, path


@pytest.mark.parametrize("task", SETS)
def test_is_what_tfds_makes_of_the_same_archives(task, prepare, sized, tmp_path, monkeypatch):
    """Splits, order, every feature of every record, class names: all from TFDS's own code."""
    name = SETS[task]
    splits = fake(task, tmp_path / "archives")
    sized(task, splits)
    code, lines, errors = prepare(task, f"--from={tmp_path / 'archives'}")
    assert (code, errors) == (0, [])
    theirs = tfds_reference.build(monkeypatch, name, tmp_path / "archives", tmp_path / "reference")
    folder = tmp_path / "data" / name / str(theirs.version)
    assert lines[-1].endswith(f": prepared, in {folder}")
    for ours in (
        tfds.builder(name, data_dir=str(tmp_path / "data")),
        tfds.builder_from_directory(folder),
    ):
        assert ours.info.full_name == theirs.info.full_name
        assert ours.info.file_format == theirs.info.file_format
        assert {n: s.num_examples for n, s in ours.info.splits.items()} == splits
        assert set(theirs.info.splits) == set(splits)
        assert ours.info.supervised_keys == theirs.info.supervised_keys
        for feature, one in theirs.info.features.items():
            if isinstance(one, tfds.features.ClassLabel):
                assert ours.info.features[feature].names == one.names
        for split in splits:
            found, expected = examples(ours, split), examples(theirs, split)
            for one, other in zip(found, expected, strict=True):
                assert_same(one, other)
    good = f"{task}: {sum(splits.values())} examples in {folder}, all good"
    assert prepare(task, "--verify") == (0, [good], [])
