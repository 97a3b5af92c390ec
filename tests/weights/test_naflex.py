"""NaFlex models of timm and transformers: their files load, answer alike, and are written back."""

import dataclasses
import json

import cv2
import jax
import numpy as np
import pytest
from safetensors import numpy as safetensors

import foreign
import vit_jax
from commands import error_line
from vit_jax import models, weights
from vit_jax.inference import embedding
from vit_jax.weights.arrays import WeightsError

SIDE, PATCH, LENGTH = 5, 4, 28
GAP, SIGLIP = "naflexvit_base_patch16_gap", "naflexvit_base_patch16_siglip"
ARGUMENTS = {
    "patch_size": PATCH, "embed_dim": 16, "depth": 2, "num_heads": 2, "mlp_ratio": 2.0,
    "pos_embed_grid_size": [SIDE, SIDE],
}  # fmt: skip
TIMM = {
    "timm_gap": (GAP, {"reg_tokens": 3}),
    "timm_token": (GAP, {"class_token": True, "global_pool": "token", "fc_norm": False}),
    "timm_map": (SIGLIP, {}),
}
TOWER = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "patch_size": PATCH, "num_patches": SIDE * SIDE,
}  # fmt: skip
HF = {"model_type": "siglip2_vision_model", **TOWER}
PROCESSOR = {"image_processor_type": "Siglip2ImageProcessor", "max_num_patches": LENGTH}


def timm_config(name, arguments):
    view = {"input_size": [3, 4 * PATCH, 7 * PATCH], "interpolation": "bicubic"}
    view |= {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0}
    return {"architecture": name, "model_args": arguments, "pretrained_cfg": view}


def write(folder, kind, **changed):
    """A folder as of the library, with `changed` fields of config.json."""
    folder.mkdir()
    with np.load(foreign.FOLDER / "naflex.npz") as file:
        made = {name.partition("/")[2]: file[name] for name in file if name.startswith(f"{kind}/")}
        known = {name: file[name] for name in ("patches", "grids")}
    known["answer"] = made.pop("answer")
    safetensors.save_file(made, folder / "model.safetensors")
    if kind == "hf_siglip2":
        given = HF
        (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    else:
        name, arguments = TIMM[kind]
        given = timm_config(name, ARGUMENTS | arguments)
    (folder / "config.json").write_text(json.dumps(given | changed))
    return known


def answers(loaded, known):
    """Logits, or of a model without a head what it pools."""
    model = models.create(
        loaded.spec.model, image_size=loaded.spec.data.image_size, headless=loaded.spec.headless
    )
    patches = known["patches"].reshape(*known["patches"].shape[:2], PATCH, PATCH, 3)
    logits, out = jax.jit(model.apply_sequences)(loaded.params, patches, known["grids"])
    return np.asarray(out["pre_logits"] if loaded.spec.headless else logits)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*TIMM, "hf_siglip2"])
def test_answers_are_those_of_its_library_also_when_written_back(tmp_path, kind):
    known = write(tmp_path / "foreign", kind)
    loaded = weights.load(tmp_path / "foreign")
    data = loaded.spec.data
    assert (data.aspect, data.lengths, data.image_size) == ("native", (LENGTH,), (20, 20))
    np.testing.assert_allclose(answers(loaded, known), known["answer"], rtol=0, atol=1e-5)

    project = kind.partition("_")[0]
    assert weights.save(loaded.params, loaded.spec, project, tmp_path / "written") == ()
    files = [
        safetensors.load_file(tmp_path / f / "model.safetensors") for f in ("foreign", "written")
    ]
    given, made = (
        {name.removeprefix("vision_model."): a for name, a in one.items()} for one in files
    )
    assert given.keys() == made.keys()
    for name, array in given.items():
        np.testing.assert_array_equal(made[name], array, err_msg=name)
    again = weights.load(tmp_path / "written")
    assert (again.spec.model, again.spec.data) == (loaded.spec.model, data)


@pytest.mark.slow
def test_features_of_padded_views_are_those_of_each_image_alone(tmp_path):
    write(tmp_path / "foreign", "timm_gap")
    model = vit_jax.load(tmp_path / "foreign")
    rng, images = np.random.default_rng(0), []
    (tmp_path / "images").mkdir()
    for number, shape in enumerate([(20, 33), (64, 9), (24, 24), (7, 5)]):
        images.append(rng.integers(0, 256, (*shape, 3), np.uint8))
        cv2.imwrite(str(tmp_path / f"images/{number}.png"), images[-1][..., ::-1])
    together = model.embed(images)
    for features, image in zip(together, images, strict=True):
        _, out = model.apply(model.params, model.preprocess(image))
        np.testing.assert_allclose(features, out["pre_logits"][0], rtol=0, atol=1e-5)
    with pytest.raises(vit_jax.data.decoding.BadImage, match="views of 4 shapes"):
        model.preprocess(images)
    embedding.write_features(model, tmp_path / "out.npz", tmp_path / "images", batch_size=3)
    with np.load(tmp_path / "out.npz") as file:
        np.testing.assert_allclose(file["features"], together, rtol=0, atol=1e-5)


@pytest.mark.parametrize("said", [None, [9, 4], [4, 9]])
def test_the_grid_of_positions_is_that_of_the_array(tmp_path, said):
    write(tmp_path / "foreign", "timm_gap", model_args=ARGUMENTS | {"pos_embed_grid_size": said})
    file = tmp_path / "foreign/model.safetensors"
    arrays = safetensors.load_file(file)
    table = arrays["embeds.pos_embed"]
    safetensors.save_file({**arrays, "embeds.pos_embed": np.resize(table, (1, 4, 9, 16))}, file)
    if said == [4, 9]:
        assert weights.load(tmp_path / "foreign").spec.data.image_size == (4 * PATCH, 9 * PATCH)
        return
    with pytest.raises(WeightsError, match=r"is a grid of 4 x 9; .*pos_embed_grid_size=\[4, 9\]$"):
        weights.load(tmp_path / "foreign")


def test_the_heads_of_the_pooling_may_be_others(tmp_path):
    write(tmp_path / "foreign", "timm_map", model_args=ARGUMENTS | {"attn_pool_num_heads": 4})
    loaded = weights.load(tmp_path / "foreign")
    assert (loaded.spec.model.heads, loaded.spec.model.pooling_heads) == (2, 4)
    weights.save(loaded.params, loaded.spec, "timm", tmp_path / "written")
    assert weights.load(tmp_path / "written").spec.model == loaded.spec.model


def test_positions_that_resize_otherwise_for_every_image_are_refused(tmp_path):
    write(tmp_path / "foreign", "timm_gap")
    loaded = weights.load(tmp_path / "foreign")
    model = dataclasses.replace(loaded.spec.model, position_resize="aligned")
    spec = dataclasses.replace(loaded.spec, model=model)
    said = (
        "^model.position_resize=aligned: not stored in timm's form, which reads back as "
        "antialiased_bicubic; set --config.model.position_resize=antialiased_bicubic to write"
    )
    with pytest.raises(WeightsError, match=said):
        weights.save(loaded.params, spec, "timm", tmp_path / "written")


def test_the_processor_of_a_folder_is_transformers_own(tmp_path):
    write(tmp_path / "foreign", "hf_siglip2")
    loaded = weights.load(tmp_path / "foreign")
    weights.save(loaded.params, loaded.spec, "hf", tmp_path / "written")
    written = json.loads((tmp_path / "written/preprocessor_config.json").read_text())
    assert written["image_processor_type"] == "Siglip2ImageProcessor"
    assert (written["patch_size"], written["max_num_patches"]) == (PATCH, LENGTH)
    assert written["do_convert_rgb"] is True


def test_a_file_alone_says_what_is_assumed(tmp_path):
    write(tmp_path / "foreign", "timm_gap")
    (tmp_path / "foreign/config.json").unlink()
    loaded = weights.load(tmp_path / "foreign/model.safetensors", {"model.heads": "2"})
    assert loaded.spec.data.lengths == (576,)
    assert loaded.spec.data.image_size == (20, 20)  # by the table of positions
    assumed = " ".join(loaded.assumed)
    assert "data.lengths=576" in assumed
    assert "image_size" not in assumed
    assert "model.position_resize=antialiased_bicubic" in assumed


def test_a_kernel_that_is_a_convolution_already_stays(tmp_path):
    write(tmp_path / "flat", "timm_gap")
    write(tmp_path / "whole", "timm_gap")
    arrays = safetensors.load_file(tmp_path / "flat/model.safetensors")
    flat = arrays["embeds.proj.weight"].reshape(-1, PATCH, PATCH, 3)
    arrays["embeds.proj.weight"] = np.ascontiguousarray(flat.transpose(0, 3, 1, 2))
    safetensors.save_file(arrays, tmp_path / "whole/model.safetensors")
    flat, whole = (weights.load(tmp_path / name).params for name in ("flat", "whole"))
    foreign.equal(whole, flat)


@pytest.mark.parametrize(
    ("kind", "changed", "message"),
    [
        ("timm_gap", {"architecture": "naflexvit_base_patch16_par_gap"}, "square around the image"),
        ("timm_gap", {"architecture": "naflexvit_base_patch16_parfac_gap"}, "rows and columns"),
        ("timm_gap", {"architecture": "naflexvit_base_patch16_radio_v3"}, "normalizes its last"),
        ("timm_gap", {"architecture": "vit_base_patch16_224"}, "this model of timm is not"),
        ("timm_gap", {"model_args": {"patch_size": 8}}, "patches of 8 x 8 pixels"),
        ("timm_gap", {"model_args": {"rope_type": "axial"}}, "model_args.rope_type"),
        ("timm_gap", {"model_args": {"pos_embed_interp_mode": "area"}}, "only bicubic, bilinear"),
        ("hf_siglip2", {"patch_size": 16}, "patches of 16 x 16 pixels and 3 channels"),
        ("hf_siglip2", {"model_type": "siglip_vision_model"}, "no embeddings.patch_embedding"),
        ("hf_siglip2", {"num_patches": 100}, "position"),
    ],
)
def test_others_are_refused_in_a_line(tmp_path, kind, changed, message):
    write(tmp_path / "foreign", kind, **changed)
    assert message in error_line(WeightsError, weights.load, tmp_path / "foreign")
