"""The form of the records in tests/fixtures/weights, and the numbers that follow from names.

It needs numpy alone: the scripts that make them run beside other libraries.
"""

import fnmatch
import json
import pathlib
import sys
import zlib

import numpy as np

FOLDER = pathlib.Path(__file__).parents[1] / "fixtures" / "weights" / "backbones"


def numbers(name, shape):
    """The array of a name; numpy's legacy generator gives the same in all versions."""
    values = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if len(shape) == 1:
        values = 0.1 * values + name.endswith(("weight", "scale"))
    elif len(shape) == 3:
        values = 0.3 * values
    else:
        values = values / np.sqrt(np.prod(shape[1:]))
    return np.asarray(values, np.float32)


def pictures(size, channels=3):
    """The images whose logits a record holds, (2, H, W, C)."""
    shape = (2, *size, channels)
    return np.random.RandomState(0).uniform(-1, 1, shape).astype(np.float32)


def described(shapes, answers, size, **more):
    """A record."""
    return {
        "arrays": {name: list(shape) for name, shape in shapes.items()},
        "image_size": list(size),
        "channels": 3,
        "logits": np.asarray(answers, np.float32).tolist(),
        "options": {},
        "output": "logits",
        "dropped": [],
        **more,
    }


def write(made):
    """Writes the records of functions by name, those that the command line's pattern fits."""
    pattern = sys.argv[1] if len(sys.argv) > 1 else "*"
    for name, function in made.items():
        if fnmatch.fnmatch(name, pattern):
            text = json.dumps(function(), separators=(",", ":"))
            (FOLDER / f"{name}.json").write_text(text + "\n")
