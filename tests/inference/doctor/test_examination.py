"""What is said about images that were read: which copy stays, what leaks, what is unlike others."""

import dataclasses
import pathlib

import cv2
import numpy as np
import pytest
from scipy import special

from vit_jax import config
from vit_jax.data.prepare import dedup
from vit_jax.data.sources import open_source, read_excluded
from vit_jax.inference.doctor import examination, page
from vit_jax.inference.doctor.listing import list_images
from vit_jax.inference.doctor.reading import Images
from vit_jax.inference.doctor.run import write_fix_list
from vit_jax.pages import html


def examine(root, pictures, *, sizes=None, modes=None, errors=None):
    """Examines a folder of `pictures`, by path: equal numbers are equal pixels, of features alike.

    Numbers that differ by less than 1 are near duplicates.
    """
    for path in pictures:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(root / path), np.zeros((4, 4, 3), np.uint8))
    listing = list_images(root, 0, labels=True)
    numbers = [pictures[path] for path in listing.paths]
    prints = np.zeros(len(numbers), dedup.RECORD)
    prints["exact"] = np.array(numbers, ">f8").repeat(2).view("V16")
    draws = [np.random.default_rng(int(number)) for number in numbers]
    prints["bits"] = [draw.integers(2**64, dtype=np.uint64) for draw in draws]
    prints["contrast"], prints["gray"] = True, 1 / 16
    features = np.stack([draw.normal(size=8) for draw in draws])
    features = np.float32(features / np.linalg.norm(features, axis=1, keepdims=True))
    known = {listing.paths.index(path): why for path, why in (errors or {}).items()}
    images = Images(
        errors=known,
        prints=prints,
        features=features,
        sizes=np.array([(sizes or {}).get(path, (64, 64)) for path in listing.paths]),
        modes=[(modes or {}).get(path, "RGB") for path in listing.paths],
    )
    return examination.examine(listing, images, "some")


def named(found, kind):
    return {one.image: one.reason for _, one in found.findings[kind]}


def test_the_largest_copy_of_the_last_split_stays(tmp_path):
    pictures = {"train/a/1.png": 1, "train/a/2.png": 1.5, "test/a/3.png": 1, "val/a/4.png": 1.25}
    pictures |= {"train/a/5.png": 2, "train/a/6.png": 2.5, "val/a/7.png": 3}
    found = examine(tmp_path, pictures, sizes={"train/a/6.png": (80, 80)})
    assert named(found, "leak") == {
        "train/a/1.png": "equal pixels to test/a/3.png",
        "train/a/2.png": "near duplicate of test/a/3.png",
        "val/a/4.png": "near duplicate of test/a/3.png",
    }
    assert named(found, "copy") == {"train/a/5.png": "near duplicate of train/a/6.png"}
    assert found.left_out["val/a/4.png"] == "leak: near duplicate of test/a/3.png"
    assert page.leaks(found) == {"val": (1, 2), "test": (1, 1)}
    assert "1 of 2 images of val (50%) are in another split too" in "\n".join(page.summarize(found))


def test_a_file_of_several_lists_stays_in_the_last(tmp_path):
    rows = {"train": "a.png,x\nb.png,x\nc.png,y\n", "val": "a.png,x\nd.png,y\n"}
    rows["test"] = "a.png,x\nb.png,y\n"
    for name, text in rows.items():
        (tmp_path / f"{name}.csv").write_text(f"image,class\n{text}")
    found = examine(tmp_path, {"a.png": 1, "b.png": 2, "c.png": 3, "d.png": 4})
    assert write_fix_list(tmp_path / "fix.csv", found) == 2
    lines = (tmp_path / "fix.csv").read_text().splitlines()
    assert lines[0] == "image,reason,split"
    assert lines[1].endswith(",train;val")  # the test split keeps it
    assert lines[2].startswith("b.png,conflict: ")
    assert lines[2].endswith(",")  # in no list
    data = config.Data(source="csv", root=str(tmp_path), exclude=str(tmp_path / "fix.csv"))
    names = {
        split: [pathlib.Path(source.name(at)).name for at in range(len(source))]
        for split in rows
        for source in [open_source(data, split)]
    }
    assert names == {"train": ["c.png"], "val": ["d.png"], "test": ["a.png"]}


def test_copies_in_several_classes_are_all_left_out(tmp_path):
    pictures = {"a/1.png": 1, "b/2.png": 1.5, "a/3.png": 1, "a/4.png": 9}
    found = examine(tmp_path, pictures)
    assert named(found, "conflict") == {
        "a/1.png": "same picture as b/2.png",
        "a/3.png": "same picture as b/2.png",
        "b/2.png": "same picture as a/1.png",
    }
    assert named(found, "copy") == {"a/3.png": "equal pixels to a/1.png"}
    assert sorted(found.left_out) == ["a/1.png", "a/3.png", "b/2.png"]
    text = html.page(page.document(found, config.Config().data))
    assert "classes a, b" in text
    assert text.count("data:image/png") == 3


def test_one_photo_in_two_classes_is_the_first_thing_said(tmp_path):
    found = examine(tmp_path, {f"{c}/{i}.png": 1 for c in "ab" for i in range(20)})
    lines = page.summarize(found)
    assert lines[0] == ("40 readable images show one picture; the largest group of copies has 40")
    assert "40 images have copies in another class: no model can be right" in lines
    note = "there are 0; images with copies in another class do not count"
    assert any(line.endswith(note) for line in found.notes)
    assert note in html.page(page.document(found, config.Config().data))
    assert len(found.left_out) == 40
    assert page._classes(found).rows == [("a", "20"), ("b", "20")]


def test_broken_files_show_no_pictures_and_are_no_copies(tmp_path):
    pictures = {"a/1.png": 1, "a/2.png": 1, "a/3.png": 2, "b/4.png": 3}
    found = examine(tmp_path, pictures, errors={"b/4.png": "is empty"})
    assert page.summarize(found)[0].startswith("3 readable images show 2 different pictures; ")
    found = examine(
        tmp_path / "other", {"a/1.png": 1, "b/2.png": 2}, errors={"b/2.png": "is empty"}
    )
    assert not any("pictures; " in line for line in page.summarize(found))  # no copies
    found = examine(
        tmp_path / "both", {"a.png": 0, "b.png": 0}, errors={"a.png": "x", "b.png": "x"}
    )
    assert found.groups == []  # nor of each other


def test_files_of_odd_kinds(tmp_path):
    paths = [f"{i}.png" for i in range(6)]
    found = examine(
        tmp_path,
        {path: at for at, path in enumerate(paths)},
        sizes={"1.png": (31, 40), "2.png": (64, 193), "3.png": (64, 192), "4.png": (32, 40)},
        modes={"5.png": "CMYK", "1.png": ""},
        errors={"0.png": "is empty"},
    )
    assert named(found, "broken") == {"0.png": "is empty"}
    assert named(found, "tiny") == {"1.png": "40 x 31 pixels"}
    assert named(found, "aspect") == {"2.png": "193 x 64 pixels"}
    assert named(found, "mode") == {"5.png": "CMYK; most are RGB"}
    assert found.left_out == {"0.png": "broken: is empty"}
    needs = ["outliers need more than", "wrong labels were not looked for: that needs labels"]
    for line, start in zip(found.notes, needs, strict=True):
        assert line.startswith(start)


def test_the_distance_to_neighbors(monkeypatch):
    random = np.random.default_rng(0)
    x = random.normal(size=(50, 4)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    cosines = x.astype(np.float64) @ x.T
    expected = [1 - np.sort(np.delete(row, at))[-10:].mean() for at, row in enumerate(cosines)]
    monkeypatch.setattr(examination, "ROWS", 7)
    np.testing.assert_allclose(examination.neighbor_distances(x), expected, atol=1e-6)
    monkeypatch.setattr(examination, "REFERENCES", 20)
    drawn = np.sort(np.random.default_rng(0).choice(50, 20, replace=False)).tolist()
    some = [
        1 - np.sort([cosines[at, other] for other in drawn if other != at])[-10:].mean()
        for at in range(50)
    ]
    np.testing.assert_allclose(examination.neighbor_distances(x), some, atol=1e-6)


def test_a_list_has_only_names_that_can_be_read_back(tmp_path, caplog):
    names = ("b\\c.png", " d.png", 'ü, "x".png', "e.png")
    root = tmp_path / "r"
    found = examine(root, dict.fromkeys(names, 1))
    assert write_fix_list(tmp_path / "fix.csv", found) == 2
    (said,) = caplog.messages
    assert said == f"--fix-list={tmp_path}/fix.csv: a list cannot have b\\c.png: rename it"
    data = config.Data(source="folder", root=str(root), holdout=0.5, exclude=f"{tmp_path}/fix.csv")
    listed = set(found.left_out) - {"b\\c.png", " d.png"}
    assert read_excluded(data).keys() == listed
    assert write_fix_list(tmp_path / "fix.csv", examine(tmp_path / "one", {"e.png": 1})) == 0
    assert caplog.messages == [said]


def test_pictures_that_are_gone_are_blank(tmp_path):
    found = examine(tmp_path, {"a/1.png": 1, "b/2.png": 1})
    pathlib.Path(tmp_path / "a/1.png").unlink()
    assert html.page(page.document(found, config.Config().data)).count("data:image/png") == 2


def test_a_gallery_says_where_the_rest_is(tmp_path, monkeypatch):
    pictures = {"a/1.png": 1, "a/2.png": 1, "a/3.png": 1, "b/4.png": 4, "b/5.png": 4, "a/6.png": 6}
    sizes = dict.fromkeys(pictures, (8, 8))
    monkeypatch.setattr(page, "SHOWN", 2)
    monkeypatch.setattr(page, "GROUPS", 1)
    text = html.page(page.document(examine(tmp_path, pictures, sizes=sizes), config.Config().data))
    assert "Groups: 1 of 2; the fix list and --json have all" in text
    assert "2 of 6; --json has all" in text  # tiny images are not in the fix list


def test_imbalance_is_that_of_the_images_trained_on(tmp_path):
    def said(root, train, val):
        pictures = {
            f"{split}/{c}/{i}.png": 1000 * (split == "val") + 100 * ord(c) + i
            for split, counts in {"train": train, "val": val}.items()
            for c, count in counts.items()
            for i in range(count)
        }
        lines = page.summarize(examine(tmp_path / root, pictures))
        return [line for line in lines if " images in train, " in line]

    (line,) = said("long", {"a": 6, "b": 2}, {"a": 3, "b": 3})
    assert line.startswith("a has 6 images in train, b 2: try data.sampling=balanced")
    assert said("even", {"a": 5, "b": 2}, {"a": 5, "b": 1}) == []
    # No sampling brings a class that is missing.
    assert said("none", {"a": 2}, {"a": 3, "b": 3}) == ["a has 2 images in train, b 0"]


def test_imbalance_of_images_with_several_classes_has_no_remedy(tmp_path):
    (tmp_path / "train.csv").write_text("image,c\na.png,x;y\nb.png,x\nc.png,x\nd.png,x\n")
    found = examine(tmp_path, {f"{name}.png": ord(name) for name in "abcd"})
    assert "data.sampling" not in "\n".join(page.summarize(found))


def test_label_errors_are_those_of_confident_learning():
    random = np.random.default_rng(5)
    labels = np.concatenate([np.arange(3), random.integers(0, 3, 37)])
    p = special.softmax(random.normal(size=(40, 3)) + 1.5 * np.eye(3)[labels], axis=1)
    found, errors = examination.find_label_errors(labels, p)
    thresholds = [np.mean([p[i, k] for i in range(40) if labels[i] == k]) for k in range(3)]
    for i in range(40):
        above = [k for k in range(3) if p[i, k] >= thresholds[k]]
        belongs = max(above, key=lambda k: p[i, k]) if above else labels[i]
        assert found[i] == belongs
        assert errors[i] == (belongs != labels[i] and max(p[i]) > p[i, labels[i]])
    # `find_label_issues(labels, p, filter_by="confident_learning")` of cleanlab 2.9.0.
    assert np.flatnonzero(errors).tolist() == [12, 18]


@pytest.mark.parametrize(("count", "said"), [(20, True), (21, False)])
def test_outliers_need_more_pictures_than_two_neighborhoods(count, said, tmp_path):
    found = examine(tmp_path, {f"{at:02}.png": at for at in range(count)})
    assert ("outliers need more than 20 different pictures" in found.notes) == said


def test_a_gallery_has_the_findings_of_its_kind(tmp_path):
    pictures = {"a/1.png": 1, "a/2.png": 2, "a/3.png": 3}
    found = examine(tmp_path, pictures, sizes={"a/1.png": (9, 9), "a/3.png": (8, 8)})
    gallery = page._Pictures(found, config.Config().data).gallery("tiny")
    assert [one.path for one in gallery.samples] == ["a/1.png", "a/3.png"]
    assert [one.caption for one in gallery.samples] == ["9 x 9 pixels", "8 x 8 pixels"]
    # A class is suggested under "Likely label errors" alone.
    other = dataclasses.replace(found, suggested={0: ("b", 0.9)})
    assert page._Pictures(other, config.Config().data).gallery("tiny") == gallery


@pytest.mark.parametrize(("right", "weak"), [(14, False), (13, True)])
def test_how_often_the_judge_of_labels_is_right_is_said(right, weak, tmp_path, monkeypatch):
    """Below 70 % its findings are called guesses."""

    def judge(features, labels, classes, mesh, say):
        taken = np.where(np.arange(len(labels)) < right, labels, 1 - labels)
        return np.eye(classes)[taken]

    monkeypatch.setattr(examination.probe, "cross_validate", judge)
    pictures = {f"{name}/{at}.png": 2 * at + (name == "b") for name in "ab" for at in range(10)}
    found = examine(tmp_path, pictures)
    assert any(f"; it is right on {right / 20:.1%}" in line for line in page.assumptions(found))
    guesses = f"a probe of these features is right on {right / 20:.0%} of the images: label errors"
    assert any(line.startswith(guesses) for line in found.notes) == weak
