"""Low-rank adapters of dense layers (LoRA, Hu et al. 2021): x W + (x A) B.

The matrix W is only read, so a gradient with respect to adapters is never as large as W.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx

PART = "lora"  # the part of the parameters that holds adapters, under the path of their matrix


class Adapted(nnx.Module):
    """A dense layer with an adapter: `a` (inputs, rank) and `b` (rank, outputs)."""

    def __init__(self, dense: nnx.Linear | nnx.LinearGeneral, a: jax.Array, b: jax.Array):
        self.dense, self.a, self.b = dense, nnx.Param(a), nnx.Param(b)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns what the layer does, and what the adapter adds, in the type of the layer."""
        y = self.dense(x)
        inputs = len(_inputs(self.dense))
        x = x.reshape(*x.shape[: x.ndim - inputs], -1).astype(y.dtype)
        added = x @ self.a[...].astype(y.dtype) @ self.b[...].astype(y.dtype)
        return y + added.reshape(y.shape)


def attach(network: nnx.Module, adapters: Mapping[str, jax.Array]) -> None:
    """Adds adapters to a network's dense layers, whose layers may be stacked.

    Args:
      network: changed in place.
      adapters: `a` and `b` of each matrix, by its path and theirs: `head/kernel/a`.
    """
    for name, parent, attribute, dense in _dense(network):
        if f"{name}/a" in adapters:
            adapted = Adapted(dense, adapters[f"{name}/a"], adapters[f"{name}/b"])
            setattr(parent, attribute, adapted)


def sizes(network: nnx.Module) -> dict[str, tuple[int, int]]:
    """Returns the inputs and outputs of every dense layer by the name of its matrix."""
    found = {}
    for name, _, _, dense in _dense(network):
        outputs = dense.out_features
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        found[name] = math.prod(_inputs(dense)), math.prod(outputs)
    return found


def _inputs(dense: nnx.Linear | nnx.LinearGeneral) -> tuple[int, ...]:
    """Returns the sizes of the axes that a dense layer sums over."""
    inputs = dense.in_features
    return inputs if isinstance(inputs, tuple) else (inputs,)


def _dense(network: nnx.Module) -> list[tuple[str, nnx.Module, str, Any]]:
    """Returns the name of the matrix of each dense layer, the module it is in, its name there."""
    return [
        ("/".join(map(str, (*path, attribute, "kernel"))), module, attribute, layer)
        for path, module in nnx.iter_modules(network)
        for attribute, layer in vars(module).items()
        if isinstance(layer, (nnx.Linear, nnx.LinearGeneral))
    ]
