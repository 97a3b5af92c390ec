"""Folders are checked before a run: a line of what is used, an error for what cannot be."""

import os
import pathlib
import tarfile
from unittest import mock

import pytest

import image_folders
from commands import error_line
from vit_jax import cli, config
from vit_jax.data import folder_check
from vit_jax.data.source import DataError, Selection
from vit_jax.data.sources import open_source
from vit_jax.utils.errors import AssumptionWarning

FILES = [f"{split}/{c}/{i}.jpg" for split in ("train", "val") for c in "ab" for i in range(3)]


def fill(root, *names):
    image_folders.fill(root, *names)
    for name in names:
        (root / name).write_bytes(b"\xff\xd8\xff")  # as a JPEG begins
    return root


def check(root, **options):
    data = config.Data(source="folder", root=str(root), eval_split="val", **options)
    train = open_source(data, data.train_split, train=True)
    return folder_check.check_files(
        data, train, open_source(data, data.eval_split, train=False), None
    )


def broken(root):
    (root / "train/a/gone.jpg").symlink_to(root / "nothing.jpg")
    (root / "train/a/loop.jpg").symlink_to(root / "train/a/loop.jpg")
    (root / "train/b/empty.png").touch()
    os.mkfifo(root / "val/b/pipe.jpg")  # which would be read for ever


def test_a_sound_folder_is_one_line(tmp_path):
    root = fill(tmp_path, *FILES, "train/b/more.jpg")
    assert check(root) == (
        f"data.root={root}: train 7 images of 2 classes (3 to 4 each), "
        "val 6 images of 2 classes (3 each); all files are used"
    )
    assert check(root, train_split="train[:50%]").endswith("(3 each)")  # nor are they
    assert check(root, classes=("b", "a")).endswith("6 images of 2 classes")


def test_what_is_not_used_is_said_with_the_reason(tmp_path):
    root = fill(tmp_path, *FILES, "train/a/x.heic", "val/loose.png", "val/a/.hidden", "val/a/n.txt")
    assert check(root).partition("; ")[2] == (
        "not used: 1 .heic (a format that is not read; save as .png), "
        "1 image in no class folder (val/loose.png), 1 .txt (no image), 1 hidden"
    )


def test_splits_beside_those_in_use_are_said(tmp_path):
    """`train` and `training` may be the halves of one; a forgotten folder is no file in use."""
    root = fill(tmp_path, *FILES, "training/a/1.jpg", "validation/a/1.jpg", "more/1.jpg", "1.jpg")
    more = "the folders more, training, validation, 1 image in no folder"
    assert check(root).endswith(f"; not used: {more}")
    for split in ("train", "training", "val"):
        lines = [f"{split.removesuffix('ing')}/{c}/0.jpg,{c}\n" for c in "ab"]
        (root / f"{split}.csv").write_text("image,class\n" + "".join(lines))
    (root / "fix.csv").write_text("image\n")
    data = config.Data(source="csv", root=str(root), eval_split="val")
    parts = [open_source(data, split) for split in (data.train_split, data.eval_split)]
    assert folder_check.check_files(data, *parts, None).endswith("; not used: the list training")
    (root / "tars").mkdir()
    for split in ("train", "training", "val"):
        with tarfile.open(root / f"tars/{split}.tar", "w") as tar:
            for c in "ab":
                tar.add(root / f"train/{c}/0.jpg", f"{c}/{split}.jpg")
    given = {"source": "tar", "root": str(root / "tars"), "eval_split": "val"}
    data = config.Data(**given, cache=str(root / "cache"))
    parts = [open_source(data, split) for split in (data.train_split, data.eval_split)]
    assert folder_check.check_files(data, *parts, None).endswith("; not used: the split training")


def test_classes_without_images_to_evaluate_on_are_said(tmp_path):
    root = fill(tmp_path, *FILES, "train/c/1.jpg", "train/d/1.jpg")
    assert "val 6 images of 4 classes (0 to 3 each, none of c and 1 other)" in check(root)


def test_slices_in_percent_and_in_images_may_have_images_in_common(tmp_path):
    """Their bounds cannot be compared, so their images are."""
    root = fill(tmp_path, *FILES)

    def line(low):
        data = config.Data(
            source="folder", root=str(root), train_split="train[:50%]", eval_split=f"train[{low}:]"
        )
        parts = [open_source(data, split) for split in (data.train_split, data.eval_split)]
        return folder_check.check_files(data, *parts, None)

    assert line(3).endswith("; not used: the folder val")
    assert "; of train[2:] 1 are in train[:50%] too: " in line(2)


def test_a_split_that_is_named_but_not_opened_is_not_used(tmp_path):
    """Such as the test split of a run that has no loss on it."""
    root = fill(tmp_path, *FILES, "test/a/1.jpg")
    data = config.Data(source="folder", root=str(root), eval_split="val", test_split="test")
    parts = [open_source(data, split, labels=False) for split in ("train", "val")]
    assert folder_check.check_files(data, *parts, None).endswith("; not used: the folder test")


def test_both_sides_of_a_holdout_are_one_folder(tmp_path):
    root = fill(tmp_path, *(f"{c}/{i}.jpg" for c in "ab" for i in range(9)), "a/x.heic", "y.png")
    line = check(root, holdout=0.3)
    assert line.endswith(
        "; not used: 1 .heic (a format that is not read; save as .png), "
        "1 image in no class folder (y.png)"
    )


def test_what_cannot_be_read_is_an_error_before_anything_is(tmp_path, monkeypatch):
    broken(fill(tmp_path, *FILES))
    monkeypatch.chdir(tmp_path.parent)  # a long path would be cut out of the message
    root = pathlib.Path(tmp_path.name)
    assert error_line(DataError, check, root) == (
        f"data.root={root}: of 9 images of train 3 cannot be used: "
        f"{root}/train/a/gone.jpg is a dangling link, "
        f"{root}/train/a/loop.jpg cannot be read: Too many levels of symbolic links, "
        f"{root}/train/b/empty.png is empty; "
        "fix or remove them, or allow them with data.max_bad_examples=3"
    )
    line = check(root, max_bad_examples=3)
    assert f"; of val 1 cannot be used: {root}/val/b/pipe.jpg is not a regular file" in line
    with pytest.raises(DataError, match="of 9 images of train 3 cannot be used"):
        check(root, max_bad_examples=2)


def test_slow_storage_is_not_waited_for(tmp_path, monkeypatch):
    root = fill(tmp_path, *FILES)
    monkeypatch.setattr(folder_check, "SECONDS", -1.0)
    monkeypatch.setattr(folder_check, "CHUNK", 4)
    monkeypatch.setattr(folder_check, "THREADS", 2)
    assert check(root).endswith("; of train 2 files were checked within -1 s; of val 2 files "
                                "were checked within -1 s")  # fmt: skip


@pytest.mark.parametrize("quick", [0.0, 60.0])
def test_the_same_is_found_by_one_thread_and_by_several(quick, tmp_path, monkeypatch):
    root, empty = fill(tmp_path, *(f"train/a/{k:02d}.jpg" for k in range(40)), *FILES), (3, 17, 39)
    for k in empty:
        (root / f"train/a/{k:02d}.jpg").write_bytes(b"")
    monkeypatch.setattr(folder_check, "QUICK", quick)
    monkeypatch.setattr(folder_check, "CHUNK", 4)
    source = image_folders.folder(root)
    bad, checked = folder_check.unreadable(source)
    assert [path for path, _ in bad] == [f"{root}/train/a/{k:02d}.jpg" for k in empty]
    assert checked == len(source)


def test_names_that_are_not_text_and_long_ones_stay_on_the_line(tmp_path):
    root = fill(tmp_path, *FILES)
    (root / os.fsdecode(b"train/a\nb\xff.jpg")).write_bytes(b"x")
    (root / f"val/{'long' * 50}.jpg").write_bytes(b"x")
    line = check(root)
    assert "2 images in no class folder (train/a\\nb\\udcff.jpg)" in line
    line.encode()
    assert "\n" not in line


def test_other_data_have_no_folder():
    data = config.Data(source="digits")
    train = open_source(data, "train", train=True)
    assert folder_check.check_files(data, train, None, None) is None


def test_a_run_says_it_or_ends_before_it_has_written_anything(tmp_path, capsys):
    root = fill(tmp_path / "data", *FILES, "train/c.heic")
    broken(root)
    words = ["train", "image_folder-32", f"--config.data.root={root}", f"--workdir={tmp_path}/run"]
    assert cli.main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"vit_jax: data.root={root}: of 9 images of train 3 cannot be used: ")
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_images_for_embedding_and_prediction_are_counted_too(tmp_path):
    from vit_jax.data import folders
    from vit_jax.inference import prediction

    root = fill(tmp_path, "a/1.jpg", "a/2.heic", ".hidden.jpg")
    line = "1 images; not used: 1 .heic (a format that is not read; save as .png), 1 hidden"
    with pytest.warns(AssumptionWarning) as said:  # heard in Python too
        folders.Loose(root, (), "--images")
    assert str(said[0].message) == f"--images={root}: {line}"
    with pytest.warns(AssumptionWarning) as said:
        prediction.list_files([root])
    assert str(said[0].message) == f"{root}: {line}"
    with pytest.raises(config.ConfigError, match=r"holds no .*; it contains 1 \.heic"):
        folders.Loose(fill(tmp_path / "b", "2.heic"), (), "--images")


def test_images_that_evaluation_leaves_out_are_counted_too(tmp_path, monkeypatch):
    from vit_jax.inference import embedding, evaluation, prediction

    root = fill(tmp_path, *FILES, "val/b/3.heic", "train/a/4.heic")
    data = config.Data(source="folder", root=str(root), eval_split="val")
    source = Selection(open_source(data, "val", train=False), [1])
    values = {"classes": "ab", "names": "ab", "temperature": None, "step": None}
    opened = mock.Mock(config=config.Config(data=data), **values)
    opened.for_columns.return_value = opened
    found = mock.Mock(source=source, role=mock.Mock(split="val"), return_value={})
    monkeypatch.setattr(evaluation.loading, "load", lambda *_, **__: opened)
    for name in ("has_images", "require_images"):
        monkeypatch.setattr(evaluation.loading, name, lambda *_: True)
    monkeypatch.setattr(evaluation, "open_evaluation", lambda *_, **__: found)
    line = f"data.root={root}: not used: 1 .heic (a format that is not read; save as .png)"
    for look in (
        lambda: evaluation.evaluate("run", {}),
        lambda: embedding._source(opened, None, "images"),
        lambda: next(prediction.read_examples(opened, 1)),
    ):
        with pytest.warns(AssumptionWarning) as said:
            look()
        assert [str(one.message) for one in said] == [line]


@pytest.mark.parametrize(
    ("start", "name"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0", "a HEIC image"),
        (b"\0\0\0\x1cftypavif\0\0\0\0", "an AVIF image"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "a JPEG XL image"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "a JPEG 2000 image"),
        (b"II+\0\x08\0\0\0", "a BigTIFF"),
        (b"\0\0\0\x18ftypmp42\0\0\0\0", "a video or HEIF file"),
        (b"RIFF\x24\0\0\0WEBPVP8 ", None),
        (b"\n<!DOCTYPE html>", "a page or SVG"),
        (b"%PDF-1.7", "a PDF"),
        (b"\xef\xbb\xbf{", "JSON"),
        (b"version https://git-lfs.github.com", "a pointer of Git LFS, whose file was not fetched"),
        (b"\0\0\0\0\0\0\0\0", "no image of a format that is read here"),
        (b"\x89PNG\r\n\x1a\n", None),
        (b"II*\0", None),
    ],
)
def test_what_else_is_under_the_suffix_of_an_image(start, name, tmp_path):
    root = fill(tmp_path, *FILES)
    (root / "train/a/0.jpg").write_bytes(start)
    found, checked = folder_check.unreadable(image_folders.folder(root))
    reasons = [reason for path, reason in found if path.endswith("train/a/0.jpg")]
    assert reasons == ([] if name is None else [f"is {name}, whatever its suffix says"])
    assert checked == 6
