"""ReaL's labels: by position and by file name, and files that are not real.json."""

import hashlib
import json

import numpy as np
import pytest

import toys
from commands import error_line
from vit_jax.data import real_labels
from vit_jax.data.source import DataError, Selection

LABELS = [[3], [], [999, 0], [7, 8, 9]]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "real.json"
    path.write_text(json.dumps(LABELS))
    return path


def test_labels_by_position_and_file_name(file):
    labels = real_labels.load_real(file, images=4)
    assert labels.labels == ((3,), (), (999, 0), (7, 8, 9))
    assert labels.number("ILSVRC2012_val_00000003.JPEG") == 2
    assert labels.number("val/n01440764/ILSVRC2012_val_00000001.JPEG") == 0
    assert labels.number("ILSVRC2012_val_00000004.JPEG") == 3
    assert len(labels) == 4
    assert labels.scored == 3
    assert labels.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    for name in ("ILSVRC2012_val_00000005.JPEG", "ILSVRC2012_val_00000000.JPEG", "cat.jpg"):
        with pytest.raises(KeyError, match="no validation image of ImageNet"):
            labels.number(name)


@pytest.mark.parametrize(
    ("text", "images", "reason"),
    [
        ("[[1]", 50_000, "is not JSON; download real.json of ReaL again"),
        ("{}", 50_000, "has no list, not 50,000 lists of classes: not real.json"),
        ("[[1], [2]]", 50_000, "has 2 items, not 50,000 lists of classes: not real.json"),
        (json.dumps(LABELS), 3, "has 4 items, not 3 lists of classes: not real.json"),
        (None, 50_000, "No such file or directory; it is real.json of ReaL"),
    ],
)
def test_refuses_other_files(tmp_path, text, images, reason):
    path = tmp_path / "real.json"
    if text is not None:
        path.write_text(text)
    assert error_line(DataError, real_labels.load_real, path, images=images) == f"{path}: {reason}"


def test_a_label_stands_for_the_original_class_and_the_correct_ones(file):
    images = Selection(toys.Toy(np.zeros((4, 1)), [0, 2, 0, 1]), [3, 1])
    source = real_labels.Reassessed(images, real_labels.load_real(file, images=4), "key")
    codes = np.array([source[index].label for index in range(2)])
    original, correct = source.decode(codes)
    assert original.tolist() == [1, 2]
    assert correct.tolist() == [[7, 8, 9], [real_labels.NONE] * 3]


@pytest.mark.parametrize("labels", [[1000], [-1], [1.0], ["1"], [True], 5, None, [[1]]])
def test_names_the_image_whose_labels_are_none(file, labels):
    file.write_text(json.dumps([*LABELS[:3], labels]))
    with pytest.raises(
        DataError, match=r"ILSVRC2012_val_00000004\.JPEG: .* is not a list of classes"
    ):
        real_labels.load_real(file, images=4)
