"""Which files and examples are predicted, and what cannot be read."""

import types

import numpy as np
import pytest

from vit_jax import config
from vit_jax.data import sources
from vit_jax.evaluation import task_sets
from vit_jax.inference import embedding, prediction


def test_a_file_that_is_gone_is_named(tmp_path):
    (tmp_path / "a.png").write_bytes(b"1")
    with pytest.raises(config.ConfigError, match=r"gone\.png: no such file or folder$"):
        prediction.list_files([tmp_path / "a.png", tmp_path / "gone.png"])
    files = prediction.read_files([tmp_path / "a.png", tmp_path / "gone.png"])
    assert next(files) == (str(tmp_path / "a.png"), b"1", None)
    with pytest.raises(config.ConfigError, match=r"gone\.png: No such file or directory$"):
        next(files)


@pytest.mark.parametrize("given", [{}, {"images": ["a.png"], "examples": 2}])
def test_files_or_examples_are_predicted(given):
    with pytest.raises(config.ConfigError, match="give images or examples, and not both"):
        prediction.predict("run", **given)
    with pytest.raises(config.ConfigError, match="^--seed=1: draws examples, but images are given"):
        prediction.predict("run", ["a.png"], seed=1)


def test_arrays_are_no_paths():
    with pytest.raises(config.ConfigError, match="^images: must be text or a path, not ndarray$"):
        prediction.predict("run", np.zeros((4, 4, 3)))


def test_a_folder_without_images_says_what_it_holds(tmp_path):
    (tmp_path / "notes.txt").touch()
    (tmp_path / "empty").mkdir()
    for folder, held in ((tmp_path, "files; it contains 1 .txt .*"), (tmp_path / "empty", "files")):
        with pytest.raises(config.ConfigError, match=rf"holds no \.jpg, .* {held}$"):
            prediction.list_files([folder])


def test_files_are_as_given_and_those_of_folders_sorted(tmp_path):
    for name in ("b.png", "a.png"):
        (tmp_path / name).touch()
    listed = prediction.list_files([tmp_path / "b.png", tmp_path])
    assert [file.name for file in listed] == ["b.png", "a.png", "b.png"]
    for one in (tmp_path / "a.png", str(tmp_path / "a.png")):  # a text is no list of letters
        assert prediction.list_files(one) == [tmp_path / "a.png"]


def test_a_number_of_files_is_drawn_by_seed(tmp_path):
    for number in range(9):
        (tmp_path / f"{number}.png").touch()
    some, others = (prediction.list_files([tmp_path], 4, seed) for seed in (0, 1))
    assert len(some) == len(set(some)) == 4
    assert some == prediction.list_files([tmp_path], 4, 0) != others
    assert len(prediction.list_files([tmp_path], 9)) == 9


def test_examples_of_random_pixels_have_the_classes_of_the_head():
    cfg = config.build({
        "model": {"variant": "ViT-Ti/16", "num_classes": 7},
        "data": {"source": "synthetic", "eval_split": "test[:20]", "image_size": 16},
    })  # fmt: skip
    names = tuple(map(str, range(7)))
    loaded = types.SimpleNamespace(config=cfg, classes=names, names=names)
    truths = {truth for _, _, truth in prediction.read_examples(loaded, 20)}
    assert truths <= set(loaded.classes)
    assert len(truths) > 3
    own = sources.open_split(cfg, "test[:20]")
    assert embedding._source(loaded, None, "").fingerprint() == own.fingerprint()
    assert [one.classes for one in task_sets._own_splits(cfg)] == [own.classes] * 2
