"""The study of labels: which cells come next, which rate is chosen, and when there is a verdict."""

import math
import pathlib
import tarfile

import pytest

from research import label_efficiency
from research.label_efficiency import CONTROL, MAE, SCRATCH, SEEDS
from research.label_neighbors import read_list
from vit_jax import config
from vit_jax.studies.records import Records

MACHINE = {
    "commit": None, "date": "2026-01-01", "device": "cpu", "devices": 1, "cores": 2, "versions": {},
}  # fmt: skip
LABELS = 50
PRE = label_efficiency.PRETRAINING


@pytest.fixture
def study(tmp_path):
    """A study without records, whose cells are short."""
    return label_efficiency.LabelStudy(tmp_path, Records(None), tmp_path / "weights", "tiny")


def record(study, cell, **measures):
    study.records.add(cell, 1.0, {"state": "done", "results": measures, "machine": MACHINE})


def record_rates(study, arm, best, top1=0.5):
    """Records the cells that choose a rate, in which it scores highest."""
    while missing := [c for c in study.tried(arm, LABELS) if study.records.find(c) is None]:
        for cell in missing:
            near = 1 / (1 + abs(math.log10(cell.lr / best)))
            record(study, cell, **{"top1": near, "test/top1": top1})


def test_a_rate_is_tried_on_both_sides_of_the_best(study):
    assert [cell.lr for cell in study.tried(SCRATCH, LABELS)] == [3e-4, 1e-3, 3e-3]
    assert study.rate(SCRATCH, LABELS) is None
    record_rates(study, SCRATCH, best=1e-4)
    assert [cell.lr for cell in study.tried(SCRATCH, LABELS)] == [3e-5, 1e-4, 3e-4, 1e-3, 3e-3]
    assert study.rate(SCRATCH, LABELS) == 1e-4


def test_only_the_choice_of_the_rate_for_all_labels_leaves_validation_images_out(study):
    choosing, final = (
        study.cell(SCRATCH, label_efficiency.ALL, 1e-3, 0, choosing=one) for one in (True, False)
    )
    assert (choosing.cfg.data.train_split, choosing.cfg.data.eval_split) == ("train", "validation")
    assert (final.cfg.data.train_split, final.cfg.data.eval_split) == ("whole", "test")
    few = study.cell(SCRATCH, LABELS, 1e-3, 0, choosing=True)
    assert few is study.cell(SCRATCH, LABELS, 1e-3, 0, choosing=False)
    assert (few.cfg.data.eval_split, few.cfg.data.test_split) == ("validation", "test")


def test_fine_tuning_waits_for_its_weights_and_begins_with_those_kept(study, tmp_path, monkeypatch):
    origin = study.origin(MAE)
    cell = study.cell(MAE, LABELS, 1e-3, 0, choosing=True)
    assert cell.origin is origin
    assert cell.in_workdir(tmp_path).init_from == str(tmp_path / "weights" / "mae")
    while others := [c for c in study.wanted() if c.origin is None and c.facts["arm"] not in PRE]:
        for one in others:
            record(study, one, top1=0.1)
    ready = study.ready()
    assert all(one.facts["arm"] in PRE and one.origin is None for one in ready)
    study.records.add(origin, 1.0, {"state": "done", "results": {}, "machine": MACHINE})
    with pytest.raises(config.ConfigError, match=r"weights/mae: the weights .* are missing"):
        study.ready()
    # Where its run is still here, it was stopped between its record and its weights.
    (study.workdir / origin.directory / "checkpoints").mkdir(parents=True)
    converted = []
    monkeypatch.setattr(
        label_efficiency.conversion,
        "convert",
        lambda run, kind, folder, dtype: folder.mkdir() or converted.append((run, dtype)),
    )
    assert any(one.facts["arm"] == MAE for one in study.ready())
    assert converted == [(study.workdir / origin.directory, "float16")]


def test_no_more_cells_run_than_asked_for(tmp_path, monkeypatch):
    study = label_efficiency.LabelStudy(tmp_path, Records(None), tmp_path / "weights", "tiny", 2)
    monkeypatch.setattr(study, "_has_weights", lambda cell: False)
    first, second = study.ready()
    assert {one.facts["arm"] for one in (first, second)} <= set(PRE)  # others wait for them
    for cell in (first, second):
        record(study, cell)
        study.recorded(cell)
    assert study.ready() == []


def test_a_smaller_budget_has_a_smaller_network_with_half_its_width_in_the_decoder(tmp_path):
    study = label_efficiency.LabelStudy(tmp_path, Records(None), tmp_path / "weights", "small")
    cfg = study.origin(MAE).cfg
    assert (cfg.model.width, cfg.model.depth, cfg.model.mlp_dim) == (96, 3, 384)
    assert cfg.objective.decoder_width == 48


def test_there_is_no_verdict_without_the_control_and_all_seeds(study):
    tops = {SCRATCH: 0.3, MAE: 0.4, CONTROL: 0.5}
    for arm in (SCRATCH, MAE):
        record_rates(study, arm, best=1e-3, top1=tops[arm])
    assert label_efficiency.verdict(study, MAE, LABELS) == (
        "no verdict: random weights has 1 of 3 seeds, CIFAR-100, labels has 0 of 3 seeds, "
        "MAE has 1 of 3 seeds"
    )
    record_rates(study, CONTROL, best=1e-3, top1=tops[CONTROL])
    for arm, top1 in tops.items():
        for seed in SEEDS[1:]:
            cell = study.cell(arm, LABELS, 1e-3, seed, choosing=False)
            record(study, cell, **{"top1": 0.0, "test/top1": top1 + 0.001 * seed})
    assert label_efficiency.verdict(study, MAE, LABELS) == "ahead (p 0.000 by Holm)"
    assert label_efficiency.verdict(study, CONTROL, LABELS) == "ahead"
    rows = list(label_efficiency.table(study))
    assert rows[0] == "| 50 | random weights | 0.001 | 3 | 30.1 ± 0.2 |  |"
    assert rows[1].endswith("| +10.0 ± 0.0 |")
    scratch, mae, dino, control = label_efficiency.chart(study).series
    assert scratch.points == [(LABELS, pytest.approx(0.301))]
    assert dino.points == []
    assert control.errors[0] == pytest.approx(mae.errors[0])


def test_no_verdict_where_the_control_is_not_ahead(study):
    for arm in (SCRATCH, MAE, CONTROL):
        record_rates(study, arm, best=1e-3, top1=0.3)
        for seed in SEEDS[1:]:
            cell = study.cell(arm, LABELS, 1e-3, seed, choosing=False)
            record(study, cell, **{"top1": 0.0, "test/top1": 0.3 + 0.1 * (arm == MAE)})
    expected = "no verdict: the control itself is not ahead"
    assert label_efficiency.verdict(study, MAE, LABELS) == expected


def test_labels_are_as_many_of_each_class_and_none_of_validation(tmp_path):
    source = tmp_path / "source"
    for split, number in (("train", 20), ("test", 1)):
        for name in "abcdefghij":
            (source / split / name).mkdir(parents=True)
            for i in range(number):
                (source / split / name / f"{i}.webp").touch()
    with tarfile.open(tmp_path / "images.tar", "w") as tar:
        for split in ("train", "test"):
            tar.add(source / split, split)
    folder = tmp_path / "cifar10"
    label_efficiency.prepare(tmp_path / "images.tar", folder)
    drawn = [
        [row["image"] for row in read_list(folder / f"labels50-seed{seed}.csv")] for seed in SEEDS
    ]
    held = {row["image"] for row in read_list(folder / "validation.csv")}
    assert len(read_list(folder / "whole.csv")) == 200
    for images in drawn:
        assert len(set(images)) == 50
        assert not held & set(images)
        assert {str(pathlib.PurePath(one).parent) for one in images} == {
            f"train/{name}" for name in "abcdefghij"
        }
    assert drawn[0] != drawn[1]
