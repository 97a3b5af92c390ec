"""Runs with the parts of the fine-tuning kit together: learned, and resumed bit for bit."""

import json

import numpy as np
import pytest
from PIL import Image

import runs
from vit_jax import cli

KITS = {
    "muon on blends of altered views, with products in bfloat16": {
        "model": {"dtype": "bfloat16_matmul"},
        "data": {"transforms": [{"name": "three_augment", "jitter": 0.2}], "repeats": 2},
        "train": {"mixup": 0.5, "cutmix": 1.0, "ema": 0.8},
        "optimizer": {"name": "muon", "consistent_rms": 0.2, "lr": 2e-3},
    },
    "rates of their own": {
        "optimizer": {
            "freeze": ["embedding"], "layer_decay": 0.7, "groups": {"head": {"lr": 2, "decay": 0}},
            "head_first": 3, "weight_decay": 0.1,
        },
    },
    "adapters in a loop over layers": {
        "lora": {"rank": 2}, "train": {"accumulation": 2, "mixup": 0.5}, "model": {"unroll": 1},
    },
    "several classes": {"loss": {"name": "sigmoid"}, "train": {"cutmix": 1.0}, "lora": {"rank": 2}},
}  # fmt: skip


def lists(root):
    """A folder of gray images, dark or light on either side, and lists of what they are."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 96), ("test", 32)):
        rows = ["image,classes"]
        for number in range(count):
            sides = rng.integers(0, 2, 2)
            pixels = np.repeat(sides * 150, 4)[None].repeat(8, 0) + rng.integers(0, 100, (8, 8))
            Image.fromarray(pixels.astype(np.uint8)).save(root / f"{split}{number}.png")
            names = [name for name, light in zip(("left", "right"), sides, strict=True) if light]
            rows.append(f"{split}{number}.png,{';'.join(names)}")
        (root / f"{split}.csv").write_text("\n".join(rows) + "\n")
    return {
        "source": "csv", "root": str(root), "multilabel": True, "train_split": "train",
        "eval_split": "test", "rotation": 0.0,
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("name", KITS)
def test_a_run_of_the_kit_resumes_bit_for_bit(name, tmp_path, monkeypatch, capsys):
    sections = dict(KITS[name])
    several = name == "several classes"
    if several:
        sections["data"] = lists(tmp_path)
        sections["optimizer"] = {"lr": 0.02}
        sections["checkpoint"] = {"best": "map"}
    sections["train"] = {"duration": "24 steps"} | sections.get("train", {})
    cfg = runs.configure(**sections)
    whole = runs.assert_resumes(monkeypatch, cfg, tmp_path, 2, 13)
    assert len(runs.trace(whole)) == 24
    if not several:
        return
    found = runs.trace(whole, "test/map")
    assert found[24] > 0.8  # by chance: 0.5
    assert cli.main(["evaluate", f"--checkpoint={whole}", "--json"]) == 0
    best = max(found.values())  # evaluate takes that checkpoint, not the newest
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["test/map"] == best
