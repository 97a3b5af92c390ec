"""Features in files: every image once, in order, the same for any batch size and devices."""

import dataclasses
import json
import pathlib
import tracemalloc
import types

import cv2
import jax
import numpy as np
import pyarrow.parquet
import pytest

import commands
import image_folders
import runs
from vit_jax import cli, config
from vit_jax.data import decoding, folders, native_aspect, sources, transforms
from vit_jax.data.source import read_names
from vit_jax.inference import embedding, loaded_model, loading
from vit_jax.inference.evaluation import evaluate
from vit_jax.runtime import distributed
from vit_jax.training import build, normalization
from vit_jax.utils.errors import AssumptionWarning

FIXTURE = pathlib.Path(__file__).parents[1] / "fixtures" / "vit_tiny_token.npz"


@pytest.fixture(scope="module")
def opened():
    """A small model of digits whose classes have names, with random parameters."""
    options = {"num_classes": 10, "unroll": 1, "dropout": 0.0}
    cfg = runs.configure(model=options, data={"eval_split": "test[:37]"})
    params = jax.jit(build.create_model(cfg).init)(jax.random.key(0))
    names = ("zero", "one", *map(str, range(2, 10)))
    return loaded_model.LoadedModel(config=cfg, params=params, classes=names, kind="run")


def expected(opened, pictures, kind):
    """What the model says of images all at once."""
    model, data = build.create_model(opened.config), opened.config.data
    views = []
    for view in pictures:
        for transform in transforms.eval_transforms(data):
            view = transform(view, np.random.default_rng(0))
        views.append(view)
    _, out = jax.jit(model.apply)(
        opened.params, normalization.normalize_pixels(np.stack(views), data)
    )
    return np.asarray(out[kind], np.float32)


@pytest.fixture
def folder(tmp_path):
    """Seven pictures, some in folders of classes, one hidden, and a file that is none."""
    names = ("b/one/2.png", "one/1.png", "a.png", "b/c.PNG", "zero/x.png", "z.png", ".h.png")
    root = image_folders.draw(tmp_path / "pictures", *names, size=(11, 9))
    (root / "notes.txt").write_text("no image")
    return root


@pytest.mark.parametrize("layout", ["classes", "mixed", "flat"])
def test_a_model_trained_without_labels_writes_those_of_the_data(layout, opened, tmp_path, caplog):
    caplog.set_level("INFO")
    names = ["test/cat/1.png", "test/dog/2.png", "test/dog/3.png"]
    if layout != "classes":
        names.append("test/4.png")
    if layout == "flat":
        names = names[-1:]
    for name in names:
        file = tmp_path / "images" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(cv2.imencode(".png", np.full((9, 9), 77, np.uint8))[1].tobytes())
    splits = {"train_split": "test", "eval_split": "test"}
    data = dataclasses.replace(
        opened.config.data, source="folder", root=str(tmp_path / "images"), **splits
    )
    cfg = dataclasses.replace(opened.config, data=data, objective=config.MaskedPatches())
    params = jax.jit(build.create_model(cfg).init)(jax.random.key(0))
    masked = dataclasses.replace(opened, config=cfg, params=params, classes=())
    found = tmp_path / "out.npz"
    assert embedding.write_features(masked, found) == len(names)
    with np.load(found) as file:
        labels, classes = file["labels"].tolist(), file["classes"].tolist()
    if layout == "classes":
        assert (labels, classes) == ([0, 1, 1], ["cat", "dog"])
    else:
        assert (labels, classes) == ([-1] * len(names), [])
    said = {"mixed": "test: 3 of 4 images have a class, so no", "flat": "no labels are written: "}
    assert said.get(layout, "") in caplog.text
    assert (layout == "classes") == ("labels are written" not in caplog.text)


@pytest.mark.parametrize(("classes", "each", "labeled"), [(30, 4, False), (2, 60, True)])
def test_images_held_out_without_labels_stay_those_embedded(tmp_path, classes, each, labeled):
    """With labels, each class has one held out: where classes are small, these are others."""
    image_folders.fill(tmp_path, *(f"{c}/{k}.png" for c in range(classes) for k in range(each)))
    data = {"source": "folder", "root": str(tmp_path), "holdout": 0.05, "eval_split": "validation"}
    cfg = config.build({"objective": {"name": "mae"}, "data": data})
    found = embedding._source(types.SimpleNamespace(config=cfg, classes=()), None, "images")
    expected = sources.open_source(cfg.data, "validation", labels=False)
    assert read_names(found) == read_names(expected)
    assert bool(found.classes) == labeled


@pytest.mark.slow
def test_a_folder_in_the_order_of_its_paths(opened, folder, tmp_path):
    output = tmp_path / "out.parquet"
    assert embedding.write_features(opened, output, folder, features="tokens", batch_size=4) == 6
    table = pyarrow.parquet.read_table(output)
    names = ["a.png", "b/c.PNG", "b/one/2.png", "one/1.png", "z.png", "zero/x.png"]
    assert table["name"].to_pylist() == names
    assert table["label"].to_pylist() == [None, None, 1, 1, None, 0]
    facts = json.loads(table.schema.metadata[b"vit_jax"])
    assert facts["shape"] == [5, 16]
    assert facts["classes"][:2] == ["zero", "one"]
    pictures = [
        decoding.decode_image((folder / name).read_bytes(), channels=1, max_pixels=99)
        for name in names
    ]
    found = np.array(table["features"].to_pylist(), np.float32).reshape(6, 5, 16)
    np.testing.assert_allclose(found, expected(opened, pictures, "tokens"), rtol=0, atol=2e-6)


def test_labels_of_a_folder_are_the_heads_by_name(tmp_path):
    """As wherever a head meets data: near names are taken and said, ambiguous ones are unknown."""
    for name in ("Zero", "one", "003", "twice", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.png").write_bytes(b"x")
    with pytest.warns(
        AssumptionWarning, match="'003' of the data is taken for '3' of the head, and"
    ):
        found = folders.Loose(tmp_path, ("one", "zero", "twice", "3", "twice"), "--images")
    labels = {found.name(k).partition("/")[0]: found[k].label for k in range(5)}
    assert labels == {"Zero": 1, "one": 0, "003": 3, "twice": -1, "other": -1}
    with pytest.warns(AssumptionWarning, match="no names; '003' of the data is"):
        nameless = folders.Loose(tmp_path, [f"class {k}" for k in range(5)], "--images")
    assert [nameless[k].label for k in range(5)] == [3, -1, -1, -1, -1]  # none by its place alone
    nested = image_folders.fill(
        tmp_path / "n", "test/a/b/1.png", "test/b/old/2.png", "train/more/a/3.png"
    )
    found = folders.Loose(nested, ("a", "b", "train"), "--images")
    assert [found[k].label for k in range(3)] == [0, 1, 0]  # as in training


def test_a_folder_has_one_class_for_an_image_of_a_head_for_several(opened, folder, tmp_path):
    given = {"source": "synthetic", "image_size": 8, "channels": 1, "multilabel": True}
    data = config.build({"data": given}).data
    model = dataclasses.replace(opened, config=dataclasses.replace(opened.config, data=data))
    embedding.write_features(model, tmp_path / "out.npz", folder)
    with np.load(tmp_path / "out.npz") as file:
        assert file["labels"].tolist() == [-1, -1, 1, 1, -1, 0]
    # Columns of numbers are no classes, as what a folder is called.
    data = dataclasses.replace(data, multilabel=False, targets=opened.classes)
    model = dataclasses.replace(opened, config=dataclasses.replace(opened.config, data=data))
    embedding.write_features(model, tmp_path / "numbers.npz", folder)
    with np.load(tmp_path / "numbers.npz") as file:
        assert (file["labels"].tolist(), file["classes"].tolist()) == ([-1] * 6, [])


def written(batches, count, plan=None):
    """Features, names and labels in the order in which they are written."""
    rows = []
    source = type("Source", (), {"__len__": lambda _: count, "name": lambda _, i: f"image {i}"})()
    pending = embedding.PendingRows(
        lambda *parts: rows.extend(zip(*parts, strict=True)), source, plan
    )
    for number, batch in enumerate(batches):
        pending({key: jax.numpy.asarray(value) for key, value in batch.items()})
        assert len(rows) < count or number == len(batches)  # the devices are ahead by a batch
    pending.write()
    pending.write()  # nothing is left
    return [(*values.tolist(), name, np.asarray(label).tolist()) for values, name, label in rows]


def batch(*numbers):
    """A batch of the images with these numbers; negative ones cannot be read."""
    numbers = np.array(numbers, np.float32)
    label = np.where(numbers < 0, -1, numbers).astype(np.int32)
    return {"values": numbers[:, None], "label": label, "mask": numbers >= 0}


NAN = pytest.approx(np.nan, nan_ok=True)


class Loads(Exception):
    """Raised where a checkpoint would be loaded."""


@pytest.mark.parametrize(
    "call",
    [lambda folder: embedding.embed("run", folder / "f.npz", folder), lambda _: evaluate("run")],
    ids=["embed", "evaluate"],
)
def test_processes_join_before_a_checkpoint_asks_for_devices(call, tmp_path, monkeypatch):
    order = []

    def load(*_, **__):
        raise Loads

    monkeypatch.setattr(distributed, "initialize", lambda: order.append("joined"))
    monkeypatch.setattr(loading, "load", load)
    monkeypatch.setattr(loading, "has_images", lambda *_: True)
    monkeypatch.setattr(loading, "require_images", lambda *_: None)
    with pytest.raises(Loads):
        call(tmp_path)
    assert order == ["joined"]


def test_rows_are_written_in_order_without_those_that_fill_the_last_batch():
    found = written([batch(0, -1, 2), batch(3, 4, 99)], 5)
    assert found == [
        (0, "image 0", 0), (NAN, "image 1", -1), (2, "image 2", 2), (3, "image 3", 3),
        (4, "image 4", 4),
    ]  # fmt: skip


def test_rows_grouped_by_shape_are_written_in_order():
    """As `data.aspect=native` has them: rows of a batch are those of a plan, or fill it up."""
    padding = native_aspect.PADDING
    plan = types.SimpleNamespace(rows=np.array([[3, 1, padding], [0, 4, 2], [5, padding, padding]]))
    found = written([batch(3, 1, 99), batch(0, 4, 2), batch(5, 99, 99)], 6, plan)
    assert found == [(number, f"image {number}", number) for number in range(6)]


def test_an_unreadable_image_has_no_label():
    mask, label = np.array([True, False]), np.array([3.0, 4.0], np.float32)
    found = embedding.row_inputs({"image": None, "mask": mask, "label": label})["label"]
    assert (found.tolist(), found.dtype) == ([3, -1], np.int32)
    many = np.array([[0, 1], [1, 1]], np.float32)
    found = embedding.row_inputs({"image": None, "mask": mask, "label": many})["label"]
    assert found.tolist() == [[0, 1], [-1, -1]]


@pytest.mark.parametrize(
    ("labels", "said"),
    [([0, -1, 2], [0, None, 2]), ([[0, 1, 1], [0, 0, 0], [-1, -1, -1]], [[1, 2], [], None])],
)
def test_labels_in_parquet(tmp_path, labels, said):
    facts = {"classes": ("a", "b", "c"), "multilabel": isinstance(labels[0], list)}
    with embedding.create_file(tmp_path / "x.parquet", 3, (1,), facts) as write:
        write(np.zeros((3, 1), np.float32), ["1", "2", "3"], np.array(labels, np.int32))
    assert pyarrow.parquet.read_table(tmp_path / "x.parquet")["label"].to_pylist() == said


@pytest.mark.parametrize(
    ("batch_size", "rows"), [(None, 3 * embedding.AT_ONCE), (1, 3), (3, 3), (7, 9)]
)
def test_a_batch_has_as_many_images_for_each_device(tmp_path, monkeypatch, batch_size, rows):
    class Stopped(Exception):
        pass

    def plan(model, source, data, rows, window):
        raise Stopped(rows)

    monkeypatch.setattr(jax, "device_count", lambda: 3)
    monkeypatch.setattr(embedding.runner, "plan_native", plan)
    cfg = runs.configure(model={"num_classes": 10}, data={"eval_split": "test[:37]"})
    model = loaded_model.LoadedModel(config=cfg, params={}, classes=tuple("0123456789"), kind="run")
    with pytest.raises(Stopped, match=f"^{rows}$"):
        embedding.write_features(model, tmp_path / "x.npz", batch_size=batch_size)


@pytest.mark.parametrize("suffix", embedding.SUFFIXES)
def test_many_rows_are_written_without_keeping_them(suffix, tmp_path):
    path, rows, batch = tmp_path / f"many{suffix.upper()}", 6400, 64
    facts = {"checkpoint": "c", "features": "pre_logits", "classes": ("a",)}
    tracemalloc.start()
    with embedding.create_file(path, rows, (640,), facts) as write:
        for start in range(0, rows, batch):
            values = np.full((batch, 640), start, np.float32)
            names = [f"{start + i}.png" for i in range(batch)]
            write(values, names, np.zeros(batch, np.int32))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4e6 < 4 * rows * 640
    if suffix == ".npz":
        with np.load(path) as file:
            first = file["features"][:, 0]
    else:
        first = np.array(
            [row[0] for row in pyarrow.parquet.read_table(path)["features"].to_pylist()]
        )
    np.testing.assert_array_equal(first, np.arange(rows) // batch * batch)


@pytest.mark.parametrize("suffix", embedding.SUFFIXES)
def test_what_is_interrupted_leaves_nothing(suffix, tmp_path):
    def interrupted():
        with embedding.create_file(tmp_path / f"x{suffix}", 4, (3,), facts) as write:
            write(np.zeros((2, 3), np.float32), ["a", "b"], np.zeros(2, np.int32))
            raise KeyboardInterrupt

    facts = {"checkpoint": "c", "features": "pre_logits", "classes": ()}
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_and_other_mistakes_are_one_line(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    with pytest.raises(config.ConfigError, match=r".*/empty: holds no \.jpg"):
        folders.Loose(tmp_path / "empty", (), "--images")
    (tmp_path / "there.npz").touch()
    for flags, message in (
        ([f"--output={tmp_path}/x.csv"], "must end in .npz or .parquet"),
        ([f"--output={tmp_path}/there.npz"], "exists; remove it"),
        ([f"--output={tmp_path}/no/x.npz"], "no such folder as"),
        ([f"--output={tmp_path}/x.npz", "gone"], "gone: no such folder"),
        ([f"--output={tmp_path}/x.npz"], "names no images"),
    ):
        said = commands.run(capsys, "embed", f"--checkpoint={FIXTURE}", *flags)
        assert message in commands.woe(said)


def test_a_resnet_has_no_tokens(tmp_path, capsys):
    resnet = FIXTURE.with_name("bit_tiny_legacy.npz")
    flags = [f"--output={tmp_path}/x.npz", f"{tmp_path}", "--features=tokens"]
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((8, 8, 3), np.uint8))
    assert cli.main(["embed", f"--checkpoint={resnet}", *flags]) == 2
    assert "--features=tokens: a ResNet has no tokens" in capsys.readouterr().err


def test_a_network_without_tokens_is_not_called_a_resnet():
    """One of a plug-in was."""
    model = types.SimpleNamespace(
        config=config.Model(architecture="vit"),
        image_size=(8, 8),
        channels=1,
        shapes=dict,
        apply=lambda params, images: (images, {"pre_logits": images}),
    )
    with pytest.raises(config.ConfigError, match="^--features=tokens: the network returns none; "):
        loaded_model.feature_shape(model, "tokens")
