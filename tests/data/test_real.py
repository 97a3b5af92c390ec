"""ReaL's labels: by position and by file name, and files that are not real.json."""

import hashlib
import json

import numpy as np
import pytest

from vit_jax.data import real_labels
from vit_jax.data.source import DataError, Record

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
    assert labels["ILSVRC2012_val_00000004.JPEG"] == (7, 8, 9)
    assert len(labels) == 4
    assert labels.scored == 3
    assert labels.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    for name in ("ILSVRC2012_val_00000005.JPEG", "ILSVRC2012_val_00000000.JPEG", "cat.jpg"):
        with pytest.raises(KeyError, match="no validation image of ImageNet"):
            labels[name]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[[1]", "is not JSON; download real.json of ReaL again"),
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


def test_refuses_more_labels_than_images(file):
    with pytest.raises(DataError, match="has 4 items, not 3 lists of classes"):
        real_labels.load_real(file, images=3)


class Images:
    """Two images of ImageNet's validation split, of classes 1 and 2."""

    classes = tuple("abcde")
    numbers, labels = (4, 2), (1, 2)

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return Record(np.zeros((1, 1, 3), np.uint8), self.labels[index])

    def name(self, index):
        return f"ILSVRC2012_val_{self.numbers[index]:08d}.JPEG"

    def fingerprint(self):
        return "0123456789abcdef"


def test_a_label_stands_for_the_original_class_and_the_correct_ones(file):
    source = real_labels.Reassessed(Images(), real_labels.load_real(file, images=4), "key")
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


def test_names_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"none\.json: No such file or directory"):
        real_labels.load_real(tmp_path / "none.json")
