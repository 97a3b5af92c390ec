"""Benchmarks of attention implementations and of start-up time."""

import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax import config, models
from vit_jax.benchmarks import Table


def attention() -> Table:
    """Times a training pass of ViT-Ti/16 for every `model.attention` that runs on this backend."""
    kinds = ["explicit", "xla"] + (["cudnn"] if jax.default_backend() == "gpu" else [])
    dtype = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    size, batch = (112, 8) if jax.default_backend() == "cpu" else (224, 256)
    images = jax.random.uniform(jax.random.key(1), (batch, size, size, 3), minval=-1.0)

    def make(kind: str) -> Callable[[], Any]:
        cfg = config.Model(
            patch_size=(16, 16),
            width=192,
            depth=12,
            mlp_dim=768,
            heads=3,
            num_classes=1000,
            unroll=12,
            attention=kind,
        )
        model = models.create(cfg, image_size=(size, size), channels=3, dtype=dtype)
        params = jax.jit(model.init)(jax.random.key(0))
        grad = jax.jit(jax.grad(lambda p: jnp.mean(model.apply(p, images)[1]["tokens"] ** 2)))
        return lambda: grad(params)

    times = interleaved({kind: make(kind) for kind in kinds}, rounds=15)
    base = times["explicit"]
    rows = [(kind, f"{1000 * t:.1f}", f"{base / t:.2f}x") for kind, t in times.items()]
    return (
        "attention",
        f"ms/step (ViT-Ti/16, {size} px, batch {batch}, {dtype})",
        "vs explicit",
    ), rows


def startup() -> Table:
    """Times start-up: import, --help, and the first training step on digits."""
    python = [sys.executable]
    with tempfile.TemporaryDirectory() as folder:
        first_step = [
            *python,
            "-m",
            "vit_jax",
            "train",
            "digits",
            f"--workdir={pathlib.Path(folder) / 'run'}",
            "--config.train.duration=1 steps",
            "--config.schedule.warmup=0 steps",
        ]
        commands = {
            "python (bare)": [*python, "-c", ""],
            "import vit_jax": [*python, "-c", "import vit_jax"],
            "vit_jax --help": [*python, "-m", "vit_jax", "--help"],
            "import jax": [*python, "-c", "import jax"],
            "vit_jax train digits, one step": first_step,
        }
        times = {name: _seconds(command) for name, command in commands.items()}
    base = times["python (bare)"]
    return ("what", "seconds", "vs bare python"), [
        (name, f"{t:.2f}", f"{t / base:.1f}x") for name, t in times.items()
    ]


def interleaved(functions: Mapping[str, Callable[[], Any]], *, rounds: int) -> dict[str, float]:
    """Returns median seconds per call, interleaved so that noise affects all alike."""
    for function in functions.values():
        jax.block_until_ready(function())
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            began = time.perf_counter()
            jax.block_until_ready(function())
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def _seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began
