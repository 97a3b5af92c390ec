"""Tars and Parquet files where they are: images, classes and order of the folder they hold."""

import dataclasses
import json
import os
import pathlib
import pickle
import shutil
import tarfile
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import official_fakes
from commands import error_line
from image_folders import fill
from vit_jax import config
from vit_jax.data import folder_check, folders, split_roles, tar_source
from vit_jax.data.prepare import image_listing, parquet
from vit_jax.data.source import DataError
from vit_jax.data.sources import open_source
from vit_jax.evaluation import task_sets
from vit_jax.runtime import logs


def pack(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(official_fakes.tar(dict(members)))


def options(root, source="tar", **given):
    cache = {"cache": str(pathlib.Path(root).parent / "cache")} if source != "folder" else {}
    return config.build({"data": {"source": source, "root": str(root), **cache, **given}}).data


def opened(root, split="train", source="tar", **given):
    return open_source(options(root, source, **given), split)


def records(source):
    return [source[at] for at in range(len(source))]


@pytest.fixture
def both(tmp_path):
    """A folder, and a tar of each of its splits."""
    names = [f"{c}/{'deep/' * (k % 2)}{k}.jpg" for c in ("dog", "cat", "élan") for k in range(9)]
    folder = fill(tmp_path / "f", *(f"{s}/{n}" for s in ("train", "val", "test") for n in names))
    for split in ("train", "val", "test"):
        # In another order than the folder's, and with what is no image.
        files = [(name, (folder / split / name).read_bytes()) for name in reversed(names)]
        pack(tmp_path / "t" / f"{split}.tar", [("readme.txt", b"x"), *files])
    return folder, tmp_path / "t"


def test_without_labels_all_images_of_a_split_count(both, tmp_path):
    """As of a folder; of tars of images alone, their names say the split, as those of tables do."""
    folder, tars = both
    for split in ("train", "val", "test[:50%]"):
        expected = open_source(options(folder, "folder"), split, labels=False)
        found = open_source(options(tars), split, labels=False)
        assert found.classes == ()
        assert records(found) == records(expected)
    for name in ("train-0", "train-1", "val-0"):
        members = [(f"{k}.jpg", f"{name} {k}".encode()) for k in range(3)]
        pack(
            tmp_path / "bare" / f"{name}.tar", [*members, ("0.cls", b"cat")][: 4 - (name[-1] > "0")]
        )
    given = options(tmp_path / "bare", eval_split="auto", test_split="auto")
    assert split_roles.resolved(given, labels=False).eval_split == "val"
    assert len(open_source(given, "train", labels=False)) == 6
    assert len(open_source(given, "val", labels=False)) == 3
    tables = {"image": [b"\xff\xd8\xff %d" % k for k in range(4)] + [None]}
    (tmp_path / "p").mkdir()
    for split in ("train", "test"):
        pyarrow.parquet.write_table(pa.table(tables), tmp_path / f"p/{split}-0.parquet")
    given = options(tmp_path / "p", "parquet", eval_split="auto", test_split="auto")
    given = split_roles.resolved(given, labels=False)
    assert given.eval_split == "test"
    found = open_source(given, "train", labels=False)
    assert [image for image, _ in records(found)] == tables["image"][:4]
    assert folder_check.check_files(given, found, None, None) == (
        f"data.root={tmp_path / 'p'}: train 4 images without labels; not used: 2 rows without an "
        "image, the split test"
    )
    (tmp_path / "out.csv").write_text("path\ntrain/train-0-00000001\n")
    given = options(tmp_path / "p", "parquet", exclude=str(tmp_path / "out.csv"))
    assert len(open_source(given, "train", labels=False)) == 3
    with pytest.raises(DataError, match="no column of labels; .*set objective.name=mae or dino"):
        open_source(given, "train")


@pytest.mark.parametrize("labels", [True, False])
def test_tars_of_one_name_whose_images_have_one_name_are_refused(tmp_path, labels):
    beside = [("0.cls", b"cat"), ("1.cls", b"dog")] * labels
    for folder in ("a", "b"):
        images = [(f"{k}.jpg", folder.encode()) for k in range(2)]
        pack(tmp_path / "t" / folder / "00000.tar", sorted([*images, *beside]))
    given = options(tmp_path / "t")
    one, other = (tmp_path / "t" / folder / "00000.tar" for folder in ("a", "b"))
    assert error_line(DataError, open_source, given, "train", labels=labels) == (
        f"data.root={tmp_path}/t: {one} and {other} have the same name, and so have their images; "
        "rename one, or set data.root to the folder of one"
    )
    other.rename(other.with_name("00001.tar"))
    assert len(open_source(given, "train", labels=labels)) == 4
    # Of one tar, the image that comes last counts, as where it is unpacked.
    with tarfile.open(tmp_path / "u.tar", "w") as file:
        for _ in range(2):
            with tarfile.open(one) as part:
                for member in part:
                    file.addfile(member, part.extractfile(member))
    found = open_source(options(tmp_path / "u.tar"), "train", labels=labels)
    assert len(found) == 2
    assert folder_check.left_out([found]) == "2 images whose path comes again"


def test_images_that_have_labels_measure_what_was_learned_without(tmp_path):
    (tmp_path / "p").mkdir()
    for split in ("train", "test"):
        images = [b"\xff\xd8\xff %d" % k for k in range(9)]
        table = pa.table({"image": images, "label": [-1, None, *range(3), *range(4)]})
        pyarrow.parquet.write_table(table, tmp_path / f"p/{split}-0.parquet")
    cfg = config.build({"objective": {"name": "dino"}, "evaluation": {"knn": ("self",)}})
    cfg = dataclasses.replace(cfg, data=options(tmp_path / "p", "parquet"))
    assert len(open_source(cfg.data, "train", labels=False)) == 9
    line = "evaluation.knn=self: not used: 4 rows without an image or a label"
    with pytest.warns(logs.AssumptionWarning, match=line):
        (pair,) = task_sets.open_pairs(cfg, len)["knn"]
    assert pair == ("self", 7, 7, 4)


def test_members_are_checked_before_a_run(tmp_path):
    """As files of a folder are: by their first bytes, wherever they are."""
    good, root = b"\xff\xd8\xff" + b"x" * 99, tmp_path / "t"
    pack(root / "train.tar", [("a/0.jpg", b""), ("b/1.jpg", b"<html>"), ("b/22.jpg", good)])
    fill(root, "val/a/0.jpg", "val/b/1.jpg", "val/b/2.HEIC", "loose.jpg")

    def check(**given):
        tar_source._arranged_once.cache_clear()  # listed, then from the cache
        data = options(root, eval_split="val", **given)
        return folder_check.check_files(data, open_source(data, "train"), None, None)

    assert error_line(DataError, check) == (
        f"data.root={root}: of 3 images of train 2 cannot be used: "
        f"{folders.shown(f'{root}/train/a/0.jpg')} is empty, "
        f"{folders.shown(f'{root}/train/b/1.jpg')} is a page or SVG, whatever its suffix says; "
        "fix or remove them, or allow them with data.max_bad_examples=2"
    )
    assert (
        "; not used: 1 .heic (a format that is not read; save as .png), 1 image in no class folder "
        "(loose.jpg), the split val; of train 2 cannot "
    ) in check(max_bad_examples=2)


@pytest.mark.parametrize("inside", ["", "cat/"])
def test_tars_that_are_classes_by_their_names_are_said_to_be(tmp_path, inside):
    """Also those that hold folders, which are classes in a tar that is called as its split is."""
    for name in ("shard-0", "shard-1"):
        members = [(f"{inside}{k}.jpg", name.encode()) for k in range(3)]
        pack(tmp_path / f"t/{name}.tar", members)
    given = options(tmp_path / "t", holdout=0.4, eval_split="validation")
    assert open_source(given, "train", labels=False).classes == ()  # without a warning
    line = "t: a tar is a class of its name, such as shard-0.tar, whatever folders it holds; one of"
    for _ in range(2):  # listed, then from the cache
        tar_source._arranged_once.cache_clear()
        with pytest.warns(logs.AssumptionWarning, match=line):
            assert open_source(given, "train").classes == ("shard-0", "shard-1")
    pack(tmp_path / "cat.tar", [("cat/1.jpg", b"x"), ("dog/1.jpg", b"y")])
    with warnings.catch_warnings(action="error"):
        assert opened(tmp_path / "cat.tar").classes == ("cat", "dog")


def test_several_images_of_one_label_are_said(tmp_path):
    """Masks beside photos, of a webdataset, would be trained on like these."""
    members = [("0.cls", b"cat"), ("0.jpg", b"0"), ("0.mask.png", b"m"), ("1.cls", b"dog")]
    pack(tmp_path / "t/train-0.0.tar", [*members, ("1.jpg", b"1")])
    line = r"have several images each \(1 .jpg, 1 .mask.png\), all of them of its label"
    for _ in range(2):  # listed, then from the cache
        tar_source._arranged_once.cache_clear()
        with pytest.warns(logs.AssumptionWarning, match=line):
            assert len(opened(tmp_path / "t")) == 3


def test_many_threads_read_more_tars_than_are_open_at_once(tmp_path):
    for shard in range(9):
        members = [
            (f"{c}/{shard}-{k}.jpg", f"{shard} {c} {k}".encode()) for c in "ab" for k in "01"
        ]
        pack(tmp_path / "t" / f"train/{shard}.tar", members)
    found = opened(tmp_path / "t")
    expected = records(found)
    order = np.random.default_rng(0).integers(0, len(found), 4000).tolist()
    files = pathlib.Path("/proc/self/fd")
    before = len(list(files.iterdir()))
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(found.__getitem__, order)) == [expected[at] for at in order]
        assert len(list(files.iterdir())) <= before + 8 * 4
    assert len(list(files.iterdir())) <= before  # a thread that ends closes its own


def test_tars_are_listed_once_until_one_changes(both, monkeypatch, caplog):
    _, tars = both
    scans = []
    scan = image_listing.scan
    monkeypatch.setattr(image_listing, "scan", lambda *a, **k: scans.append(a) or scan(*a, **k))

    def again():
        tar_source._arranged_once.cache_clear()
        return opened(tars)

    first = again()
    (kept,) = (tars.parent / "cache/listings").iterdir()
    assert (again().fingerprint(), len(scans)) == (first.fingerprint(), 1)
    for _ in range(2):  # without labels it is another listing, which does not replace this one
        tar_source._arranged_once.cache_clear()
        open_source(options(tars), "train", labels=False)
        assert (again().fingerprint(), len(scans)) == (first.fingerprint(), 2)
    for damage in (b"", b"PK\x03\x04", kept.read_bytes()[:200], b"\x93NUMPY\x01\x00"):
        kept.write_bytes(damage)
        assert again().fingerprint() == first.fingerprint()
    assert len(scans) == 6
    pack(tars / "train.tar", [("cat/a.jpg", b"new"), ("dog/b.jpg", b"newer")])
    pack(tars / "val.tar", [("cat/a.jpg", b"new")])
    pack(tars / "test.tar", [("cat/a.jpg", b"new")])
    assert [r.image for r in records(again())] == [b"new", b"newer"]
    assert again().fingerprint() != first.fingerprint()
    # A cache that cannot be written is said; nothing else is lost.
    (tars.parent / "file").write_bytes(b"")
    assert len(opened(tars, cache=str(tars.parent / "file"))) == 2
    assert "is listed in every run: " in caplog.text
    with pytest.raises(config.ConfigError, match="^~nobody-of-this-name/x: .* with data.cache$"):
        opened(tars, cache="~nobody-of-this-name/x")


def test_a_tar_that_changes_under_a_run_is_an_error(both):
    _, tars = both
    found = opened(tars)
    os.truncate(tars / "train.tar", 1000)
    with pytest.raises(DataError, match=r"changed since it was listed, in .*train\.tar"):
        records(found)


@pytest.mark.parametrize(
    ("members", "given", "message"),
    [
        ({"a.tar": ["c/1.jpg", "d/2.jpg"]}, {}, "data.eval_split=test: no such split in .*; splits "
         "there: train; to hold out a tenth of it, set data.holdout=0.1"),
        ({"train.tar": ["c/1.jpg", "d/2.jpg"], "test.tar": ["c/1.jpg"]}, {"holdout": 0.5},
         "data.holdout=0.5: .* has splits, test, train; set 0"),
        ({"a.tar": ["c/1.jpg"]}, {}, "one class folder alone, c"),
        ({"a.tar": ["c/1.txt"]}, {}, "has no image; images end in .jpg"),
        ({"a.tar": ["../c/1.jpg"]}, {}, "is a path outside of it"),
        ({"a.tar": ["c/1.jpg"], "b/B.Tar.gz": None}, {}, "t/b/B.Tar.gz is no plain tar, so"),
        ({"x.parquet": None}, {}, "has Parquet files; set data.source=parquet"),
        ({"x.ARROW": None}, {}, "has Arrow files; set data.source=arrow"),
        ({}, {}, "no such folder or file"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(tmp_path, members, given, message):
    for name, inside in members.items():
        if inside is None:
            fill(tmp_path / "t", name)
        else:
            pack(tmp_path / "t" / name, [(one, b"x") for one in inside])
    with pytest.raises(DataError, match=message) as caught:
        opened(tmp_path / "t", "test", **given)
    assert "\n" not in str(caught.value)


@pytest.fixture
def tables(tmp_path):
    """Parquet files as Hugging Face has them, and a folder of the same images."""
    names, image = ["fig/dried", "pear"], pa.struct({"bytes": pa.binary(), "path": pa.string()})
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": names}}
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    for split, shard in (("train", 0), ("train", 1), ("test", 0)):
        stem = f"{split}-{shard:05}-of-00002"
        images = [b"\xff\xd8\xff%s%d" % (stem.encode(), k) for k in range(20)]
        images = [{"bytes": data, "path": None} for data in images]
        found = {"image": pa.array(images, image), "label": [k * k % 2 for k in range(20)]}
        path = tmp_path / "p/data" / f"{stem}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        found = pa.table(found).replace_schema_metadata(about)
        pyarrow.parquet.write_table(found, path, row_group_size=7)
        for name, data in parquet.rows(path):
            copy = tmp_path / "f" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(data)
    (tmp_path / "p/README.md").write_text("a card")
    return tmp_path / "f", tmp_path / "p"


def test_images_of_other_sizes_are_other_data(tables):
    root = tables[1]
    before = opened(root, "train", "parquet").fingerprint()
    path = root / "data/train-00000-of-00002.parquet"
    table = pyarrow.parquet.read_table(path)
    images = table["image"].to_pylist()
    images[0]["bytes"] += b"longer"
    table = table.set_column(0, "image", pa.array(images, table.schema.field("image").type))
    pyarrow.parquet.write_table(table, path, row_group_size=7)
    tar_source._arranged_once.cache_clear()
    assert opened(root, "train", "parquet").fingerprint() != before


def test_parquet_files_are_the_folder_of_their_images(tables, tmp_path):
    folder, root = tables
    for split in ("train", "test"):
        expected, found = opened(folder, split, "folder"), opened(root, split, "parquet")
        assert found.classes == expected.classes == ("fig_dried", "pear")
        assert records(pickle.loads(pickle.dumps(found))) == records(expected)
        np.testing.assert_array_equal(found.labels, expected.labels)
        assert f"{found.name(3)}.jpg" == expected.name(3).replace(str(folder), str(root))
    whole, half = (opened(root, split, "parquet") for split in ("train", "train[:50%]"))
    assert len(half) == 20
    assert {r.image for r in records(half)} < {r.image for r in records(whole)}
    data = options(root, "parquet", eval_split="auto", test_split="auto")
    data = split_roles.resolved(data)
    assert data.eval_split == "test"
    assert folder_check.check_files(data, half, None, None) == (
        f"data.root={root}: train 20 images of 2 classes (9 to 11 each); not used: the split test"
    )
    path = root / "data/train-00000-of-00002.parquet"
    table = pyarrow.parquet.read_table(path)
    table = table.set_column(1, "label", [[None, -1, *table["label"].to_pylist()[2:]]])
    pyarrow.parquet.write_table(table, tmp_path / "train.parquet")
    for split in ("train", "train[:50%]"):  # listed, then from the cache
        tar_source._arranged_once.cache_clear()
        some = opened(tmp_path / "train.parquet", split, "parquet")
        assert folder_check.check_files(data, some, None, None).endswith(
            "; not used: 2 rows without an image or a label (null, empty or -1), the split test"
        )
    with pytest.raises(DataError, match="=test: no such split in .*; 2 rows have no image or no"):
        opened(tmp_path / "train.parquet", "test", "parquet")
    table = table.set_column(1, "label", [[-1] * 20])  # as test splits of competitions
    pyarrow.parquet.write_table(table, tmp_path / "test.parquet")
    with pytest.raises(DataError, match="none of its 20 rows has both an image, as bytes, and a"):
        opened(tmp_path / "test.parquet", "test", "parquet")
    listed = tmp_path / "fix.csv"
    listed.write_text("image\ntrain/pear/train-00001-of-00002-00000003\n")
    left = opened(root, "train", "parquet", exclude=str(listed))
    assert len(left) == 39
    assert b"train-00001-of-000023" not in {r.image[3:] for r in records(left)}
    alone = opened(root / "data/train-00000-of-00002.parquet", "validation", "parquet", holdout=0.2)
    assert 2 <= len(alone) < 20


def test_arrow_files_are_the_folder_of_their_images(tables, tmp_path):
    """As datasets saves splits, each in a folder of its name."""
    folder, root = tables
    saved = tmp_path / "saved"
    for path in (root / "data").iterdir():
        split = path.stem.partition("-")[0]
        found = pyarrow.parquet.read_table(path)
        there = saved / split / f"{path.stem}.arrow"
        there.parent.mkdir(parents=True, exist_ok=True)
        with pa.OSFile(str(there), "wb") as file, pa.ipc.new_stream(file, found.schema) as writer:
            writer.write_table(found, max_chunksize=7)
    for split in ("train[:50%]", "test"):
        expected, found = opened(folder, split, "folder"), opened(saved, split, "arrow")
        assert found.classes == expected.classes == ("fig_dried", "pear")
        np.testing.assert_array_equal(found.labels, expected.labels)
    assert records(pickle.loads(pickle.dumps(found))) == records(expected)
    assert found.name(3) == expected.name(3).replace(str(folder), str(saved))
    assert len(found.start(0)) <= 32
    with pa.ipc.open_stream(there) as stream:
        table = stream.read_all()
    table = table.set_column(1, "label", [[None, -1, *table["label"].to_pylist()[2:]]])
    path = str(tmp_path / "x.arrow")
    with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    assert opened(tmp_path / "x.arrow", "train", "arrow").skipped.rows == 2
    data = options(saved, "arrow", eval_split="auto")
    assert split_roles.resolved(data).eval_split == "test"
    listed = tmp_path / "fix.csv"
    listed.write_text("image\ntest/pear/test-00000-of-00002-00000003.jpg\n")
    assert len(opened(saved, "test", "arrow", exclude=str(listed))) == 19


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: (root / "a.arrow").write_bytes(b""),
         "has Arrow files; set data.root to a folder of one kind"),
        (lambda root: (root / "x.parquet").write_bytes(b"x"), "x.parquet: is damaged, or no Parq"),
        (lambda root: shutil.copytree(root / "data", root / "more"),
         "data/test-.*more/test-.* have the same name, .* data.root to the folder of one"),
        (lambda root: shutil.rmtree(root / "data"), "has no file that ends in .parquet"),
    ],
)  # fmt: skip
def test_mistakes_with_parquet_files_are_one_line(tables, change, message):
    _, root = tables
    change(root)
    with pytest.raises(DataError, match=message) as caught:
        opened(root, "train", "parquet")
    assert "\n" not in str(caught.value)
