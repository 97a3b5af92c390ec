"""Hugging Face's Flax classes: the names and axes of its PyTorch classes, and back.

Kernels are (in, out) and (H, W, in, out) there, (out, in) and (out, in, H, W) in PyTorch. Only some
classes of transformers had a Flax one, and version 5 has none.
"""

import re
from collections.abc import Mapping

import numpy as np

from vit_jax.weights.arrays import Arrays, ArraySpec

# Google's layers are called otherwise.
LAYER = re.compile(r"(?:^|/)encoder/layers?/0/")
TO_TORCH = {2: (1, 0), 4: (3, 2, 0, 1)}  # by the number of axes
TO_FLAX = {2: (1, 0), 4: (2, 3, 1, 0)}
CLASSES = ("ViTModel", "ViTForImageClassification", "BeitModel", "BeitForImageClassification",
           "CLIPVisionModel", "Dinov2Model", "Dinov2ForImageClassification")  # fmt: skip


def as_torch(arrays: Arrays) -> Arrays:
    """Renames and transposes the arrays of a Flax class to PyTorch's; leaves others unchanged."""
    if not any(map(LAYER.search, arrays.specs)):
        return arrays
    origins: dict[str, tuple[str, tuple[int, ...] | None]] = {}
    specs: dict[str, ArraySpec] = {}
    for name, spec in arrays.specs.items():
        *path, end = name.split("/")
        axes = TO_TORCH.get(len(spec.shape)) if end == "kernel" else None
        # Flax's dense layers and convolutions have a kernel, its norms a scale, nn.Embed an
        # embedding.
        end = "weight" if end in ("kernel", "scale", "embedding") else end
        shape = spec.shape if axes is None else tuple(spec.shape[axis] for axis in axes)
        short = ".".join([*path, end])
        origins[short], specs[short] = (name, axes), ArraySpec(shape, spec.dtype)

    def read(short: str) -> np.ndarray:
        name, axes = origins[short]
        values = arrays.read(name)
        return values if axes is None else np.ascontiguousarray(values.transpose(axes))

    return Arrays(specs, read, arrays.metadata)


def from_torch(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Renames and transposes the arrays of a PyTorch class to those of its Flax class."""
    found = {}
    for name, values in arrays.items():
        *path, end = name.split(".")
        if end == "weight":
            # CLIP's positions are an nn.Embed, whose table has PyTorch's axes.
            if path[-1] == "position_embedding":
                end = "embedding"
            else:
                end = "scale" if values.ndim == 1 else "kernel"
                values = values.transpose(TO_FLAX.get(values.ndim))
        found["/".join([*path, end])] = np.ascontiguousarray(values)
    return found
