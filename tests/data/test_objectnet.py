"""ObjectNet: the border of its images, and the mapping that comes with them as small files."""

import cv2
import numpy as np
import pytest

import tfds_fakes
from commands import error_line
from vit_jax import cli, config
from vit_jax.data import decoding, objectnet
from vit_jax.data.source import DataError
from vit_jax.data.sources import open_source, open_task
from vit_jax.data.tasks import TASKS

CLASSES = ("air_freshener", "alarm_clock", "spatula")


def test_the_red_border_is_cut_off_when_an_image_is_read(tmp_path):
    inside, rng = {}, np.random.default_rng(0)
    for number, name in enumerate(CLASSES):
        (tmp_path / "images" / name).mkdir(parents=True)
        inside[name] = rng.integers(0, 200, (7 + number, 11, 3), np.uint8)
        # As ObjectNet has them: two rows and columns of red around them.
        bgr, red = inside[name][..., ::-1], (0, 0, 255)
        bgr = cv2.copyMakeBorder(bgr, 2, 2, 2, 2, cv2.BORDER_CONSTANT, value=red)
        assert cv2.imwrite(str(tmp_path / f"images/{name}/1.png"), bgr)
    data_dir = tmp_path / "data"
    command = ["prepare", "objectnet", f"--from={tmp_path}/images", f"--data-dir={data_dir}"]
    assert cli.main([*command, "--workers=1"]) == 0
    by_name = config.Data(source="tfds", name="objectnet", root=str(data_dir))
    for source in (
        open_task(TASKS["objectnet"], "test", str(data_dir)),
        open_source(by_name, "test", train=False),
    ):
        assert len(source) == 3
        for index in range(3):
            image, label = source[index]
            assert isinstance(image, np.ndarray)
            np.testing.assert_array_equal(image, inside[CLASSES[label]])


def test_an_image_that_is_all_border():
    with pytest.raises(decoding.BadImage, match="has 9 x 4 pixels, all of them in its border of 2"):
        decoding.without_border(np.zeros((4, 9, 3), np.uint8), 2)
    image = np.arange(45, dtype=np.uint8).reshape(5, 9, 1)
    np.testing.assert_array_equal(decoding.without_border(image, 2)[..., 0], [range(20, 25)])


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
    assert error_line(DataError, objectnet.right_classes, tmp_path, CLASSES) == (
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


def test_mappings_are_found_whole_in_a_source_or_beside_it(tmp_path):
    images, inside = tmp_path / "objectnet-1.0/images", tmp_path / "other"
    images.mkdir(parents=True)
    for folder, names in ((images.parent, objectnet.FILES), (inside, objectnet.FILES[1:])):
        (folder / objectnet.FOLDER).mkdir(parents=True)
        for name in names:
            (folder / objectnet.FOLDER / name).write_text("{}")
    found = images.parent / objectnet.FOLDER
    assert objectnet.find_mappings([inside, images]) == found
    assert objectnet.find_mappings([images.parent]) == found
    assert objectnet.find_mappings([inside]) is None
