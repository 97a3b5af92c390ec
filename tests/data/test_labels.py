"""Label rules on hand-made records in the format TFDS decodes to; the labels worked out by hand."""

import numpy as np
import pytest

from vit_jax.data.labels import RULES, interval


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


@pytest.mark.parametrize(
    ("value", "index"),
    [(-1, -1), (0, -1), (0.1, 0), (1, 0), (1.1, 1), (4, 1), (4.1, 2), (1e9, 2)],
)
def test_an_edge_belongs_to_the_interval_below(value, index):
    assert interval(value, (0, 1, 4)) == index


@pytest.mark.parametrize("number", range(3, 11))
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
        ((8.3, 20.0), 1),
        ((8.5,), 1),
        ((8.7, 9.9), 2),
        ((9.0,), 2),
        ((9.25,), 3),
        ((9.5,), 3),
        ((9.75,), 4),
        ((10.0,), 4),
        ((10.5, 11.0), 5),
        ((100.0,), 5),
    ],
)
def test_clevr_distance(depths, label):
    assert RULES["clevr-distance"].label(clevr(*depths)) == label


@pytest.mark.parametrize(
    ("objects", "label"),
    [
        ([], 3),
        ([(3, 5.0), (7, -1000.0)], 3),  # a pedestrian, and what is not to be counted
        ([(0, 7.9)], 0),
        ([(0, -2.0)], 0),
        ([(0, 8.0)], 0),
        ([(1, 8.01), (0, 30.0)], 1),
        ([(2, 20.0)], 1),
        ([(0, 20.5), (3, 1.0)], 2),  # the pedestrian is nearer, and no vehicle
        ([(0, 999.0)], 2),
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
    assert labels[:11] == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 4]
    assert labels == [int(np.floor(np.float32(x) / np.float32(2.5))) for x in range(40)]
    assert rule.classes[:3] == ("orientation 0-2", "orientation 3-4", "orientation 5-7")
    assert rule.classes[15] == "orientation 38-39"


def test_smallnorb():
    azimuth, elevation = RULES["smallnorb-azimuth"], RULES["smallnorb-elevation"]
    record = {"label_azimuth": np.int64(17), "label_elevation": np.int64(8)}
    assert azimuth.classes[azimuth.label(record)] == "340 degrees"
    assert elevation.classes[elevation.label(record)] == "70 degrees"


def test_an_image_without_objects_has_no_label():
    """The test split of CLEVR: nothing that is an index into the classes."""
    assert RULES["clevr-count"].label(clevr()) < 0
    assert RULES["clevr-distance"].label(clevr()) < 0


def test_the_pixels_of_dsprites_fill_the_range():
    pixels = np.uint8([[[0], [1]], [[1], [0]]])
    for name, rule in RULES.items():
        assert (rule.pixels is not None) == name.startswith("dsprites")
    changed = RULES["dsprites-location"].pixels(pixels)
    assert changed.dtype == np.uint8
    assert changed.tolist() == [[[0], [255]], [[255], [0]]]
    assert pixels.max() == 1
