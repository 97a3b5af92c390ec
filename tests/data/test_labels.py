"""Label rules on hand-made records in the format TFDS decodes to; the labels worked out by hand."""

import io

import cv2
import numpy as np
import pytest

import tfds_fakes
from vit_jax import config
from vit_jax.data import decoding
from vit_jax.data.labels import RULES, interval
from vit_jax.data.source import DataError
from vit_jax.data.sources import open_source


def clevr(*depths):
    """A scene with objects at these depths: what TFDS makes of its sequence of objects."""
    return {
        "objects": {
            "size": [np.int64(i % 2) for i in range(len(depths))],
            "pixel_coords": [np.float32([200.0, 100.0, depth]) for depth in depths],
        }
    }


def kitti(*objects):
    """A scene of (type, distance); types in order: Car, Van, Truck, Pedestrian, ..."""
    return {
        "objects": {
            "type": [np.int64(kind) for kind, _ in objects],
            "location": [np.float32([3.0, 1.5, z]) for _, z in objects],
        }
    }


def test_an_edge_belongs_to_the_interval_below():
    found = [interval(value, (0, 1, 4)) for value in (-1, 0, 0.1, 1, 1.1, 4, 4.1, 1e9)]
    assert found == [-1, -1, 0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("number", [3, 10])
def test_clevr_count(number):
    rule = RULES["clevr-count"]
    label = rule.label(clevr(*[9.0] * number))
    assert label == number - 3
    assert rule.classes[label] == f"{number} objects"


@pytest.mark.parametrize(
    ("depths", "label"),
    [
        ((7.0, 12.0), 0),
        ((12.0, 7.0, 9.2), 0),  # the nearest counts, wherever it stands
        ((8.0,), 0),  # an edge is not less than itself
        ((np.nextafter(np.float32(8), np.float32(9)),), 1),
        ((8.5,), 1),
        ((9.0,), 2),
        ((9.5,), 3),
        ((10.0,), 4),
        ((10.5, 11.0), 5),
    ],
)
def test_clevr_distance(depths, label):
    assert RULES["clevr-distance"].label(clevr(*depths)) == label


@pytest.mark.parametrize(
    ("objects", "label"),
    [
        ([], 3),
        ([(3, 5.0), (7, -1000.0)], 3),  # a pedestrian, and what is not to be counted
        ([(0, -2.0)], 0),
        ([(0, 8.0)], 0),
        ([(1, 8.01), (0, 30.0)], 1),
        ([(2, 20.0)], 1),
        ([(0, 20.5), (3, 1.0)], 2),  # the pedestrian is nearer, and no vehicle
        ([(0, 999.5)], 3),
    ],
)
def test_kitti_distance(objects, label):
    assert RULES["kitti-distance"].label(kitti(*objects)) == label


def test_dsprites_location():
    rule = RULES["dsprites-location"]
    labels = [rule.label({"label_x_position": np.int64(x)}) for x in range(32)]
    assert labels == [x for x in range(16) for _ in range(2)]
    assert rule.classes[0] == "x 0-1"
    assert rule.classes[15] == "x 30-31"


def test_dsprites_orientation():
    rule = RULES["dsprites-orientation"]
    labels = [rule.label({"label_orientation": np.int64(x)}) for x in range(40)]
    assert labels == [int(np.floor(np.float32(x) / np.float32(2.5))) for x in range(40)]
    assert rule.classes[:3] == ("orientation 0-2", "orientation 3-4", "orientation 5-7")
    assert rule.classes[15] == "orientation 38-39"


def test_smallnorb():
    azimuth, elevation = RULES["smallnorb-azimuth"], RULES["smallnorb-elevation"]
    record = {"label_azimuth": np.int64(17), "label_elevation": np.int64(8)}
    assert azimuth.classes[azimuth.label(record)] == "340 degrees"
    assert elevation.classes[elevation.label(record)] == "70 degrees"


def test_the_pixels_of_dsprites_fill_the_range():
    pixels = np.uint8([[[0], [1]], [[1], [0]]])
    for name, rule in RULES.items():
        assert (rule.pixels is not None) == name.startswith("dsprites")
    changed = RULES["dsprites-location"].pixels(pixels)
    assert changed.dtype == np.uint8
    assert changed.tolist() == [[[0], [255]], [[255], [0]]]
    assert pixels.max() == 1


def opened(root, name, labels, split="train"):
    data = config.Data(source="tfds", name=name, root=str(root), labels=labels)
    return open_source(data, split, train=True)


def png(pixels):
    return io.BytesIO(cv2.imencode(".png", pixels)[1].tobytes())


def test_clevr_as_tfds_stores_it(tmp_path):
    depths = [(12.0, 7.5, 11.0), (8.0, 9.0, 10.0, 11.0), (9.75,) * 10, (30.0, 10.5, 99.0)]

    def scene(record, split, index):
        one = record["objects"][0]
        record["objects"] = [
            one | {"pixel_coords": [5.0, 6.0, depth]}
            for depth in (depths[index] * (split != "test"))
        ]
        record["image"] = png(np.full((2, 2, 3), index, np.uint8))

    tfds_fakes.prepare(tmp_path, "clevr", {"train": 4, "test": 1}, scene)
    count, distance = (opened(tmp_path, "clevr:3.*.*", f"clevr-{n}") for n in ("count", "distance"))
    found = {}
    for number in range(4):
        pixels = decoding.decode_image(count[number].image, channels=3, max_pixels=100)
        found[pixels[0, 0, 0]] = count[number].label, distance[number].label
    assert found == {0: (0, 0), 1: (1, 0), 2: (7, 4), 3: (0, 5)}
    assert count.classes[7] == "10 objects"
    # The test split has no objects, as in the real dataset.
    with pytest.raises(DataError, match=r"clevr/3\.1\.0 test example 0: label -3 is not a class"):
        opened(tmp_path, "clevr", "clevr-count", "test")[0]


def test_dsprites_as_tfds_stores_it(tmp_path):
    def sprite(record, split, index):
        record["image"] = png(np.uint8([[0, 1, index % 2]])[..., None])
        record["label_x_position"], record["label_orientation"] = index, index + 8

    tfds_fakes.prepare(tmp_path, "dsprites", {"train": 32}, sprite)
    where, turned = (
        opened(tmp_path, "dsprites:2.*.*", f"dsprites-{n}") for n in ("location", "orientation")
    )
    # 8 to 39 by 2.5: 3, 3, 4, 4, 4, 5, 5, ..., 15, 15.
    pairs = {(x // 2, int((x + 8) / 2.5)) for x in range(32)}
    assert {(where[n].label, turned[n].label) for n in range(32)} == pairs
    for n in range(4):
        pixels = where[n].image
        assert pixels.dtype == np.uint8
        assert pixels.tolist() in ([[[0], [255], [0]]], [[[0], [255], [255]]])
        shown = decoding.load_image(pixels, channels=3, max_pixels=100)
        assert shown.shape == (1, 3, 3)
        assert shown[0, 1].tolist() == [255, 255, 255]
