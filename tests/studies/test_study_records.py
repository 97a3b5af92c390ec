"""Records of cells: what a line says, lines that are none, and lines that were changed."""

import json

import pytest

import sweeps
from vit_jax import config
from vit_jax.studies.cells import Cell
from vit_jax.studies.records import Records
from vit_jax.utils import limits

CELL = Cell(directory="a", cfg=config.Config(seed=3), facts={"stage": "final"})
ANSWER = {"state": "done", "steps": 9, "results": {"top1": 0.5, "split": "test"}}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "records.jsonl"
    record = Records(path).add(CELL, 2.04, ANSWER | {"machine": sweeps.MACHINE})
    assert json.loads(path.read_text()).items() >= record.items()
    return path


def test_a_record_says_what_ran_where_and_what_came_of_it(path):
    record = Records(path).find(CELL)
    assert record == {
        "cell": "a", "digest": CELL.digest, "steps": 9, "stage": "final", "rate": CELL.lr,
        "seed": 3, "state": "done", "measures": {"top1": 0.5}, "seconds": 2.0, **sweeps.MACHINE,
    }  # fmt: skip


def test_a_cell_has_one_record_and_failed_or_not(path):
    records = Records(path)
    failed = {"state": "failed", "why": "loss nan", "machine": sweeps.MACHINE}
    assert records.add(CELL, 9.0, failed)["state"] == "done"
    other = Cell(directory="b", cfg=config.Config(seed=4))
    assert [records.failed(cell) for cell in (CELL, other)] == [False, False]
    assert records.add(other, 1.0, failed)["why"] == "loss nan"
    assert [Records(path).failed(cell) for cell in (CELL, other)] == [False, True]
    assert len(list(Records(path))) == 2


def test_candidates_are_scored_once_all_of_their_cells_have_ended(path):
    records = Records(path)
    cells = [Cell(directory=f"{n}", cfg=config.Config(seed=n)) for n in range(10, 14)]
    tried = {"good": cells[:2], "failing": cells[2:]}
    for cell in cells:
        assert records.scores(tried, "top1") is None
        value = {"results": {"top1": cell.cfg.seed / 20}} if cell is not cells[3] else {}
        state = {"state": "failed", "why": "loss nan"} if cell is cells[3] else {"state": "done"}
        records.add(cell, 1.0, state | value | {"machine": sweeps.MACHINE})
    assert records.scores(tried, "top1") == {"good": [0.5, 0.55]}
    assert records.measures(cells[1]) == {"top1": 0.55}
    assert records.measures(cells[3]) is None  # failed
    assert records.measures(Cell(directory="other", cfg=config.Config(seed=9))) is None


def test_what_another_process_has_recorded_is_read_once(path):
    records, other = Records(path), Cell(directory="b", cfg=config.Config(seed=4))
    Records(path).add(other, 1.0, ANSWER | {"machine": sweeps.MACHINE})
    assert records.find(other) is None
    records.reload()
    assert records.find(other) is not None
    records.reload()
    assert len(list(records)) == 2


def test_half_a_last_line_is_left_by_a_kill_and_the_next_record_starts_a_new_one(path, caplog):
    path.write_text(path.read_text()[:40])
    records = Records(path)
    records.reload()  # of the same file, so nothing more is said
    assert records.find(CELL) is None
    records.add(CELL, 2.0, ANSWER | {"machine": sweeps.MACHINE})
    assert Records(path).find(CELL) is not None
    said = f"{path}: line 1 is not JSON (cut short or damaged); passed over"
    assert caplog.messages == [said, said]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("[]", "not an object"),
        ({"cell": 5}, "cell is missing or not of type str"),
        ({"digest": None}, "digest is missing"),
        ({"rate": float("nan")}, "rate is missing or not of type float"),
        ({"seconds": True}, "seconds is missing or not of type float"),
        ({"seconds": 10**400}, "seconds is missing or not of type float"),
        ({"seed": 1.5}, "seed is missing or not of type int"),
        ({"measures": {"top1": float("inf")}}, "measures: top1 is not a number"),
        ({"measures": {"top1": 10**400}}, "measures: top1 is not a number"),
        ({"state": "x"}, "state is neither done nor failed"),
        ({"seconds": 3.0}, "was changed after it was written: sha256 does not fit"),
    ],
)
def test_a_line_that_is_no_record_is_named(path, line, why):
    line = line if isinstance(line, str) else json.dumps(json.loads(path.read_text()) | line)
    path.write_text(f"{line}\n\n")
    with pytest.raises(config.ConfigError, match=f"line 1 is not a record .{why}"):
        Records(path)


def test_keys_of_a_study_are_required(path):
    assert list(Records(path, keys={"stage": str}))
    with pytest.raises(config.ConfigError, match="--workdir=.*line 1 is not a record .flops"):
        Records(path, flag="--workdir", keys={"flops": float})


def test_a_file_beyond_all_limits_is_refused(path, monkeypatch):
    path.write_text("[" * 100_000 + "\n" + "9" * 5000 + "\n")
    Records(path)  # two lines that are passed over
    monkeypatch.setattr(limits, "RECORD", 100)
    with pytest.raises(config.ConfigError, match=r"records.jsonl: has 105,002 bytes, more than"):
        Records(path)
