"""The home study in docs/paper.md agrees with docs/records/home.jsonl and a paired test.

The results were computed by `python -m research.home_repetitions run`.
"""

import collections
import math
import os
import pathlib
import subprocess
import sys

import pytest

import runs
from research import home_repetitions
from vit_jax import train_loop
from vit_jax.config import catalog
from vit_jax.training import run_config

TINY = {
    "model.width": "16", "model.depth": "1", "model.mlp_dim": "16", "model.heads": "2",
    "model.unroll": "1", "train.batch_size": "8",
    "data.eval_split": "test[:40]", "evaluation.batch_size": "8",
}  # fmt: skip
LINES = home_repetitions.read()
PAGE = (runs.ROOT / "docs" / "paper.md").read_text()


def test_every_line_is_a_whole_repetition_of_its_own():
    keys = collections.Counter((x["network"], x["share"], x["seed"]) for x in LINES)
    assert max(keys.values()) == 1
    for line in LINES:
        protocol = catalog.about(f"home/{line['network']}-digits").transfer
        assert [f"{lr:g}" for lr in protocol.rates] == list(line["held_out"])
        assert {len(tried) for tried in line["held_out"].values()} == {len(protocol.choose_seeds)}
        assert line["rate"] in protocol.rates
        assert len(line["top1"]) == 3
        for value in line["top1"]:
            assert value * 360 == pytest.approx(round(value * 360), abs=1e-9)


def test_ten_pre_trainings_agree_within_three_points():
    """The largest of the ten means, each over the final runs, is at most 3 above the smallest."""
    means = home_repetitions.values(LINES, "ViT", 100, "fine-tuned")
    assert len(means) == 10
    assert max(means.values()) - min(means.values()) <= 3.0


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


@pytest.mark.slow
@pytest.mark.parametrize("network", ["ViT"])  # whose results are stored
def test_a_repetition_in_memory_has_the_numbers_of_the_run_directories(network, tmp_path):
    """Without the old emitters of conftest.py, whose rounding depends on the program around it."""
    script = "import sys, test_home_results as t; t.compare_numbers(sys.argv[1], sys.argv[2])"
    environment = runs.environment(XLA_FLAGS="--xla_backend_optimization_level=0")
    folders = [str(runs.ROOT / path) for path in ("tests/config", "tests/helpers")]
    environment["PYTHONPATH"] = os.pathsep.join([*folders, environment["PYTHONPATH"]])
    command = [sys.executable, "-c", script, network, str(tmp_path)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def compare_numbers(network, folder):
    short = TINY | {"train.duration": "12 steps", "schedule.warmup": "3 steps"}
    half = run_config.resolve(f"home/{network}-half", short | {"seed": "3"})
    here = home_repetitions.with_classes(half, 5)
    params = home_repetitions.trained(here)["params"]
    found = train_loop.train(half, pathlib.Path(folder, "half")).results
    assert home_repetitions.measured(here, params) == strip(found)
    begun = short | {"init_from": f"{folder}/half", "seed": "4", "optimizer.lr": "0.12"}
    digits = run_config.resolve(f"home/{network}-digits", begun)
    found = train_loop.train(digits, pathlib.Path(folder, "digits")).results
    there = home_repetitions.with_classes(digits, 10)
    params = home_repetitions.trained(there, (here, params))["params"]
    assert home_repetitions.measured(there, params) == strip(found)


def strip(results):
    return {key.removeprefix("test/"): value for key, value in results.items()}
