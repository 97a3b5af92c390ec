"""Folders of images: what is found, how it is split, and what is refused."""

import dataclasses
import os
import pathlib
import pickle
import shutil

import pytest

from commands import error_line
from image_folders import fill, folder
from vit_jax import config
from vit_jax.config import ConfigError
from vit_jax.data import folder_check, folders, splits
from vit_jax.data.source import DataError
from vit_jax.data.sources import Source, open_source
from vit_jax.evaluation import task_sets
from vit_jax.utils.errors import AssumptionWarning


def names(source: Source) -> list[str]:
    """Contents of all files, which are their names below root."""
    return [source[i].image.decode() for i in range(len(source))]


def numbered(root: pathlib.Path, classes: int = 3, each: int = 200) -> pathlib.Path:
    return fill(root, *(f"c{k}/{i:04}.jpg" for k in range(classes) for i in range(each)))


@pytest.fixture
def pets(tmp_path):
    return fill(
        tmp_path / "pets",
        "train/dog/b.jpg",
        "train/dog/a.JPEG",
        "train/dog/deep/er/c.png",
        "train/cat/z.WebP",
        "train/cat/notes.txt",
        "train/cat/.hidden.jpg",
        "train/.cache/x.jpg",
        "train/readme.jpg",
        "test/dog/t.jpg",
    )


def test_finds_every_image_below_the_class_folders(pets):
    source = folder(pets)
    assert source.classes == ("cat", "dog")
    assert names(source) == [
        "train/cat/z.WebP",
        "train/dog/a.JPEG",
        "train/dog/b.jpg",
        "train/dog/deep/er/c.png",
    ]
    assert [source[i].label for i in range(4)] == [0, 1, 1, 1]
    assert source.name(3) == str(pets / "train/dog/deep/er/c.png")
    assert names(pickle.loads(pickle.dumps(source))) == names(source)


def test_other_splits_are_labeled_by_the_classes_of_train(pets):
    source = folder(pets, "test", train=False)
    assert source.classes == ("cat", "dog")
    assert names(source) == ["test/dog/t.jpg"]
    assert source[0].label == 1


def test_class_names_and_file_names_may_be_anything(tmp_path):
    strange = ["train/ü, 漢/a b\n.png", "train/x=1/é.jpg"]
    fill(tmp_path, *strange)
    (tmp_path / os.fsdecode(b"train/x=1/\xff.jpg")).write_bytes(b"not utf-8")
    source = folder(tmp_path)
    assert source.classes == ("x=1", "ü, 漢")
    assert sorted(names(source)) == sorted([*strange, "not utf-8"])
    assert len(source.fingerprint()) == 16


def test_links_are_followed_but_not_in_circles(tmp_path):
    root = fill(tmp_path, "train/a/1.jpg", "train/b/2.jpg", "elsewhere/3.jpg")
    (root / "train/b/loop").symlink_to(root / "train/b")
    (root / "train/b/up").symlink_to(root / "train")
    (root / "train/b/linked").symlink_to(root / "elsewhere")
    (root / "train/b/4.jpg").symlink_to(root / "elsewhere/3.jpg")
    source = folder(root)
    below = [pathlib.Path(source.name(i)).relative_to(root).as_posix() for i in range(len(source))]
    assert "train/b/linked/3.jpg" in below
    assert "train/b/4.jpg" in below
    assert not [name for name in below if "loop" in name]
    assert len([name for name in below if name.endswith("2.jpg")]) == 1


ONE = ("train/a/1.jpg", "train/b/1.jpg")


@pytest.mark.parametrize(
    ("there", "wanted", "found"),
    [
        (["test", "val"], "test", "test"),  # what is there under its name
        (["val", "validation"], "test", "test"),  # which of the two?
        (["test"], "validation", "validation"),  # what is chosen on it would be measured on it
        (["other"], "strange", "strange"),
        (["dev", "notes"], "test", "dev"),
        (["Val"], "test[:50%]", "Val[:50%]"),
    ],
)
def test_which_split_is_meant(tmp_path, there, wanted, found):
    root = fill(tmp_path, *ONE, *(f"{name}/a/1.jpg" for name in there))
    data = config.Data(source="folder", root=str(root), eval_split=wanted)
    assert folders.splits_there(data).eval_split == found


def test_what_is_no_folder_with_splits_is_left_alone(tmp_path):
    root = fill(tmp_path, "val/1.jpg", "b/1.jpg")
    for data in (
        config.Data(source="folder", root=str(root), holdout=0.5),  # a class may be called val
        config.Data(source="folder", root=str(root / "missing")),
        config.Data(source="folder"),
        config.Data(source="digits"),
    ):
        assert folders.splits_there(data) == data


@pytest.mark.parametrize(
    ("there", "remedy", "options"),
    [
        pytest.param(
            ["other"], "to keep a tenth of train for it, set data.train_split='train[:90%]' and "
                       "data.eval_split='train[90%:]'",
            {"train_split": "train[:90%]", "eval_split": "train[90%:]"}, id="other",
        ),
        (["val", "validation"], "set data.eval_split=val or validation", {"eval_split": "val"}),
    ],
)  # fmt: skip
def test_the_remedy_for_a_missing_split_is_one(tmp_path, there, remedy, options):
    root = fill(tmp_path, *(f"train/{c}/{i}.jpg" for c in "ab" for i in range(20)))
    fill(root, *(f"{name}/{c}/1.jpg" for name in there for c in "ab"))
    assert refusal(root, "test", train=False).endswith(f"; {remedy}")
    data = config.Data(source="folder", root=str(root), **options)
    for split in (data.train_split, data.eval_split):
        assert len(open_source(data, split, train=split == data.train_split))


def test_what_is_not_used_is_counted(pets):
    fill(
        pets, "train/dog/x.AVIF", "train/dog/y.avif", "train/dog/deep/z.heic", "train/cat/a.gif",
        "train/cat/b.BMP", "train/Makefile",
    )  # fmt: skip
    source = folder(pets)
    assert {pathlib.Path(name).suffix for name in names(source)} == {
        ".jpg", ".JPEG", ".png", ".WebP", ".gif", ".BMP",
    }  # fmt: skip
    assert source.skipped.describe() == (
        "2 .avif, 1 .heic (a format that is not read; save as .png), "
        "1 image in no class folder (train/readme.jpg), "
        "1 .txt, 1 without a suffix (no image), 2 hidden"
    )
    assert folder(pets, "test", train=False).skipped.describe() == ""


def test_splits_inside_of_classes_are_none_and_that_is_said(tmp_path):
    files = (f"{c}/{s}/{k}.jpg" for c in ("a", "b") for s in ("train", "Val") for k in range(3))
    root = fill(tmp_path / "r", *files)
    for source in ("folder", "tar"):
        own = config.Data(source=source, root=str(root), holdout=0.1, cache=str(tmp_path))
        with pytest.warns(AssumptionWarning) as told:
            found = open_source(own, "train")
        assert found.classes == ("a", "b")
        assert str(told[0].message) == (
            f"data.root={root}: its class folders hold folders called Val and train, which are not "
            "taken for splits: all their images are of the class, and any may be held out; for "
            "splits, arrange Val/CLASS/IMAGE"
        )
    assert splits.within_classes({("a", "train"), ("b", "old")}) == []


@pytest.mark.parametrize("source", ["folder", "tar"])
def test_one_folder_that_is_called_as_a_split_is_a_class_and_that_is_said(tmp_path, source):
    files = (f"{s}/{c}/{k}.jpg" for s in ("train", "extra") for c in "ab" for k in range(3))
    root = fill(tmp_path / "r", *files)
    own = config.Data(source=source, root=str(root), holdout=0.1, cache=str(tmp_path))
    with pytest.warns(AssumptionWarning, match="its folder train is taken for a class, whatever "):
        assert open_source(own, "train").classes == ("extra", "train")


def test_slices_are_random_samples_that_partition(tmp_path):
    root = numbered(tmp_path)
    for options in ({"holdout": 0.1}, {"holdout": 0.1, "train_split": "train[:80%]"}):
        whole = names(folder(root, "train", **options))
        first, second = (folder(root, f"train[{part}]", **options) for part in (":80%", "80%:"))
        assert sorted(names(first) + names(second)) == whole
        assert len(first) == round(0.8 * len(whole))
        assert names(first) == sorted(names(first))
        for source in (first, second):
            assert {source[i].label for i in range(len(source))} == {0, 1, 2}
    assert len(folder(root, "train[:7]", holdout=0.1)) == 7
    # Parts of the training side, of which `transfer` chooses on one.
    parts = {"holdout": 0.1, "train_split": "train[:90%]", "eval_split": "train[90%:]"}
    cut = [set(names(folder(root, parts[key], **parts))) for key in ("train_split", "eval_split")]
    assert cut[0] | cut[1] == set(names(folder(root, "train", holdout=0.1)))
    assert not cut[0] & cut[1]


def test_fingerprint_is_of_names_labels_and_sizes_not_of_the_root(tmp_path):
    root = fill(tmp_path / "one", "train/a/1.jpg", "train/b/2.jpg")
    other = shutil.copytree(root, tmp_path / "two")
    first = folder(root).fingerprint()
    assert folder(other).fingerprint() == first
    (other / "train/b/2.jpg").write_bytes(b"longer than before")
    assert folder(other).fingerprint() != first
    (root / "train/b/2.jpg").rename(root / "train/b/3.jpg")
    assert folder(root).fingerprint() != first
    fill(other, "test/a/1.jpg")
    held = folder(other, "test", train=False).fingerprint()
    fill(other, "train/c/1.jpg")  # of a class that the split has not
    assert folder(other, "test", train=False).fingerprint() != held


def test_images_are_in_the_order_of_their_paths(tmp_path):
    """Which is not that of folders walked by name: a full stop comes before a slash."""
    source = folder(fill(tmp_path, *ONE, "train/a/b/1.jpg", "train/a/b.jpg"))
    assert names(source) == ["train/a/1.jpg", "train/a/b.jpg", "train/a/b/1.jpg", "train/b/1.jpg"]


def test_folders_are_nested_so_deep_and_no_deeper(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "DEEPEST", 3)
    assert len(folder(fill(tmp_path, *ONE, "train/a/b/c/1.jpg"))) == 3
    fill(tmp_path, "train/a/b/c/d/1.jpg")
    assert refusal(tmp_path) == (
        f"data.root: {tmp_path}/train/a/b/c/d: folders are nested more than 3 levels deep"
    )


def refusal(root, split="train", train=True, **options) -> str:
    return error_line((DataError, ConfigError), folder, root, split, train, **options)


TOO_FEW = (
    "at least 2 are needed, each with the images of one class; to train without labels, set "
    "objective.name=mae or dino"
)
PACKED = "is no folder of images; data.source={} reads it"
SAME = "the same split as data.train_split; data.holdout=0.1 needs two names"


@pytest.mark.parametrize(
    ("files", "split", "options", "line"),
    [
        (None, "train", {}, "data.root=ROOT: no such folder"),
        ([], "train", {}, "data.root=ROOT: has no folders; expected train/CLASS/IMAGE"),
        (["a/1.jpg", "b/1.jpg"], "train", {}, "data.train_split=train: no such folder in "
         "data.root=ROOT; folders there: a, b; if these are classes, set data.holdout=0.1"),
        ([*ONE, "test/a/1.jpg", "x/a/1.jpg"], "train", {"holdout": 0.05},
         "data.holdout=0.05: data.root=ROOT "
         "has splits, test, train, which would be taken as classes; set data.holdout=0"),
        ([], "train", {"holdout": 0.1}, f"data.root=ROOT: 0 class folders in ROOT; {TOO_FEW}"),
        (["data/0.arrow"], "train", {}, f"data.root=ROOT: 0.arrow {PACKED.format('arrow')}"),
        (["t.tar"], "train", {"holdout": 0.1}, f"data.root=ROOT: t.tar {PACKED.format('tar')}"),
        (["train/a/1.jpg", "train/x.jpg"], "train", {},
         f"data.root=ROOT: 1 class folder in ROOT/train; {TOO_FEW}"),
        ([*ONE, "test/a/1.jpg"], "val", {}, "data.eval_split=val: no such folder in "
         "data.root=ROOT; folders there: test, train; set data.eval_split=test"),
        ([*ONE, "test/a/1.jpg"], "train", {"train_split": "tra"}, "data.train_split=tra: no such "
         "folder in data.root=ROOT; folders there: test, train; set data.train_split=train"),
        ([*ONE, "train/fish/readme.txt"], "train", {},
         "data.root=ROOT: no image in class folder ROOT/train/fish; images end in .jpg, .jpeg, "
         ".png, .webp, .gif, .bmp, .tif, .tiff; it contains 1 .txt (no image)"),
        ([*ONE, "test/bird/1.jpg", "test/ant/1.jpg"], "test", {},
         "data.root=ROOT: class folders of test that are missing in train: ant, bird"),
        ([*ONE, "train/caf\u00e9/1.jpg", "test/cafe\u0301/1.jpg"], "test", {},
         "data.root=ROOT: class folders of test that are missing in train: cafe\u0301; cafe\u0301 "
         "is there in another Unicode form (NFC or NFD); write both in NFC"),
        (["a/1.jpg", "b/1.jpg"], "train", {"holdout": 0.1, "eval_split": "train"},
         f"data.eval_split=train: {SAME}"),
        (["a/1.jpg", "b/1.jpg"], "val", {"holdout": 0.1},
         "data.eval_split=val: no such split; known: train, test"),
        (["a/1.jpg", "b/1.jpg"], "test", {"holdout": 0.1},
         "data.holdout=0.1: every class has one image; none is left"),
    ],
)  # fmt: skip
def test_what_is_no_folder_of_classes_is_one_line(tmp_path, files, split, options, line):
    root = fill(tmp_path / "images", *(files or ()))
    if files == []:
        root.mkdir()
    assert refusal(root, split, split == "train", **options).replace(str(root), "ROOT") == line


def test_a_file_is_no_folder(tmp_path):
    fill(tmp_path, "file")
    assert refusal(tmp_path / "file") == f"data.root={tmp_path / 'file'}: not a folder"


def test_refuses_a_folder_that_cannot_be_read(pets, monkeypatch):
    real = os.scandir

    def scandir(path):
        if "dog" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert refusal(pets) == (
        f"data.root: cannot read folder {pets / 'train/dog'}: Permission denied"
    )


def test_without_labels_a_split_is_a_folder_of_images(tmp_path):
    fill(tmp_path, "train/a.jpg", "train/x/b.jpg", "val/y/c.jpg", "val/readme.txt", "empty/z.txt")
    data = config.Data(source="folder", root=str(tmp_path))
    assert names(open_source(data, "train", labels=False)) == ["train/a.jpg", "train/x/b.jpg"]
    assert names(open_source(data, "val", labels=False)) == ["val/y/c.jpg"]
    with pytest.raises(DataError, match=r"no image in folder .*/empty; images end in"):
        open_source(data, "empty", labels=False)
    with pytest.raises(DataError, match=r"expected train/IMAGE; .* set data.holdout=0.1"):
        open_source(config.Data(source="folder", root=f"{tmp_path}/val/y"), "train", labels=False)


def test_without_labels_and_other_splits_all_images_are_the_training_split(tmp_path, caplog):
    """Unless a folder is called like a split, and others may be other splits."""
    fill(tmp_path, "a.jpg", "x/b.jpg", "y/z/c.jpg", "list.csv")
    data = config.Data(source="folder", root=str(tmp_path), eval_split="train")
    whole = open_source(data, "train", train=True, labels=False)
    assert names(whole) == ["a.jpg", "x/b.jpg", "y/z/c.jpg"]
    for path in ("a.jpg", "x/b.jpg", "y/z/c.jpg"):
        (tmp_path / path).write_bytes(b"\xff\xd8\xff")
    assert (folder_check.check_files(data, whole, whole, None) or "").endswith(
        "train 3 images without labels; not used: 1 .csv (no image)"
    )
    (tmp_path / "list.csv").write_text("image\nx/b.jpg\n")
    left = dataclasses.replace(data, exclude=str(tmp_path / "list.csv"))
    assert len(open_source(left, "train", train=True, labels=False)) == 2
    refused = [
        {"eval_split": "val"}, {"test_split": "test"},
        {"train_split": "photos", "eval_split": "photos"},
    ]  # fmt: skip
    for options in refused:
        other = dataclasses.replace(data, **options)
        with pytest.raises(DataError, match=r"no such folder .*they are no splits, set data.hold"):
            open_source(other, other.train_split, train=True, labels=False)
    fill(tmp_path, "x/0.tar")
    with pytest.raises(DataError, match="0.tar is no folder of images"):
        open_source(data, "train", train=True, labels=False)
    (tmp_path / "x" / "0.tar").unlink()
    fill(tmp_path, "Val/1.jpg")
    with pytest.raises(DataError, match="data.train_split=train: no such folder"):
        open_source(data, "train", train=True, labels=False)


def test_without_labels_one_image_is_too_few_and_features_need_classes(tmp_path):
    fill(tmp_path, "1.jpg")
    data = config.Data(source="folder", root=str(tmp_path), holdout=0.2, eval_split="validation")
    with pytest.raises(DataError, match=r"^data\.holdout=0\.2: there is one image; none is left$"):
        open_source(data, "validation", labels=False)
    asked = config.Evaluation(knn=("self",))
    with pytest.raises(DataError, match=r"^evaluation\.knn=self: needs labels: .* of one class$"):
        task_sets.open_pairs(config.Config(data=data, evaluation=asked), len)


def test_excluded_files_are_in_no_split_and_move_no_other(tmp_path, caplog):
    root, listed = numbered(tmp_path / "r", classes=2, each=20), tmp_path / "fix.csv"
    before = {side: names(folder(root, side, holdout=0.3)) for side in ("train", "test")}
    gone = [before["train"][0], before["train"][7], before["test"][3]]
    listed.write_text("image,reason\n" + "".join(f"./{name},copy\n" for name in gone))
    options = {"holdout": 0.3, "exclude": str(listed)}
    after = {side: names(folder(root, side, **options)) for side in ("train", "test")}
    assert after == {side: [n for n in before[side] if n not in gone] for side in before}
    caplog.set_level("INFO", "vit_jax")
    source, whole = folder(root, "train", **options), folder(root, "train", holdout=0.3)
    assert source.labels.tolist() == [int(name[1]) for name in after["train"]]
    said = f"data.exclude={listed}: 2 of {len(whole)} images of data.train_split=train left out"
    assert caplog.records[-1].message == said
    assert source.fingerprint() != whole.fingerprint()  # no run resumes with another list


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, "cannot be read: No such file or directory"),
        ("", "needs a header and a column, image"),
        ("image\n../x.jpg\n", "line 2: ../x.jpg: must be a path below data.root"),
        pytest.param(
            "image\nno.jpg\ndog/b.jpg\n", r"none of its images are in data\.root=\S+, such as "
            r"dog/b\.jpg; paths are relative to it; data\.exclude=none leaves nothing out",
            id="elsewhere",
        ),
    ],
)  # fmt: skip
def test_a_list_that_excludes_nothing_is_refused(pets, tmp_path, text, line):
    listed = tmp_path / "fix.csv"
    if text is not None:
        listed.write_text(text)
    with pytest.raises(DataError, match=rf"^data\.exclude={listed}.*{line}"):
        folder(pets, exclude=str(listed))


def test_what_a_list_names_in_vain_is_said(pets, tmp_path):
    (tmp_path / "fix.csv").write_text("image,reason\n")  # of a folder where nothing was found
    assert len(folder(pets, exclude=str(tmp_path / "fix.csv"))) == 4
    for vain in ("train/dog/gone.jpg", "train/cat"):  # the latter a folder
        (tmp_path / "fix.csv").write_text(f"image\ntrain/dog/b.jpg\n{vain}\n")
        said = f"1 of its 2 images are not there, such as {vain}"
        with pytest.warns(AssumptionWarning, match=said):
            assert len(folder(pets, exclude=str(tmp_path / "fix.csv"))) == 3
    (tmp_path / "fix.csv").write_text("image\ntest/dog/t.jpg\n")
    with pytest.raises(DataError, match=r"leaves no image of data\.eval_split=test$"):
        folder(pets, "test", train=False, exclude=str(tmp_path / "fix.csv"))
