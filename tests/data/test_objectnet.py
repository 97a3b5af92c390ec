"""ObjectNet's mapping, as it comes with the images: small files of its four forms."""

import pytest

import tfds_fakes
from vit_jax.data import objectnet
from vit_jax.data.examples import DataError

CLASSES = ("air_freshener", "alarm_clock", "spatula")


@pytest.mark.parametrize("first", [0, 1])
def test_right_classes(tmp_path, first):
    table = objectnet.right_classes(
        tfds_fakes.write_mappings(tmp_path / "mappings", first), CLASSES
    )
    assert table.tolist() == [[-1, -1], [2, 1], [3, -1]]
    assert table.dtype == "int32"


def test_a_file_that_is_missing(tmp_path):
    tfds_fakes.write_mappings(tmp_path)
    (tmp_path / "imagenet_to_label_2012_v2").unlink()
    with pytest.raises(DataError) as caught:
        objectnet.right_classes(tmp_path, CLASSES)
    assert str(caught.value) == (
        f"{tmp_path}/imagenet_to_label_2012_v2: no such file, without which its classes are unknown"
    )


@pytest.mark.parametrize(
    ("changed", "classes"),
    [
        ({}, ("kettle",)),
        ({"objectnet_to_imagenet_1k": '{"Spatula": "trowel"}'}, CLASSES),
        ({"objectnet_to_imagenet_1k": '["Spatula"]'}, CLASSES),
        ({"folder_to_objectnet_label": "{"}, CLASSES),
        ({"pytorch_to_imagenet_2012_id": "{}"}, CLASSES),
        ({"imagenet_to_label_2012_v2": "spatula"}, CLASSES),
    ],
)
def test_files_that_are_something_else(tmp_path, changed, classes):
    with pytest.raises(DataError, match="are not ObjectNet's mappings, or not of these images: "):
        objectnet.right_classes(tfds_fakes.write_mappings(tmp_path, **changed), classes)
