"""A model below any prefix and in any wrapper is the same model, and one line says where it was."""

import json

import numpy as np
import pytest
from safetensors import numpy as safetensors

import foreign
from containers import FIXTURES, read, refusal, write
from vit_jax import weights
from vit_jax.weights import family, importing
from vit_jax.weights.arrays import Arrays, ArraySpec

HEADS = {"model.heads": "3"}
PLAIN = foreign.FOLDER / "timm_vit_tiny.safetensors"
HF = foreign.FOLDER / "hf_vit_tiny"


def renamed(folder, rename, source=PLAIN, **more):
    """Writes a file with other names, and other arrays beside."""
    arrays = safetensors.load_file(source)
    extra = {name.replace("__", "."): np.ones(2, np.float32) for name in more}
    return write(folder / "model.safetensors", {rename(n): a for n, a in arrays.items()} | extra)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "rename",
    [
        lambda name: f"_orig_mod.{name}",
        lambda name: f"_orig_mod.module.{name}",
        lambda name: f"module._orig_mod.{name}",
        lambda name: name.replace("blocks.0.", "blocks.0._orig_mod."),
        lambda name: name.replace("blocks.0.", "blocks.0.0.").replace("blocks.1.", "blocks.1.1."),
        lambda name: "backbone." + name.replace("blocks.", "blocks.0."),
        # as a head of one's own on a backbone
        lambda name: name if name.startswith("head") else f"backbone.{name}",
        lambda name: f"model.{name}" if name.startswith("head") else f"model.backbone.{name}",
        lambda name: name.replace("head", "fc") if "head" in name else f"backbone.{name}",
    ],
)
def test_wrappers_and_chunks_change_nothing(tmp_path, rename):
    loaded = weights.load(renamed(tmp_path, rename), HEADS)
    foreign.equal(loaded.params, weights.load(PLAIN, HEADS).params)
    assert loaded.report.dropped == {}


@pytest.mark.parametrize("prefix", ["params/", "opt/target/", "params/img/"])
def test_prefixes_of_google(tmp_path, prefix):
    plain = FIXTURES / "vit_tiny_finetuned.npz"
    arrays = {prefix + name: array for name, array in read(plain).items()}
    # Moments have the names of parameters, shorter than what they are moments of.
    moments = {f"mu/{name}": array + 1 for name, array in read(plain).items()}
    loaded = weights.load(write(tmp_path / "w.npz", arrays | moments))
    foreign.equal(loaded.params, weights.load(plain).params)
    assert f"the model under {prefix}, not that under mu/" in "".join(loaded.assumed)


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ("model_ema.module.", "model."),
        ("target_encoder.", "encoder."),
        ("teacher.backbone.", "student.backbone."),
    ],
)
def test_the_average_or_the_teacher_is_taken_and_that_is_said(tmp_path, better, worse):
    arrays = safetensors.load_file(PLAIN)
    both = {f"{worse}{name}": array + 1 for name, array in arrays.items()}
    # Chunks of one model do not depend on those of the other.
    both |= {f"{better}{n.replace('blocks.', 'blocks.0.')}": a for n, a in arrays.items()}
    loaded = weights.load(write(tmp_path / "w.safetensors", both), HEADS)
    foreign.equal(loaded.params, weights.load(PLAIN, HEADS).params)
    line = f"assumed the model under {better}, not that under {worse}: the file holds several"
    assert line in loaded.assumed
    assert set(loaded.report.dropped.values()) == {f"not under {better}"}


def test_a_tower_of_timm_in_open_clip_tells_its_name_and_pixels(tmp_path):
    fields = {"model_cfg": {"vision_cfg": {"timm_model_name": "vit_base_patch16_224",
                                           "timm_pool": "token", "image_size": 32}},
              "preprocess_cfg": {"mean": [0.1, 0.2, 0.3], "std": None, "resize_mode": "squash",
                                 "interpolation": "bilinear"}}  # fmt: skip
    (tmp_path / "open_clip_config.json").write_text(json.dumps(fields))
    renamed(tmp_path, lambda name: f"visual.trunk.{name}", text__tokens=2)
    loaded = weights.load(tmp_path, HEADS)
    data = loaded.spec.data
    assert (data.mean, data.resampling) == ((0.1, 0.2, 0.3), "antialiased_bilinear")
    assert (data.std, data.eval_crop) == (family.CLIP[1], "resize")
    assert loaded.assumed == ()
    fields["preprocess_cfg"] = {"resize_mode": "longest"}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(fields))
    data = weights.read_spec(tmp_path).data
    assert (data.eval_crop, data.fill) == ("border", (0.0,))  # of open_clip; in timm the mean
    fields["preprocess_cfg"] |= {"fill_color": 51}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(fields))
    assert weights.read_spec(tmp_path).data.fill == (0.2,)


def test_two_names_for_one_array_are_refused(tmp_path):
    arrays = safetensors.load_file(PLAIN)
    arrays["_orig_mod.norm.bias"] = arrays["norm.bias"]
    path = write(tmp_path / "w.safetensors", arrays)
    assert refusal(path) == "_orig_mod.norm.bias and norm.bias are the same array"


def test_many_prefixes_are_no_more_work():
    """Only a few are tried, however many a file has."""
    spec = ArraySpec((2, 2), np.dtype(np.float32))
    names = {f"m{i}.patch_embed.proj.weight": spec for i in range(15_000)}
    with pytest.raises(weights.WeightsError, match="not one of the supported model layouts"):
        importing.find_family(Arrays(names, lambda name: None), {})


# What no arrays can be loaded of says why, and names no list of arrays


def without(arrays, name):
    return {other: array for other, array in arrays.items() if other != name}


QKV = "blocks.0.attn.qkv.weight"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda a: {f"m.{QKV[:-6]}lora_A.weight": a[QKV]}, "the file holds LoRA beside its layers"),
        (lambda a: {**without(a, QKV), f"{QKV[:-6]}base_layer.weight": a[QKV]}, "holds LoRA"),
        (lambda a: {**without(a, QKV), f"{QKV}_g": a[QKV]}, "layers by their parametrization"),
        (lambda a: {**a, f"{QKV[:-6]}parametrizations.weight.original0": a[QKV]}, "parametriz"),
        (lambda a: {**without(a, QKV), f"{QKV}_orig": a[QKV]}, "pruned layers and their masks"),
        (lambda a: {**a, f"{QKV}.absmax": a[QKV]}, "the file holds quantized layers"),
        (lambda a: {**a, PATCHES: a[PATCHES].transpose(0, 2, 3, 1)}, "its channels are last"),
    ],
)
def test_forms_of_layers_that_cannot_be_computed_with(tmp_path, change, reason):
    arrays = change(safetensors.load_file(PLAIN))
    assert reason in refusal(write(tmp_path / "x.safetensors", arrays))


PATCHES = "patch_embed.proj.weight"


@pytest.mark.parametrize(
    ("source", "name", "message"),
    [
        (
            "backbones/hf_dinov3", "embeddings.patch_embeddings.weight",
            "model_type=dinov3_vit: there is no embeddings.patch_embeddings.weight in the file",
        ),
        (
            "backbones/timm_avgmax_normed", "patch_embed.proj.weight",
            "architecture=vit_base_patch16_224: the file has no patch embedding that is read for "
            "timm's models: patch_embed.proj.weight, stem.conv.weight, embeds.proj.weight",
        ),
    ],
    ids=["hf", "timm"],
)  # fmt: skip
def test_a_folder_without_its_patch_embedding_says_so(source, name, message, tmp_path):
    folder = foreign.write(tmp_path, foreign.record(source))
    arrays = safetensors.load_file(folder / "model.safetensors")
    write(folder / "model.safetensors", without(arrays, name))
    assert refusal(folder) == message


def test_rotary_positions_of_transformers_5(tmp_path):
    described = foreign.record("backbones/hf_dinov3")
    config = described["files"]["config.json"]
    path = foreign.write(tmp_path, described, config={"rope_parameters": {"rope_theta": 50.0}})
    assert weights.read_spec(path).model.rotary == 50
    fields = {**config, "rope_parameters": {"rope_type": "yarn"}}
    (path / "config.json").write_text(json.dumps(fields))
    assert refusal(path) == "rope_type=yarn: only default is supported"
