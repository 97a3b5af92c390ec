"""Datasets of arrays, in each of the formats in which their users have them."""

import contextlib
import io
import pathlib
import pickle
import shutil
import tracemalloc

import numpy as np
import pytest
import tensorflow_datasets as tfds

import official_fakes
from commands import error_line, woe
from vit_jax.data.prepare import download
from vit_jax.data.prepare.official import array_sets
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
            for row, packed in zip(found[split], rows, strict=True):
                assert row.keys() == packed.keys()
                assert all(np.array_equal(row[key], packed[key]) for key in row)


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


def test_hdf5_takes_h5py(prepare, tmp_path, monkeypatch):
    official_fakes.write(tmp_path / "mine", {f"{official_fakes.SPRITES}.hdf5": b"\x89HDF"})
    given = "vtab/dsprites-location", f"--from={tmp_path / 'mine'}"
    if download.importlib.util.find_spec("h5py") is not None:
        assert "is not a valid HDF5 file: " in woe(prepare(*given))
    monkeypatch.setattr(download.importlib.util, "find_spec", lambda name: None)
    assert "reading HDF5 requires h5py: pip install 'vit_jax[prepare]'" in woe(prepare(*given))


def find(root, finder, *, patterns=()):
    """What a recipe finds in `root/mine`."""
    with contextlib.closing(
        SourceFiles([root / "mine"], patterns, root / "scratch", 2**28)
    ) as found:
        return finder(found)


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
        (split,) = find(
            tmp_path / name, array_sets.find_dsprites, patterns=("*.npz", "a.tar")
        ).splits.values()
        locations = [example.files[0] for example in split]
        pixels = [pathlib.Path(p.container).read_bytes()[p.offset :][: p.size] for p in locations]
        found.append(([example.features for example in split], pixels))
    assert found[0] == found[1] == found[2]
    assert found[0][1] == [image.tobytes() for image in official_fakes.sprites()["imgs"]]


def bad_hdf5():
    """Ways to store `imgs`, or what takes its place, and what is said."""
    h5py = pytest.importorskip("h5py")
    shape, outside = (7, 64, 64), "imgs: is not an array, or lies outside of the file"

    def virtual(file):
        layout = h5py.VirtualLayout(shape, "u1")
        layout[:] = h5py.VirtualSource("other.h5", "imgs", shape)
        file.create_virtual_dataset("imgs", layout)

    def linked(file):
        file["imgs"] = h5py.ExternalLink("other.h5", "imgs")

    def stored(shape, **more):
        return lambda file: file.create_dataset("imgs", shape, "u1", **more)

    return {
        stored((3 * 2**30, 6), chunks=(1024, 6)): "imgs: has the shape (3221225472, 6)",
        stored((700_000, 64, 64), chunks=(700_000, 64, 64)):
            "imgs: has parts of (700000, 64, 64), which take too much memory",
        stored(shape, external=[("/etc/passwd", 0, 4096 * 7)]): outside,
        virtual: outside,
        lambda file: file.create_group("imgs"): outside,
        linked: "imgs is missing, or a link to elsewhere",
    }  # fmt: skip


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
            del file["imgs"]
            change(file)
        tracemalloc.start()
        with pytest.raises(DataError) as caught:
            find(tmp_path, array_sets.find_dsprites)
        assert tracemalloc.get_traced_memory()[1] < 2**25
        tracemalloc.stop()
        assert line in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"imgs": np.zeros((7, 64, 65), np.uint8)}, "imgs.npy: is not dSprites': 7 x 64 x 65"),
        ({"imgs": np.zeros((7, 64, 63), np.uint8)}, "imgs.npy: is not dSprites': 7 x 64 x 63"),
        ({"latents_classes": np.zeros((7, 6), np.float32)}, "7 x 6 values of type float32"),
        ({"latents_classes": np.zeros((8, 6), int)}, "has other numbers of labels than of images"),
        ({"latents_values": np.full((7, 6), 101.0)}, "has labels that are not dSprites'"),
        ({"latents_values": None}, ".npz/latents_values.npy"),
        ({"latents_values": np.array({})}, "latents_values.npy: is not an array, or is damaged"),
    ],
)
def test_a_npz_that_is_not_dsprites(changes, line, tmp_path):
    arrays = official_fakes.sprites() | changes
    (tmp_path / "mine").mkdir()
    np.savez(
        tmp_path / "mine" / f"{array_sets.SPRITES}.npz",
        **{name: array for name, array in arrays.items() if array is not None},
    )
    finder = array_sets.find_dsprites
    assert line in error_line(DataError, find, tmp_path, finder, patterns=("*.npz",))


def test_an_array_is_as_long_as_its_file_and_has_no_more_images_than_dsprites(
    tmp_path, monkeypatch
):
    files = {}
    for name, array in official_fakes.sprites().items():
        stream = io.BytesIO()
        np.save(stream, array)
        files[f"{name}.npy"] = stream.getvalue()
    archive = f"{array_sets.SPRITES}.npz"
    longer = files | {"imgs.npy": files["imgs.npy"] + b"more"}
    official_fakes.write(tmp_path / "mine", {archive: official_fakes.zipped(longer)})
    line = r"imgs\.npy: has 28,804 bytes for 7 x 64 x 64 values"
    with pytest.raises(DataError, match=line):
        find(tmp_path, array_sets.find_dsprites, patterns=("*.npz",))
    official_fakes.write(tmp_path / "mine", {archive: official_fakes.zipped(files)})
    monkeypatch.setattr(array_sets, "SPRITES_MOST", 6)
    with pytest.raises(DataError, match=line.replace("804", "800")):
        find(tmp_path, array_sets.find_dsprites, patterns=("*.npz",))


def test_labels_of_camelyon_are_0_and_1(tmp_path):
    pytest.importorskip("h5py")
    official_fakes.patch_camelyon(tmp_path / "mine")
    labels = np.full((3, 1, 1, 1), 2, np.uint8)
    name = array_sets.CAMELYON.format("valid", "y")
    packed = official_fakes.compressed(official_fakes.hdf5({"y": labels}))
    official_fakes.write(tmp_path / "mine", {f"{name}.gz": packed})
    with pytest.raises(DataError, match="has labels other than 0 and 1"):
        find(tmp_path, array_sets.find_camelyon, patterns=("*.gz",))
    packed = official_fakes.compressed(official_fakes.hdf5({"y": labels[:2] // 2}))
    official_fakes.write(tmp_path / "mine", {f"{name}.gz": packed})
    with pytest.raises(DataError, match="has 3 images for 2 labels"):
        find(tmp_path, array_sets.find_camelyon, patterns=("*.gz",))
