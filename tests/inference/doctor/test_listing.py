"""Which images a folder has, of which split and class, whatever its layout."""

import pytest

from image_folders import fill
from vit_jax import config
from vit_jax.data.source import UNKNOWN
from vit_jax.data.sources import open_source
from vit_jax.inference.doctor.listing import list_images


def rows(root, holdout=0.0, labels=True):
    found = list_images(root, holdout, labels=labels)
    names = [found.classes[at] if at != UNKNOWN else None for at in found.label]
    splits = [found.splits[at] for at in found.split]
    return sorted(zip(found.paths, splits, names, strict=True))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["cat/a.jpg", "dog/deep/b.png", "c.jpg", "notes.txt"],
         [("c.jpg", "train", None), ("cat/a.jpg", "train", "cat"),
          ("dog/deep/b.png", "train", "dog")]),
        (["Train/cat/a.jpg", "Train/b.jpg", "val/dog/c.jpg"],
         [("Train/b.jpg", "Train", None), ("Train/cat/a.jpg", "Train", "cat"),
          ("val/dog/c.jpg", "val", "dog")]),
        (["train/cat/a.jpg", "test/cat/b.jpg", "more/c.jpg"],
         [("test/cat/b.jpg", "test", "cat"), ("train/cat/a.jpg", "train", "cat")]),
        # A vehicle, not a split.
        (["car/a.jpg", "train/b.jpg"],
         [("car/a.jpg", "train", "car"), ("train/b.jpg", "train", "train")]),
        (["a.jpg", "b.jpg"], [("a.jpg", "train", None), ("b.jpg", "train", None)]),
    ],
)  # fmt: skip
def test_the_layouts(tmp_path, files, expected):
    assert rows(fill(tmp_path / "r", *files)) == expected
    assert not list_images(tmp_path / "r", 0.0, labels=True).several


def test_what_is_not_used_is_said(tmp_path):
    root = fill(tmp_path / "r", "train/a/1.jpg", "val/a/2.jpg", "more/3.jpg", "x.heic", ".h.jpg")
    unused = list_images(root, 0.1, labels=True).unused
    assert unused == (
        "1 .heic (a format that is not read; save as .png), 1 hidden, 1 images in no split"
    )


def test_a_folder_without_splits_is_divided_as_it_will_be(tmp_path):
    root = fill(tmp_path / "r", *(f"{c}/{i}.jpg" for c in "ab" for i in range(20)))
    data = config.Data(source="folder", root=str(root), holdout=0.3, eval_split="validation")
    for split in ("train", "validation"):
        source = open_source(data, split)
        held = sorted(source.name(at)[len(str(root)) + 1 :] for at in range(len(source)))
        assert [path for path, side, _ in rows(root, 0.3) if side == split] == held


def test_lists(tmp_path):
    root = fill(tmp_path / "r", "a.png", "b.png")
    (root / "train.csv").write_text("image,classes\na.png,cat;dog\nb.png,\n")
    (root / "test.csv").write_text("image,classes\nc.png,cat\n")
    (root / "fix.csv").write_text("image,reason\na.png,copy\n")  # lies beside
    assert rows(root) == [("a.png", "train", "cat;dog"), ("b.png", "train", ""),
                          ("c.png", "test", "cat")]  # fmt: skip
    assert list_images(root, 0, labels=True).several
    assert rows(root, labels=False)[0] == ("a.png", "train", None)
    assert list_images(root, 0, labels=True).splits == ("train", "test")


def test_names_of_folders_may_mean_nothing(tmp_path):
    root = fill(tmp_path / "r", "2019/a.jpg", "2020/b.jpg")
    assert rows(root, labels=False) == [
        ("2019/a.jpg", "train", None),
        ("2020/b.jpg", "train", None),
    ]
