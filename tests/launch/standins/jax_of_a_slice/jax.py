"""Stands in for jax on a slice of two hosts with four chips each."""

import os
import types

__version__ = "0.0.0"


def devices():
    return [types.SimpleNamespace(coords=[x, y, 0], device_kind="TPU v5 lite") for x, y in CHIPS]


def process_count():
    return int(os.environ.get("JAX_NUM_PROCESSES", "1"))


CHIPS = [(x, y) for x in range(2) for y in range(4)]
distributed = types.SimpleNamespace(initialize=lambda address, count, number: None)
