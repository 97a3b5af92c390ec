"""Pages and curves call splits by their names, and say what was chosen on which."""

import json
import re

import pytest

import pages
from vit_jax.studies import report
from vit_jax.studies.report import run_data

VALIDATION = {"train_split": "train[:80%]", "eval_split": "train[80%:]"}


def write(directory, measured, *, data, best="auto"):
    """Writes a run of 25 steps whose evaluations are given as (step, numbers)."""
    pages.write_run(directory)
    stored = json.loads((directory / "config.json").read_text())
    stored["data"] |= data
    stored["checkpoint"]["best"] = best
    (directory / "config.json").write_text(json.dumps(stored))
    lines = "".join(json.dumps({"step": step, **numbers}) + "\n" for step, numbers in measured)
    with (directory / "metrics.jsonl").open("a") as file:
        file.write(lines)
    path, words = report.write_report([directory], None, images=0)
    return pages.Page.read(path).text, words.read_text()


def scores(split, top1, **more):
    return {f"{split}/top1": top1, f"{split}/loss": 2.0 - top1, f"{split}/count": 40, **more}


def test_a_validation_split_is_not_called_test(tmp_path):
    measured = [(10, scores("validation", 0.5)), (25, scores("validation", 0.625))]
    text, words = write(tmp_path, measured, data=VALIDATION)
    assert "| Top-1 accuracy | 62.50 % of 40 validation images |" in words
    assert "| Validation loss | 1.3750 |" in words
    assert "Metrics called validation are of the split train[80%:]." in text
    numbers = text[: text.index("What was set")]
    assert not re.search(r"\btest\b", numbers, re.IGNORECASE)


def test_a_test_split_that_was_measured_once_is_the_headline(tmp_path):
    data = VALIDATION | {"test_split": "test"}
    measured = [(10, scores("validation", 0.75)), (25, scores("validation", 0.625))]
    text, words = write(tmp_path / "before", measured, data=data)
    assert "62.50 %" not in words
    assert "| Top-1 accuracy | 75.00 % of 40 validation images |" in words
    assert "These numbers are of step 10, the best by validation/top1." in text
    measured.append((25, scores("test", 0.5, **{"test/step": 10, "test/split": "test"})))
    text, words = write(tmp_path / "after", measured, data=data)
    assert "| Top-1 accuracy | 50.00 % of 40 test images |" in words
    assert "| validation top-1 | 75.00 % |" in words  # of the same checkpoint
    assert (
        "The test split `test` was measured once, at step 10, the best checkpoint by "
        "validation/top1." in text
    )
    run = run_data.read_run(tmp_path / "after")
    assert run.finished
    assert (run.reported.name, run.results["top1"], run.best["top1"]) == ("test", 0.5, 0.75)


@pytest.mark.parametrize(
    ("best", "line"),
    [
        ("top1", "The best checkpoint was chosen on the test split `test`, by test/top1."),
        (
            "auto",
            "The test split `test` was measured 2 times while training; no checkpoint was chosen "
            "on it.",
        ),
    ],
)
def test_a_run_that_looks_at_its_test_split_says_so(tmp_path, best, line):
    measured = [(10, scores("test", 0.5)), (25, scores("test", 0.625))]
    data = {"train_split": "train", "eval_split": "test"}
    text, words = write(tmp_path / "twice", measured, data=data, best=best)
    assert line in text
    assert line.replace("`", "\\`") in words
    # Measured at the end alone, there was nothing to choose.
    text, _ = write(tmp_path / "once", measured[1:], data=data, best=best)
    assert "test split" not in text[: text.index("What was set")]


def test_runs_of_other_splits_are_told_apart(tmp_path):
    write(tmp_path / "a", [(25, scores("test", 0.5))], data={"eval_split": "test"})
    write(tmp_path / "b", [(25, scores("validation", 0.75))], data=VALIDATION)
    path, words = report.write_report([tmp_path / "a", tmp_path / "b"], None, images=0)
    (header,) = [line for line in words.read_text().splitlines() if line.startswith("| run |")]
    assert header.split(" | ")[4:6] == ["split", "top-1"]
    rows = [line.split(" | ") for line in words.read_text().splitlines() if "| 25 |" in line]
    assert [row[4:6] for row in rows[:2]] == [["test", "50.00 %"], ["validation", "75.00 %"]]
    text = pages.Page.read(path).text
    assert "Evaluation accuracy" in text
    assert "Test accuracy" not in text


def test_runs_of_numbers_are_compared_by_their_error(tmp_path):
    for name, error in (("a|b", 2.5), ("c", 3.0)):
        numbers = {"test/mae": error, "test/loss": 1.0, "test/count": 40}
        write(tmp_path / name, [(25, numbers)], data={"eval_split": "test"})
        stored = json.loads((tmp_path / name / "config.json").read_text()) | {"seed": int(error)}
        (tmp_path / name / "config.json").write_text(json.dumps(stored))
    path, words = report.write_report([tmp_path / "a|b", tmp_path / "c"], None, images=0)
    lines = words.read_text().splitlines()
    assert [line.split(" | ")[5] for line in lines if "| 25 |" in line][:2] == ["2.5000", "3.0000"]
    (header,) = [line for line in lines if line.startswith("| run |")]
    assert header.split(" | ")[5] == "mae"
    text = pages.Page.read(path).text
    assert "Test mean absolute error" in text
    assert "accuracy" not in text[: text.index("Where they differ")]
    (options,) = [line for line in lines if line.startswith("| option |") and "default" not in line]
    assert "a\\|b" in options
