"""ReaL's labels: by position and by file name, and files that are not real.json."""

import hashlib
import json

import pytest

from vit_jax.data import real_labels
from vit_jax.data.source import DataError

LABELS = [[3], [], [999, 0], [7, 8, 9]]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "real.json"
    path.write_text(json.dumps(LABELS))
    return path


def test_labels_by_position_and_file_name(file):
    labels = real_labels.load_real(file, images=4)
    assert labels.labels == ((3,), (), (999, 0), (7, 8, 9))
    assert labels[2] == labels["ILSVRC2012_val_00000003.JPEG"] == (999, 0)
    assert labels["val/n01440764/ILSVRC2012_val_00000001.JPEG"] == (3,)
    assert len(labels) == 4
    assert labels.scored == 3
    assert labels.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    for name in ("ILSVRC2012_val_00000005.JPEG", "ILSVRC2012_val_00000000.JPEG", "cat.jpg"):
        with pytest.raises(KeyError, match="no validation image of ImageNet"):
            labels[name]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[[1]", "is no JSON; download real.json of ReaL again"),
        ("{}", "has no list, not 50,000 lists of classes: not real.json"),
        ("[[1], [2]]", "has 2 items, not 50,000 lists of classes: not real.json"),
    ],
)
def test_refuses_other_files(tmp_path, text, reason):
    path = tmp_path / "real.json"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        real_labels.load_real(path)
    assert str(caught.value) == f"{path}: {reason}"


@pytest.mark.parametrize("labels", [[1000], [-1], [1.0], ["1"], [True], 5, None, [[1]]])
def test_names_the_image_whose_labels_are_none(file, labels):
    file.write_text(json.dumps([*LABELS[:3], labels]))
    with pytest.raises(DataError, match=r"ILSVRC2012_val_00000004\.JPEG: .* is no list of classes"):
        real_labels.load_real(file, images=4)


def test_names_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"none\.json: No such file or directory"):
        real_labels.load_real(tmp_path / "none.json")
