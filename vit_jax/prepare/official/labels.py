"""The names of a data set's classes, as TFDS's builder has them."""

import functools
from typing import Any

import tensorflow_datasets as tfds

from vit_jax.data.datasets import Dataset


def class_names(dataset: Dataset, feature: str = "label") -> tuple[str, ...]:
    """Returns the names of the classes in the order of their labels."""
    return _names(dataset.tfds, feature)


@functools.cache
def _names(name: str, feature: str) -> tuple[str, ...]:
    features: Any = tfds.builder(name).info.features
    return tuple(features[feature].names)
