"""Commands on models whose options only weights of other projects have."""

import pathlib

import jax
import numpy as np
import pytest
from jax import export

import foreign
import image_folders
from vit_jax import cli, models
from vit_jax.inference import loading
from vit_jax.inference.inspect import measures, outputs
from vit_jax.models import variants
from vit_jax.training import build

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


@pytest.fixture(params=list(SOURCES)[:2])
def source(request, tmp_path):
    """The path of weights, options for a command, and the pixels in patches."""
    name = request.param
    said, covered = SOURCES[name]
    path = FIXTURES / f"{name}.npz"
    if not path.exists():
        (tmp_path / "weights").mkdir()
        path = foreign.write(tmp_path / "weights", foreign.record(name))
    return path, [f"--config.{one}" for one in said], covered


@pytest.fixture
def photos(tmp_path):
    return image_folders.draw(tmp_path / "photos", "a.png", "b.png")


def opened(path, options):
    return loading.load(path, dict(o.removeprefix("--config.").split("=") for o in options))


@pytest.mark.slow
def test_a_checkpoint_of_ours_computes_the_same(source, photos, tmp_path, capsys):
    path, options, _ = source
    run, found = tmp_path / "run", []
    assert (
        cli.main(["convert", "--checkpoint", str(path), "--to=orbax", f"--output={run}", *options])
        == 0
    )
    for checkpoint, more in ((path, options), (run, [])):
        capsys.readouterr()
        arguments = [f"--checkpoint={checkpoint}", "--json", str(photos), *more]
        assert cli.main(["predict", *arguments]) == 0
        found.append(capsys.readouterr().out)
    assert found[0] == found[1]
    first, again = opened(path, options).config.model, loading.load(run).config.model
    assert first == again


@pytest.mark.slow
def test_programs_give_the_same_numbers(source, tmp_path):
    path, options, _ = source
    model = opened(path, options)
    file = tmp_path / "m.stablehlo"
    arguments = [f"--checkpoint={path}", "--to=stablehlo", f"--output={file}"]
    arguments += ["--platforms=cpu", *options]
    assert cli.main(["export", *arguments]) == 0
    size = model.config.data.image_size
    pixels = np.random.default_rng(1).integers(0, 256, (2, *size, 3), np.uint8)
    program = export.deserialize(bytearray(file.read_bytes()))
    given = jax.jit(program.call)(pixels)["logits"]
    mean, std = (
        np.asarray(value, np.float32) for value in (model.config.data.mean, model.config.data.std)
    )
    classifier = build.create_model(model.config)
    scaled = np.asarray((pixels / 255 - mean) / std, np.float32)
    with jax.default_matmul_precision("highest"):
        expected, _ = jax.jit(classifier.apply)(model.params, scaled)
    np.testing.assert_allclose(given, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, indirect=True)
def test_figures_and_features_are_of_what_lies_in_patches(source, photos, tmp_path):
    path, options, covered = source
    out, given = tmp_path / "out", [f"--checkpoint={path}", f"{photos}", *options]
    assert cli.main(["inspect", "all", *given, f"--output={out}", "--count=2"]) == 0
    assert {file.stem for file in out.glob("*.npz")} == outputs.KINDS.keys() - {"reconstruct"}
    config = opened(path, options).config
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
