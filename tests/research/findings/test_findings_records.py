import json
import pathlib
import re

import pytest

from research import findings
from research.findings import page, verification
from vit_jax import config
from vit_jax.pages import markdown

KEPT = pathlib.Path(__file__).parents[3] / "docs" / "records" / "findings.jsonl"


def test_the_records_of_this_repository_are_sound():
    kept = list(findings.open_records(KEPT))
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
    declared = findings.declare(findings.Arms(size, "webp"))
    records, names = findings.open_records(KEPT), findings.select(only)
    kept = findings.FindingsStudy(size, declared, records, tmp_path, only=names)
    assert verification.comparable_cells(kept)
    for one in kept.findings:
        for arm in one.trainings:
            for seed in size.seeds:
                for rate in arm.rates if seed in size.choose_seeds else ():
                    cell = kept.cell(arm, rate, seed)
                    record = kept.records.find(cell)
                    assert record.items() >= json.loads(json.dumps(cell.facts)).items()


@pytest.mark.parametrize(
    ("path", "remedy"), [(KEPT, "its records are of other data: give --copies=webp"),
                         (pathlib.Path("none.jsonl"), "name the file .* --records=")],
)  # fmt: skip
def test_verify_without_cells_says_which_option_is_missing(path, remedy, tmp_path):
    size = findings.scale("cpu")
    declared = findings.declare(findings.Arms(size))
    study = findings.FindingsStudy(size, declared, findings.open_records(path), tmp_path)
    with pytest.raises(config.ConfigError, match=remedy):
        findings.verify(study, 3)


@pytest.mark.slow
def test_the_page_is_that_of_the_records(tmp_path):
    """Whatever the commands of docs/paper.md write, but for the day and the version."""
    long = ("cpu-long", "attention-distance,rows-and-columns", "findings_long.md")
    for scale, only, name in (("cpu", "*", "findings.md"), long):
        size, names = findings.scale(scale), findings.select(only)
        declared = findings.declare(findings.Arms(size, "webp"))
        records = findings.open_records(KEPT)
        study = findings.FindingsStudy(size, declared, records, tmp_path, only=names)
        option = "" if scale == "cpu" else f" --scale={scale}"
        command = f"python -m research.findings{option} --copies=webp"
        words = markdown.page(page.document(study, f"{command} \\\n    --config.data.root=DIR"))
        kept = (KEPT.parents[1] / name).read_text()
        made = re.compile(r"(?<=\nmade ).*")
        assert made.sub("", words) == made.sub("", kept)
