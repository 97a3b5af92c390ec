"""Rules of `data.labels`, which derive a label from the features of a record.

A rule is a pure function of some features. These rules are VTAB's, following
google-research/task_adaptation at d7630d3. Its other tasks have a class label, including SmallNORB,
of which it uses the left image.
"""

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


def full_range(pixels: np.ndarray) -> np.ndarray:
    """Pixels of 0 and 1 as 0 and 255."""
    return pixels * np.uint8(255)


class LabelRule(NamedTuple):
    """Derives an example from a record."""

    features: tuple[str, ...]  # input features, with `/` between a sequence and one of its members
    # Returns the label of features by name; a value that is not an index into `classes` means
    # that the record has no label.
    label: Callable[[Mapping[str, Any]], int]
    classes: tuple[str, ...]
    image: str = "image"  # the feature
    # Function of its pixels, uint8 `H W C`; None: identity.
    pixels: Callable[[np.ndarray], np.ndarray] | None = None


NO_LABEL = -1

# Distances from the camera in CLEVR's units and in meters; class k is between edges k and k + 1.
CLEVR_EDGES = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0)
KITTI_EDGES = (-100.0, 8.0, 20.0, 999.0)
NO_VEHICLE = 1000.0  # beyond the last edge, which makes it a class of its own
VEHICLES = 3  # types 0, 1, 2: Car, Van, Truck


def interval(value: float, edges: Sequence[float]) -> int:
    """The index of the last of ascending `edges` that is less than `value`, else -1."""
    return int(np.searchsorted(np.asarray(edges), value, side="left")) - 1


def clevr_count(record: Mapping[str, Any]) -> int:
    """The number of objects less 3: scenes have 3 to 10."""
    # Any member of the sequence has its length; this is the only one that is read.
    return len(record["objects"]["size"]) - 3


def clevr_distance(record: Mapping[str, Any]) -> int:
    """The interval of CLEVR_EDGES with the depth of the nearest object."""
    depths = [float(place[2]) for place in record["objects"]["pixel_coords"]]
    return interval(min(depths), CLEVR_EDGES) if depths else NO_LABEL


def kitti_distance(record: Mapping[str, Any]) -> int:
    """The interval of KITTI_EDGES with the depth of the nearest vehicle; 3 is none."""
    objects = zip(record["objects"]["type"], record["objects"]["location"], strict=True)
    depths = [float(place[2]) for kind, place in objects if kind < VEHICLES]
    return interval(min([*depths, NO_VEHICLE]), KITTI_EDGES)


def dsprites_location(record: Mapping[str, Any]) -> int:
    """The horizontal position, 32 of them in pairs."""
    return int(record["label_x_position"]) // 2


def dsprites_orientation(record: Mapping[str, Any]) -> int:
    """The orientation, 40 of them in 16 bins of 2.5."""
    return 2 * int(record["label_orientation"]) // 5


def _bins(what: str, values: int, bins: int) -> tuple[str, ...]:
    """Names of equal bins over `values` integers."""
    # Rounded up, as value v is in bin v * bins // values.
    starts = [-(-values * k // bins) for k in range(bins + 1)]
    return tuple(f"{what} {low}-{high - 1}" for low, high in itertools.pairwise(starts))


RULES: dict[str, LabelRule] = {
    "clevr-count": LabelRule(
        features=("objects/size",),
        label=clevr_count,
        classes=tuple(f"{number} objects" for number in range(3, 11)),
    ),
    "clevr-distance": LabelRule(
        features=("objects/pixel_coords",),
        label=clevr_distance,
        classes=tuple(f"{low:g} to {high:g}" for low, high in itertools.pairwise(CLEVR_EDGES)),
    ),
    "kitti-distance": LabelRule(
        features=("objects/type", "objects/location"),
        label=kitti_distance,
        classes=("up to 8 m", "8 to 20 m", "beyond 20 m", "no vehicle"),
    ),
    "dsprites-location": LabelRule(
        features=("label_x_position",),
        label=dsprites_location,
        classes=_bins("x", 32, 16),
        pixels=full_range,
    ),
    "dsprites-orientation": LabelRule(
        features=("label_orientation",),
        label=dsprites_orientation,
        classes=_bins("orientation", 40, 16),
        pixels=full_range,
    ),
    "smallnorb-azimuth": LabelRule(
        features=("label_azimuth",),
        label=operator.itemgetter("label_azimuth"),  # which TFDS stores halved as 0 to 17
        classes=tuple(f"{degrees} degrees" for degrees in range(0, 360, 20)),
    ),
    "smallnorb-elevation": LabelRule(
        features=("label_elevation",),
        label=operator.itemgetter("label_elevation"),
        classes=tuple(f"{degrees} degrees" for degrees in range(30, 75, 5)),
    ),
}
