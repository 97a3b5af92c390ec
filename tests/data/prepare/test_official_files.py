"""The files of official archives read with care: pickles, .mat files, archives in archives."""

import contextlib
import functools
import gzip
import hashlib
import http.server
import io
import math
import pathlib
import pickle
import shutil
import struct
import threading
import tracemalloc
import zlib

import numpy as np
import pytest
import scipy.io
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import checksums

import official_fakes
from commands import woe
from vit_jax.data.prepare import download
from vit_jax.data.prepare.official import array_sets, build, mat, pickles
from vit_jax.data.prepare.official.source_files import SourceFiles
from vit_jax.data.source import DataError


def records(root, name):
    """All records of a dataset, by split."""
    builder = tfds.builder(name, data_dir=str(root))
    return {split: list(builder.as_data_source(split)) for split in builder.info.splits}


@pytest.mark.parametrize("number", [10, 100])
def test_cifars_pickles_are_its_binary_files(number, prepare, tmp_path):
    """Both archives give the same dataset, from the archive and from its folder."""
    getattr(official_fakes, f"cifar{number}")(tmp_path / "binary")
    files = official_fakes.cifar_python(number)
    archive = {f"cifar-{number}-python.tar.gz": official_fakes.tar(files, "w:gz")}
    official_fakes.write(tmp_path / "python", archive)
    official_fakes.write(tmp_path / "unpacked", files)
    for kind in ("binary", "python", "unpacked"):
        given = f"--from={tmp_path / kind}"
        assert prepare(f"cifar{number}", given, "--partial", data_dir=f"data_{kind}")[0] == 0
    expected = records(tmp_path / "data_binary", f"cifar{number}")
    for kind in ("python", "unpacked"):
        found = records(tmp_path / f"data_{kind}", f"cifar{number}")
        assert found.keys() == expected.keys()
        for split, rows in expected.items():
            for ours, theirs in zip(found[split], rows, strict=True):
                assert ours.keys() == theirs.keys()
                assert all(np.array_equal(ours[key], theirs[key]) for key in ours)
    rows = official_fakes.cifar_records(number, {"train": 7}, [20, 100][-1:])  # shape alone
    assert rows["train"].shape == (7, 3073)


def python_2(data, labels, names):
    """A batch as Python 2's cPickle wrote the real ones: texts of bytes, one byte per number."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    def whole(value):
        if value < 256:
            return b"K" + bytes([value])
        return b"M" + struct.pack("<H", value)

    raw = data.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x06cnumpy\nndarray\nq\x07K\x00\x85"
        + text(b"b") + b"\x87R(K\x01" + whole(data.shape[0]) + whole(data.shape[1]) + b"\x86"
        + b"cnumpy\ndtype\nq\x0b" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + b"T" + struct.pack("<I", len(raw)) + raw + b"tb"
    )  # fmt: skip
    return (
        b"\x80\x02}q\x01(" + text(b"batch_label") + text(b"training batch 1 of 5")
        + text(b"labels") + b"]q\x04(" + b"".join(map(whole, labels)) + b"e"
        + text(b"data") + array
        + text(b"filenames") + b"](" + b"".join(map(text, names)) + b"eu."
    )  # fmt: skip


def test_a_batch_of_python_2():
    """As the first bytes of the real data_batch_1 are; Python's own reader agrees."""
    data = np.random.default_rng(0).integers(0, 256, (3, 3072), np.uint8)
    batch = python_2(data, [6, 9, 9], [b"leptodactylus_pentadactylus_s_000004.png"] * 3)
    found = pickles.load_dictionary(batch, "data_batch_1")
    expected = pickle.loads(batch, encoding="latin1")
    assert found.keys() == expected.keys()
    np.testing.assert_array_equal(found["data"], data)
    assert found["labels"] == expected["labels"] == [6, 9, 9]
    assert found["filenames"] == expected["filenames"]


class Evil:
    """Runs a command where it is unpickled."""

    def __reduce__(self):
        return (print, ("executed",))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_are_not_run(protocol, capsys):
    with pytest.raises(DataError) as caught:
        pickles.load_dictionary(pickle.dumps({"data": Evil()}, protocol), "data_batch_1")
    assert str(caught.value).startswith("data_batch_1: its pickle has ")
    assert str(caught.value).endswith("which CIFAR's do not; use the binary archive")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no pickle",
        b"\x80\x02}q\x01(U\x0b",
        b"\x80\x02.",
        b"\x80\x02h\x05.",
        b"\x80\x02t.",
        b"(e.",
        b"\x80\x02" + b"(" * 100_000,
        b"\x80\x02X\xff\xff\xff\x7f",
        pickle.dumps([1, 2]),
        pickle.dumps({"data": {1, 2}}),
        pickle.dumps({"data": np.zeros(3, np.float32)}),
        pickle.dumps({"data": np.zeros((2, 2), object)}),
        b"\x80\x02}U\x01a" + b"cnumpy.core.multiarray\n_reconstruct\n" + b")Rs.",  # no values
    ],
)
def test_what_is_no_batch_is_one_line(data):
    with pytest.raises(DataError) as caught:
        pickles.load_dictionary(data, "data_batch_1")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_damage_to_pickles_never_raises_else():
    batch = python_2(np.zeros((2, 3072), np.uint8), [1, 2], [b"a", b"b"])[:400]
    rng = np.random.default_rng(0)
    for _ in range(3000):
        data = bytearray(batch)
        for at in rng.integers(0, len(data), rng.integers(1, 4)):
            data[at] = rng.integers(256)
        try:
            pickles.load_dictionary(bytes(data), "data_batch_1")
        except DataError as error:
            assert len(str(error)) < 400  # noqa: PT017


def test_cifars_mistakes(prepare, tmp_path):
    files = official_fakes.cifar_python(10)
    batch = pickle.loads(files["cifar-10-batches-py/data_batch_2"])
    wrong = {
        "labels": (batch | {"labels": [1, 2]}, "data_batch_2: is not a batch of CIFAR images: "),
        "data": (batch | {"data": [1]}, "data_batch_2: is not a batch of CIFAR images: "),
        "class": (batch | {"labels": [10] * 4}, ": has label 10, of 10 classes; download it again"),
        "none": ({}, "data_batch_2: is not a batch of CIFAR images: 'labels'"),
    }
    for name, (value, line) in wrong.items():
        changed = files | {"cifar-10-batches-py/data_batch_2": pickle.dumps(value, 2)}
        official_fakes.write(tmp_path / name, changed)
        assert line in woe(prepare("cifar10", f"--from={tmp_path / name}", "--partial"))
    del files["cifar-10-batches-py/batches.meta"]
    official_fakes.write(tmp_path / "nameless", files)
    assert "lacks the 10 class names, in batches.meta.txt or batches.meta" in woe(
        prepare("cifar10", f"--from={tmp_path / 'nameless'}", "--partial")
    )
    official_fakes.write(tmp_path / "short", {"data_batch_1.bin": b"123", "batches.meta.txt": "a"})
    assert "data_batch_1.bin: has 3 bytes, not a multiple of 3,073" in woe(
        prepare("cifar10", f"--from={tmp_path / 'short'}", "--partial")
    )


@pytest.mark.parametrize("compressed", [False, True])
def test_mat(compressed):
    """Against SciPy, which writes these."""
    arrays = {
        "labels": np.arange(5, dtype=np.uint8)[None],
        "doubles": np.random.default_rng(0).normal(size=(3, 4, 2)),
        "small": np.array([[-3, 2]], np.int16),
        "none": np.zeros((0, 3)),
    }
    table = np.zeros((2, 1), [("id", "O"), ("a_longer_name", "O")])
    table[0, 0], table[1, 0] = (np.float64(3), "n01440764"), (np.array([[1.0, 2.0]]), "")
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, arrays | {"table": table}, do_compression=compressed)
    found = mat.load_arrays(buffer.getvalue(), [*arrays, "table"], "a.mat", 10_000)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
    one, two = found["table"]
    assert (one["id"].item(), one["a_longer_name"], two["a_longer_name"]) == (3, "n01440764", "")
    np.testing.assert_array_equal(two["id"], [[1, 2]])


def test_mat_numbers_in_fewer_bytes():
    """MATLAB's own files have whole doubles as bytes."""
    header = official_fakes.mat(a=1.0)[:128]
    parts = struct.pack("<IIII", 6, 8, 6, 0) + struct.pack("<IIii", 5, 8, 1, 3)
    parts += struct.pack("<HHB3x", 1, 1, ord("a"))  # a name in a small element
    parts += struct.pack("<HHBBBx", 2, 3, 7, 8, 255)
    (found,) = mat.load_arrays(
        header + struct.pack("<II", 14, len(parts)) + parts, ["a"], "", 99
    ).values()
    assert found.tolist() == [[7.0, 8.0, 255.0]]
    assert found.dtype == np.float64


def floats(value):
    """A .mat file of a table whose shape holds floating-point numbers; found by libFuzzer."""
    sound = struct.pack("<IIii", 5, 8, 1, 1)
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, {"a": {"b": np.ones((2, 2))}})
    assert sound in buffer.getvalue()
    return buffer.getvalue().replace(sound, struct.pack("<IIff", 7, 8, value, 1), 1)


def bomb(size):
    """A .mat file whose array unpacks to so many bytes."""
    header = official_fakes.mat(a=1.0)[:128]
    body = zlib.compress(struct.pack("<II", 14, size) + b"\0" * size)
    return header + struct.pack("<II", 15, len(body)) + body


def nested(depth):
    """A .mat file of arrays in arrays."""
    array = np.zeros((1, 1))
    for _ in range(depth):
        outer = np.empty((1, 1), object)
        outer[0, 0] = array
        array = outer
    return official_fakes.mat(a=array)


def tables(depth):
    """A .mat file of tables in tables."""
    value = np.ones((1, 1))
    for _ in range(depth):
        value = {"a": value}
    return official_fakes.mat(a=value)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", "a.mat: is not a MATLAB 5 file; download it again"),
        (b"<html>" * 100, "a.mat: is not a MATLAB 5 file; download it again"),
        (
            official_fakes.mat(a=1.0)[:-8],
            "a.mat: is damaged: an element is truncated; download it again",
        ),
        (official_fakes.mat(b=1.0), "a.mat: has no array a: it is not the official file"),
        (bomb(10**7), "a.mat: unpacks to more than 100,000 bytes; not the official file"),
        *(
            (
                floats(value),
                "a.mat: is damaged: flags, a shape or a length are no integers; download it again",
            )
            for value in (1, math.nan)
        ),
        (nested(1), "a.mat: is damaged: an array is of class 1; download it again"),
        (nested(300), "a.mat: is damaged: an array is of class 1; download it again"),
        (tables(3), "a.mat: is damaged: arrays are within arrays too often; download it again"),
        (tables(100), "a.mat: is damaged: arrays are within arrays too often; download it again"),
    ],
    # scipy writes the time into a .mat file: its bytes cannot name a test
    ids=[
        "empty",
        "html",
        "cut",
        "other_name",
        "bomb",
        "floats",
        "nan",
        "nested_1",
        "nested_300",
        "tables_3",
        "tables_100",
    ],
)
def test_what_is_no_mat_file_is_one_line(data, line):
    with pytest.raises(DataError) as caught:
        mat.load_arrays(data, ["a"], "a.mat", 100_000)
    assert str(caught.value) == line


def test_damage_to_mat_files_never_raises_else():
    rng = np.random.default_rng(0)
    for compressed in (False, True):
        buffer = io.BytesIO()
        table = np.zeros((2, 1), [("id", "O"), ("name", "O")])
        table[0, 0], table[1, 0] = (1.0, "n01440764"), (2.0, "n01443537")
        arrays = {"b": np.arange(12.0).reshape(3, 4), "a": table}
        scipy.io.savemat(buffer, arrays, do_compression=compressed)
        whole = buffer.getvalue()
        for _ in range(2000):
            data = bytearray(whole)
            for at in rng.integers(100, len(data), rng.integers(1, 4)):
                data[at] = rng.integers(256)
            try:
                mat.load_arrays(bytes(data), ["a"], "a.mat", 10_000)
            except DataError as error:
                assert "\n" not in str(error)  # noqa: PT017


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
        plain = found.plain(table[name])
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


@pytest.mark.parametrize(
    ("files", "line"),
    [
        (
            {"a.tar.gz": gzip.compress(b"\0" * 50_000)},
            "unpacks to more than 40,000 bytes, more than any file in this dataset",
        ),
        ({"a.tar.gz": gzip.compress(bytes(range(256)) * 9)[:-20]}, "is damaged or truncated: "),
        ({"a.tar.gz": b"\x1f\x8bno gzip at all"}, "is damaged or truncated: "),
        (
            {"a.zip": official_fakes.zipped({"a.tar.gz": b"\x1f\x8b" + b"\0" * 50_000})},
            "unpacks to more than 40,000 bytes",
        ),
        (
            functools.reduce(
                lambda files, _: {"a.tar.gz": official_fakes.tar(files, "w:gz")}, range(6), {}
            ),
            "archives nested too deeply",
        ),
    ],
)
def test_bad_archives_are_one_line(files, line, tmp_path):
    official_fakes.write(tmp_path / "mine", files)
    with pytest.raises(DataError) as caught:
        list(archives(tmp_path, "a.tar.gz", "a.zip"))
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


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


@pytest.fixture
def server(tmp_path):
    """Serves a folder on this machine; yields the folder and its URL."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments): ...

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as one:
        thread = threading.Thread(target=one.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{one.server_port}/"
        one.shutdown()
        thread.join()


def test_archives_are_downloaded_checked_and_packed(prepare, server, tmp_path, monkeypatch):
    """By TFDS's downloader, without TensorFlow; a file that is another is refused."""
    folder, url = server
    splits = official_fakes.oxford_flowers102(folder)
    one = official_fakes.resized(build.RECIPES["oxford_flowers102"], splits)
    monkeypatch.setitem(build.RECIPES, "oxford_flowers102", one)
    infos = {
        url + path.name: checksums.UrlInfo(
            size=tfds.core.units.Size(path.stat().st_size),
            checksum=hashlib.sha256(path.read_bytes()).hexdigest(),
            filename=path.name,
        )
        for path in folder.iterdir()
    }
    builder = tfds.builder_cls("oxford_flowers102")
    monkeypatch.setattr(builder, "url_infos", property(lambda self: infos))
    monkeypatch.setattr(download, "_check_network", lambda *arguments: None)
    labels = (folder / "imagelabels.mat").read_bytes()
    (folder / "imagelabels.mat").write_bytes(labels[:-1] + b"!")
    code, _, errors = prepare("flowers")
    assert code != 0
    assert "imagelabels.mat" in errors[-1]
    assert not (tmp_path / "data/oxford_flowers102").exists()
    (folder / "imagelabels.mat").write_bytes(labels)
    code, lines, _ = prepare("flowers")
    assert code == 0
    assert lines[0] == (
        "flowers: train: 4 of 4 images, validation: 4 of 4 images, test: 12 of 12 images"
    )
    assert prepare("flowers")[1] == [
        f"flowers: is prepared already, in {tmp_path}/data/oxford_flowers102/2.1.1"
    ]


@pytest.mark.parametrize(
    ("name", "task", "change", "line"),
    [
        ("oxford_flowers102", "flowers", "setid.mat", "has images, but lacks setid.mat"),
        ("oxford_iiit_pet", "pets", "annotations.tar.gz", "lacks annotations/trainval.txt"),
        ("smallnorb", "vtab/smallnorb-azimuth",
         "smallnorb-5x46789x9x18x6x2x96x96-training-cat.mat.gz", "lacks smallnorb-5x46789"),
        ("kitti", "vtab/kitti-distance", "devkit_object.zip", "lacks mapping/train_rand.txt"),
        ("kitti", "vtab/kitti-distance", "data_object_label_2.zip", "lacks training/label_2/"),
        ("diabetic_retinopathy_detection", "vtab/retinopathy", "trainLabels.csv", "lacks trainL"),
    ],
)  # fmt: skip
def test_a_file_that_is_missing_is_named(name, task, change, line, prepare, tmp_path):
    (tmp_path / "mine").mkdir()
    getattr(official_fakes, name)(tmp_path / "mine")
    (tmp_path / "mine" / change).unlink()
    assert line in woe(prepare(task, f"--from={tmp_path / 'mine'}", "--partial"))


def test_hdf5_takes_h5py(prepare, tmp_path, monkeypatch):
    official_fakes.write(tmp_path / "mine", {f"{official_fakes.SPRITES}.hdf5": b"\x89HDF"})
    given = "vtab/dsprites-location", f"--from={tmp_path / 'mine'}"
    if download.importlib.util.find_spec("h5py") is not None:
        assert "is not a valid HDF5 file: " in woe(prepare(*given))
    monkeypatch.setattr(download.importlib.util, "find_spec", lambda name: None)
    assert "reading HDF5 requires h5py: pip install 'vit_jax[prepare]'" in woe(prepare(*given))


def looked(root, look, *, patterns=()):
    """What a recipe finds in `root/mine`."""
    with contextlib.closing(
        SourceFiles([root / "mine"], patterns, root / "scratch", 2**28)
    ) as found:
        return look(found)


def test_dsprites_of_hdf5_are_those_of_numpy(tmp_path):
    """Uncompressed in a tar, too, where the file does not begin at its first byte."""
    pytest.importorskip("h5py")
    for name in ("numpy", "hdf5", "tar"):
        official_fakes.dsprites(tmp_path / name / "mine")
    (tmp_path / "hdf5/mine" / f"{array_sets.SPRITES}.npz").unlink()
    whole = (tmp_path / "tar/mine" / f"{array_sets.SPRITES}.hdf5").read_bytes()
    shutil.rmtree(tmp_path / "tar/mine")
    packed = official_fakes.tar({f"{array_sets.SPRITES}.hdf5": whole})
    official_fakes.write(tmp_path / "tar/mine", {"a.tar": packed})
    found = []
    for name in ("numpy", "hdf5", "tar"):
        (split,) = looked(
            tmp_path / name, array_sets.find_dsprites, patterns=("*.npz", "a.tar")
        ).splits.values()
        locations = [example.files[0] for example in split]
        pixels = [pathlib.Path(p.container).read_bytes()[p.offset :][: p.size] for p in locations]
        found.append(([example.features for example in split], pixels))
    assert found[0] == found[1] == found[2]
    assert found[0][1] == [image.tobytes() for image in official_fakes.sprites()["imgs"]]


def bad_hdf5():
    """Changes of the arrays of dSprites, or of PatchCamelyon's labels, and what is said."""
    h5py = pytest.importorskip("h5py")

    def declares(file):  # what takes gigabytes once it is read
        del file["latents/classes"]
        file.create_dataset("latents/classes", (3 * 2**30, 6), "i8", chunks=(1024, 6))

    def chunk(file):
        del file["imgs"]
        file.create_dataset("imgs", (700_000, 64, 64), "u1", chunks=(700_000, 64, 64))

    def outside(file):
        del file["imgs"]
        other = [("/etc/passwd", 0, 4096)]
        file.create_dataset("imgs", (1, 64, 64), "u1", external=other)

    def link(file):
        del file["imgs"]
        file["imgs"] = h5py.ExternalLink("other.h5", "imgs")

    def virtual(file):
        del file["imgs"]
        layout = h5py.VirtualLayout((7, 64, 64), "u1")
        layout[:] = h5py.VirtualSource("other.h5", "imgs", (7, 64, 64))
        file.create_virtual_dataset("imgs", layout)

    def fewer(file):
        values = file["latents/values"][:6]
        del file["latents/values"]
        file["latents/values"] = values

    def other(file):
        file["latents/values"][2, 3] = np.nan

    def group(file):
        del file["imgs"]
        file.create_group("imgs")

    return {
        declares: "latents/classes: has the shape (3221225472, 6) and the type int64",
        chunk: "imgs: has parts of (700000, 64, 64), which take too much memory",
        outside: "imgs: is no array, or outside of the file",
        link: "imgs is missing, or a link to elsewhere",
        virtual: "imgs: is no array, or outside of the file",
        group: "imgs: is no array, or outside of the file",
        fewer: "has other numbers of labels than of images",
        other: "has labels that are not dSprites'",
    }


def test_what_an_hdf5_file_declares_is_checked_before_it_is_read(tmp_path):
    changes = bad_hdf5()
    import h5py  # pyright: ignore[reportMissingImports]

    official_fakes.dsprites(tmp_path / "mine")
    (tmp_path / "mine" / f"{array_sets.SPRITES}.npz").unlink()
    path = tmp_path / "mine" / f"{array_sets.SPRITES}.hdf5"
    sound = path.read_bytes()
    for change, line in changes.items():
        path.write_bytes(sound)
        with h5py.File(path, "r+") as file:
            change(file)
        tracemalloc.start()
        with pytest.raises(DataError) as caught:
            looked(tmp_path, array_sets.find_dsprites)
        assert tracemalloc.get_traced_memory()[1] < 2**25
        tracemalloc.stop()
        assert line in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"imgs": np.zeros((7, 64, 65), np.uint8)}, "imgs.npy: is not dSprites': 7 x 64 x 65"),
        ({"imgs": np.zeros((7, 64, 64), np.int8)}, "64 values of type int8"),
        ({"latents_classes": np.zeros((7, 6), np.float32)}, "7 x 6 values of type float32"),
        ({"latents_classes": np.zeros((8, 6), int)}, "has other numbers of labels than of images"),
        ({"latents_values": np.full((7, 6), 101.0)}, "has labels that are not dSprites'"),
        ({"latents_values": None}, ".npz/latents_values.npy"),
        ({"latents_values": np.array({})}, "latents_values.npy: is no array, or a damaged one"),
    ],
)
def test_a_npz_that_is_not_dsprites(changes, line, tmp_path):
    arrays = official_fakes.sprites() | changes
    official_fakes.write(tmp_path / "mine", {})
    (tmp_path / "mine").mkdir()
    np.savez(
        tmp_path / "mine" / f"{array_sets.SPRITES}.npz",
        **{name: array for name, array in arrays.items() if array is not None},
    )
    with pytest.raises(DataError) as caught:
        looked(tmp_path, array_sets.find_dsprites, patterns=("*.npz",))
    assert line in str(caught.value)


def test_a_header_that_declares_gigabytes(tmp_path):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": "<i8", "fortran_order": False, "shape": (3 * 2**30, 6)}
    )
    files = {f"{name}.npy": stream.getvalue() for name in array_sets.SPRITES_ARRAYS}
    image = io.BytesIO()
    np.save(image, np.zeros((7, 64, 64), np.uint8))
    files["imgs.npy"] = image.getvalue()
    official_fakes.write(
        tmp_path / "mine", {f"{array_sets.SPRITES}.npz": official_fakes.zipped(files)}
    )
    with pytest.raises(DataError, match="has 128 bytes for 3221225472 x 6 values"):
        looked(tmp_path, array_sets.find_dsprites, patterns=("*.npz",))


def test_labels_of_camelyon_are_0_and_1(tmp_path):
    pytest.importorskip("h5py")
    official_fakes.patch_camelyon(tmp_path / "mine")
    labels = np.full((3, 1, 1, 1), 2, np.uint8)
    name = array_sets.CAMELYON.format("valid", "y")
    packed = official_fakes.compressed(official_fakes.hdf5({"y": labels}))
    official_fakes.write(tmp_path / "mine", {f"{name}.gz": packed})
    with pytest.raises(DataError, match="has labels other than 0 and 1"):
        looked(tmp_path, array_sets.find_camelyon, patterns=("*.gz",))
    packed = official_fakes.compressed(official_fakes.hdf5({"y": labels[:2] // 2}))
    official_fakes.write(tmp_path / "mine", {f"{name}.gz": packed})
    with pytest.raises(DataError, match="has 3 images for 2 labels"):
        looked(tmp_path, array_sets.find_camelyon, patterns=("*.gz",))


def test_a_list_that_stands_for_more_values_than_fit(tmp_path):
    """Lists of lists that are one list, tuples of tuples as a key, one text as many bytes."""
    deep = []
    for _ in range(60):
        deep = [deep, deep]
    with pytest.raises(DataError, match="a list within a value"):
        pickles.load_dictionary(pickle.dumps({"label_names": deep}), "meta")
    with pytest.raises(DataError, match="a tuple for the name of a value"):
        pickles.load_dictionary(b"}" + b")q\x00" + b"h\x00\x86q\x00" * 60 + b"K\x01s.", "meta")
    encode = b"c_codecs\nencode\n(h\x00X\x06\x00\x00\x00latin1tR"
    text = b"X" + (1000).to_bytes(4, "little") + b"x" * 1000 + b"q\x00"
    many = b"}X\x01\x00\x00\x00a(" + text + encode * 100 + b"ls."
    with pytest.raises(DataError, match="a text that stands for many"):
        pickles.load_dictionary(many, "batch")


def test_a_recipe_for_every_data_set_of_the_paper():
    """ImageNet, CIFAR, Pets, Flowers and VTAB-1k's 19; no more than what its dataset says."""
    from vit_jax.data.tasks import TASKS

    papers = {"imagenet", "cifar10", "cifar100", "pets", "flowers"}
    for name, task in TASKS.items():
        if name in papers or name.startswith("vtab/"):
            recipe = build.RECIPES[task.dataset.tfds]
            assert recipe.splits == task.dataset.images
            assert "tensorflow" not in task.dataset.packages
            builder = tfds.builder(recipe.builder)
            known = {info.filename for info in (builder.url_infos or {}).values()}
            assert set(recipe.downloads) <= known
            asks = bool(builder.MANUAL_DOWNLOAD_INSTRUCTIONS)
            assert asks == (not recipe.downloads) or name == "vtab/retinopathy"
    assert array_sets.RECIPES[0].downloads == ("cifar-10-binary.tar.gz",)
