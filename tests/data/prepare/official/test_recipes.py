"""Datasets packed from official archives against those that TFDS's own builders make of them."""

import functools
import gzip
import hashlib
import http.server
import io
import struct
import tracemalloc

import cv2
import numpy as np
import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import checksums

import official_fakes
import serving
import tfds_reference
from commands import printed, woe
from vit_jax.data.decoding import BadImage
from vit_jax.data.prepare import archives, command, download, shards, tfrecords
from vit_jax.data.prepare.official import array_sets, build, scene_sets
from vit_jax.data.prepare.official.recipe import Example, as_jpeg
from vit_jax.data.prepare.official.source_files import SourceFiles
from vit_jax.data.source import DataError
from vit_jax.data.tasks import TASKS

SETS = {
    "imagenet": "imagenet2012",
    "cifar10": "cifar10",
    "cifar100": "cifar100",
    "pets": "oxford_iiit_pet",
    "flowers": "oxford_flowers102",
    "fewshot/caltech101": "caltech101",
    "fewshot/dtd": "dtd",
    "fewshot/uc_merced": "uc_merced",
    "fewshot/cars": "cars196",
    "imagenet-v2": "imagenet_v2/matched-frequency",
    "imagenet-a": "imagenet_a",
    "imagenet-r": "imagenet_r",
    "imagenet-sketch": "imagenet_sketch",
    "vtab/eurosat": "eurosat/rgb",
    "vtab/resisc45": "resisc45",
    "vtab/svhn": "svhn_cropped",
    "vtab/camelyon": "patch_camelyon",
    "vtab/clevr-count": "clevr",
    "vtab/dmlab": "dmlab",
    "vtab/dsprites-location": "dsprites",
    "vtab/kitti-distance": "kitti",
    "vtab/smallnorb-azimuth": "smallnorb",
    "vtab/sun397": "sun397/tfds",
    "vtab/retinopathy": "diabetic_retinopathy_detection/btgraham-300",
}


def fake(task, root):
    """Writes small archives; returns how many images they have by split."""
    if task in ("vtab/camelyon", "vtab/dsprites-location"):
        pytest.importorskip("h5py")
    root.mkdir(parents=True, exist_ok=True)
    return getattr(official_fakes, SETS[task].partition("/")[0])(root)


@pytest.fixture(autouse=True)
def _few_images(monkeypatch):
    """The fakes have too few images for the list of VTAB's 1,000."""
    monkeypatch.setattr(command, "list_examples", lambda task, request: f"{task.name}: listed")


@pytest.fixture
def sized(monkeypatch):
    """Makes a recipe expect other numbers of images than the official ones."""

    def change(task, splits):
        name = SETS[task]
        small = official_fakes.resized(build.RECIPES[name], splits)
        monkeypatch.setitem(build.RECIPES, name, small)

    return change


# Splits that TFDS has, and the paper has no use for.
UNUSED = {
    "svhn_cropped": {"extra"},
    "clevr": {"test"},
    "diabetic_retinopathy_detection/btgraham-300": {"sample"},
}


# Features that TFDS has in a version later than the one that is packed, which is VTAB's.
LATER = {"clevr": ("question_answer",)}


def examples(builder, split):
    """All examples of a split in their order; images as pixels, read by the same decoder."""
    features = builder.info.features
    pictures = {name for name, one in features.items() if isinstance(one, tfds.features.Image)}
    skip = dict.fromkeys(pictures, tfds.decode.SkipDecoding())
    for example in builder.as_data_source(split, decoders=skip):
        for name in pictures:
            assert isinstance(example[name], bytes)
            pixels = np.frombuffer(example[name], np.uint8)
            example[name] = cv2.imdecode(pixels, cv2.IMREAD_UNCHANGED)
        yield example


def assert_same(found, expected, path=()):
    assert type(found) is type(expected), path
    if isinstance(found, dict):
        assert found.keys() == expected.keys(), path
        for name, value in found.items():
            assert_same(value, expected[name], (*path, name))
    elif isinstance(found, list):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other, path)
    elif isinstance(found, np.ndarray):
        np.testing.assert_array_equal(found, expected, str(path))
        assert found.dtype == expected.dtype, path
    else:
        assert found == expected, path


@pytest.mark.sampled(4)
@pytest.mark.parametrize("task", SETS)
def test_is_what_tfds_makes_of_the_same_archives(task, prepare, sized, tmp_path, monkeypatch):
    """Splits, order, every feature of every record, class names: all from TFDS's own code."""
    name = SETS[task]
    splits = fake(task, tmp_path / "archives")
    by_hand = None
    if name == "dmlab":  # its builder reads with tf.data
        by_hand = {
            split: [(one["filename"], one | {"image": io.BytesIO(one["image"])}) for one in some]
            for split, some in official_fakes.dmlab_examples().items()
        }
    full_name = build.RECIPES[name].builder
    expected = tfds_reference.build(
        monkeypatch, name, tmp_path / "archives", tmp_path / "reference", by_hand
    )
    if name == "kitti":  # drawn by video
        splits = {split: info.num_examples for split, info in expected.info.splits.items()}
    sized(task, splits)

    lines = printed(prepare(task, f"--from={tmp_path / 'archives'}"))
    version = full_name.partition(":")[2] or str(expected.version)
    folder = tmp_path / "data" / name / version
    assert f"{task}: prepared, in {folder}" in lines
    for found in (
        tfds.builder(full_name, data_dir=str(tmp_path / "data")),
        tfds.builder_from_directory(folder),
    ):
        assert found.info.full_name == f"{name}/{version}"
        assert found.info.file_format == expected.info.file_format
        assert {n: s.num_examples for n, s in found.info.splits.items()} == splits
        assert set(expected.info.splits) - set(splits) <= UNUSED.get(name, set())
        assert found.info.supervised_keys == expected.info.supervised_keys
        for feature, one in expected.info.features.items():
            if isinstance(one, tfds.features.ClassLabel):
                assert found.info.features[feature].names == one.names
        for split in splits:
            for one, other in zip(examples(found, split), examples(expected, split), strict=True):
                for feature in LATER.get(name, ()):
                    other.pop(feature)
                assert_same(one, other)
    good = f"{task}: {sum(splits.values())} examples in {folder}, all good"
    assert prepare(task, "--verify")[:2] == (0, [good, *([f"{task}: listed"] * ("vtab" in task))])


@pytest.fixture
def server(tmp_path):
    """Serves a folder on this machine; yields the folder and its URL."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments): ...

    handler = functools.partial(Quiet, directory=str(folder))
    with serving.running(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)) as one:
        yield folder, f"http://127.0.0.1:{one.server_port}/"


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
    monkeypatch.setattr(download, "check_network", lambda *arguments: None)
    labels = (folder / "imagelabels.mat").read_bytes()
    (folder / "imagelabels.mat").write_bytes(labels[:-1] + b"!")
    code, _, errors = prepare("flowers")
    assert code != 0
    assert "imagelabels.mat" in errors[-1]
    assert not (tmp_path / "data/oxford_flowers102").exists()
    (folder / "imagelabels.mat").write_bytes(labels)
    lines = printed(prepare("flowers"))
    assert lines[0] == (
        "flowers: train: 4 of 4 images, validation: 4 of 4 images, test: 12 of 12 images"
    )
    assert prepare("flowers")[1] == [
        f"flowers: is prepared already, in {tmp_path}/data/oxford_flowers102/2.1.1"
    ]


@pytest.mark.parametrize(
    ("name", "task", "file", "content", "line"),
    [
        ("oxford_flowers102", "flowers", "setid.mat", None, "has images, but lacks setid.mat"),
        ("oxford_iiit_pet", "pets", "annotations.tar.gz", None, "lacks annotations/trainval.txt"),
        ("smallnorb", "vtab/smallnorb-azimuth",
         "smallnorb-5x46789x9x18x6x2x96x96-training-cat.mat.gz", None, "lacks smallnorb-5x46789"),
        ("kitti", "vtab/kitti-distance", "devkit_object.zip", None,
         "lacks mapping/train_rand.txt"),
        ("kitti", "vtab/kitti-distance", "data_object_label_2.zip", None,
         "lacks training/label_2/"),
        ("diabetic_retinopathy_detection", "vtab/retinopathy", "trainLabels.csv", None,
         "lacks trainL"),
        ("oxford_flowers102", "flowers", "setid.mat",
         official_fakes.mat(trnid=[[np.inf]], valid=[[1]], tstid=[[2]]), "trnid is not a row of"),
        ("diabetic_retinopathy_detection", "vtab/retinopathy", "trainLabels.csv",
         b"image,level\n" + b"9" * 200_000, "trainLabels.csv: is not a table: field larger"),
        ("kitti", "vtab/kitti-distance", "devkit_object.zip",
         official_fakes.zipped({"mapping/train_rand.txt": "1", "mapping/train_mapping.txt": "a b"}),
         "train_rand.txt: is not the file from KITTI's devkit"),
    ],
    ids=lambda value: None if isinstance(value, str) else "missing" if value is None else "other",
)  # fmt: skip
def test_a_missing_file_or_one_of_other_values_is_named(
    name, task, file, content, line, prepare, tmp_path
):
    (tmp_path / "mine").mkdir()
    getattr(official_fakes, name)(tmp_path / "mine")
    (tmp_path / "mine" / file).unlink()
    if content is not None:
        (tmp_path / "mine" / file).write_bytes(content)
    assert line in woe(prepare(task, f"--from={tmp_path / 'mine'}", "--partial"))


def test_more_images_than_the_official_number_are_refused(prepare, sized, tmp_path):
    splits = fake("flowers", tmp_path / "mine")
    sized("flowers", splits | {"test": splits["test"] - 1})
    line = woe(prepare("flowers", f"--from={tmp_path / 'mine'}", "--partial"))
    assert "test has 12 images, more than the official 11" in line


@pytest.mark.parametrize(
    "change", [{"color": None}, {"color": "x"}, {"rotation": 10**400}, {"3d_coords": {}}], ids=str
)
def test_values_that_are_no_features_are_named(change, tmp_path):
    (tmp_path / "a.png").write_bytes(official_fakes.picture(0, kind=".png", height=320, width=480))
    point = [1.0, 2.0, 3.0]
    scene = {"color": "cyan", "material": "metal", "shape": "cube", "size": "small"}
    scene |= {"rotation": 1.0, "pixel_coords": point, "3d_coords": point}
    entry = archives.FileEntry(
        "a.png", str(tmp_path), archives.PLAIN, len((tmp_path / "a.png").read_bytes())
    )
    encode = build.ExampleEncoder("clevr")
    for objects in ([scene], [scene | change], [None]):
        example = Example("a.png", (entry,), {"file_name": "a.png", "objects": objects})
        if objects == [scene]:
            encode(example, shards.ShardResult())
            continue
        with pytest.raises(DataError, match=r"^a\.png: .*; download it again$"):
            encode(example, shards.ShardResult())


def test_a_recipe_for_every_dataset_of_the_paper():
    """ImageNet, CIFAR, Pets, Flowers and VTAB-1k's 19; no more than what its dataset says."""
    papers = {"imagenet", "cifar10", "cifar100", "pets", "flowers"}
    for name, task in TASKS.items():
        if name in papers or name.startswith("vtab/"):
            recipe = build.RECIPES[task.dataset.tfds]
            assert recipe.dataset is task.dataset
            assert "tensorflow" not in task.dataset.packages
            builder = tfds.builder(recipe.builder)
            known = {info.filename for info in (builder.url_infos or {}).values()}
            assert set(recipe.downloads) <= known
            asks = bool(builder.MANUAL_DOWNLOAD_INSTRUCTIONS)
            assert asks == (not recipe.downloads) or name == "vtab/retinopathy"


def test_an_eye_without_a_radius_takes_the_memory_of_its_pixels():
    """It is scaled to 600 x 12,000 pixels; what is blurred and masked is what is kept of them."""
    data = cv2.imencode(".png", np.zeros((20, 400, 3), np.uint8))[1].tobytes()
    recipe = build.RECIPES["diabetic_retinopathy_detection/btgraham-300"]
    tracemalloc.start()
    recipe.encode([data], {})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * 600 * 12_000 * 3


def test_any_example_that_occurs_twice_is_named():
    examples = [Example(name, (), {}) for name in "abcdef"]
    assert sorted(build.order("train", examples)) == list(range(6))
    for one in examples:
        with pytest.raises(DataError, match=f"train: {one.name} occurs twice"):
            build.order("train", [*examples, one])


def test_a_jpeg_of_other_segments_before_its_frame_stays_as_it_is():
    encoded = cv2.imencode(".jpg", np.zeros((8, 8, 3), np.uint8))[1].tobytes()
    conditions = bytes.fromhex("ffcc00040010")  # of arithmetic coding, which such files may hold
    more = encoded[:2] + conditions + encoded[2:]
    assert as_jpeg(more, 50) == more
    assert as_jpeg(more, 50, again=True) != more


def test_a_record_of_dmlab_is_bounded(tmp_path):
    head = struct.pack("<Q", 2**22 + 1)
    (tmp_path / "mine").mkdir()
    whole = head + struct.pack("<I", tfrecords.masked(head)) + bytes(2**22 + 5)
    (tmp_path / "mine/dmlab-train.tfrecord-00000").write_bytes(whole)
    files = SourceFiles([tmp_path / "mine"], (), tmp_path / "scratch", 2**30)
    with pytest.raises(DataError, match="record 0: has 4,194,305 bytes, more than 4,194,304"):
        scene_sets.find_dmlab(files)


@pytest.mark.parametrize("changes", [{"y": [[0], [1]]}, {"y": [[11], [1]]}, {"y": [[1]]}])
def test_digits_of_svhn_are_1_to_10(changes, tmp_path):
    official_fakes.write(tmp_path / "mine", {
        "train_32x32.mat": official_fakes.mat(
            **{"X": np.zeros((32, 32, 3, 2), np.uint8), "y": [[10], [1]]} | changes
        )
    })  # fmt: skip
    files = SourceFiles([tmp_path / "mine"], (), tmp_path / "scratch", 2**30)
    with pytest.raises(DataError, match="X and y are not SVHN's images and digits 1 to 10"):
        array_sets.find_svhn(files)


def test_kitti_is_of_png_files():
    encoded = cv2.imencode(".jpg", np.zeros((8, 8, 3), np.uint8))[1].tobytes()
    with pytest.raises(BadImage, match="is not a PNG"):
        scene_sets.encode_kitti([encoded, b""], {})


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"0"])
def test_arrays_of_smallnorb_are_as_long_as_they_say(change, tmp_path):
    fake("vtab/smallnorb-azimuth", tmp_path / "mine")
    (file,) = (tmp_path / "mine").glob("*training-cat*")
    raw = file.read_bytes()
    plain = gzip.decompress(raw) if file.suffix == ".gz" else raw
    file.write_bytes(gzip.compress(change(plain)) if file.suffix == ".gz" else change(plain))
    patterns = ("*.mat.gz",)
    files = SourceFiles([tmp_path / "mine"], patterns, tmp_path / "scratch", 2**30)
    with pytest.raises(DataError, match="is not a SmallNORB array, or is truncated"):
        array_sets.find_smallnorb(files)


def test_archives_that_the_user_downloads_are_found_where_tfds_looks(prepare, sized, tmp_path):
    splits = fake("vtab/resisc45", tmp_path / "data/downloads/manual")
    sized("vtab/resisc45", splits)
    lines = printed(prepare("vtab/resisc45"))
    assert lines[-2] == f"vtab/resisc45: prepared, in {tmp_path}/data/resisc45/3.0.0"
