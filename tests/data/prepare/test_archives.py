"""Archives that are made to hang, to recurse, or to take memory: one line each, with the bound."""

import io
import os
import struct
import subprocess
import sys
import tarfile
import zipfile

import numpy as np
import pytest

from vit_jax.data import folders
from vit_jax.data.decoding import BadImage
from vit_jax.data.prepare import archives, image_listing
from vit_jax.data.source import DataError

BLOCK = 512
MUTATIONS = 150  # of every kind; 10,000 have been tried


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


def refusal(path, data=None):
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        image_listing.scan([path])
    line = str(caught.value)
    assert line.startswith(str(path))
    assert line.isprintable()
    return line.removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (block(b"a/2.jpg", negative(-BLOCK)), "is damaged: a/2.jpg has -512 bytes"),
        (block(b"a/2.jpg", negative(-2 * BLOCK)), "is damaged: a/2.jpg has -1024 bytes"),
        (block(b".a", negative(-3 * BLOCK)), "is damaged: .a has -1536 bytes"),
        (block(b"a/2.jpg", negative(-(2**80))), "is damaged: a/2.jpg has -12089258196146291747"),
        (pax(size=b"-2048") + IMAGE, "is damaged: a/1.jpg has -2048 bytes"),
        (block(b"pax", negative(-BLOCK), b"x"), "headers of one member have more than 1,048,576"),
        (block(b"long", octal(8**11 - 1), b"L"), "headers of one member have more than 1,048,576"),
        (block(b"pax", octal(2**21), b"x"), "headers of one member have more than 1,048,576"),
        (filed(b"s", b"\1" * BLOCK, b"S"), "'s' is a sparse file"),
        (pax(GNU__sparse__map=b"garbage") + IMAGE, "is no tar, or a damaged one: "),
        (pax(GNU__sparse__map=b"0,1", GNU__sparse__size=b"9") + IMAGE, "is a sparse file"),
        (
            pax(GNU__sparse__major=b"1", GNU__sparse__minor=b"0", GNU__sparse__realsize=b"z")
            + IMAGE,
            "is no tar, or a damaged one: ",
        ),
        (pax(path=b"b" * 5000 + b".jpg") + IMAGE, "a name of more than 4,096 characters"),
        (filed(b"pax", b"", b"x") * 3000 + IMAGE, "headers of one member"),
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


def test_values_for_all_members_are_bounded(tmp_path):
    one = b"".join(b"%d k%05d=v\n" % (12, k) for k in range(1001))
    assert refusal(tmp_path / "a.tar", filed(b"g", one, b"g") + IMAGE + END) == (
        "has more than 1,000 values for all members"
    )


def zipped(path, members, kind=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", kind) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


def read(path, index=0):
    listing, reader = image_listing.scan([path]), archives.Reader()
    try:
        return reader(listing[index])
    finally:
        reader.close()


def test_a_member_of_a_zip_that_unpacks_to_much_more_is_a_bad_image(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "SMALL", 2**16)
    members = {"a/1.jpg": bytes(2**17), "b/2.jpg": b"fine", "b/3.jpg": bytes(2**16)}
    path = zipped(tmp_path / "bomb.zip", members)
    with pytest.raises(BadImage, match="unpacks to 131,072 bytes, more than 100 times as many as"):
        read(path)
    assert read(path, 1) == b"fine"
    assert read(path, 2) == bytes(2**16)
    noise = np.random.default_rng(0).bytes(2**18)  # as large, but as large in the zip
    assert read(zipped(tmp_path / "noise.zip", {"a/1.jpg": noise})) == noise


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
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from vit_jax.data.prepare import archives, image_listing\n"
        "from vit_jax.data.decoding import BadImage\n"
        "listing, read = image_listing.scan([Path(sys.argv[1])]), archives.Reader()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: read(listing[0])\n"
        "except BadImage as error: print(error)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    reason, kib = done.stdout.splitlines()
    assert "Bad CRC-32" in reason
    assert int(kib) < 40 * 1024


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


def test_folders_within_folders_and_pipes(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "DEEPEST", 4)
    (tmp_path / "a/b/c").mkdir(parents=True)
    assert len(image_listing.scan([tmp_path])) == 0
    (tmp_path / "a/b/c/d").mkdir()
    with pytest.raises(DataError, match=r"a/b/c/d: folders are nested more than 4 levels deep"):
        image_listing.scan([tmp_path])
    os.mkfifo(tmp_path / "pipe.tar")
    assert refusal(tmp_path / "pipe.tar") == "is no regular file"


def mutations(data, number, seed):
    """Copies of an archive with a few bytes changed, cut out, or there twice."""
    rng = np.random.default_rng(seed)
    for _ in range(number):
        one = bytearray(data)
        for _ in range(int(rng.integers(1, 5))):
            at = int(rng.integers(len(one)))
            match int(rng.integers(4)):
                case 0:
                    one[at] = int(rng.integers(256))
                case 1:
                    one[at : at + 8] = rng.bytes(8)
                case 2:
                    del one[at : at + int(rng.integers(1, 600))]
                case 3:
                    one[at:at] = one[at : at + int(rng.integers(1, 600))]
            one = one or bytearray(b"x")
        yield bytes(one)


def seeds():
    """Small archives of every kind, by name."""
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
            for name in ("a/1.jpg", "b/" + "long" * 40 + ".jpg", "b/é.png"):
                info = tarfile.TarInfo(name)
                info.size = 9
                tar.addfile(info, io.BytesIO(b"something"))
        yield f"{form}.tar", stream.getvalue()
        yield f"{form}n.tar", filed(b"n.tar", stream.getvalue()) + END
    yield "s.tar", pax(GNU__sparse__map=b"0,1") + IMAGE + END
    for kind in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        stream = io.BytesIO()
        zipped(stream, {"a/1.jpg": b"something", "b/2.jpg": b"else" * 99}, kind)
        yield f"{kind}.zip", stream.getvalue()


@pytest.mark.parametrize(("name", "data"), list(seeds()), ids=lambda value: str(value)[:6])
def test_damaged_archives_end_in_a_line_or_in_bad_images(tmp_path, name, data):
    path = tmp_path / name
    lines, refused = [], 0
    for one in mutations(data, MUTATIONS, sum(name.encode())):
        path.write_bytes(one)
        reader = archives.Reader()
        try:
            listing = image_listing.scan([path])
            for index in range(len(listing)):
                try:
                    reader(listing[index])
                except BadImage as error:
                    lines.append(str(error))
        except DataError as error:
            refused += 1
            lines.append(str(error))
        finally:
            reader.close()
    assert refused > MUTATIONS // 20
    assert all(line.isprintable() for line in lines)
