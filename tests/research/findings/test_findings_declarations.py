import itertools
import math
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


def test_every_finding_is_declared_whole(study):
    assert len(study.findings) == 11
    for finding in study.findings:
        assert finding.claims
        assert finding.place.startswith("section ")
        assert finding.refuted_by
        assert finding.figure.lines
        assert all(claim.low < claim.high for claim in finding.claims)


def test_seeds_are_five_and_include_those_that_choose(study):
    assert len(study.size.seeds) >= 5
    assert set(study.size.choose_seeds) < set(study.size.seeds)


def test_no_rate_is_chosen_on_test_images(study):
    for one in trainings(study):
        options = dict(one.options)
        assert options["data.eval_split"] == "train[90%:]"
        images = int(options["data.train_split"].removeprefix("train[:").rstrip("]"))
        assert images <= 45_000


def test_labels_tell_trainings_apart_and_cells_have_folders_of_their_own(study):
    for finding in study.findings:
        labels = [one.label for one in finding.trainings]
        assert len(set(labels)) == len(labels)
    alone = [one for one in trainings(study) if one.origin is None]
    cells = [study.cell(one, one.rates[0], 0) for one in alone]
    assert len({cell.directory for cell in cells if cell}) == len(alone)


def test_every_config_is_sound_and_counts_its_compute(study):
    for one in trainings(study):
        if one.origin is None:
            cell = study.cell(one, one.rates[0], 0)
            assert cell is not None
            assert cell.facts["flops"] > 1e9


def test_families_cover_the_compute_they_are_compared_at(study):
    size = findings.Arms(study.size)
    computes = {
        family: [arms.compute(one) for one in size.by_family(family)] for family in arms.FAMILIES
    }
    for values in computes.values():
        assert values == sorted(values)
    vits, resnets = computes["ViT"], computes["ResNet"]
    assert all(vits[0] <= value <= vits[-1] for value in computes["hybrid"])
    assert all(resnets[0] <= value <= resnets[-1] for value in vits)


def test_arms_of_equal_compute_are_within_a_tenth(study):
    (shape,) = (one for one in study.findings if one.name == "shape")
    ends = [line.points[-1][0] for line in shape.figure.lines if line.name != "patch size"]
    for one, other in itertools.combinations(ends, 2):
        assert one == pytest.approx(other, rel=0.1)


@pytest.mark.slow
def test_all_of_the_cpu_scale_takes_two_cores_less_than_twelve_hours(tmp_path):
    size = findings.scale("cpu")
    records = findings.open_records(tmp_path / "records.jsonl")
    found = findings.FindingsStudy(
        size, findings.declare(NAMES, findings.Arms(size)), records, tmp_path
    )
    cells = {
        (training, rate, seed): found.seconds(training)
        for finding in found.findings
        for training, rate, seed, _ in found.planned(finding)
    }
    assert sum(cells.values()) / 2 < 12 * 3600


def test_interpolation_is_linear_in_the_logarithm_of_compute(study):
    one, two = sorted(trainings(study), key=lambda training: training.label)[:2]
    ends = [(1.0, one), (100.0, two)]
    (low, first), (high, second) = arms.at_compute(ends, 10.0)
    assert (first, second) == (one, two)
    assert (low, high) == (pytest.approx(0.5), pytest.approx(0.5))
    assert arms.at_compute(ends, 0.5) == [(1.0, one)]
    assert arms.at_compute(ends, 1000.0) == [(1.0, two)]


def test_contrasts_of_differences_cancel(study):
    for finding in study.findings:
        for claim in finding.claims:
            total = math.fsum(term.weight for term in claim.terms)
            one_alone = len(claim.terms) == 1
            assert total == pytest.approx(1.0 if one_alone else 0.0, abs=1e-9)


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
