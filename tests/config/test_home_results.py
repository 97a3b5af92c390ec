"""The home study in docs/paper.md agrees with docs/records/home.jsonl and a paired test.

The results were computed by `python -m research.home_repetitions run`.
"""

import math

import pytest

import runs
from research import home_repetitions

LINES = home_repetitions.read()
PAGE = (runs.ROOT / "docs" / "paper.md").read_text()


def test_the_page_has_the_table():
    rows = list(home_repetitions.table(LINES))
    assert rows
    heading = "| network | images of 0 to 4 | n | 5-shot, all ten digits | fine-tuned |"
    assert f"{heading}\n|---|---|---|---|---|\n{chr(10).join(rows)}\n" in PAGE


def test_means_and_intervals_by_hand():
    """Means of means, 2.7764 standard errors for five, paired by seed and by nothing else."""
    vit, resnet = [0.90, 0.91, 0.92, 0.93, 0.94], [0.95, 0.97, 0.96, 0.98, 0.99]
    lines = [
        {"network": name, "share": 100, "seed": seed, "five_shot": 0.5}
        | {"top1": [top1 - 0.01, top1 + 0.01]}
        for name, values in (("ViT", vit), ("ResNet", resnet))
        for seed, top1 in enumerate(values)
    ]
    first, _ = home_repetitions.table(lines)
    assert first == "| ViT | 719 | 5 | 50.0 +- 0.0 % | 92.0 +- 2.0 % |"
    found = home_repetitions.compare(lines[::-1], "fine-tuned", ("ResNet", 100), ("ViT", 100))
    # Differences of 5, 6, 4, 5, 5: a mean of 5 with a deviation of sqrt(0.5).
    assert (found.mean, found.count) == (pytest.approx(5.0), 5)
    assert found.half_width == pytest.approx(2.776445 * math.sqrt(0.5 / 5), rel=1e-6)
