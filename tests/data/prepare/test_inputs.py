"""Listings of folders, tars and zips: every image once, where its bytes are, and nothing else."""

import gzip
import hashlib
import io
import pathlib
import tarfile
import zipfile

import numpy as np
import pytest

from vit_jax.data.decoding import BadImage
from vit_jax.data.prepare import archives, assignment, image_listing
from vit_jax.data.source import DataError

IMAGES = {"a/1.jpg": b"one", "a/deep/2.JPEG": b"two", "b/3.png": b"three", "b/4.webp": b"4"}


def member(name, data=b"", **attributes):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in attributes.items():
        setattr(info, key, value)
    return info, io.BytesIO(data)


def tar_bytes(*members, form=tarfile.PAX_FORMAT):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
        for one in members:
            tar.addfile(*one)
    return stream.getvalue()


def contents(*sources):
    """Path to bytes, of all that is listed."""
    listing, read = image_listing.scan(sources), archives.Reader()
    found = [listing[index] for index in range(len(listing))]
    assert len({each.path for each in found}) == len(found)
    result = {each.path: read(each) for each in found}
    read.close()
    return result


def in_folder(root):
    for name, data in IMAGES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def test_folders_tars_and_zips_list_the_same(tmp_path):
    folder = in_folder(tmp_path / "folder")
    (folder / ".hidden").mkdir()
    (folder / ".hidden/5.jpg").write_bytes(b"hidden")
    (folder / "a/notes.txt").write_bytes(b"text")
    assert contents(folder) == IMAGES
    assert image_listing.scan([folder]).ignored == ["a/notes.txt"]
    names = [*IMAGES, "./a/.hidden.jpg"]
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT):
        path = tmp_path / f"{form}.tar"
        path.write_bytes(
            tar_bytes(*(member(f"./{n}", IMAGES.get(n, b"")) for n in names), form=form)
        )
        assert contents(path) == IMAGES
    with zipfile.ZipFile(tmp_path / "all.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in IMAGES.items():
            file.writestr(name, data)
    assert contents(tmp_path / "all.zip") == IMAGES


def test_class_tars_count_as_folders_wherever_they_are(tmp_path):
    one = tar_bytes(member("n1_7.JPEG", b"seven"), member("n1_8.JPEG", b"eight"))
    two = tar_bytes(member("n2_" + "long" * 40 + ".JPEG", b"nine"))
    expected = {
        "n1/n1_7.JPEG": b"seven",
        "n1/n1_8.JPEG": b"eight",
        "n2/n2_" + "long" * 40 + ".JPEG": b"nine",
    }
    folder = tmp_path / "tars"
    folder.mkdir()
    (folder / "n1.tar").write_bytes(one)
    (folder / "n2.tar").write_bytes(two)
    assert contents(folder) == expected
    assert contents(folder / "n1.tar", folder / "n2.tar") == expected
    whole = tmp_path / "whole.tar"
    whole.write_bytes(tar_bytes(member("n1.tar", one), member("n2.tar", two)))
    assert contents(whole) == expected
    whole.write_bytes(tar_bytes(member("w/n1.tar", one), member("w/n2.tar", two)))
    assert contents(whole) == {f"w/{path}": data for path, data in expected.items()}


def test_few_tars_are_open_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MOST_OPEN", 3)
    for number in range(10):
        (tmp_path / f"n{number}.tar").write_bytes(tar_bytes(member("1.jpg", b"%d" % number)))
    listing, read = image_listing.scan([tmp_path]), archives.Reader()
    before = len(list(pathlib.Path("/proc/self/fd").iterdir()))
    for number in (*range(10), 9, 0, 5):
        assert read(listing[number]) == b"%d" % number
        assert len(list(pathlib.Path("/proc/self/fd").iterdir())) <= before + 3
    read.close()
    assert len(list(pathlib.Path("/proc/self/fd").iterdir())) == before


def test_long_listings_are_made_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(image_listing, "CHUNK", 70)
    members = (member(f"c{i % 7}/{i}.jpg", b"x" * (i % 5)) for i in range(500))
    data = tar_bytes(*members, form=tarfile.USTAR_FORMAT)
    (tmp_path / "many.tar").write_bytes(data)
    listing = image_listing.scan([tmp_path / "many.tar"])
    assert len(listing) == 500
    np.testing.assert_array_equal(listing.sizes(), np.arange(500) % 5)
    assert listing.path(499) == "c2/499.jpg"
    read = archives.Reader()
    assert read(listing[344]) == b"xxxx"


def refusal(*sources):
    with pytest.raises(DataError) as caught:
        image_listing.scan(sources)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (member("../1.jpg", b"x"), "'../1.jpg' is a path outside of it"),
        (member("a/../../1.jpg", b"x"), "'a/../../1.jpg' is a path outside of it"),
        (member("/etc/1.jpg", b"x"), "'/etc/1.jpg' is a path outside of it"),
        (member("1.jpg", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "is a symbolic link"),
        (member("1.jpg", type=tarfile.LNKTYPE, linkname="2.jpg"), "is a hard link"),
        (member("1.jpg", type=tarfile.CHRTYPE), "is a device"),
        (member("1.jpg", type=tarfile.FIFOTYPE), "is a pipe"),
    ],
)
def test_what_no_tar_of_images_holds_is_refused(tmp_path, one, reason):
    path = tmp_path / "bad.tar"
    path.write_bytes(tar_bytes(member("a/ok.jpg", b"fine"), one))
    assert reason in refusal(path)
    assert str(path) in refusal(path)
    inner = path.read_bytes()
    path.write_bytes(tar_bytes(member("n1.tar", inner)))
    assert reason in refusal(path)


def test_paths_outside_of_a_zip_are_refused(tmp_path):
    path = tmp_path / "bad.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a/../../x.jpg", b"x")
    assert "is a path outside of it" in refusal(path)
    link = zipfile.ZipInfo("a/x.jpg")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(link, "/etc/passwd")
    assert "is a symbolic link" in refusal(path)


def test_damaged_and_compressed_tars_are_named(tmp_path):
    path = tmp_path / "photos.tar"
    whole = tar_bytes(*(member(f"a/{i}.jpg", b"x" * 3000) for i in range(5)))
    path.write_bytes(gzip.compress(whole))
    assert refusal(path) == (
        f"{path}: is compressed, and a shuffled order needs random access; first: "
        f"gunzip --keep {path}"
    )
    path.write_bytes(whole[:9000])
    assert refusal(path) == f"{path}: is truncated: it ends within a/2.jpg"
    damaged = bytearray(whole)
    damaged[3584 * 2 + 10] ^= 1  # the third header: its checksum does not hold
    path.write_bytes(damaged)
    assert refusal(path) == f"{path}: is damaged at byte {3584 * 2}; download it again"
    path.write_bytes(b"no tar at all" * 100)
    assert "is no tar, or a damaged one" in refusal(path)
    assert refusal(tmp_path / "none") == f"--from={tmp_path / 'none'}: no such file or folder"


def test_a_damaged_member_of_a_zip_is_a_bad_image(tmp_path):
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a/1.jpg", b"something")
        file.writestr("a/2.jpg", b"another thing")
    path.write_bytes(path.read_bytes().replace(b"something", b"somethinG"))
    listing, read = image_listing.scan([path]), archives.Reader()
    with pytest.raises(BadImage, match="Bad CRC-32"):
        read(listing[0])
    assert read(listing[1]) == b"another thing"


def test_a_source_that_changes_while_it_is_packed_stops_the_command(tmp_path):
    folder = in_folder(tmp_path / "folder")
    listing, read = image_listing.scan([folder]), archives.Reader()
    (folder / "a/1.jpg").write_bytes(b"longer than before")
    with pytest.raises(DataError, match=r"a/1\.jpg: changed while it was packed"):
        read(listing[0])
    (folder / "a/1.jpg").unlink()
    with pytest.raises(DataError, match=r"a/1\.jpg: no such file"):
        read(listing[0])


def arranged(names, tmp_path, unsplit="train"):
    path = tmp_path / "some.tar"
    path.write_bytes(tar_bytes(*(member(name, b"x") for name in names)))
    listing = image_listing.scan([path])
    plan = assignment.arrange(listing, unsplit, "--from=some.tar")
    splits = {
        split: [(listing.path(i), plan.classes[plan.labels[i]]) for i in order]
        for split, order in plan.order.items()
    }
    return plan, splits


def test_order_is_by_the_hash_of_the_path_below_the_split(tmp_path):
    names = [f"{c}/{i}.jpg" for c in "ab" for i in range(50)]
    by_hash = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    plan, splits = arranged(names, tmp_path)
    assert plan.classes == ("a", "b")
    assert splits == {"train": [(name, name[0]) for name in by_hash]}
    _, splits = arranged([f"around/it/{name}" for name in names], tmp_path, "full")
    assert splits == {"full": [(f"around/it/{name}", name[0]) for name in by_hash]}
    both = [f"{split}/{name}" for split in ("train", "val") for name in names]
    _, splits = arranged(both, tmp_path)
    for split in ("train", "val"):
        assert splits[split] == [(f"{split}/{name}", name[0]) for name in by_hash]


def test_loose_images_do_not_make_classes_of_splits(tmp_path):
    """A picture beside the class folders once made `train` and `val` the two classes."""
    both = [f"{split}/{c}/1.jpg" for split in ("train", "val") for c in "ab"]
    for more in ("train/loose.jpg", "loose.jpg"):
        plan, splits = arranged([*both, more], tmp_path)
        assert plan.classes == ("a", "b")
        assert {split: len(found) for split, found in splits.items()} == {"train": 2, "val": 2}
        assert plan.ignored == (more,)


@pytest.mark.parametrize("holdout", [0.001, 0.1, 0.5, 0.999])
def test_a_share_of_each_class_is_held_out(tmp_path, holdout):
    counts = {"a": 200, "b": 2, "c": 1, "d": 3}
    names = [f"{c}/{i}.jpg" for c, count in counts.items() for i in range(count)]
    path = tmp_path / "some.tar"
    path.write_bytes(tar_bytes(*(member(name, b"x") for name in names)))
    listing = image_listing.scan([path])
    plan = assignment.arrange(listing, "train", "--from", holdout)
    assert plan.held_out
    assert list(plan.order) == ["train", "validation"]
    ours = {split: [listing.path(i) for i in order] for split, order in plan.order.items()}
    assert sorted(ours["train"] + ours["validation"]) == sorted(names)
    key = {name: int(hashlib.sha256(name.encode()).hexdigest()[:16], 16) for name in names}
    for split in ours.values():
        assert split == sorted(split, key=key.get)
    held = {c: sum(name[0] == c for name in ours["validation"]) for c in counts}
    below = {c: sum(key[name] < holdout * 2**64 for name in names if name[0] == c) for c in counts}
    assert held == {c: min(max(below[c], 1), counts[c] - 1) for c in counts}


def test_nothing_is_held_out_where_every_class_has_one_image(tmp_path):
    path = tmp_path / "some.tar"
    path.write_bytes(tar_bytes(*(member(f"{c}/1.jpg", b"x") for c in "ab")))
    listing = image_listing.scan([path])
    plan = assignment.arrange(listing, "train", "--from", 0.1)
    assert (plan.held_out, list(plan.order)) == (False, ["train"])


def test_a_path_that_comes_twice_counts_once_and_the_later_one_wins(tmp_path):
    path = tmp_path / "some.tar"
    twice = [member("a/1.jpg", b"old"), member("b/1.jpg", b"b"), member("a/1.jpg", b"new")]
    path.write_bytes(tar_bytes(*twice))
    listing = image_listing.scan([path])
    plan = assignment.arrange(listing, "train", "--from")
    read = archives.Reader()
    assert sorted(read(listing[i]) for i in plan.order["train"]) == [b"b", b"new"]
    assert plan.ignored == ("a/1.jpg",)


def test_layouts_that_cannot_be_labeled(tmp_path):
    def reason(*names):
        with pytest.raises(DataError) as caught:
            arranged(names, tmp_path)
        return str(caught.value).partition(": ")[2]

    assert reason("a/read.me") == (
        "has no image; images end in .jpg, .jpeg, .png, .webp, .gif, .bmp, .tif, .tiff"
    )
    assert reason("a/1.jpg", "a/2.jpg") == (
        "one class folder alone, a; expected CLASS/IMAGE, 2 at least"
    )
    assert reason("train/a/1.jpg", "train/b/1.jpg", "test/c/1.jpg") == (
        "class folders of test that are missing in train: c"
    )
    for name in ("b\udcff", "b\n", " b"):
        assert reason("a/1.jpg", f"{name}/1.jpg") == (
            f"class folder {name!r}: no name for a class; rename it"
        )
    assert reason("train/1.jpg", "val/2.jpg") == (
        "images lie in train, val without class folders; expected SPLIT/CLASS/IMAGE"
    )
    plan, splits = arranged(["a/1.jpg", "b/1.jpg", "loose.jpg"], tmp_path)
    assert plan.ignored == ("loose.jpg",)
    assert len(splits["train"]) == 2


def test_an_unreadable_file_is_a_bad_image(tmp_path, monkeypatch):
    folder = in_folder(tmp_path / "folder")
    listing, read = image_listing.scan([folder]), archives.Reader()

    def denied(*args, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(io, "FileIO", denied)  # root may read everything
    with pytest.raises(BadImage, match="Permission denied"):
        read(listing[0])
