"""A run that learned without labels in other forms: its encoder, and a line on the rest."""

import dataclasses
import pathlib
import types

import jax
import numpy as np
import pytest

import foreign
import vit_jax
from vit_jax import config, weights
from vit_jax.checkpoints import record
from vit_jax.inference import conversion, loading
from vit_jax.weights import readers

WEIGHTS = pathlib.Path(__file__).parents[1] / "fixtures" / "weights" / "hf_vit_tiny"
LEAVES = ("params/cls", "params/objective/prototypes/kernel", "ema/cls")


@pytest.fixture
def dino(monkeypatch):
    """Converts a run of DINO; `leaves` are what its checkpoint holds."""
    opened = vit_jax.load(WEIGHTS, {"model.norm_epsilon": "1e-6"})  # timm's default
    cfg = dataclasses.replace(opened.config, objective=config.Dino(name="dino"))
    params = {name: part for name, part in opened.params.items() if name != "head"}
    run = dataclasses.replace(opened, config=cfg, params=params, kind="run", notes=(), step=3)
    run = dataclasses.replace(run, checkpoint=pathlib.Path("x"))
    found = types.SimpleNamespace(run=run, leaves=LEAVES)
    monkeypatch.setattr(loading, "load", lambda *_: found.run)
    monkeypatch.setattr(record, "read_commit", lambda _: {"leaves": dict.fromkeys(found.leaves)})
    return found


@pytest.mark.parametrize("kind", ["timm", "hf"])
def test_dino_is_written_as_its_encoder_and_says_what_is_left(dino, tmp_path, kind):
    lines = conversion.convert("runs/dino", kind, tmp_path / "out")
    assert (
        "objective.name=dino: its own head stays in the run, where training continues" in lines[0]
    )
    written = weights.load(tmp_path / "out")
    assert written.spec.headless
    params = {name: part for name, part in written.params.items() if name != "head"}
    foreign.equal(params, jax.tree.map(np.asarray, dino.run.params))


def test_a_file_of_timms_names_holds_the_projection_head(dino, tmp_path, monkeypatch):
    kernel = np.arange(12, dtype=np.float32).reshape(3, 4)
    dense = {"kernel": np.ones((24, 3), np.float32), "bias": kernel[0, :3]}
    own = {"dense_0": dense, "prototypes": {"kernel": kernel}}
    monkeypatch.setattr(loading, "projection", lambda *_: own)
    lines = conversion.convert("runs/dino", "timm", tmp_path / "out.safetensors")
    assert "its own head" not in " ".join(lines)
    found = readers.open_arrays(tmp_path / "out.safetensors")
    assert {"backbone.cls_token", "head.mlp.weight", "head.mlp.bias"} <= found.specs.keys()
    np.testing.assert_array_equal(found.read("head.last_layer.weight_v"), kernel.T)
    wanted = config.Dino(
        name="dino", prototypes=4, head_layers=1, head_bottleneck=3, patch_loss=0.0
    )
    cfg = dataclasses.replace(dino.run.config, objective=wanted, init_head="keep")
    written = weights.load(tmp_path / "out.safetensors", {"model.heads": "3"}, wanted=cfg)
    foreign.equal(written.projection, own)
    assert not any(name.startswith("head.") for name in written.report.dropped)


def test_a_head_of_patches_is_in_the_file_with_what_it_reads_back_as(dino, tmp_path, monkeypatch):
    dense = {"kernel": np.ones((24, 3), np.float32), "bias": np.ones(3, np.float32)}
    head = {"dense_0": dense, "prototypes": {"kernel": np.ones((3, 4), np.float32)}}
    token = np.arange(24, dtype=np.float32).reshape(1, 1, 24)
    own = {**head, "mask_token": token, "patches": head}
    monkeypatch.setattr(loading, "projection", lambda *_: own)
    file = tmp_path / "out.safetensors"
    lines = conversion.convert("runs/dino", "timm", file)
    # iBOT's own weights have other pixels, which are assumed of such a file.
    assert "data.mean=0.5: reads back as 0.485,0.456,0.406" in lines
    wanted = config.Dino(
        name="dino", prototypes=4, head_layers=1, head_bottleneck=3, patch_loss=1.0, patch_head=True
    )
    cfg = dataclasses.replace(dino.run.config, objective=wanted, init_head="keep")
    written = weights.load(file, {"model.heads": "3"}, wanted=cfg)
    foreign.equal(written.projection, own)
    assert written.report.dropped == {}
    wanted = dataclasses.replace(wanted, patch_loss=0.0)
    cfg = dataclasses.replace(cfg, objective=wanted)
    written = weights.load(file, {"model.heads": "3"}, wanted=cfg)
    foreign.equal(written.projection, head)
    gone = {"masked_embed", *(name for name in readers.open_arrays(file).specs if "ibot" in name)}
    assert written.report.dropped.keys() == gone


def test_an_objective_without_a_head_of_its_own_leaves_nothing(dino, tmp_path):
    dino.leaves = ("params/cls",)
    assert "its own head" not in " ".join(conversion.convert("x", "hf", tmp_path / "out"))


def test_masked_patches_are_refused(dino, tmp_path):
    cfg = dataclasses.replace(dino.run.config, objective=config.MaskedPatches())
    dino.run = dataclasses.replace(dino.run, config=cfg)
    with pytest.raises(weights.WeightsError, match="so it knows no classes; fine-tune it"):
        conversion.convert("x", "timm", tmp_path / "out")
    assert not (tmp_path / "out").exists()
