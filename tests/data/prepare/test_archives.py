"""Folders, tars and zips: what is listed and read, and a line with the bound for hostile ones."""

import contextlib
import gzip
import io
import os
import struct
import tarfile
import tracemalloc
import zipfile

import numpy as np
import pytest

import official_fakes
from commands import error_line
from vit_jax.data.decoding import BadImage
from vit_jax.data.prepare import archives, image_listing
from vit_jax.data.source import DataError

BLOCK = 512


def block(name, size=b"%011o\0" % 0, kind=b"0"):
    """The header of a member of a tar, with any size and kind."""
    head = bytearray(BLOCK)
    head[: len(name)] = name
    head[100:124] = b"0000644\0" + b"0000000\0" * 2
    head[124:136] = size
    head[136:148] = b"%011o\0" % 0
    head[156:157] = kind
    head[257:265] = b"ustar\00000"
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head)


def octal(size):
    return b"%011o\0" % size


def negative(size):
    """A size below zero, which GNU's binary form of numbers can say."""
    return b"\xff" + (2**88 + size).to_bytes(11, "big")


def filed(name, data, kind=b"0"):
    return block(name, octal(len(data)), kind) + data + bytes(-len(data) % BLOCK)


def pax(**values):
    """The header with more values that goes before a member."""
    lines = b""
    for key, value in values.items():
        text = b" %s=%s\n" % (key.replace("__", ".").encode(), value)
        length = len(text) + 1
        while len(b"%d" % length) + len(text) > length:
            length += 1
        lines += b"%d%s" % (length, text)
    return filed(b"pax", lines, b"x")


IMAGE = filed(b"a/1.jpg", b"x")
END = bytes(2 * BLOCK)
MANY = b"".join(b"%d k%05d=v\n" % (12, k) for k in range(1001))  # global values


def refusal(path, data=None):
    if data is not None:
        path.write_bytes(data)
    line = error_line(DataError, image_listing.scan, [path])
    assert line.startswith(str(path))
    assert line.isprintable()
    return line.removeprefix(f"{path}: ")


def contents(*sources):
    """The bytes of everything that is listed, by path."""
    listing, read = image_listing.scan(sources), archives.Reader()
    entries = [listing[index] for index in range(len(listing))]
    assert len({each.path for each in entries}) == len(entries)
    with contextlib.closing(read):
        return {each.path: read(each) for each in entries}


IMAGES = {"a/1.jpg": b"one", "a/deep/2.JPEG": b"two", "b/3.png": b"three", "b/4.webp": b"4"}


def test_folders_tars_and_zips_list_the_same(tmp_path):
    folder = tmp_path / "folder"
    official_fakes.write(folder, IMAGES | {".hidden/5.jpg": b"hidden", "a/notes.txt": b"text"})
    assert contents(folder) == IMAGES
    assert image_listing.scan([folder]).ignored == ["a/notes.txt"]
    hidden = {"./a/.hidden.jpg": b"x", "a/.hidden/5.jpg": b"x"}
    members = {f"./{name}": data for name, data in IMAGES.items()} | hidden
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT):
        path = tmp_path / f"{form}.tar"
        path.write_bytes(official_fakes.tar(members, format=form))
        assert contents(path) == IMAGES
    (tmp_path / "all.zip").write_bytes(official_fakes.zipped(IMAGES | hidden))
    assert contents(tmp_path / "all.zip") == IMAGES


def test_class_tars_count_as_folders_wherever_they_are(tmp_path):
    classes = {
        "n1": {"n1_7.JPEG": b"seven", "n1_8.JPEG": b"eight"},
        "n2": {"n2_" + "long" * 40 + ".JPEG": b"nine"},
    }
    expected = {f"{c}/{name}": data for c, files in classes.items() for name, data in files.items()}
    tars = {f"{name}.tar": official_fakes.tar(files) for name, files in classes.items()}
    folder, whole = tmp_path / "tars", tmp_path / "whole.tar"
    official_fakes.write(folder, tars)
    assert contents(folder) == contents(folder / "n1.tar", folder / "n2.tar") == expected
    for above in ("", "w/"):
        whole.write_bytes(official_fakes.tar({above + name: data for name, data in tars.items()}))
        assert contents(whole) == {above + path: data for path, data in expected.items()}
    whole.write_bytes(official_fakes.tar({"cat/1.jpg": b"one"}))  # whose folders are the classes
    assert contents(folder / "n1.tar", whole).keys() == {
        "n1/n1_7.JPEG", "n1/n1_8.JPEG", "cat/1.jpg"
    }  # fmt: skip


def test_long_listings_have_every_file(tmp_path):
    files = {f"c{i % 7}/{i}.jpg": b"x" * (i % 5) for i in range(500)}
    (tmp_path / "many.tar").write_bytes(official_fakes.tar(files))
    listing = image_listing.scan([tmp_path / "many.tar"])
    assert listing.sizes().tolist() == [i % 5 for i in range(500)]
    assert listing.path(499) == "c2/499.jpg"
    assert contents(tmp_path / "many.tar") == files


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (block(b"a/2.jpg", negative(-1)), "is damaged: a/2.jpg has -1 bytes"),
        (block(b"a/2.jpg", negative(-BLOCK)), "is damaged: a/2.jpg has -512 bytes"),
        (block(b".a", negative(-3 * BLOCK)), "is damaged: .a has -1536 bytes"),
        (block(b"a/2.jpg", negative(-(2**80))), "is damaged: a/2.jpg has -12089258196146291747"),
        (pax(size=b"-2048") + IMAGE, "is damaged: a/1.jpg has -2048 bytes"),
        (block(b"pax", negative(-BLOCK), b"x"), "headers of one member have more than 1,048,576"),
        (block(b"pax", octal(2**21), b"x"), "headers of one member have more than 1,048,576"),
        (filed(b"s", b"\1" * BLOCK, b"S"), "'s' is a sparse file"),
        (pax(GNU__sparse__map=b"0,1", GNU__sparse__size=b"9") + IMAGE, "is a sparse file"),
        (
            pax(GNU__sparse__major=b"1", GNU__sparse__minor=b"0", GNU__sparse__realsize=b"z")
            + IMAGE,
            "is not a tar, or is damaged: ",
        ),
        (pax(path=b"b" * 5000 + b".jpg") + IMAGE, "a name of more than 4,096 characters"),
        (filed(b"pax", b"", b"x") * 3000 + IMAGE, "headers of one member"),
        (filed(b"g", MANY, b"g") + IMAGE, "has more than 1,000 values for all members"),
        (block(b"a/2.jpg", octal(8**11 - 1)), "is truncated: it ends within a/2.jpg"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value[:30],
)
def test_headers_of_a_tar_that_ask_for_too_much(tmp_path, data, reason):
    path = tmp_path / "bad.tar"
    assert reason in refusal(path, IMAGE + data + END)
    inner = IMAGE + data + END
    assert refusal(path, filed(b"n1.tar", inner) + END).startswith("n1.tar: ")


def nested(depth):
    data = IMAGE + filed(b"b/2.jpg", b"y") + END
    for _ in range(depth):
        data = filed(b"n.tar", data) + END
    return data


def test_tars_within_tars_end_somewhere(tmp_path):
    path = tmp_path / "nested.tar"
    path.write_bytes(nested(archives.DEEPEST))
    listing = image_listing.scan([path])
    assert [listing.path(0), len(listing)] == ["n/" * archives.DEEPEST + "a/1.jpg", 2]
    for depth in (archives.DEEPEST + 1, 1500):
        assert refusal(path, nested(depth)) == "has tars within tars, more than 4 deep"


def zipped(path, members, kind=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", kind) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


def read(path, index=0):
    listing = image_listing.scan([path])
    with contextlib.closing(archives.Reader()) as reader:
        return reader(listing[index])


def test_a_member_of_a_zip_that_unpacks_to_much_more_or_is_damaged_is_a_bad_image(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(archives, "SMALL", 2**16)
    members = {"a/1.jpg": bytes(2**17), "b/2.jpg": b"fine", "b/3.jpg": bytes(2**16)}
    path = zipped(tmp_path / "bomb.zip", members)
    with pytest.raises(BadImage, match="unpacks to 131,072 bytes, more than 100 times as many as"):
        read(path)
    assert read(path, 1) == b"fine"
    assert read(path, 2) == bytes(2**16)
    noise = np.random.default_rng(0).bytes(2**18)  # as large, but as large in the zip
    path = zipped(tmp_path / "noise.zip", {"a/1.jpg": noise, "a/2.jpg": b"fine"})
    assert read(path) == noise
    path.write_bytes(path.read_bytes().replace(noise[:99], bytes(99)))
    with pytest.raises(BadImage, match="Bad CRC-32"):
        read(path)
    assert read(path, 1) == b"fine"


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_whose_steps_are_not_bounded_are_refused(tmp_path, kind):
    path = zipped(tmp_path / "some.zip", {"a/1.jpg": b"x", "b/2.jpg": b"y"}, kind)
    assert refusal(path) == (
        f"'a/1.jpg' is compressed by method {kind}, of which 4 KiB may unpack to gigabytes; "
        "unpack it first"
    )


def test_no_more_is_unpacked_than_a_member_says_it_has(tmp_path):
    """Its size is 9 by the directory; its 128 MiB would be there before anyone could count them."""
    path, kind = tmp_path / "lies.zip", zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(path, "w", kind) as file, file.open("a/1.jpg", "w") as member:
        for _ in range(128):
            member.write(bytes(2**20))
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\1\2")
    assert struct.unpack_from("<I", data, at + 24) == (2**27,)
    struct.pack_into("<I", data, at + 24, 9)
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(BadImage, match="Bad CRC-32"):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


def test_a_member_without_a_name_is_passed_over(tmp_path):
    path = zipped(tmp_path / "none.zip", {"Q": b"x", "a/1.jpg": b"y"})
    path.write_bytes(path.read_bytes().replace(b"Q", b"\0"))
    assert read(path) == b"y"


def test_the_directory_of_a_zip_is_bounded(tmp_path, monkeypatch):
    path = zipped(tmp_path / "many.zip", {f"a/{k}.jpg": b"x" for k in range(200)})
    monkeypatch.setattr(archives, "MOST_DIRECTORY", 9999)
    assert refusal(path) == "its directory has more than 9,999 bytes; unpack it first"
    data = bytearray(path.read_bytes())
    monkeypatch.undo()
    struct.pack_into("<I", data, data.rindex(b"PK\5\6") + 12, 2**32 - 2)
    assert refusal(path, bytes(data)).startswith("is a damaged zip: ")


def test_sizes_beyond_all_numbers_can_be_listed(tmp_path):
    """A zip may say that a member has 2^64 - 1 bytes, and so may its neighbor."""
    path = zipped(tmp_path / "huge.zip", {"a/1.jpg": b"x", "b/2.jpg": b"y"})
    data = path.read_bytes()
    at = data.index(b"PK\1\2")
    end = data.rindex(b"PK\5\6")
    extra = struct.pack("<HHQ", 1, 8, 2**64 - 1)
    entries = b""
    for name in (b"a/1.jpg", b"b/2.jpg"):
        entry = bytearray(data[at : at + 46])
        struct.pack_into("<I", entry, 24, 2**32 - 1)
        struct.pack_into("<H", entry, 30, len(extra))
        entries += bytes(entry) + name + extra
    tail = bytearray(data[end:])
    struct.pack_into("<I", tail, 12, len(entries))
    path.write_bytes(data[:at] + entries + tail)
    listing = image_listing.scan([path])
    assert listing.sizes().tolist() == [archives.LARGE] * 2
    with pytest.raises(BadImage, match="has 1,099,511,627,776 bytes, more than 268,435,456"):
        archives.Reader()(listing[0])


def test_a_zip_of_several_disks_is_named(tmp_path):
    """zipfile refuses it where it only looks whether a file is a zip."""
    data = (zipped(tmp_path / "a.zip", {"a/1.jpg": b"x"})).read_bytes()
    at = data.rindex(b"PK\5\6")
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, at, 2)
    assert refusal(tmp_path / "a.zip", data[:at] + locator + data[at:]) == (
        "is a damaged zip: zipfiles that span multiple disks are not supported"
    )


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("../1.jpg", b"0", "'../1.jpg' is a path outside of it"),
        ("a/../../1.jpg", b"0", "'a/../../1.jpg' is a path outside of it"),
        ("/etc/1.jpg", b"0", "'/etc/1.jpg' is a path outside of it"),
        ("1.jpg", tarfile.SYMTYPE, "is a symbolic link"),
        ("1.jpg", tarfile.LNKTYPE, "is a hard link"),
        ("1.jpg", tarfile.CHRTYPE, "is a device"),
        ("1.jpg", tarfile.FIFOTYPE, "is a pipe"),
    ],
)
def test_what_no_tar_of_images_holds_is_refused(tmp_path, name, kind, reason):
    inner = IMAGE + block(name.encode(), kind=kind) + END
    for data in (inner, filed(b"n1.tar", inner) + END):
        assert reason in refusal(tmp_path / "bad.tar", data)


def test_paths_outside_of_a_zip_are_refused(tmp_path):
    path = zipped(tmp_path / "bad.zip", {"a/../../x.jpg": b"x"})
    assert "is a path outside of it" in refusal(path)
    link = zipfile.ZipInfo("a/x.jpg")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(link, "/etc/passwd")
    assert "is a symbolic link" in refusal(path)


def test_damaged_and_compressed_tars_are_named(tmp_path):
    os.mkfifo(tmp_path / "pipe.tar")
    assert refusal(tmp_path / "pipe.tar") == "is not a regular file"
    path = tmp_path / "photos.tar"
    whole = official_fakes.tar({f"a/{i}.jpg": b"x" * 3000 for i in range(5)}, format=1)
    path.write_bytes(gzip.compress(whole))
    assert refusal(path).endswith(f"random access; first: gunzip --keep {path}")
    path.write_bytes(official_fakes.tar({"a.tar": gzip.compress(whole)}))
    assert refusal(path).startswith("a.tar: is not a tar, or is damaged")
    path.write_bytes(whole[:9000])
    assert refusal(path) == "is truncated: it ends within a/2.jpg"
    damaged = bytearray(whole)
    damaged[3584 * 2 + 10] ^= 1  # the third header: its checksum does not hold
    path.write_bytes(damaged)
    assert refusal(path) == f"is damaged at byte {3584 * 2}; download it again"
    path.write_bytes(b"no tar at all" * 100)
    assert "is not a tar, or is damaged" in refusal(path)
    with pytest.raises(DataError, match="^--from=.*/none: no such file or folder$"):
        image_listing.scan([tmp_path / "none"])


@pytest.fixture
def listed(tmp_path):
    """A folder that was listed: its first image, its entry, and what reads it."""
    official_fakes.write(tmp_path / "folder", IMAGES)
    return (
        tmp_path / "folder/a/1.jpg",
        image_listing.scan([tmp_path / "folder"])[0],
        archives.Reader(),
    )


def test_a_source_that_changes_while_it_is_packed_stops_the_command(listed):
    path, entry, read = listed
    path.write_bytes(b"longer than before")
    with pytest.raises(DataError, match=r"a/1\.jpg: changed since it was listed"):
        read(entry)
    path.unlink()
    with pytest.raises(DataError, match=r"a/1\.jpg: no such file"):
        read(entry)


def test_an_unreadable_file_is_a_bad_image(listed, monkeypatch):
    _, entry, read = listed

    def denied(*args, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(io, "FileIO", denied)  # root may read everything
    with pytest.raises(BadImage, match="Permission denied"):
        read(entry)
