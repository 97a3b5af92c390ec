import json
import pathlib

import pytest

from helpers.toy_findings import Runner, finding, study, training
from research import findings
from research.findings import page, planning, records, verification
from vit_jax import config
from vit_jax.pages import markdown
from vit_jax.utils import limits

KEPT = pathlib.Path(__file__).parents[3] / "docs" / "records" / "findings.jsonl"


@pytest.fixture
def run(tmp_path):
    toy = study(tmp_path, finding(training("one", rates=(0.1,))))
    findings.perform(toy, tmp_path, run=Runner(lambda cell: 0.5))
    return toy


def test_a_record_says_what_ran_where_and_what_came_of_it(run):
    line = run.records.path.read_text().splitlines()[0]
    record = json.loads(line)
    records.check(record)
    assert record["measures"] == {"top1": 0.5, "test/top1": 0.5}
    assert (record["scale"], record["state"], record["device"]) == ("toy", "done", "abacus")
    assert record["versions"].keys() == {"jax", "vit_jax"}
    assert record["seconds"] == 2.0


def test_half_a_last_line_is_left_by_a_kill_and_the_next_record_starts_a_new_one(
    run, tmp_path, caplog
):
    path = run.records.path
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:2]) + "\n" + lines[2][:40])
    again = study(tmp_path, *run.findings)
    assert len(again.records.of_scale("toy")) == 2
    findings.perform(again, tmp_path, run=Runner(lambda cell: 0.5))
    kept = [record["digest"] for record in findings.Records(path).of_scale("toy")]
    assert kept == [record["digest"] for record in again.records.of_scale("toy")]
    said = f"{path}: line 3 is no JSON, cut short or damaged; passed over"
    assert [line for line in caplog.messages if "line" in line] == [said, said]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("[]", "no object"),
        ({"cell": 5}, "cell is missing or no str"),
        ({"digest": None}, "digest is missing"),
        ({"rate": float("nan")}, "rate is missing or no float"),
        ({"seconds": True}, "seconds is missing or no float"),
        ({"flops": 10**400}, "flops is missing or no float"),
        ({"seed": 1.5}, "seed is missing or no int"),
        ({"measures": {"top1": float("inf")}}, "measures: top1 is no number"),
        ({"measures": {"top1": 10**400}}, "measures: top1 is no number"),
        ({"state": "x"}, "state is neither done nor failed"),
    ],
)
def test_a_line_that_is_no_record_is_named(run, tmp_path, line, why):
    path = tmp_path / "records.jsonl"
    sound = json.loads(run.records.path.read_text().splitlines()[0])
    line = line if isinstance(line, str) else json.dumps(sound | line)
    path.write_text(f"{line}\n\n")
    with pytest.raises(config.ConfigError, match=f"line 1 is no record .{why}"):
        findings.Records(path)


def test_a_file_beyond_all_limits_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "records.jsonl"
    path.write_text("[" * 100_000 + "\n" + "9" * 5000 + "\n")
    findings.Records(path)  # two lines that are passed over
    monkeypatch.setattr(limits, "RECORD", 100)
    with pytest.raises(config.ConfigError, match=r"records.jsonl: has 105,002 bytes, more than"):
        findings.Records(path)


def test_the_records_of_this_repository_are_sound():
    kept = findings.Records(KEPT).of_scale("cpu")
    assert kept
    for record in kept:
        assert record["commit"]
        assert not record["commit"].endswith("+"), "made by code that is not committed"
        assert record["steps"] > 0
        assert record["options"]["data.train_split"] == f"train[:{record['images']}]"


@pytest.mark.parametrize("only", ["rows-and-columns", pytest.param("*", marks=pytest.mark.slow)])
def test_the_records_are_those_of_todays_declarations(only, tmp_path):
    """So `--verify --copies=webp --records=...` finds them; images and options are theirs."""
    size = findings.scale("cpu")
    declared = findings.declare(findings.select(only), findings.Arms(size, "webp"))
    kept = findings.Study(size, declared, findings.Records(KEPT))
    assert verification._comparable(kept)
    for one in declared:
        for _, _, _, cell in kept.planned(one):
            record, about = kept.records.of(cell.digest), planning.as_values(cell)
            del about["cell"]  # where it ran, under the label of that day
            assert record.items() >= json.loads(json.dumps(about)).items()


@pytest.mark.parametrize(
    ("path", "remedy"), [(KEPT, "its records are of other data: give --copies=webp"),
                         (pathlib.Path("none.jsonl"), "name the file .* --records=")],
)  # fmt: skip
def test_verify_without_cells_says_which_option_is_missing(path, remedy, tmp_path):
    size = findings.scale("cpu")
    declared = findings.declare(findings.select("rows-and-columns"), findings.Arms(size))
    study = findings.Study(size, declared, findings.Records(path))
    with pytest.raises(config.ConfigError, match=remedy):
        findings.verify(study, tmp_path, 3)


@pytest.mark.slow
def test_the_page_is_that_of_the_records():
    """Whatever the command of docs/paper.md writes, but for the day."""
    size = findings.scale("cpu")
    declared = findings.declare(findings.select(None), findings.Arms(size, "webp"))
    study = findings.Study(size, declared, findings.Records(KEPT))
    command = "python -m research.findings --copies=webp \\\n    --config.data.root=DIR"
    words = markdown.page(page.document(study, command))
    kept = (KEPT.parents[1] / "findings.md").read_text()
    assert words.partition("\nmade ")[0] == kept.partition("\nmade ")[0]


def test_a_cell_has_failed_or_not(tmp_path):
    known = records.Records(tmp_path / "records.jsonl")
    known._known = {"a": {"state": records.FAILED}, "b": {"state": records.DONE}}
    assert [known.failed(digest) for digest in "abc"] == [True, False, False]
