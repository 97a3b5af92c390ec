"""The commit record by itself: what it says is what was committed, or it is damaged."""

import json

import pytest

from vit_jax.checkpoints import record
from vit_jax.utils import errors

BODY = {
    "step": 7,
    "facts": {"config": {"seed": 3}, "examples": 200},
    "metrics": {"top1": 0.5},
    "best": "top1",
    "leaves": {"params/bias": {"dtype": "float32", "shape": [2], "digest": "00"}},
}


@pytest.fixture
def folder(tmp_path):
    """The committed checkpoint of step 7: two files of state, one below the other."""
    path = record.folder(tmp_path, 7)
    (path / "state/deep").mkdir(parents=True)
    (path / "state/one").write_bytes(b"one")
    (path / "state/deep/two").write_bytes(bytes(range(256)))
    record.write_commit(path, BODY)
    return path


def rewrite(folder, **changes):
    """Changes what a record says, and leaves its SHA-256."""
    outer = json.loads((folder / record.COMMIT).read_text())
    outer["commit"] |= changes
    (folder / record.COMMIT).write_text(json.dumps(outer))


def test_reads_back_what_was_written(folder):
    found = record.read_commit(folder)
    assert {name: value for name, value in found.items() if name != "files"} == BODY
    # CRC-32 by another implementation: `printf one | gzip -c | tail -c8 | xxd`, and bytes 0 to 255.
    assert found["files"] == {"state/one": [3, 0x7A6C86F1], "state/deep/two": [256, 0x29058C73]}
    record.check_files(folder, found)
    facts = BODY["facts"] | {"step": 7, "metrics": {"top1": 0.5}}
    facts["selection"] = "step 7, the best by top1 (0.5000), the newest"
    assert record.find_step(folder.parent) == (7, facts)


@pytest.mark.parametrize(
    "changes",
    [
        {"metrics": {"top1": 0.6}},
        {"facts": {"config": {"seed": 4}, "examples": 200}},
        {"leaves": {}},
        {"files": {}},
        {"best": "loss"},
        {"more": 1},
    ],
)
def test_a_record_that_says_something_else_is_damaged(folder, changes):
    rewrite(folder, **changes)
    with pytest.raises(
        errors.DamagedCheckpoint, match=r"commit.json does not match its own digest"
    ):
        record.read_commit(folder)
    assert record.readable(folder.parent) == {}
    with pytest.raises(errors.CheckpointError, match="no sound checkpoint here"):
        record.find_step(folder.parent)


def test_the_record_of_another_step_is_damaged(folder):
    other = folder.with_name("00000009")
    folder.rename(other)
    with pytest.raises(errors.DamagedCheckpoint, match=r"commit.json is that of step 7"):
        record.read_commit(other)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "state/one has 0 bytes instead of 3"),
        (b"onee", "state/one has 4 bytes instead of 3"),
        (b"onf", "state/one has changed"),
        (None, "state/one is missing"),
    ],
)
def test_a_file_that_is_not_as_committed(folder, content, reason):
    file = folder / "state/one"
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with pytest.raises(errors.DamagedCheckpoint, match=reason):
        record.check_files(folder, record.read_commit(folder))


def test_the_best_is_the_first_of_equals_and_finite():
    commits = {
        step: {"metrics": metrics}
        for step, metrics in {
            1: {},
            2: {"top1": 0.5, "loss": 2.0},
            3: {"top1": 0.5, "loss": 1.0},
            4: {"top1": None, "loss": float("inf")},
            5: {"top1": 0.5, "loss": 1.0},
            6: {"top1": 0.5},
            7: {"top1": 0.4, "loss": 3.0},
        }.items()
    }
    assert record.best(commits, "top1") == 3  # by the loss
    assert record.best(commits, "loss") == 3
    assert record.best(commits, "top5") is None
    for value in (float("nan"), float("inf"), -float("inf"), None):
        assert record.score({"top1": value, "loss": value}, "top1") is None
        assert record.score({"top1": value, "loss": value}, "loss") is None


def test_checkpoints_measured_on_other_images_are_not_compared():
    commits = {
        step: {"metrics": {"val/top1": top1, "knn/self/20nn/top1": top1}, "facts": facts}
        for step, top1, facts in (
            (1, 0.9, {"measured": {"val": "a", "test": "c"}}),
            (2, 0.3, {"measured": {"val": "b", "test": "c"}}),
            (3, 0.2, {"measured": {"val": "b", "test": "d"}}),
        )
    }
    assert record.best(commits, "val/top1") == 2
    assert record.best(commits, "knn/self/20nn/top1") == 3  # of either split
    commits[3]["facts"] = {"measured": {"val": "b", "test": "c"}, "data": "e"}
    assert record.best(commits, "val/top1") == 2
    assert record.best(commits, "knn/self/20nn/top1") == 3  # neighbors are training images
    commits[1]["facts"] = {}  # of an older version
    assert record.best(commits, "val/top1") == 1
