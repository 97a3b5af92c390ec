"""Type-checked fields of JSON files next to weights; each function raises WeightsError.

A null field counts as missing, as in timm and transformers.
"""

import sys
from collections.abc import Mapping
from typing import Any

from vit_jax.weights.arrays import WeightsError

Fields = Mapping[str, Any]  # of a JSON file

LARGEST = 10**6  # of the whole numbers in configurations of models
MOST = 80  # characters of a value in a message
# transformers' `problem_type` by loss; it has no value for softmax.
PROBLEMS = {"sigmoid": "multi_label_classification", "mse": "regression"}


def shown(value: object) -> str:
    """A value formatted for messages."""
    text = repr(value)
    return text if len(text) <= MOST else f"{text[: MOST - 3]}..."


def present(values: Fields) -> Fields:
    """The fields that are not null."""
    return {key: value for key, value in values.items() if value is not None}


def text(values: Fields, key: str, default: str) -> str:
    """A string."""
    value = values.get(key)
    if value is None:
        return default
    if not isinstance(value, str):
        raise WeightsError(f"{key}={shown(value)}: must be text")
    return value


def whole(values: Fields, key: str, default: int | None = None) -> int:
    """A positive whole number."""
    value = default if values.get(key) is None else values[key]
    # Not isinstance: JSON's true is an int in Python.
    if type(value) is not int or not 0 < value < LARGEST:
        raise WeightsError(f"{key}={shown(value)}: must be a positive whole number")
    return value


def real(values: Fields, key: str, default: float | None = None) -> float:
    """A positive number."""
    return reals(values, key, None if default is None else (default,))[0]


def reals(values: Fields, key: str, default: tuple[float, ...] | None = None) -> tuple[float, ...]:
    """Finite non-negative numbers; a single number becomes a tuple."""
    value = default if values.get(key) is None else values[key]
    many: tuple[Any, ...] = tuple(value) if isinstance(value, list | tuple) else (value,)
    plain = all(isinstance(v, int | float) and not isinstance(v, bool) for v in many)
    # Compared without conversion: JSON integers may exceed floats.
    if not many or not plain or not all(0 <= v <= sys.float_info.max for v in many):
        raise WeightsError(f"{key}={shown(value)}: must be a number or a list of numbers")
    return tuple(float(v) for v in many)


def pair(values: Fields, key: str, default: int | tuple[int, int] | None = None) -> tuple[int, int]:
    """Height and width, given together or as one number for both."""
    value = default if values.get(key) is None else values[key]
    sides = value if isinstance(value, list | tuple) else [value, value]
    if len(sides) != 2:
        raise WeightsError(f"{key}={shown(value)}: must be a height and a width")
    return whole({key: sides[0]}, key), whole({key: sides[1]}, key)


def section(values: Fields, key: str) -> Fields:
    """The object under a key; an empty one if it is missing."""
    value = values.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise WeightsError(f"{key}: must be a JSON object")
    return value


def labels(values: Fields, key: str, count: int) -> tuple[str, ...]:
    """The names of `count` classes in numeric order, if given.

    The field is a list, or an object with the class numbers as keys.
    """
    value = values.get(key)
    if not value:
        return ()
    if isinstance(value, Mapping):
        numbers = {str(number) for number in range(len(value))}
        if set(value) != numbers:
            raise WeightsError(f"{key}: must number the classes 0, 1, ...")
        value = [value[str(number)] for number in range(len(value))]
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise WeightsError(f"{key}: must be a list of names")
    if len(value) != count:
        raise WeightsError(f"{key}: names {len(value)} classes; the head has {count}")
    return tuple(value)


def loss(kind: object) -> str | None:
    """The loss of a `problem_type`; None for another."""
    return next((name for name, problem in PROBLEMS.items() if problem == kind), None)


def each_channel(values: tuple[float, ...], channels: int) -> list[float]:
    """One value for each channel."""
    return list(values) if len(values) == channels else list(values) * channels
