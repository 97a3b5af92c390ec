"""Commands on models whose options only weights of other projects have."""

import pathlib

import numpy as np
import pytest

import foreign
import image_folders
from vit_jax import cli, models
from vit_jax.inference import loading
from vit_jax.inference.inspect import measures, outputs
from vit_jax.models import variants

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"
# Names of fixtures, what else is said of them, and the pixels that lie in patches.
SOURCES = {
    "hf_relu_remainder": ([], (32, 24)),
    "bv_vit_gap_sincos": (["data.image_size=32,32", "model.pooling=first"], (32, 32)),
    "bv_vit_map": ([], (32, 32)),
    "hybrid_tiny": ([], (64, 64)),
    "backbones/hf_dinov2_reg_giant": ([], (28, 28)),
}


pytestmark = pytest.mark.usefixtures("one_device")


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_figures_and_features_are_of_what_lies_in_patches(name, tmp_path):
    said, covered = SOURCES[name]
    path = FIXTURES / f"{name}.npz"
    if not path.exists():
        (tmp_path / "weights").mkdir()
        path = foreign.write(tmp_path / "weights", foreign.record(name))
    photos = image_folders.draw(tmp_path / "photos", "a.png", "b.png")
    options = [f"--config.{one}" for one in said]
    out, given = tmp_path / "out", [f"--checkpoint={path}", f"{photos}", *options]
    assert cli.main(["inspect", "all", *given, f"--output={out}", "--count=2"]) == 0
    assert {file.stem for file in out.glob("*.npz")} == outputs.KINDS.keys() - {"reconstruct"}
    config = loading.load(path, dict(one.split("=") for one in said)).config
    grid = variants.grid(config.model, config.data.image_size)
    side = covered[0] // grid[0]
    assert (side * grid[0], side * grid[1]) == covered
    with np.load(out / "attention.npz") as file:
        assert file["attention"].shape[-2:] == grid
        assert np.isfinite(file["attention"]).all()
        assert file["attention"].min() > 0
    with np.load(out / "posemb.npz") as file:
        assert file["similarity"].shape[-2:] == grid
    with np.load(out / "attention-distance.npz") as file:
        # Neighbors are a patch apart, whatever is left over at the edges.
        far = measures.distances(grid, covered, prefix=False)
        assert file["pixels"].max() < far.max()
        assert far[0, 1] == side
    assert cli.main(["inspect", "view", *given, f"--output={tmp_path / 'v.html'}"]) == 0
    page = (tmp_path / "v.html").read_text()
    assert f'"side":[{covered[0]},{covered[1]}]' in page
    single = config.model.pooling in ("token", "token_gap", "first")
    assert f'"single":{str(single).lower()}' in page
    before = models.has_class_token(config.model) + config.model.registers
    assert f'"before":{before}' in page
    assert cli.main(["embed", *given, f"--output={tmp_path / 'f.npz'}", "--features=tokens"]) == 0
    with np.load(tmp_path / "f.npz") as file:
        assert file["features"].shape[1] == before + grid[0] * grid[1]
