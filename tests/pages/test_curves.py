"""The picture of a run's curves, and a disk that has no room for it."""

import json
import resource

import cv2
import pytest

from vit_jax.pages import curves
from vit_jax.runtime import logs


@pytest.fixture
def metrics(tmp_path):
    lines = [{"step": step, "train/loss": 2.0 / step} for step in range(1, 9)]
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_the_picture_is_whole(metrics):
    output = curves.draw(metrics, metrics.with_name("curves.png"))
    assert cv2.imread(str(output)).shape == (840, 1320, 3)
    assert sorted(path.name for path in metrics.parent.iterdir()) == ["curves.png", "metrics.jsonl"]


def test_a_full_disk_is_one_line_and_keeps_the_old_picture(metrics):
    output = metrics.with_name("curves.png")
    output.write_bytes(b"the picture of before")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limit[1]))
    try:
        with pytest.raises(
            logs.NotWritten, match=r"curves\.png: cannot be written: File too large"
        ):
            curves.draw(metrics, output)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert output.read_bytes() == b"the picture of before"
    assert sorted(path.name for path in metrics.parent.iterdir()) == ["curves.png", "metrics.jsonl"]
    assert logs.NotWritten.exit_code == 70
