"""NaFlex models of timm and transformers: equal weights and padded patches give their answers."""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest
from safetensors import numpy as safetensors

import foreign
from vit_jax import models, weights

SIDE, PATCH = 5, 4
NAMES = {"embeds.cls_token": "cls_token", "embeds.reg_token": "reg_token"}
HEADS = {"model.heads": 2, "data.image_size": (20, 20)}
HF = {
    "model_type": "siglip_vision_model", "hidden_size": 16, "intermediate_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 4, "image_size": 20,
}  # fmt: skip


@functools.cache
def fixture():
    with np.load(foreign.FOLDER / "naflex.npz") as file:
        return dict(file)


def as_of_one_size(kind):
    """The weights under the names of the model of one image size, whose arrays they are."""
    made = {}
    for name, value in fixture().items():
        own, _, name = name.partition("/")
        if own != kind or name == "answer":
            continue
        if name.endswith(("embeds.proj.weight", "patch_embedding.weight")):
            name = name.replace("embeds.", "patch_embed.")
            value = value.reshape(-1, PATCH, PATCH, 3).transpose(0, 3, 1, 2)
        elif name == "embeds.pos_embed":
            name, value = "pos_embed", value.reshape(1, SIDE * SIDE, -1)
        name = NAMES.get(name, name).replace("embeds.proj.bias", "patch_embed.proj.bias")
        made[name] = np.ascontiguousarray(value)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "resize", "gelu"),
    [
        ("timm_gap", "antialiased_bicubic", "erf"),
        ("timm_token", "antialiased_bicubic", "erf"),
        ("timm_map", "antialiased_bilinear", "tanh"),
        ("hf_siglip2", "antialiased_bilinear", "tanh"),
    ],
)
def test_answers_are_those_of_its_library(tmp_path, kind, resize, gelu):
    made = fixture()
    safetensors.save_file(as_of_one_size(kind), tmp_path / "model.safetensors")
    if kind.startswith("hf"):
        (tmp_path / "config.json").write_text(json.dumps(HF))
        loaded = weights.load(tmp_path)
    else:
        loaded = weights.load(tmp_path / "model.safetensors", HEADS | {"model.gelu": gelu})
    own = dataclasses.replace(loaded.spec.model, position_resize=resize)
    model = models.create(own, image_size=(SIDE * PATCH,) * 2)
    patches = made["patches"].reshape(*made["patches"].shape[:2], PATCH, PATCH, 3)
    logits, out = jax.jit(model.apply_sequences)(loaded.params, patches, made["grids"])
    given = out["pre_logits"] if kind.startswith("hf") else logits
    np.testing.assert_allclose(given, made[f"{kind}/answer"], rtol=0, atol=1e-5)
