"""A masked autoencoder under the names of Meta's code: its decoder in and out."""

import dataclasses
import math

import numpy as np
import pytest
from safetensors import numpy as safetensors

from vit_jax import config, weights
from vit_jax.inference import loading
from vit_jax.models import mae, positions
from vit_jax.training import build
from vit_jax.utils import tree_utils
from vit_jax.weights import mapping

WIDTH, INNER, GRID, PATCH, DEPTH = 16, 32, 3, 4, 2
TOKENS = 1 + GRID * GRID


def layers(prefix, width, depth):
    shapes = {}
    for i in range(depth):
        for n in (1, 2):
            shapes |= {f"{prefix}.{i}.norm{n}.{end}": (width,) for end in ("weight", "bias")}
        for name, inputs, outputs in (
            ("attn.qkv", width, 3 * width), ("attn.proj", width, width),
            ("mlp.fc1", width, 4 * width), ("mlp.fc2", 4 * width, width),
        ):  # fmt: skip
            shapes[f"{prefix}.{i}.{name}.weight"] = (outputs, inputs)
            shapes[f"{prefix}.{i}.{name}.bias"] = (outputs,)
    return shapes


SHAPES = {
    "cls_token": (1, 1, WIDTH), "pos_embed": (1, TOKENS, WIDTH),
    "patch_embed.proj.weight": (WIDTH, 3, PATCH, PATCH), "patch_embed.proj.bias": (WIDTH,),
    **layers("blocks", WIDTH, 1), "norm.weight": (WIDTH,), "norm.bias": (WIDTH,),
    "mask_token": (1, 1, INNER), "decoder_pos_embed": (1, TOKENS, INNER),
    "decoder_embed.weight": (INNER, WIDTH), "decoder_embed.bias": (INNER,),
    **layers("decoder_blocks", INNER, DEPTH),
    "decoder_norm.weight": (INNER,), "decoder_norm.bias": (INNER,),
    "decoder_pred.weight": (PATCH * PATCH * 3, INNER), "decoder_pred.bias": (PATCH * PATCH * 3,),
}  # fmt: skip


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(0)
    made = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in SHAPES.items()}
    table = np.asarray(positions.sincos_2d(GRID, GRID, INNER, whole=False))
    return made | {"decoder_pos_embed": np.pad(table, ((1, 0), (0, 0)))[None]}


@pytest.fixture
def loaded(arrays, tmp_path):
    safetensors.save_file(arrays, tmp_path / "mae.safetensors")
    return weights.load(tmp_path / "mae.safetensors", {"model.heads": "2"})


def test_the_decoder_is_read_and_written_back(loaded, arrays, tmp_path):
    own = loaded.spec.mae
    assert own == config.Mae(name="mae", decoder_width=INNER, decoder_depth=DEPTH)
    assert any("its decoder of 16 heads" in line for line in loaded.assumed)
    weights.save(loaded.params, loaded.spec, "timm", tmp_path / "out.safetensors")
    written = safetensors.load_file(tmp_path / "out.safetensors")
    assert written.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_allclose(written[name], array, rtol=0, atol=1e-7, err_msg=name)


@pytest.mark.filterwarnings("ignore:.*mae.safetensors")  # what is assumed
def test_a_run_goes_on_with_the_decoder(loaded, tmp_path):
    spec, file = loaded.spec, str(tmp_path / "mae.safetensors")
    cfg = config.Config(
        model=spec.model, data=spec.data, objective=spec.mae, init_from=file, init_head="keep"
    )
    begun = loading.initial_params(cfg, build.create_model(cfg), ())
    assert "decoder: from the weights" in begun.notes
    own, given = (tree_utils.flatten(one["objective"]) for one in (begun.params, loaded.params))
    assert own.keys() == given.keys()
    for name, array in given.items():
        np.testing.assert_array_equal(own[name], array, err_msg=name)
    assert not any("norm_pix" in line for line in begun.notes)
    other = dataclasses.replace(cfg, objective=dataclasses.replace(spec.mae, norm_pix=False))
    begun = loading.initial_params(other, build.create_model(other), ())
    said = "decoder: was trained with objective.norm_pix=true, continues with false"
    assert said in begun.notes


@pytest.mark.filterwarnings("ignore:.*mae.safetensors")
def test_a_run_that_keeps_no_decoder_says_why(loaded, arrays, tmp_path):
    spec, file = loaded.spec, tmp_path / "mae.safetensors"
    other = dataclasses.replace(spec.mae, decoder_depth=1)
    cfg = config.Config(
        model=spec.model, data=spec.data, objective=other, init_from=str(file), init_head="keep"
    )
    begun = loading.initial_params(cfg, build.create_model(cfg), ())
    assert "decoder new: that of the weights has other shapes" in begun.notes
    assert "objective" not in begun.params
    encoder = {name: array for name, array in arrays.items() if "decoder" not in name}
    safetensors.save_file(encoder, file)
    begun = loading.initial_params(cfg, build.create_model(cfg), ())
    assert "decoder new: none in the weights" in begun.notes
    new = dataclasses.replace(cfg, init_head="new")
    assert not any("decoder new" in n for n in
                   loading.initial_params(new, build.create_model(new), ()).notes)  # fmt: skip


def test_a_folder_of_timm_has_the_encoder_alone_and_says_so(loaded, tmp_path):
    said = "the decoder is left out, as timm has none for this model"
    assert said in weights.save(loaded.params, loaded.spec, "timm", tmp_path / "out")
    assert not [
        n for n in safetensors.load_file(tmp_path / "out/model.safetensors") if "decod" in n
    ]
    # Nor has a file a decoder that it does not describe.
    other = dataclasses.replace(
        loaded.spec, mae=dataclasses.replace(loaded.spec.mae, norm_pix=False)
    )
    assert said in weights.save(loaded.params, other, "timm", tmp_path / "out.safetensors")


def normalized(x, arrays, name):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return x * arrays[f"{name}.weight"] + arrays[f"{name}.bias"]


def linear(x, arrays, name):
    return x @ arrays[f"{name}.weight"].T + arrays[f"{name}.bias"]


def decoded(arrays, tokens, rank, heads=16):
    """Pixels of patches (P, 48) of tokens (N, D), in float64, in the order of Meta's forward."""
    erf = np.vectorize(math.erf)
    x = linear(tokens, arrays, "decoder_embed")
    shown = [x[1 + r] if r < len(x) - 1 else arrays["mask_token"][0, 0] for r in rank]
    x = np.stack([x[0], *shown]) + arrays["decoder_pos_embed"][0]
    for i in range(DEPTH):
        name = f"decoder_blocks.{i}"
        qkv = linear(normalized(x, arrays, f"{name}.norm1"), arrays, f"{name}.attn.qkv")
        q, k, v = qkv.reshape(len(x), 3, heads, -1).transpose(1, 2, 0, 3)
        scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        y = (scores / scores.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(len(x), -1)
        x = x + linear(y, arrays, f"{name}.attn.proj")
        y = linear(normalized(x, arrays, f"{name}.norm2"), arrays, f"{name}.mlp.fc1")
        x = x + linear(y * (1 + erf(y / math.sqrt(2))) / 2, arrays, f"{name}.mlp.fc2")
    return linear(normalized(x, arrays, "decoder_norm"), arrays, "decoder_pred")[1:]


@pytest.mark.slow
def test_pixels_are_those_of_metas_decoder(loaded, arrays):
    rng = np.random.default_rng(1)
    tokens = rng.normal(size=(1 + 3, WIDTH)).astype(np.float32)
    rank = rng.permutation(GRID * GRID).astype(np.int32)
    decoder = mae.create_decoder(mapping.create_classifier(loaded.spec), loaded.spec.mae)
    ours = decoder.decode(loaded.params["objective"], tokens[None], rank[None])[0]
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    np.testing.assert_allclose(ours, decoded(wide, tokens, rank), rtol=0, atol=2e-5)
