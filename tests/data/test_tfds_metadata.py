"""What a dataset's folder says of itself is checked before TFDS reads it, and never imported."""

import functools
import json
import pathlib
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds
from etils import epath

from commands import error_line
from vit_jax import config
from vit_jax.data import availability, tfds_metadata
from vit_jax.data.prepare import command, tfrecords
from vit_jax.data.prepare.pack import write_info
from vit_jax.data.source import DataError
from vit_jax.data.sources import open_source

CLASSES = ("ring", "disc", "box")


@pytest.fixture
def folder(tmp_path):
    """A prepared dataset without records, as `prepare` writes its metadata."""
    made = tmp_path / "data/mine/1.0.0"
    made.mkdir(parents=True)
    (made / "mine-train.array_record-00000-of-00001").touch()
    write_info(made, "mine", "1.0.0", CLASSES, {"train": [(3, 100)]})
    return made


def change(folder, edit):
    path = folder / "features.json"
    values = json.loads(path.read_text())
    edit(values)
    path.write_text(json.dumps(values))


def features_of(values):
    return values["featuresDict"]["features"]


def in_class(values):
    features_of(values)["label"]["pythonClassName"] = "evil_module.Feature"


def in_snake_case(values):
    one = features_of(values)["label"]
    del one["pythonClassName"]
    one["python_class_name"] = "evil_module.Feature"


def in_old_form(values):
    values.clear()
    values.update(type="evil_module.Feature", content={})


def in_text_in_text(values):
    inner = json.dumps({"feature": {"type": "evil_module.Feature", "content": {}}, "length": 1})
    kind = f"{tfds.features.Sequence.__module__}.Sequence"
    features_of(values)["label"] = {"pythonClassName": kind, "jsonFeature": {"json": inner}}


def opened(folder, name="mine"):
    data = config.Data(source="tfds", name=name, root=str(folder.parents[1]))
    return open_source(data, "train", train=True)


def converted(folder):
    tfrecords.convert(epath.Path(folder), "mine", pathlib.Path(folder).parents[2] / "new")


def verified(folder):
    request = command.Request(data_dir=str(folder.parents[1]), verify=True)
    list(command.prepare("mine", request))


@pytest.mark.parametrize(
    ("open_", "edit", "key"),
    [
        (opened, in_class, "pythonClassName"),
        (opened, in_snake_case, "python_class_name"),
        (opened, in_old_form, "type"),
        (opened, in_text_in_text, "type"),
        (functools.partial(opened, name="mine:1.*.*"), in_class, "pythonClassName"),
        (converted, in_text_in_text, "type"),
        (verified, in_class, "pythonClassName"),
    ],
)
def test_a_module_that_data_name_is_never_imported(folder, tmp_path, monkeypatch, open_, edit, key):
    """It is on the path, and would leave a file."""
    (tmp_path / "evil_module.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()")
    monkeypatch.syspath_prepend(str(tmp_path))
    change(folder, edit)
    with pytest.raises(DataError) as caught:
        open_(folder)
    assert not (tmp_path / "imported").exists()
    assert "evil_module" not in sys.modules
    assert str(caught.value) == (
        f"{folder}/features.json: {key} 'evil_module.Feature' is none of TFDS's features; "
        "not imported"
    )


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda v: features_of(v)["label"].update(names_file="/etc/passwd"), "names_file '/etc/pa"),
        (lambda v: features_of(v)["label"]["classLabel"].update(numClasses="1000000000000"),
         "numClasses '1000000000000': at most 1,000,000 classes"),
        (lambda v: features_of(v).update({"../../x": features_of(v)["label"]}),
         "'../../x': is a path outside of the dataset"),
    ],
)  # fmt: skip
def test_paths_and_sizes_are_bounded(folder, edit, reason):
    change(folder, edit)
    assert reason in error_line(DataError, opened, folder)


def test_lists_count_as_objects_do(folder):
    path = folder / "features.json"

    def check(depth):
        inside = functools.reduce(lambda one, _: [one], range(depth - 1), [])
        path.write_text(json.dumps({"a": inside}))
        tfds_metadata.check_features(epath.Path(folder))

    check(50)
    with pytest.raises(DataError, match="objects within objects, more than 50 deep"):
        check(51)


@pytest.mark.parametrize("nested", [60, 100_000])
def test_objects_within_objects(folder, nested):
    (folder / "features.json").write_text('{"a":' * nested + "1" + "}" * nested)
    with pytest.raises(DataError, match=r"features\.json: (objects within|is damaged)"):
        opened(folder)
    (folder / "dataset_info.json").write_text('{"a":' * nested + "1" + "}" * nested)
    assert availability.read_info(epath.Path(folder)) is None
    for open_ in (opened, converted, verified):
        with pytest.raises(config.UserError) as caught:
            open_(folder)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["features.json", "dataset_info.json"])
def test_a_file_is_not_read_beyond_its_bound(folder, monkeypatch, name):
    with (folder / name).open("ab") as file:
        file.truncate(tfds_metadata.MOST_BYTES + 1)  # of no room on the disk
    # Of a folder itself TFDS reads what it holds by the second; the first is checked before it.
    for open_ in (opened, *([tfds_metadata.builder_of_folder] if "info" in name else [])):
        with pytest.raises(DataError, match=r"has 67,108,865 bytes, more than 67,108,864"):
            open_(folder)


def test_all_kinds_of_tfds_are_known(folder):
    """What TFDS writes of each of its features it may read again."""
    kinds = tfds.features
    every = kinds.FeaturesDict(
        {
            "image": kinds.Image(shape=(None, None, 3)),
            "label": kinds.ClassLabel(names=list(CLASSES)),
            "box": kinds.BBoxFeature(),
            "text": kinds.Text(),
            "number": kinds.Scalar(dtype=np.int64),
            "tensor": kinds.Tensor(shape=(2,), dtype=np.float32),
            "objects": kinds.Sequence({"label": kinds.ClassLabel(num_classes=3)}),
            "image/name": kinds.Text(),
        }
    )
    every.save_config(str(folder))
    tfds_metadata.check_features(folder)
    assert set(tfds_metadata.builder_of_folder(folder).info.features) == set(every)
