"""The user's files: which archives are opened, and what becomes of damaged ones."""

import errno
import gzip
import pathlib

import pytest

import official_fakes
from commands import error_line, woe
from vit_jax.data.prepare.official.source_files import SourceFiles
from vit_jax.data.source import DataError


def archives(root, *patterns, unpacked=40_000, scratch="scratch"):
    return SourceFiles([root / "mine"], patterns, root / scratch, unpacked)


def test_only_archives_that_are_asked_for_are_opened(tmp_path):
    inside = {"b/1.jpg": b"one", "b/2.txt": b"two"}
    files = {
        "a.tar.gz": official_fakes.tar(inside, "w:gz"),
        "a.zip": official_fakes.zipped(inside | {"a.tar.gz": official_fakes.tar(inside, "w:gz")}),
        "other.tar": b"no tar",
        "numbers.mat.gz": gzip.compress(b"12345"),
        "c/plain.txt": b"three",
    }
    official_fakes.write(tmp_path / "mine", files)
    found = archives(tmp_path, "a.tar.gz", "a.zip", "*.mat.gz")
    table = {one.path: one for one in found}
    assert sorted(table) == [
        "a/a/b/1.jpg", "a/a/b/2.txt", "a/b/1.jpg", "a/b/2.txt", "c/plain.txt", "numbers.mat",
        "other.tar",
    ]  # fmt: skip
    assert found.read(table["a/a/b/2.txt"]) == b"two"
    assert found.text(table["c/plain.txt"]) == "three"
    assert found.read(table["numbers.mat"]) == b"12345"
    for name, data in (("a/a/b/1.jpg", b"one"), ("a/b/2.txt", b"two"), ("numbers.mat", b"12345")):
        with found.opened(table[name]) as (plain, file):
            assert file.read(plain.size) == data
            assert pathlib.Path(plain.container).read_bytes()[plain.offset :][: plain.size] == data
    with pytest.raises(DataError, match="5 bytes; expected at most 4"):
        found.read(table["numbers.mat"], 4)


def test_an_archive_that_is_given_itself_is_opened_by_any_name(prepare, tmp_path):
    official_fakes.cifar10(tmp_path)
    archive = (tmp_path / "cifar-10-binary.tar.gz").rename(tmp_path / "mine.tgz")
    assert prepare("cifar10", f"--from={archive}", "--partial")[1][0] == (
        "cifar10: train: 20 of 50,000 images, test: 5 of 10,000 images"
    )
    folder = tmp_path / "folder"
    folder.mkdir()
    archive.rename(folder / "mine.tgz")
    assert "contains no image of cifar-10-binary.tar.gz or cifar-10-python.tar.gz" in woe(
        prepare("cifar10", f"--from={folder}", "--partial", data_dir="other")
    )


NESTED = {}
for _ in range(6):
    NESTED = {"a.tar.gz": official_fakes.tar(NESTED, "w:gz")}


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ({"a.tar.gz": gzip.compress(b"\0" * 50_000)},
         "unpacks to more than 40,000 bytes, more than any file in this dataset"),
        ({"a.tar.gz": gzip.compress(bytes(range(256)) * 9)[:-20]}, "is damaged or truncated: "),
        ({"a.tar.gz": b"\x1f\x8bno gzip at all"}, "is damaged or truncated: "),
        ({"a.zip": official_fakes.zipped({"a.tar.gz": b"\x1f\x8b" + b"\0" * 50_000})},
         "unpacks to more than 40,000 bytes"),
        (NESTED, "archives nested too deeply"),
    ],
)  # fmt: skip
def test_bad_archives_are_one_line(files, line, tmp_path):
    official_fakes.write(tmp_path / "mine", files)
    assert line in error_line(DataError, list, archives(tmp_path, "a.tar.gz", "a.zip"))


def test_what_is_unpacked_is_kept_until_the_archive_changes(tmp_path):
    official_fakes.write(tmp_path / "mine", {"n.mat.gz": gzip.compress(b"12345")})
    (one,) = archives(tmp_path, "n.mat.gz")
    path = archives(tmp_path).alone(one)
    written = path.stat().st_mtime_ns
    (again,) = archives(tmp_path, "n.mat.gz")
    assert again == one
    assert path.stat().st_mtime_ns == written
    (tmp_path / "mine/n.mat.gz").write_bytes(gzip.compress(b"67890 "))
    (other,) = archives(tmp_path, "n.mat.gz")
    assert archives(tmp_path).read(other) == b"67890 "
    (tmp_path / "mine/link.mat").symlink_to("nothing")
    with pytest.raises(DataError, match="link.mat: No such file"):
        list(archives(tmp_path))


def test_a_file_goes_to_the_first_pattern_that_fits(tmp_path):
    official_fakes.write(tmp_path / "mine", {"a/list.txt": b"1", "b.txt": b"2"})
    first, second = archives(tmp_path).sort(r"(list)\.txt", r"(\w+)\.txt")
    assert (list(first), list(second)) == (["list"], ["b"])


def test_an_archive_that_cannot_be_opened_is_one_line(tmp_path, monkeypatch):
    official_fakes.write(tmp_path / "mine", {"a.tar": official_fakes.tar({"1.jpg": b"x"})})

    def fail(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(pathlib.Path, "open", fail)
    with pytest.raises(DataError, match=r"a\.tar: cannot be read: Input/output error"):
        list(archives(tmp_path, "a.tar"))
