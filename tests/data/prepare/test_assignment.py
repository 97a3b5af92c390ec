"""Classes, splits and order of images, from their paths alone."""

import hashlib

import pytest

import official_fakes
from commands import error_line
from image_folders import fill
from vit_jax import config
from vit_jax.data.prepare import assignment, image_listing, parquet
from vit_jax.data.source import DataError
from vit_jax.data.sources import open_source


def arranged(names, tmp_path, unsplit="train", holdout=0.0):
    path = tmp_path / "some.tar"
    path.write_bytes(official_fakes.tar(dict.fromkeys(names, b"x")))
    listing = image_listing.scan([path])
    plan = assignment.arrange(listing, unsplit, "--from=some.tar", holdout)
    splits = {
        split: [(listing.path(i), plan.classes[plan.labels[i]]) for i in order]
        for split, order in plan.order.items()
    }
    return plan, splits


def test_loose_images_do_not_make_classes_of_splits(tmp_path):
    """A picture beside the class folders once made `train` and `val` the two classes."""
    both = [f"{split}/{c}/1.jpg" for split in ("train", "val") for c in "ab"]
    for more in ("train/loose.jpg", "loose.jpg", "extra/a/1.jpg"):
        plan, splits = arranged([*both, more], tmp_path)
        assert plan.classes == ("a", "b")
        assert {split: len(found) for split, found in splits.items()} == {"train": 2, "val": 2}
        assert plan.ignored == (more,)
    plan, _ = arranged(["train/1.jpg", "test/2.jpg", "plane/3.jpg"], tmp_path)
    assert plan.classes == ("plane", "test", "train")
    # A row of a table whose file names no split has its class beside the splits of others.
    plan, splits = arranged(["train/a/1.jpg", "train/b/2.jpg", "a/3.jpg", "c/4.jpg"], tmp_path)
    assert (plan.classes, list(splits), len(plan.ignored)) == (("a", "b"), ["train"], 2)
    assert arranged(["train/a/1.jpg", "train/b/2.jpg", "3.jpg"], tmp_path)[0].classes == ("a", "b")


@pytest.mark.parametrize("holdout", [0.001, 0.1, 0.5, 0.999])
def test_a_share_of_each_class_is_held_out(tmp_path, holdout):
    counts = {"a": 200, "b": 2, "c": 1, "d": 3}
    names = [f"{c}/{i}.jpg" for c, count in counts.items() for i in range(count)]
    plan, splits = arranged(names, tmp_path, holdout=holdout)
    assert plan.held_out
    assert list(plan.order) == ["train", "validation"]
    ours = {split: [name for name, _ in images] for split, images in splits.items()}
    assert sorted(ours["train"] + ours["validation"]) == sorted(names)
    key = {name: int(hashlib.sha256(name.encode()).hexdigest()[:16], 16) for name in names}
    for split in ours.values():
        assert split == sorted(split, key=key.get)
    held = {c: sum(name[0] == c for name in ours["validation"]) for c in counts}
    below = {c: sum(key[name] < holdout * 2**64 for name in names if name[0] == c) for c in counts}
    assert held == {c: min(max(below[c], 1), counts[c] - 1) for c in counts}


def test_nothing_is_held_out_where_every_class_has_one_image(tmp_path):
    plan, splits = arranged(["a/1.jpg", "b/1.jpg"], tmp_path, holdout=0.1)
    assert (plan.held_out, list(splits)) == (False, ["train"])


def test_every_path_that_comes_twice_is_left_out_once(tmp_path):
    names = [f"{c}/{i:02}.jpg" for c in "ab" for i in range(100)]
    whole = official_fakes.tar(dict.fromkeys(names, b"x"))
    path = tmp_path / "some.tar"
    path.write_bytes(whole[: 1024 * len(names)] + whole)
    plan = assignment.arrange(image_listing.scan([path]), "train", "--from")
    assert sorted(plan.repeated) == names
    assert sorted(plan.order["train"]) == list(range(200, 400))  # the later ones


def test_folders_within_a_class_belong_to_it(tmp_path):
    plan, splits = arranged(["cat/wild/1.jpg", "cat/2.jpg", "dog/old/3.jpg"], tmp_path)
    assert plan.classes == ("cat", "dog")
    assert [label for _, label in sorted(splits["train"])] == ["cat", "cat", "dog"]


def test_layouts_that_cannot_be_labeled(tmp_path):
    def reason(*names):
        return error_line(DataError, arranged, names, tmp_path).partition(": ")[2]

    assert reason("a/read.me") == (
        "has no image; images end in .jpg, .jpeg, .png, .webp, .gif, .bmp, .tif, .tiff"
    )
    assert reason("a/1.jpg", "a/2.jpg") == (
        "one class folder alone, a; expected CLASS/IMAGE, 2 at least; "
        "--no-labels packs images without"
    )
    assert reason("train/a/1.jpg", "train/b/1.jpg", "test/c/1.jpg") == (
        "class folders of test that are missing in train: c"
    )
    assert reason("train/a/1.jpg", "train/\u00e9/1.jpg", "test/e\u0301/1.jpg").endswith(
        "train: e\u0301; e\u0301 is there in another Unicode form (NFC or NFD); write both in NFC"
    )
    for name in ("b\udcff", "b\n", " b"):
        assert reason("a/1.jpg", f"{name}/1.jpg") == (
            f"class folder {name!r}: not a class name; rename it"
        )
    assert reason("train/1.jpg", "val/2.jpg") == (
        "images lie in train, val without class folders; expected SPLIT/CLASS/IMAGE; "
        "--no-labels packs images without"
    )
    plan, splits = arranged(["a/1.jpg", "b/1.jpg", "loose.jpg"], tmp_path)
    assert plan.ignored == ("loose.jpg",)
    assert len(splits["train"]) == 2


@pytest.mark.parametrize(
    ("names", "expected", "ignored"),
    [
        (["1.jpg", "2.jpg", "3.jpg"], {"train": 3}, ()),
        (["one.jpg"], {"train": 1}, ()),
        (["2019/a.jpg", "2019/may/b.jpg", "c.jpg"], {"train": 3}, ()),
        (["train/1.jpg", "train/cat/2.jpg", "Val/3.jpg"], {"train": 2, "Val": 1}, ()),
        (["all/train/1.jpg", "all/train/2.jpg", "all/x.jpg"], {"train": 2}, ("all/x.jpg",)),
        (["cat/1.jpg", "test/2.jpg"], {"train": 2}, ()),
        (["x/1.jpg", "train/2.jpg", "test/3.jpg"], {"train": 1, "test": 1}, ("x/1.jpg",)),
    ],
)
def test_without_labels_folders_are_splits_or_nothing(tmp_path, names, expected, ignored):
    path = tmp_path / "some.tar"
    path.write_bytes(official_fakes.tar(dict.fromkeys(names, b"x")))
    listing = image_listing.scan([path], label=parquet.UNLABELED)
    plan = assignment.arrange(listing, "train", "--from=some.tar", labeled=False)
    assert {split: len(found) for split, found in plan.order.items()} == expected
    assert (plan.classes, plan.ignored, set(plan.labels.tolist())) == ((), ignored, {-1})


def test_a_share_of_images_without_labels_is_held_out_as_in_a_folder(tmp_path):
    names = [f"all/{'deep/' * (k % 3)}{k}.jpg" for k in range(50)]
    root = fill(tmp_path / "f", *names)
    plan = assignment.arrange(image_listing.scan([root]), "train", "-", 0.2, labeled=False)
    listing = image_listing.scan([root])
    data = config.Data(source="folder", root=str(root), holdout=0.2)
    for split, folder in (("train", "train"), ("validation", "test")):
        source = open_source(data, folder, labels=False)
        expected = {source.name(at).removeprefix(f"{root}/") for at in range(len(source))}
        assert {listing.path(at) for at in plan.order[split].tolist()} == expected
