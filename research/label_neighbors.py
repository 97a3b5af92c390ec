"""Nearest neighbors of a pre-trained network's features, and of pixels; as a module, the worker."""

import csv
import math
import pathlib
from collections.abc import Mapping
from typing import Any, cast

import jax
import numpy as np

from vit_jax.data import decoding
from vit_jax.evaluation import knn
from vit_jax.evaluation.evaluation import open_evaluation
from vit_jax.evaluation.features import Features, Pair
from vit_jax.evaluation.runner import SplitRunner
from vit_jax.inference import loading
from vit_jax.studies import worker
from vit_jax.training import sharding


def measure(run: pathlib.Path, measurement: Mapping[str, Any]) -> dict[str, float]:
    """Nearest neighbors among the labeled training images of CIFAR-10, on all test images.

    Its `kind` is `knn`, of the features of a run directory, or `pixels`.
    """
    root = run.parents[2] / "cifar10"
    if measurement["kind"] == "pixels":
        return {f"pixels/{key}": value for key, value in pixel_neighbors(root).items()}
    options = {
        "data.root": str(root), "data.train_split": "whole", "data.eval_split": "test",
        "data.test_split": "none", "evaluation.knn": "self", "evaluation.neighbors": "20",
    }  # fmt: skip
    opened = loading.load(run, options)
    evaluator = open_evaluation(opened.config, split=False).evaluators["knn"]
    results = evaluator(opened.params, stop=lambda: False)
    assert results is not None, "nothing stops it"
    return {f"knn/{key.removeprefix('self/')}": value for key, value in results.items()}


def pixel_neighbors(root: pathlib.Path) -> dict[str, float]:
    """`20nn/top1` of test images by cosines of their pixels, less the mean of training images."""
    lists = {split: read_list(root / f"{split}.csv") for split in ("whole", "test")}
    # Batches are compared with batches of their size: there is no padding here.
    mesh, batch = sharding.create_mesh(1), math.gcd(500, *map(len, lists.values()))
    names = sorted({row["class"] for row in lists["test"]})
    parts, mean = {}, np.float32(0)
    for split, rows in lists.items():
        images = [
            decoding.decode_image(
                (root / row["image"]).read_bytes(), channels=3, max_pixels=32 * 32
            )
            for row in rows
        ]
        values = np.stack(images).reshape(len(rows), -1).astype(np.float32)
        mean = values.mean(axis=0) if split == "whole" else mean
        labels = np.array([names.index(row["class"]) for row in rows], np.int32)
        parts[split] = Features(
            mesh,
            [jax.numpy.asarray(values[i : i + batch] - mean) for i in range(0, len(rows), batch)],
            [jax.numpy.asarray(labels[i : i + batch]) for i in range(0, len(rows), batch)],
        )
    # The splits themselves are not read: these are their features.
    pair = Pair("pixels", *2 * (cast(SplitRunner, None),), classes=len(names))
    found = knn.measure(parts["whole"], parts["test"], pair, neighbors=(20,), stop=lambda: False)
    assert found is not None, "nothing stops it"
    return found


def read_list(path: pathlib.Path) -> list[dict[str, str]]:
    """The rows of a CSV file by column."""
    with path.open(newline="") as opened:
        return list(csv.DictReader(opened))


if __name__ == "__main__":
    worker.serve(measure)
