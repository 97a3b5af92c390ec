"""A study: cells until none is ready, by one process at a time, from where its records end."""

import pytest

import sweeps
from vit_jax import config
from vit_jax.runtime import goodput, locking
from vit_jax.studies.cells import Cell
from vit_jax.studies.records import Records
from vit_jax.studies.study import GivenCells, Study

FIRST = Cell(directory="first", cfg=config.Config(seed=0))
SECOND = Cell(directory="second", cfg=config.Config(seed=1), origin=FIRST)
TOP1 = {"first": 0.5, "second": 0.75}


class Pair(Study):
    """Two cells one after the other; notes when it begins, records and finishes."""

    lock = "pair.lock"

    def __init__(self, workdir):
        self.workdir, self.records, self.noted = workdir, Records(workdir / "cells.jsonl"), []

    def ready(self):
        return [cell for cell in (FIRST, SECOND) if self.records.find(cell) is None][:1]

    def begin(self):
        self.noted.append("begin")

    def recorded(self, cell):
        self.noted.append(cell.directory)

    def finish(self):
        self.noted.append("finish")


def test_cells_run_until_none_is_ready_and_a_later_call_repeats_none(tmp_path):
    study, ran = Pair(tmp_path), []
    study.perform(run=sweeps.pretending(TOP1, ran))
    assert study.noted == ["begin", "first", "second", "finish"]
    assert ran == ["first", "second"]
    assert study.records.measures(SECOND)["top1"] == 0.75
    later = Pair(tmp_path)
    later.perform(run=sweeps.pretending(TOP1, ran))
    assert (later.noted, len(ran)) == (["begin", "finish"], 2)


def test_what_another_process_recorded_meanwhile_is_not_run_again(tmp_path):
    study, ran = Pair(tmp_path), []
    Pair(tmp_path).perform(run=sweeps.pretending(TOP1))
    study.perform(run=sweeps.pretending(TOP1, ran))
    assert not ran


def test_the_seconds_of_a_cell_are_those_of_all_its_processes(tmp_path):
    """Also of one that trained the cell to its end and was killed before there was a record."""

    def train(cell, seconds):
        (tmp_path / cell.directory).mkdir(exist_ok=True)
        goodput.GoodputLog(tmp_path / cell.directory, 0, age=1).update(12, {"step": seconds})

    def run(cells, *rest, **options):
        if SECOND in cells:  # the first has nothing left to train
            train(SECOND, 0.5)
        sweeps.pretending(TOP1)(cells, *rest, **options)  # which takes a second

    train(FIRST, 40.0)
    train(SECOND, 20.0)
    study = Pair(tmp_path)
    study.perform(run=run)
    assert [record["seconds"] for record in study.records] == [41.0, 21.0]


def test_a_study_is_run_by_one_process(tmp_path, monkeypatch):
    monkeypatch.setattr(locking, "NEAR", 0.0)
    with locking.exclusive(tmp_path, "pair.lock"), pytest.raises(locking.InUse):
        Pair(tmp_path).perform(run=sweeps.pretending(TOP1))


def test_given_cells_wait_for_their_origins_and_hold_no_lock(tmp_path):
    study, ran = GivenCells([SECOND, FIRST], tmp_path), []
    with locking.exclusive(tmp_path):
        study.perform(run=sweeps.pretending(TOP1, ran))
    assert ran == ["first", "second"]
    assert not study.ready()


def test_a_cell_that_was_stopped_has_no_record(tmp_path):
    def stopping(cells, workdir, shares, *, started, ended, watch):
        for cell in cells:
            started(cell)
            ended(cell, 1.0, {"state": "stopped", "why": "saved", "exit_code": 75})
        raise KeyboardInterrupt

    study = Pair(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        study.perform(run=stopping)
    assert study.noted == ["begin"]
    assert study.ready() == [FIRST]
