"""Exact over padded last batches, whatever the batch size and the number of devices."""

import jax
import numpy as np
import pytest

import runs
from vit_jax.data import pipeline, sources, transforms
from vit_jax.evaluation import classification, runner
from vit_jax.training import build, normalization, sharding

CFG = runs.configure(data={"eval_split": "test[:101]"}, model={"num_classes": 10})


@pytest.fixture(scope="module")
def parameters():
    """Random parameters with a head that is not zero, so that predictions differ."""
    params = build.create_model(CFG).init(jax.random.key(0))
    params["head"]["kernel"] = jax.random.normal(jax.random.key(1), (16, 10))
    return params


@pytest.fixture(scope="module")
def expected(parameters):
    """The whole split in one call, counted in numpy."""
    source = sources.open_source(CFG.data, CFG.data.eval_split, train=False)
    images = np.stack([source[i].image for i in range(len(source))])
    labels = np.array([source[i].label for i in range(len(source))])
    logits, _ = jax.jit(build.create_model(CFG).apply)(
        parameters, normalization.normalize_pixels(images, CFG.data)
    )
    logits = np.asarray(logits, np.float64)
    order = np.argsort(-logits, axis=-1, kind="stable")
    hits = order == labels[:, None]
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return {
        "top1": hits[:, 0].mean(),
        "top5": hits[:, :5].any(-1).mean(),
        "loss": -log_p[np.arange(101), labels].mean(),
        "count": 101,
    }


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("batch_size", "devices"),
    [(1, 1), (7, 1), (64, 1), (101, 1), (8, 8), (64, 8), (128, 8), (12, 4)],
)
def test_exact(batch_size, devices, parameters, expected):
    cfg = runs.configure(
        data={"eval_split": "test[:101]"},
        model={"num_classes": 10},
        evaluation={"batch_size": batch_size},
    )
    mesh = sharding.create_mesh(1, jax.devices()[:devices])

    def batches():
        return pipeline.batches(
            sources.open_source(cfg.data, cfg.data.eval_split, train=False),
            transforms.eval_transforms(cfg.data),
            cfg.data,
            seed=0,
            batch_size=batch_size,
            rows=sharding.host_rows(mesh, batch_size),
            train=False,
            stop_step=-(-101 // batch_size),
        )

    split = runner.SplitRunner(mesh, batch_size, batches)
    evaluator = classification.Classification(build.create_model(cfg), cfg, split)
    results = evaluator(jax.device_put(parameters), stop=lambda: False)
    for key in ("top1", "top5", "count"):
        assert results[key] == expected[key]
    assert results["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    assert evaluator(parameters, stop=lambda: True) is None
