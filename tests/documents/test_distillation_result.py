"""The paired test on docs/cifar10.md, computed again from the records of its runs."""

import json
import re

import numpy as np
from scipy import stats

import runs

PAGE, RECORDS = runs.ROOT / "docs" / "cifar10.md", runs.ROOT / "docs/records/cifar10.jsonl"
ALONE, TAUGHT = "cifar10/ViT-3_4", "cifar10/ViT-3_4-distilled"


def test_the_table_is_that_of_the_records():
    lines = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    found = {name: {o["seed"]: o for o in lines if o["name"] == name} for name in (ALONE, TAUGHT)}
    seeds = sorted(found[ALONE])
    assert len(seeds) >= 5
    assert seeds == sorted(found[TAUGHT])
    for seed in seeds:
        alone, taught = found[ALONE][seed], found[TAUGHT][seed]
        assert alone["test"]["count"] == taught["test"]["count"] == 10_000
        assert alone["batches"] == taught["batches"]  # checksums of the pixels trained on
        assert alone["steps"] == taught["steps"]
    scores = {
        name: 100 * np.array([own[seed]["test"]["top1"] for seed in seeds])
        for name, own in found.items()
    }
    difference = scores[TAUGHT] - scores[ALONE]
    low, high = stats.ttest_rel(scores[TAUGHT], scores[ALONE]).confidence_interval(0.95)
    rows = {
        "alone": [*scores[ALONE], scores[ALONE].mean()],
        "taught": [*scores[TAUGHT], scores[TAUGHT].mean()],
        "difference": [*difference, difference.mean()],
    }
    page = PAGE.read_text()
    for name, values in rows.items():
        (row,) = re.findall(rf"^\| {name} \| (.*) \|$", page, re.MULTILINE)
        cells = [cell.partition("±")[0].strip() for cell in row.split("|")]
        assert cells == [f"{value:.2f}" for value in values], name
    assert f"{difference.mean():.2f} ± {(high - low) / 2:.2f} points" in page
    assert (low > 0) == ("The taught student is ahead" in page)
