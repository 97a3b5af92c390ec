import types

import numpy as np
import pytest

from research import findings
from research.findings import arms, measures
from research.findings.paper_findings import NAMES
from vit_jax import config, models
from vit_jax.inference import prediction
from vit_jax.inference.inspect import inputs
from vit_jax.inference.inspect import measures as inspected


@pytest.fixture(scope="module", params=["cpu", "gpu"])
def study(request, tmp_path_factory):
    size = findings.scale(request.param)
    records = findings.open_records(tmp_path_factory.mktemp("findings") / "records.jsonl")
    return findings.FindingsStudy(
        size, findings.declare(NAMES, findings.Arms(size)), records, records.path.parent
    )


def trainings(study):
    return {one for finding in study.findings for one in finding.trainings}


def test_interpolation_is_linear_in_the_logarithm_of_compute(study):
    one, two = sorted(trainings(study), key=lambda training: training.label)[:2]
    ends = [(1.0, one), (100.0, two)]
    (low, first), (high, second) = arms.at_compute(ends, 10.0)
    assert (first, second) == (one, two)
    assert (low, high) == (pytest.approx(0.5), pytest.approx(0.5))
    assert arms.at_compute(ends, 0.5) == [(1.0, one)]
    assert arms.at_compute(ends, 1000.0) == [(1.0, two)]


def test_unknown_names_are_refused():
    with pytest.raises(config.ConfigError, match="--only=poolings: no such finding; did you mean"):
        findings.select("positions,poolings")
    with pytest.raises(config.ConfigError, match="--scale=cpus: no such scale; did you mean cpu"):
        findings.scale("cpus")
    assert findings.select("po*") == ("positions", "pooling")


def test_rows_and_columns_are_told_from_distance():
    rows, columns = np.indices((8, 8)).reshape(2, -1)
    far = np.hypot(rows[:, None] - rows, columns[:, None] - columns)
    only_distance = measures.similarities(np.exp(-far).reshape(8, 8, 8, 8))
    assert only_distance["positions/aligned"] == pytest.approx(only_distance["positions/diagonal"])
    assert only_distance["positions/near"] > only_distance["positions/far"]
    same = (rows[:, None] == rows) | (columns[:, None] == columns)
    lines = measures.similarities(same.astype(np.float32).reshape(8, 8, 8, 8))
    assert lines["positions/aligned"] == 1.0
    assert lines["positions/diagonal"] == 0.0


@pytest.mark.parametrize(("pooling", "registers"), [("token", 0), ("token", 2), ("gap", 0)])
def test_heads_that_attend_uniformly_have_distance_1(pooling, registers, monkeypatch):
    """In units of uniform attention, of which class token and registers take their part."""
    sizes = {"width": 4, "depth": 2, "heads": 1, "mlp_dim": 4, "patch_size": (4, 4)}
    model = models.complete(config.Model(**sizes, pooling=pooling, registers=registers))
    cfg = config.Config(model=model, data=config.Data(image_size=(9, 17)))
    prefix = registers + (pooling == "token")
    far = inspected.distances((2, 4), (8, 16), prefix=prefix)
    tokens = len(far)
    uniform = np.full((2, 3, 1, tokens, tokens), 1 / tokens, np.float32)  # layers, images, heads
    seen = inspected.mean_distance(uniform, far, prefix=prefix).swapaxes(0, 1)
    monkeypatch.setattr(prediction, "read_examples", lambda opened, count: None)
    monkeypatch.setattr(inputs, "preprocess", lambda data, examples: None)
    stats = types.SimpleNamespace(distance=seen)
    monkeypatch.setattr(inspected, "attention_stats", lambda opened, pictures, maps: stats)
    found = measures.attention(types.SimpleNamespace(config=cfg))  # pyright: ignore[reportArgumentType]
    assert found["distance/first_widest"] == pytest.approx(1, rel=1e-6)
    assert found["distance/first_narrowest"] == pytest.approx(1, rel=1e-6)
    assert found["distance/layer2"] == pytest.approx(seen[0, 1, 0])
