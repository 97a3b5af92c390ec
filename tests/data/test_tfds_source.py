"""TFDS on array_record, without TensorFlow: a tiny dataset prepared by TFDS itself."""

import functools
import io
import json
import logging
import pickle
import shutil
import sys

import cv2
import numpy as np
import pytest
import tensorflow_datasets as tfds

from commands import error_line
from vit_jax import config
from vit_jax.config import ConfigError
from vit_jax.data import tfds_metadata
from vit_jax.data.source import DataError
from vit_jax.data.sources import Source, open_source


def pixels(index: int) -> np.ndarray:
    return np.full((4 + index, 5, 3), index * 10, np.uint8)


def encoded(index: int) -> io.BytesIO:
    """A PNG: TFDS encodes arrays with TensorFlow, but takes files as they are."""
    return io.BytesIO(cv2.imencode(".png", pixels(index))[1].tobytes())


class TinyShapes(tfds.core.GeneratorBasedBuilder):
    """20 + 7 pictures of three classes, with a feature that training does not need."""

    VERSION = tfds.core.Version("1.2.0")

    def _info(self):
        features = {
            "picture": tfds.features.Image(shape=(None, None, 3)),
            "mask": tfds.features.Image(shape=(None, None, 3)),
            "shape": tfds.features.ClassLabel(names=["ring", "disc", "box"]),
            "hue": tfds.features.ClassLabel(num_classes=9),
            "id": tfds.features.Text(),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("picture", "shape"),
        )

    def _split_generators(self, dl_manager):
        return {"train": self._examples(20, 0), "test": self._examples(7, 100)}

    def _examples(self, number: int, first: int):
        for index in range(number):
            labels = {"shape": index % 3, "hue": index % 9, "id": f"id-{first + index}"}
            yield index, {"picture": encoded(index), "mask": encoded(0), **labels}

    _generate_examples = _examples


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    root = tmp_path_factory.mktemp("tfds")
    builder = TinyShapes(data_dir=str(root), file_format="array_record")
    tfds.disable_progress_bar()
    builder.download_and_prepare()
    return root


def tiny(root, split="train", name="tiny_shapes", train=True, labels=None) -> Source:
    data = config.Data(source="tfds", name=name, root=str(root), labels=labels)
    return open_source(data, split, train=train)


def test_without_labels_the_image_is_enough(prepared):
    data = config.Data(source="tfds", name="tiny_shapes", root=str(prepared))
    source = open_source(data, "train", labels=False)
    assert (source.classes, source[0].label) == ((), -1)
    assert source[0].image == tiny(prepared, labels="shape")[0].image
    assert pickle.loads(pickle.dumps(source))[0].label == -1


refusal = functools.partial(error_line, (ConfigError, DataError), tiny)


def contents(source: Source) -> list[tuple[int, int]]:
    """(number of the picture, label) of all examples."""
    result = []
    for index in range(len(source)):
        image, label = source[index]
        assert isinstance(image, bytes)
        picture = cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR)
        number = picture.shape[0] - 4
        np.testing.assert_array_equal(picture, pixels(number))
        result.append((number, label))
    return result


def test_reads_encoded_pictures_and_labels_without_tensorflow(prepared):
    source = tiny(prepared)
    assert source.classes == ("ring", "disc", "box")
    assert len(source) == 20
    assert sorted(contents(source)) == [(index, index % 3) for index in range(20)]
    assert source.name(7) == "tiny_shapes/1.2.0 train example 7"
    assert "tensorflow" not in sys.modules


def test_splits_are_those_of_tfds(prepared):
    whole = contents(tiny(prepared))
    part = tiny(prepared, "train[:60%]")
    assert contents(part) == whole[:12]
    sent = pickle.dumps(part)  # to another process
    assert contents(pickle.loads(sent)) == whole[:12]
    assert pickle.loads(sent).fingerprint() == part.fingerprint()
    assert len(sent) < 10_000
    assert contents(tiny(prepared, "train[60%:]")) == whole[12:]
    assert contents(tiny(prepared, "train[-3:]")) == whole[-3:]
    test = contents(tiny(prepared, "test", train=False))
    assert sorted(test) == [(index, index % 3) for index in range(7)]
    assert contents(tiny(prepared, "test+train[:2]")) == test + whole[:2]
    assert len(tiny(prepared, name="tiny_shapes:1.2.0")) == 20


def test_another_class_label_by_name(prepared):
    source = tiny(prepared, labels="hue")
    assert source.classes == tuple("012345678")
    assert sorted(contents(source)) == [(index, index % 9) for index in range(20)]
    assert source.fingerprint() != tiny(prepared).fingerprint()
    assert refusal(prepared, labels="hu") == (
        "data.labels=hu: no rule, and no class label of tiny_shapes/1.2.0; did you mean hue?"
    )
    assert refusal(prepared, labels="clevr-count") == (
        "data.labels=clevr-count: needs image, which tiny_shapes/1.2.0 does not have; its "
        "features: hue, id, mask, picture, shape"
    )


def test_fingerprint_depends_on_the_data_not_on_the_folder(prepared, tmp_path):
    prints = {tiny(prepared, split).fingerprint() for split in ("train", "train[:60%]", "test")}
    assert len(prints) == 3
    copy = shutil.copytree(prepared, tmp_path / "copy")
    assert tiny(copy).fingerprint() == tiny(prepared).fingerprint()
    file = copy / "tiny_shapes/1.2.0/dataset_info.json"
    info = json.loads(file.read_text())
    info["splits"][0]["numBytes"] = "12345"
    file.write_text(json.dumps(info))
    assert tiny(copy).fingerprint() != tiny(prepared).fingerprint()


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("tiny_shape", "TFDS has no such dataset; did you mean tiny_shapes?"),
        ("cifra10", "TFDS has no such dataset; did you mean cifar10?"),
        ("xqzzy", "TFDS has no such dataset"),
        ("a b", "Parsing builder name string a b failed."),
        ("cifar10:9.9.9", "Dataset cifar10 cannot be loaded at version 9.9.9, only: 3.0.2."),
    ],
)
def test_refuses_names_that_do_not_exist(prepared, name, line):
    said = refusal(prepared, name=name)
    assert said.startswith(f"data.name={name}: ")
    assert said.endswith(line)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("cifar10", "not prepared in ROOT/cifar10/3.0.2; run `vit_jax prepare cifar10"),
        # No task has it, but TFDS.
        ("mnist", "not prepared in ROOT/mnist/3.0.1; run `vit_jax prepare mnist"),
        # TFDS does not know it, we do.
        ("imagenet21k", "not in ROOT; run `vit_jax prepare imagenet21k --from=FOLDER_OR_TARS"),
    ],
)
def test_says_how_to_prepare(prepared, caplog, name, line):
    with caplog.at_level(logging.WARNING):
        said = refusal(prepared, name=name).replace(str(prepared), "ROOT")
    assert said == f"data.name={name}: {line} --data-dir=ROOT`"
    assert not caplog.records


def test_refuses_a_format_without_random_access(prepared, tmp_path):
    root = shutil.copytree(prepared, tmp_path / "copy")
    file = root / "tiny_shapes/1.2.0/dataset_info.json"
    file.write_text(file.read_text().replace('"array_record"', '"tfrecord"'))
    folder = f"{root}/tiny_shapes/1.2.0"
    assert refusal(root) == (
        f"data.name=tiny_shapes: prepared as tfrecord in {folder}, which has no random access; "
        f"run `vit_jax prepare tiny_shapes --from={folder} --data-dir=ANOTHER`"
    )


@pytest.mark.parametrize(
    ("split", "line"),
    [
        ("trian", "no such split; did you mean train?"),
        ("validation", "no such split; known: train, test"),
        ("train[:21]", "Requested slice [:21] incompatible with 20 examples."),
        ("train[5:5]", "selects no example of tiny_shapes/1.2.0"),
    ],
)
def test_refuses_bad_splits(prepared, split, line):
    assert refusal(prepared, split) == f"data.train_split={split}: {line}"


def renamed(prepared, root, **changes):
    """Copies the dataset under a name that no builder class has."""
    shutil.copytree(prepared / "tiny_shapes", root / "other_shapes")
    version = root / "other_shapes/1.2.0"
    info = json.loads((version / "dataset_info.json").read_text())
    (version / "dataset_info.json").write_text(
        json.dumps(info | {"name": "other_shapes"} | changes)
    )
    for shard in version.glob("tiny_shapes-*"):
        shard.rename(shard.with_name(shard.name.replace("tiny", "other")))
    return root


def test_refuses_features_that_leave_a_choice(prepared, tmp_path):
    root = renamed(prepared, tmp_path, supervisedKeys=None)
    assert refusal(root, name="other_shapes") == (
        "data.name=other_shapes: needs one image and one class label; its features: "
        "hue, id, mask, picture, shape"
    )


def test_a_data_dir_that_cannot_be_read_names_the_option(monkeypatch):
    def fail(name, root):
        raise ImportError("Please install gcsfs to access Google Storage")

    monkeypatch.setattr(tfds_metadata, "builder", fail)
    data = config.Data(source="tfds", name="cifar10", root="gs://bucket/data")
    line = "data.root=gs://bucket/data: needs gcsfs: pip install 'vit_jax[gcs]'"
    assert error_line(DataError, open_source, data, "train", train=True) == line
