import dataclasses
import errno
import json
import math

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors import numpy as safetensors

import foreign
from commands import error_line
from containers import FIXTURES, read
from vit_jax import config, models, weights
from vit_jax.utils import errors
from vit_jax.weights import readers
from vit_jax.weights.families import timm

HEADS = {"model.heads": "3"}
TINY = config.Model(
    patch_size=(8, 8), width=24, depth=2, mlp_dim=48, heads=3, num_classes=4, architecture="vit"
)
HF = foreign.FOLDER / "hf_vit_tiny"


def stored(path):
    """The arrays at a path, whatever its kind."""
    if path.suffix == ".npz":
        return read(path)
    return safetensors.load_file(path / "model.safetensors" if path.is_dir() else path)


def same(one, other):
    """Asserts that two sources give the same numbers to the same function at the stored size."""
    foreign.equal(one.params, other.params)
    way = other.spec.model.position_resize  # which belongs to a format, and is told
    assert dataclasses.replace(one.spec.model, position_resize=way) == other.spec.model


def assert_same_logits(loaded, params, facts):
    """Asserts that loaded weights of 16 x 16 pixels give the logits of these parameters."""
    pictures = np.random.default_rng(1).uniform(-1, 1, (2, 16, 16, 3)).astype(np.float32)
    ours = weights.Weights(kind="", params=params, spec=facts, report=weights.MappingReport())
    expected = foreign.logits(ours, pictures)
    np.testing.assert_allclose(foreign.logits(loaded, pictures), expected, rtol=0, atol=1e-5)


WAYS = {"timm": "antialiased_bicubic", "hf": "bicubic"}  # of resizing positions


def made(size=(16, 24), channels=3, classes=(), data=None, **changes):
    """Random parameters of a model, and its facts."""
    facts = weights.ModelSpec(
        model=models.complete(dataclasses.replace(TINY, **changes)),
        data=config.Data(image_size=size, channels=channels, **(data or {})),
        classes=classes,
    )
    return foreign.parameters(facts), facts


def refusal(params, facts, kind, path):
    text = error_line(weights.WeightsError, weights.save, params, facts, kind, path)
    assert not path.exists()
    return text


def source(folder, name):
    """The path of a fixture that is described, and the options it needs."""
    folder.mkdir()
    described = foreign.record(name)
    return foreign.write(folder, described), described.get("options")


# Round trips


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "kind", "suffix"),
    [
        ("timm_folder", "timm", ""),
        ("timm_fc_norm", "timm", ""),
        ("timm_map", "timm", ""),
        ("timm_wide", "timm", ""),
        ("timm_no_embed_class", "timm", ""),
        ("timm_hybrid", "timm", ".safetensors"),
        ("timm_hybrid_stem", "timm", ".safetensors"),
        ("timm_bit", "timm", ".safetensors"),
        ("timm_bit", "hf", ""),
        ("hf_sharded", "hf", ""),
        ("hf_model", "hf", ""),
        ("hf_bit", "hf", ""),
        ("hf_bit", "timm", ".safetensors"),
        ("hf_bit_post", "hf", ""),
    ],
)
def test_logits_are_those_of_the_library_and_out_and_in_again_is_lossless(
    tmp_path, name, kind, suffix
):
    path, options = source(tmp_path / "in", name)
    loaded = weights.load(path, options)
    described = foreign.record(name)
    assert (loaded.kind, loaded.report.dropped) == (name.partition("_")[0], {})
    # ViTModel has no head; what it calls its pooler's output is what our head sees.
    given = (foreign.pre_logits if name == "hf_model" else foreign.logits)(
        loaded, foreign.images(described)
    )
    np.testing.assert_allclose(given, described["logits"], rtol=0, atol=1e-5)
    out = tmp_path / f"out{suffix}"
    weights.save(loaded.params, loaded.spec, kind, out)
    again = weights.load(out, options if suffix else {})
    assert again.kind == kind
    same(loaded, again)
    assert again.spec.classes == loaded.spec.classes
    if kind == loaded.kind and name != "timm_no_embed_class":  # whose table gains a row of zeros
        # Byte by byte, though the sharded ones come as one file.
        written = stored(out)
        assert written.keys() == described["arrays"].keys()
        for array, numbers in foreign.arrays(described).items():
            np.testing.assert_array_equal(written[array], numbers, strict=True)
        if kind == "hf":
            fields = json.loads((out / "config.json").read_text())
            read = described["files"]["config.json"]
            assert {key: fields[key] for key in fields.keys() & read} == {
                key: read[key] for key in fields.keys() & read
            }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("position", "pooling", "kind"),
    [
        ("none", "token", "hf"),
        ("sincos_1d", "token", "timm"),
        ("sincos_2d", "token", "hf"),
        ("sincos_2d", "distilled", "hf"),
        ("learned_2d", "gap", "google"),
    ],
)
def test_other_positions_are_written_as_a_table(tmp_path, position, pooling, kind):
    token = {"distillation": pooling == "distilled"}
    params, facts = made(position=position, pooling=pooling, size=(16, 16), depth=1, **token)
    path = tmp_path / ("w.npz" if kind == "google" else "w")
    told = weights.save(params, facts, kind, path)
    assert not any("class_position" in line for line in told)
    again = weights.load(path)
    assert again.spec.model.position == "learned_1d"
    assert_same_logits(again, params, facts)


ALL = ("head", "key", "mlp", "out", "patches", "query", "value")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("biasless", "kind", "zeros"),
    [
        (ALL, "google", ALL),
        (ALL, "timm", ("head", "patches")),
        (ALL, "hf", ("head", "mlp", "out", "patches")),
        (("key", "out"), "timm", ("key", "out")),
        (("key", "query", "value"), "hf", ()),
    ],
)
def test_biases_that_a_form_has_are_written_as_zeros(tmp_path, biasless, kind, zeros):
    params, facts = made(size=(16, 16), depth=1, biasless=biasless)
    path = tmp_path / ("w.npz" if kind == "google" else "w")
    told = weights.save(params, facts, kind, path)
    assert [line for line in told if "zeros" in line] == [
        f"model.biasless={','.join(zeros)}: the file has these biases; they are written as zeros, "
        "and would be trained"
    ] * bool(zeros)
    again = weights.load(path)
    assert set(again.spec.model.biasless) == set(biasless) - set(zeros)
    assert_same_logits(again, params, facts)


@pytest.mark.slow
@pytest.mark.parametrize("position", ["learned_1d", "sincos_2d"])
@pytest.mark.parametrize("pooling", ["token", "gap"])
def test_timm_has_registers_without_positions(tmp_path, position, pooling):
    params, facts = made(size=(16, 16), position=position, pooling=pooling, registers=3)
    told = weights.save(params, facts, "timm", tmp_path / "w")
    folded = (position, pooling) == ("learned_1d", "token")
    assert any("written as part of the token" in line for line in told) == folded
    again = weights.load(tmp_path / "w", {"data.image_size": "16,16"})
    assert_same_logits(again, params, facts)


def test_a_norm_of_the_class_token_alone_is_the_same_before_it_is_picked(tmp_path):
    params, facts = made(norm_place="pooled")
    weights.save(params, facts, "hf", tmp_path / "hf")
    assert weights.load(tmp_path / "hf").spec.model.norm_place == "tokens"
    weights.save(params, facts, "timm", tmp_path / "timm")
    assert weights.load(tmp_path / "timm").spec.model.norm_place == "pooled"


def test_what_layer_scale_was_at_first_is_no_part_of_a_model(tmp_path):
    params, facts = made(layer_scale=0.1, width=64, heads=1, gelu="erf", size=(16, 16))
    path = tmp_path / "w.safetensors"
    weights.save(params, facts, "timm", path)
    foreign.equal(weights.load(path, {"data.image_size": "16,16"}).params, params)


# Pixels and classes


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["timm", "hf"])
@pytest.mark.parametrize(
    "data",
    [
        {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
        {"eval_crop": "central", "resize_to": 29},
        {"eval_crop": "squash", "resize_to": 29},
        {"eval_crop": "central", "resize_to": 20, "fill": (0.0,)},
        {"resampling": "antialiased_bilinear"},
        {"resampling": "nearest"},
        {"resampling": "lanczos"},
    ],
)
def test_pixels_and_classes_come_back(tmp_path, kind, data):
    data = {"resampling": "antialiased_bicubic", **data}
    if kind == "timm" and (side := data.pop("resize_to", None)):  # in torchvision's form
        data |= {"crop_pct": 24 / side, "crop_rounding": "even"}
    more = {"classes": ("zebra", "ant", "Fuß", "cow"), "position_resize": WAYS[kind]}
    params, facts = made(size=(24, 24), data=data, **more)
    assert weights.save(params, facts, kind, tmp_path / "w") == ()
    again = weights.load(tmp_path / "w").spec
    assert (again.data, again.classes) == (facts.data, facts.classes)


@pytest.mark.parametrize("kind", ["timm", "hf"])
def test_a_short_side_left_open_is_written_as_its_number(tmp_path, kind):
    data = {"eval_crop": "central", "resampling": "antialiased_bicubic"}
    params, facts = made(size=(24, 24), data=data, position_resize=WAYS[kind])
    told = weights.save(params, facts, kind, tmp_path / "w")
    assert told == (("data.crop_rounding=down: reads back as even",) if kind == "timm" else ())
    assert weights.load(tmp_path / "w").spec.data.before_crop == (27, 27)  # 24 * 8 / 7
    # Before an oblong crop it is said where a format has none.
    oblong = made(size=(16, 24), data=data, position_resize=WAYS[kind])
    told = [line for line in weights.save(*oblong, kind, tmp_path / "o") if "resize_to" in line]
    assert told == ["data.resize_to=27,27: reads back as 18,27"] * (kind == "timm")


@pytest.mark.parametrize("fill", [None, (0.25,)])
def test_a_border_is_said_where_a_format_has_none(tmp_path, fill):
    data = {"resampling": "box", "eval_crop": "border", "crop_pct": 0.9, "crop_rounding": "even"}
    data, way = {**data, "fill": fill}, WAYS["timm"]
    params, facts = made(size=(24, 24), data=data, position_resize=way)
    told = weights.save(params, facts, "timm", tmp_path / "timm")
    assert told == (() if fill is None else ("data.fill=0.25: reads back as 0.5",))
    assert weights.load(tmp_path / "timm").spec.data.eval_crop == "border"
    told = weights.save(params, facts, "hf", tmp_path / "hf")
    assert {
        "model.position_resize=antialiased_bicubic: reads back as bicubic",
        "data.eval_crop=border: reads back as resize",
    } < set(told)


def test_what_a_file_cannot_say_of_pixels_is_told(tmp_path):
    data = {"depth": 16, "mean": (0.25,), "resampling": "antialiased_bicubic"}
    params, facts = made(data=data, classes=("a", "b", "c", "d"))
    told = weights.save(params, facts, "google", tmp_path / "w.npz")
    assert told == (
        "data.image_size=16,24: not stored in this format",
        "data.depth=16: reads back as 8",
        "data.mean=0.25: reads back as 0.5",
        "data.resampling=antialiased_bicubic: reads back as bilinear",
    )
    odd = weights.save(*made(gelu="erf", size=(16, 16)), "timm", tmp_path / "w.safetensors")
    assert odd[0] == "model.heads=3: not stored in this format"
    model = made(data={"resampling": "bilinear"}, position_resize="bicubic")
    folder = weights.save(*model, "hf", tmp_path / "hf")
    assert folder == ("data.resampling=bilinear: reads back as antialiased_bilinear",)


def test_the_share_timm_is_told_gives_the_same_short_side():
    for side in (32, 224, 384):
        for wanted in range(side, 2 * side):
            data = config.Data(image_size=(side, side), eval_crop="central", resize_to=wanted)
            share = timm.crop_share(data)
            assert math.floor(side / share) == wanted
    assert timm.crop_share(config.Data(eval_crop="central", resize_to=248)) == 0.9
    assert timm.crop_share(config.Data(eval_crop="central")) == 0.875


def test_a_gray_model_says_its_channels(tmp_path):
    params, facts = made(channels=1, size=(16, 16))
    for kind in ("timm", "hf"):
        weights.save(params, facts, kind, tmp_path / kind)
        assert weights.load(tmp_path / kind).spec.data.channels == 1


# Refusals

AIMV2 = {"norm": "rms", "norm_epsilon": 1e-5, "patch_norm": True, "mlp": "swiglu", "pooling": "gap"}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("changes", "kind", "name", "message"),
    [
        ({"gelu": "erf"}, "google", "w.npz",
         "model.gelu=erf: not stored in a .npz file, which reads back as tanh; "
         "set --config.model.gelu=tanh to write another function"),
        ({"norm_epsilon": 1e-12}, "timm", "w",
         "model.norm_epsilon=1e-12: not stored in timm's form, which reads back as 1e-06; "
         "set --config.model.norm_epsilon=1e-06 to write another function"),
        ({"width": 64, "heads": 1}, "timm", "w.safetensors",
         "model.gelu=tanh: not stored in a .safetensors file alone, which reads back as erf; "
         "write a folder, a path without that suffix, "
         "or set --config.model.gelu=erf to write another function"),
        ({"representation_size": 8, "representation_activation": "relu"}, "google", "w.npz",
         "model.representation_activation=relu: not stored in a .npz file, which reads back as "
         "tanh; set --config.model.representation_activation=tanh to write another function"),
        ({"representation_size": 8}, "timm", "w",
         "model.representation_size=8: timm has no layer before the head"),
        ({"representation_size": 8}, "hf", "w",
         "model.representation_size=8: Hugging Face has no layer before the head"),
        ({"representation_size": 8, "stem_norm": True, "biasless": ("patches", "head")}, "hf", "w",
         "model.representation_size=8: Hugging Face has no layer before the head"),
        ({"pooling": "gap", "class_token": True}, "hf", "w",
         "model.pooling=gap: in Hugging Face transformers the head reads only the class token"),
        ({"pooling": "map"}, "hf", "w",
         "model.pooling=map: in Hugging Face's SigLIP no head follows this pooling; a classifier "
         "there reads the mean of all patches (gap)"),
        ({"stem_norm": True}, "hf", "w",
         "model.biasless=(): not stored in Hugging Face's form, which reads back as "
         "head,patches"),
        ({"stem_norm": True}, "timm", "w",
         "model.biasless=(): timm has no bias of patches before model.stem_norm"),
        ({"rotary": 100.0, "position": "none"}, "hf", "w",
         "model.rotary=100: Hugging Face has DINOv3 without a head; write it with --to=timm"),
        ({"rotary": 100.0, "position": "none"}, "timm", "w",
         "model.biasless=(): timm's DINOv3 has no equivalent"),
        ({"rotary": 100.0, "position": "sincos_2d", "biasless": ("key",)}, "timm", "w",
         "model.position=learned_1d: timm's DINOv3 has no equivalent"),
        ({"norm": "rms"}, "timm", "w", "model.norm=rms: timm models have LayerNorm"),
        (AIMV2 | {"norm_epsilon": 1e-4}, "timm", "w",
         "model.norm_epsilon=0.0001: timm's AIMv2, which alone has model.norm=rms there, has no "
         "equivalent"),
        (AIMV2, "hf", "w",
         "model.norm=rms: Hugging Face's AIMv2 has no class with a head; --to=timm has"),
        (AIMV2 | {"registers": 2}, "hf", "w",
         "model.registers=2: Hugging Face's AIMv2, which alone has model.norm=rms there, has no "
         "equivalent"),
        ({"patch_norm": True}, "timm", "w",
         "model.patch_norm=true: timm has no equivalent with model.norm=layer"),
        ({"rotary": 10.0, "rotary_learned": True, "rotary_span": "max"}, "timm", "w",
         "model.biasless=(): timm's DINOv3 has no equivalent"),
        ({"pooling": "map", "pooling_heads": 1}, "timm", "w",
         "model.pooling_heads=1: not stored in timm's form, which reads back as none"),
        ({"position_place": "layers"}, "timm", "w",
         "model.position_place=layers: timm adds positions at the stem only"),
        ({"position": "relative"}, "hf", "w",
         "model.position=relative: Hugging Face has no equivalent"),
        ({"distillation": True}, "timm", "w",
         "model.pooling=token: timm reads a distillation token with a head of its own "
         "(distilled)"),
        ({"distillation": True, "pooling": "distilled", "registers": 2}, "timm", "w",
         "model.registers=2: timm has none beside a distillation token"),
        ({"distillation": True, "pooling": "distilled", "class_position": False}, "timm", "w",
         "model.class_position=false: timm has positions for class and distillation token"),
        ({"distillation": True, "pooling": "distilled", "mlp": "swiglu"}, "timm", "w",
         "model.distillation=true with model.mlp=swiglu: timm cannot create this model from a "
         "config.json; "
         "write the weights alone, to a path that ends in .safetensors"),
        ({"distillation": True, "layer_scale": 1.0}, "hf", "w",
         "model.distillation=true: Hugging Face's DINOv2 has no such token"),
        ({"registers": 4}, "hf", "w",
         "model.layer_scale=none: Hugging Face has registers only with LayerScale"),
        ({"layer_scale": 1.0}, "hf", "w",
         "model.pooling=token: in Hugging Face's DINOv2 the head reads the class token and the "
         "mean of all patches (token_gap)"),
        ({"layer_scale": 1.0, "pooling": "token_gap", "mlp_dim": 40}, "hf", "w",
         "model.mlp_dim=40: Hugging Face's DINOv2 computes it from a whole ratio to "
         "model.width 24"),
        ({"pooling": "token_gap"}, "timm", "w",
         "model.pooling=token_gap model.pooled_layers=1: timm cannot create this model from a "
         "config.json; write the weights alone, to a path that ends in .safetensors"),
        ({"pooled_layers": 2}, "timm", "w.safetensors",
         "model.pooled_layers=2: only the features of Meta's linear classifiers have a form: "
         "token_gap of 1 or 4 layers, token of 4"),
        ({"architecture": "axial_vit", "pooling": "gap"}, "timm", "w",
         "model.architecture=axial_vit: timm has no equivalent"),
        ({"qk_norm": True}, "hf", "w",
         "model.qk_norm=true: this layout has no place for encoder/attention/key_norm/bias"),
        ({"stem_norm": True, "biasless": ("patches", "head"), "registers": 2}, "hf", "w",
         "model.registers=2: this layout has no place for registers"),
        pytest.param(  # two thirds of 64 are 48, of 48 are 32
            {"layer_scale": 1.0, "pooling": "token_gap", "mlp": "swiglu", "width": 16, "heads": 2,
             "mlp_dim": 40}, "hf", "w",
            "model.mlp_dim=40: Hugging Face's DINOv2 computes it from a whole ratio to "
            "model.width 16", id="swiglu-dinov2"),
    ],
)  # fmt: skip
def test_what_a_form_has_no_place_for(tmp_path, changes, kind, name, message):
    params, facts = made(size=(16, 16), **changes)
    text = refusal(params, facts, kind, tmp_path / name)
    assert text == message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_google_has_no_option_for(tmp_path):
    options = {"rotary": 100.0, "stem_norm": True, "layer_scale": 1e-5, "registers": 4,
               "distillation": True, "mlp": "swiglu", "pooling_heads": 1,
               "pooling_mlp_dim": 20}  # fmt: skip
    for name, value in options.items():
        pooling = {"pooling": "map"} if name.startswith("pooling") else {}
        model = made(size=(16, 16), **pooling, **{name: value})
        text = refusal(*model, "google", tmp_path / "w.npz")
        assert text == f"model.{name}={config.show(value).lower()}: Google has no equivalent"


def test_resnets_of_other_epsilons_or_units_are_refused(tmp_path):
    loaded = weights.load(FIXTURES / "bit_tiny_legacy.npz")
    for kind, there in (("timm", "a .safetensors file alone"), ("hf", "Hugging Face's form")):
        path = tmp_path / ("w.safetensors" if kind == "timm" else "w")
        text = refusal(loaded.params, loaded.spec, kind, path)
        assert text.startswith(f"model.resnet_epsilons=version: not stored in {there}, ")
        assert text.endswith("set --config.model.resnet_epsilons=timm to write another function")


def test_the_option_that_a_refusal_names_does_it(tmp_path):
    loaded = weights.load(FIXTURES / "bit_tiny_legacy.npz", {"model.resnet_epsilons": "timm"})
    weights.save(loaded.params, loaded.spec, "hf", tmp_path / "w")
    foreign.equal(weights.load(tmp_path / "w").params, loaded.params)
    vit = weights.load(HF, {"model.gelu": "tanh", "model.norm_epsilon": "1e-6"})
    weights.save(vit.params, vit.spec, "google", tmp_path / "w.npz")
    same(vit, weights.load(tmp_path / "w.npz"))


def test_resnets_whose_units_timm_cannot_be_told_are_refused_but_for_a_file(tmp_path):
    path, options = source(tmp_path / "in", "timm_hybrid")
    loaded = weights.load(path, options)
    assert refusal(loaded.params, loaded.spec, "timm", tmp_path / "w") == (
        "model.resnet_units=1,2: timm cannot create this model from a config.json; "
        "write the weights alone, to a path that ends in .safetensors"
    )
    assert refusal(loaded.params, loaded.spec, "hf", tmp_path / "w") == (
        "model.resnet_units=1,2: Hugging Face transformers dropped hybrid models"
    )
    path, options = source(tmp_path / "stem", "timm_hybrid_stem")
    stem = weights.load(path, options)
    assert refusal(stem.params, stem.spec, "timm", tmp_path / "w").startswith(
        "model.resnet_width=0.5: timm cannot create this model from a config.json; "
    )
    units = {"architecture": "resnet", "resnet_units": (1,), "resnet_width": 0.5}
    post = made(**units, resnet_version="v1", resnet_epsilons="timm", size=(32, 32))
    text = refusal(*post, "timm", tmp_path / "w.safetensors")
    assert text == "contains a ResNet with post-activation units, which timm uses only in hybrids"
    odd = made(**units, resnet_version="v2", resnet_epsilons="timm", resnet_pool="nothing")
    assert refusal(*odd, "hf", tmp_path / "w") == (
        "model.resnet_pool=nothing: not stored in Hugging Face's form, which reads back as zeros; "
        "set --config.model.resnet_pool=zeros to write another function"
    )


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("google", "w", "PATH: must end in .npz"),
        ("hf", "w.safetensors", "PATH: hf writes a folder; leave out .safetensors"),
        ("timm", "w.npz", "PATH: timm writes a folder; leave out .npz"),
        ("torch", "w.pth", "kind=torch: must be one of google, timm, hf, flax"),
    ],
)
def test_names_of_files(tmp_path, kind, name, message):
    path = tmp_path / name
    assert refusal(*made(), kind, path) == message.replace("PATH", str(path))


def test_nothing_is_overwritten(tmp_path):
    path = tmp_path / "w.npz"
    path.write_text("mine")
    line = error_line(weights.WeightsError, weights.save, *made(size=(16, 16)), "google", path)
    assert line == f"{path}: exists already; choose another, or remove it"
    assert path.read_text() == "mine"


@pytest.mark.parametrize(("kind", "name"), [("google", "w.npz"), ("timm", "w"), ("hf", "w")])
def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch, kind, name):
    def full(descriptor):
        assert list(tmp_path.iterdir()) != []  # a draft is there, under another name
        assert not (tmp_path / name).exists()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    path = tmp_path / name
    # Exit code 70.
    line = error_line(errors.NotWritten, weights.save, *made(size=(16, 16)), kind, path)
    assert line == f"{path}: cannot be written: No space left on device"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("mine")
    path = tmp_path / "file" / "w.npz"
    with pytest.raises(weights.WeightsError, match="cannot be written"):
        weights.save(*made(size=(16, 16)), "google", path)


def test_files_are_what_their_libraries_read(tmp_path):
    """The library of safetensors reads what is written here, and transformers needs `format`."""
    params, facts = made(size=(16, 16), classes=("Käfer", "鮫", "c", "d"))
    weights.save(params, facts, "hf", tmp_path / "w")
    with safetensors.safe_open(tmp_path / "w/model.safetensors", framework="numpy") as file:
        assert file.metadata().keys() == {"format", readers.DIGESTS}
        assert file.metadata()["format"] == "pt"
    assert {p.name for p in (tmp_path / "w").iterdir()} == {
        "config.json",
        "preprocessor_config.json",
        "model.safetensors",
    }
    text = (tmp_path / "w/config.json").read_text()
    assert all(name in text for name in facts.classes)  # as they are spelled
    fields = json.loads(text)
    assert fields["architectures"] == ["ViTForImageClassification"]
    assert fields["id2label"] == {"0": "Käfer", "1": "鮫", "2": "c", "3": "d"}
    assert fields["label2id"] == {"Käfer": 0, "鮫": 1, "c": 2, "d": 3}
    assert fields["hidden_act"] == "gelu_pytorch_tanh"


@pytest.mark.parametrize("channels", [1, 3])
def test_transformers_makes_the_channels_of_the_model(tmp_path, channels):
    weights.save(*made(size=(16, 16), channels=channels), "hf", tmp_path / "w")
    fields = json.loads((tmp_path / "w/preprocessor_config.json").read_text())
    assert fields.get("do_convert_rgb", True) is (channels == 3)
    assert weights.load(tmp_path / "w").assumed == ()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("kind", "suffix"), [("google", ".npz"), ("timm", ".safetensors"), ("hf", "")]
)
def test_half_precision_is_the_nearest_number(tmp_path, kind, suffix, dtype):
    params, facts = made(gelu="tanh" if kind == "google" else "erf")
    whole, half = tmp_path / f"whole{suffix}", tmp_path / f"half{suffix}"
    weights.save(params, facts, kind, whole)
    if (kind, dtype) == ("google", "bfloat16"):
        with pytest.raises(weights.WeightsError, match="--dtype=bfloat16: .npz files have no such"):
            weights.save(params, facts, kind, half, dtype)
        assert not half.exists()
        return
    weights.save(params, facts, kind, half, dtype)
    expected, found = stored(whole), stored(half)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        nearest = array.astype(getattr(ml_dtypes, dtype, dtype))
        np.testing.assert_array_equal(found[name], nearest, strict=True)
    again = weights.load(half, HEADS | {"data.image_size": "16,24"})
    rounded = jax.tree.map(lambda x: x.astype(found[name].dtype).astype(np.float32), params)
    foreign.equal(again.params, rounded)


def test_what_half_precision_cannot_hold(tmp_path):
    params, facts = made()
    params["head"]["bias"][0] = 65_520  # the first that rounds to infinity
    for kind in ("timm", "hf"):
        with pytest.raises(
            weights.WeightsError, match="--dtype=float16: .*bias has numbers beyond"
        ):
            weights.save(params, facts, kind, tmp_path / kind, "float16")
    weights.save(params, facts, "hf", tmp_path / "there", "bfloat16")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
