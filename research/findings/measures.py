"""Measurements of a trained network beyond the splits of its run; as a module, the worker."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.evaluation.evaluation import open_evaluation
from vit_jax.inference import loaded_model, loading, prediction
from vit_jax.inference.inspect import inputs, measures
from vit_jax.studies import worker

APART = 5  # patches: 5 is the only distance both along a row and, as (3, 4), across both


def measure(run: pathlib.Path, measurement: Mapping[str, Any]) -> dict[str, float]:
    """Results of a measurement on a run, by name.

    `measurement` is a `declaration.Measurement` as JSON values.
    """
    opened = loading.load(run, dict(measurement["options"]))
    kinds = {
        "fewshot": few_shot,
        "fewshot_by_seed": few_shot_by_seed,
        "training": training_accuracy,
        "attention": attention,
        "positions": positions,
    }
    return kinds[measurement["kind"]](opened)


def few_shot(opened: loaded_model.LoadedModel) -> dict[str, float]:
    """`fewshot`: linear accuracy from the images of the training split."""
    evaluator = open_evaluation(opened.config, split=False).evaluators["fewshot"]
    results = evaluator(opened.params, stop=lambda: False)
    assert results is not None, "nothing stops it"
    (value,) = results.values()
    return {"fewshot": value}


def few_shot_by_seed(opened: loaded_model.LoadedModel) -> dict[str, float]:
    """`fewshot` from other images for each seed: `train[:n]` of seed s becomes `train[sn:(s+1)n]`.

    The interval over seeds then includes the draw of the images.
    """
    cfg = opened.config
    count = int((cfg.data.train_split or "").removeprefix("train[:").removesuffix("]"))
    split = f"train[{cfg.seed * count}:{(cfg.seed + 1) * count}]"
    data = dataclasses.replace(cfg.data, train_split=split)
    return few_shot(dataclasses.replace(opened, config=dataclasses.replace(cfg, data=data)))


def training_accuracy(opened: loaded_model.LoadedModel) -> dict[str, float]:
    """`train/top1`: accuracy on the images of the training split, without augmentation."""
    evaluation = open_evaluation(opened.config)
    results = evaluation.evaluators[evaluation.role.name](opened.params, stop=lambda: False)
    assert results is not None, "nothing stops it"
    return {"train/top1": results["top1"]}


def attention(opened: loaded_model.LoadedModel) -> dict[str, float]:
    """Mean attention distances in pixels, and those of two heads of the first layer.

    `distance/layerN` is the mean over heads and images of the evaluation split;
    `distance/first_widest` and `first_narrowest` are those of one head, divided by the distance of
    uniform attention.
    """
    examples = prediction.read_examples(opened, 10**6)
    pictures = inputs.preprocess(opened.config.data, examples)
    seen = measures.attention_stats(opened, pictures, maps=0)
    heads = seen.distance.mean(axis=0)
    uniform = measures.uniform_distance(opened.config)
    found = {f"distance/layer{n}": float(layer.mean()) for n, layer in enumerate(heads, 1)}
    return found | {
        "distance/first_widest": float(heads[0].max()) / uniform,
        "distance/first_narrowest": float(heads[0].min()) / uniform,
    }


def positions(opened: loaded_model.LoadedModel) -> dict[str, float]:
    """Mean cosine similarities of position embeddings, as `similarities` does."""
    return similarities(measures.position_similarity(measures.position_tables(opened)[0]))


def similarities(similar: np.ndarray) -> dict[str, float]:
    """Mean similarities of pairs of patches, by their distance on the grid.

    `similar` is (rows, columns, rows, columns).

    `near`: neighbors in a row or column; `far`: all others; `aligned`: 5 apart along a row or
    column; `diagonal`: as far apart, in another row and column.
    """
    rows, columns = np.indices(similar.shape[:2]).reshape(2, -1)
    down = np.abs(rows[:, None] - rows[None])
    across = np.abs(columns[:, None] - columns[None])
    flat = similar.reshape(len(rows), len(rows))
    square, straight = down**2 + across**2, down * across == 0
    pairs = {
        "near": square == 1,
        "far": square > 1,
        "aligned": (square == APART**2) & straight,
        "diagonal": (square == APART**2) & ~straight,
    }
    return {f"positions/{name}": float(flat[pairing].mean()) for name, pairing in pairs.items()}


if __name__ == "__main__":
    worker.serve(measure)
