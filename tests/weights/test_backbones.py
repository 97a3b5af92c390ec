"""Every backbone in backbones/*.json: in as its library computes it, and out as it came."""

import dataclasses
import re

import numpy as np
import pytest
from safetensors import numpy as safetensors

import foreign
from commands import error_line
from vit_jax import config, models, weights
from vit_jax.runs import directory
from vit_jax.weights import exporting, family, importing
from vit_jax.weights.arrays import Arrays, ArraySpec
from vit_jax.weights.families import huggingface

NAMES = sorted(path.stem for path in (foreign.FOLDER / "backbones").glob("*.json"))


def load(folder, name):
    """A fixture's record and the weights as they are loaded."""
    folder.mkdir(exist_ok=True)
    described = foreign.record(f"backbones/{name}")
    return described, weights.load(foreign.write(folder, described), described["options"])


def answers(loaded, described):
    """The output of a loaded model for the pictures of a record."""
    output = getattr(foreign, described["output"])
    return output(loaded, foreign.images(described))


def function(loaded):
    """The model and its input shape: with equal parameters, equal logits."""
    return loaded.spec.model, loaded.spec.data.image_size, loaded.spec.data.channels


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", NAMES)
def test_answers_are_those_of_its_library_also_when_written_back(tmp_path, name):
    described, loaded = load(tmp_path / "in", name)
    given = answers(loaded, described)
    np.testing.assert_allclose(given, described["logits"], rtol=0, atol=1e-5)
    assert sorted(loaded.report.dropped) == sorted(described["dropped"])
    assert bool(loaded.report.fresh) == (described["output"] == "pre_logits")
    kind = loaded.kind if loaded.kind in exporting.KINDS else "timm"
    out = tmp_path / ("out.npz" if kind == "google" else "out")
    weights.save(loaded.params, loaded.spec, kind, out)
    again = weights.load(out)
    if kind != "google":
        unpooled = ["model.pooling=gap"] * name.startswith("hf_aimv2")  # no class of it pools
        said = [line for line in again.assumed if "model." in line]
        assert [line.split()[1].rstrip(":") for line in said] == unpooled
    # of another class, or whose positions resize otherwise
    other_class = name in ("hf_msn", "hf_dinov2_reg_none", "hf_ijepa") or "placed" in name
    foreign_names = kind != loaded.kind or name.startswith(("meta", "torch_tips")) or other_class
    if foreign_names or function(again) != function(loaded):  # else it is the same, not only alike
        np.testing.assert_allclose(
            answers(again, described), described["logits"], rtol=0, atol=1e-5
        )
    if foreign_names:
        return  # written under timm's names, or under those of ViT
    assert exporting.normal(again.spec.model) == exporting.normal(loaded.spec.model)
    foreign.equal(again.params, loaded.params)
    if kind == "google":
        with np.load(out) as file:
            written = dict(file)
    else:
        written = safetensors.load_file(out / "model.safetensors")
    kept = {n: a for n, a in foreign.arrays(described).items() if n not in described["dropped"]}
    if "embeddings.patch_embedding.weight" in kept:  # a tower alone: also what version 4 reads
        kept = {f"vision_model.{n}": a for n, a in kept.items()}
    assert written.keys() == kept.keys()
    for array, numbers in kept.items():
        if array.endswith("posembed_input") and numbers.shape != written[array].shape:
            continue  # written at the size that was asked for
        np.testing.assert_array_equal(written[array], numbers, strict=True)


def read(described, files, **hints):
    """The family and the facts of a fixture, by shapes and files alone."""
    specs = {
        name: ArraySpec(tuple(shape), np.dtype(np.float32))
        for name, shape in described["arrays"].items()
    }
    hints = family.Hints(files=files, **hints)
    found = importing.find_family(Arrays(specs, lambda name: None), files)
    return found.family, found.family.read_spec(
        found.family.prepared(found.arrays, hints).specs, hints
    )


def fixtures(start):
    """Yields names, records, config.json and facts of fixtures, and the files of their exports."""
    for name in NAMES:
        record = foreign.record(f"backbones/{name}")
        if name.startswith(start) and "config.json" in record.get("files", {}):
            kind, facts = read(record, record["files"])
            files = exporting.find_family(facts, kind.project).files(facts)
            yield name, record, record["files"]["config.json"], facts, files


# Of transformers' config.json: for training and other tasks, or at values that change nothing.
UNSAID = re.compile(
    "(out|pooler|auxiliary|initializer|pos_embed)_.*|.*_(dropout|drop|fpn|head|token|layernorm)|"
    "drop_path_rate|encoder_stride|(id2label|label2id)|pool_scales|projection_dim|stage_names|"
    "reshape_hidden_states|semantic_loss_ignore_index|text_config|transformers_version|vocab_size"
)


def described_alike(given, written):
    """Asserts that a config.json of transformers and the one written for it say the same."""
    said = {key: value for key, value in given.items() if value is not None}
    names = huggingface.ACTIVATIONS
    for key, value in said.items():
        other = written.get(key)
        if key == "vision_config":
            described_alike(value, other)
        elif key == "image_size":
            assert other in (value, [value, value]) or [other, other] == value
        elif key == "hidden_act":  # which a gated MLP has none of
            assert given.get("use_swiglu_ffn") or names[value] == names[other]
        elif key in written or not UNSAID.fullmatch(key):
            assert other == value, key


def test_config_of_transformers_comes_out_as_it_went_in():
    compared = set()
    for _, _, given, _, files in fixtures("hf_"):
        written = files["config.json"]
        if given["architectures"] != written["architectures"]:
            continue  # written as another class that computes the same
        given.pop("use_mask_token", None)
        if given["architectures"] == ["SiglipForImageClassification"]:
            given["vision_config"].pop("vision_use_head")  # which this class has not
        described_alike(given, written)
        compared.add(given["model_type"])
    assert compared == {
        *("beit", "deit", "dinov2", "dinov2_with_registers", "dinov3_vit"),
        *("clip_vision_model", "siglip", "siglip_vision_model", "aimv2_vision_model"),
    }


def edited(name, drop=(), **shapes):
    """A fixture with some arrays left out, or of other shapes."""
    described = foreign.record(f"backbones/{name}")
    return foreign.changed(described, drop, **shapes)


@pytest.mark.parametrize(
    ("name", "crop", "loss"), [("deit3_jax", 1.0, "sigmoid"), ("deit3_jax_deit", 0.875, "softmax")]
)
def test_files_of_deit3_jax_are_of_its_recipes(name, crop, loss):
    """DeiT III trains by a sigmoid for each class, and evaluates whole images; DeiT does not."""
    facts = read(edited(name), {})[1]
    data, model = facts.data, facts.model
    assert (data.eval_crop, data.crop_pct, data.resampling) == (
        "central", crop, "antialiased_bicubic"
    )  # fmt: skip
    assert ((data.mean, data.std), facts.loss) == (family.IMAGENET, loss)
    assert (model.layer_scale is None) == (loss == "softmax")
    assert (model.position_resize, model.class_position) == ("antialiased_bicubic", False)
    assert facts.assumed.keys() == {"data.crop_pct", f"loss.name={loss}"}
    heads = ("model/head/kernel", "model/head/bias")
    bare = read(edited(name, heads), {})[1]
    assert (bare.assumed.keys(), bare.fresh) == ({"data.crop_pct"}, family.NO_HEAD)


def test_positions_of_deit3_jax_are_squares_or_need_a_size():
    wide = {"model/embed/wte/kernel": (7, 14, 3, 24)}
    assert read(edited("deit3_jax", **wide), {})[1].data.image_size == (28, 56)
    for rows, columns in ((4, 5), (5, 4)):
        table = {"model/embed/wpe": (rows, columns, 24)}
        with pytest.raises(weights.WeightsError, match=f"wpe is {rows} x {columns}: deit3-jax"):
            read(edited("deit3_jax", **table), {})
    with pytest.raises(weights.WeightsError, match="contains no position embeddings; give the im"):
        read(edited("deit3_jax_gap"), {})
    gap = read(edited("deit3_jax_gap"), {}, image_size=(28, 14))[1]
    assert (gap.model.pooling, gap.model.position, gap.data.image_size) == (
        "gap", "sincos_2d", (28, 14)
    )  # fmt: skip
    alone = {"arrays": {"embed/wte/kernel": [7, 7, 3, 24]}}
    with pytest.raises(weights.WeightsError, match="not one of the supported model layouts"):
        read(alone, {})


@pytest.mark.parametrize(
    ("side", "crop", "resampling"), [(32, 0.875, "bilinear"), (31, 1.0, "bicubic")]
)
def test_files_of_torchvision_at_224_are_of_its_recipe_larger_ones_of_swag(side, crop, resampling):
    table = {"encoder__pos_embedding": (1, 1 + side**2, 24)}
    facts = read(edited("torchvision", **table), {}, heads=6)[1]
    data, model = facts.data, facts.model
    assert data.image_size == (7 * side, 7 * side)
    assert (data.eval_crop, data.crop_pct) == ("central", crop)
    assert data.resampling == f"antialiased_{resampling}"
    assert ((data.mean, data.std), model.heads) == (family.IMAGENET, 6)
    assert (model.position_resize, model.pooling, model.norm_epsilon) == ("bicubic", "token", 1e-6)
    assert facts.assumed.keys() == {"data.image_size", "data.resampling", "data.crop_pct"}
    bare = read(edited("torchvision", ("heads.head.weight", "heads.head.bias"), **table), {})[1]
    assert bare.fresh == family.NO_HEAD
    with pytest.raises(weights.WeightsError, match="contains no class_token, which torchvision"):
        read(edited("torchvision", ("class_token",)), {})
    with pytest.raises(weights.WeightsError, match="not one of the supported model layouts"):
        read({"arrays": {"conv_proj.weight": [24, 3, 7, 7]}}, {})


def test_files_of_open_clip_without_a_config_are_openais():
    described = edited("open_clip")
    wide = {
        name: [64 * side // 24 if side % 24 == 0 else side for side in shape]
        for name, shape in described["arrays"].items()
    }
    facts = read({"arrays": wide}, {})[1]
    model = facts.model
    assert (model.heads, model.gelu) == (1, "quick")
    assert (model.stem_norm, model.norm_epsilon) == (True, 1e-5)
    openai = {"model.activation", "model.gelu", *(f"data.{key}" for key in ("mean", "std"))}
    openai |= {"data.resampling", "data.eval_crop"}
    assert facts.assumed.keys() == {*openai, "model.heads", "data.image_size"}
    given = read({"arrays": wide}, {}, heads=2, image_size=facts.data.image_size)[1]
    assert (given.model.heads, given.assumed.keys()) == (2, openai)
    tower = {"vision_cfg": {"head_width": 32, "image_size": 28}}
    said = read({"arrays": wide}, {"open_clip_config.json": {"model_cfg": tower}}, heads=4)[1]
    assert (said.model.heads, said.model.gelu, dict(said.assumed)) == (2, "erf", {})


@pytest.mark.parametrize(
    ("view", "written"),
    [
        ({"resampling": "antialiased_bicubic", "eval_resampling": "antialiased_bilinear"},
         {"interpolation": "bilinear"}),
        ({"eval_crop": "resize", "crop_pct": None}, {"crop_pct": 1.0, "crop_mode": "squash"}),
        ({"resize_to": 35, "crop_pct": None}, {"crop_pct": 0.9, "crop_mode": "center"}),
        ({"resize_to": 37, "crop_pct": None}, {"crop_pct": 0.86, "crop_mode": "center"}),
    ],
)  # fmt: skip
def test_views_of_our_own_are_written_as_timm_says_them(view, written):
    described = foreign.record("timm_folder")
    kind, facts = read(described, described["files"])
    data = dataclasses.replace(facts.data, **{"resize_to": None, "crop_rounding": "down"} | view)
    files = kind.files(dataclasses.replace(facts, data=data))["config.json"]
    said = files["pretrained_cfg"]
    assert {key: said[key] for key in written} == written
    for loss in ("softmax", "sigmoid"):
        said = kind.files(dataclasses.replace(facts, loss=loss))["config.json"]
        assert said.get("problem_type") == (
            "multi_label_classification" if loss == "sigmoid" else None
        )


def test_a_siglip_without_its_pooling_is_assumed_to_be_averaged():
    described = foreign.record("backbones/hf_siglip")
    bare = {n: shape for n, shape in described["arrays"].items() if not n.startswith("head.")}
    assert len(bare) < len(described["arrays"])
    for arrays, pooling in ((described["arrays"], "map"), (bare, "gap")):
        spec = read(described | {"arrays": arrays}, described["files"])[1]
        assert spec.model.pooling == pooling
        assert ("model.pooling" in spec.assumed) == (pooling == "gap")


def test_beit_of_transformers_sees_squares_where_offsets_count():
    for name, refused in (("hf_beit_default", False), ("hf_beit", True)):
        record = foreign.record(f"backbones/{name}")
        files = {"config.json": {**record["files"]["config.json"], "image_size": [14, 28]}}
        if not refused:
            assert read(record, files)[1].data.image_size == (14, 28)
            continue
        with pytest.raises(weights.WeightsError, match="image_size=14,28: transformers mixes up"):
            read(record, files)


@pytest.mark.parametrize(
    ("name", "drop", "kind", "way"),
    [
        ("hf_dinov2_reg", (), "dinov2", "antialiased_bicubic"),
        ("hf_dinov2_reg", ("embeddings.register_tokens",), "dinov2", "bicubic"),
        ("hf_dinov2_reg", ("embeddings.register_tokens",), "dinov2_with_registers",
         "antialiased_bicubic"),
    ],
)  # fmt: skip
def test_registers_or_their_class_say_how_dinov2_resizes(name, drop, kind, way):
    record = edited(name, drop)
    given = {**record["files"]["config.json"], "model_type": kind, "num_register_tokens": 0}
    given |= {} if drop else {"num_register_tokens": record["arrays"][REGISTERS][1]}
    model = read(record, {"config.json": {**given, "layerscale_value": 0.25}})[1].model
    assert (model.position_resize, model.layer_scale) == (way, 0.25)


REGISTERS = "embeddings.register_tokens"


@pytest.mark.parametrize("name", ["hf_dinov2_giant", "hf_dinov2_reg", "hf_dinov3"])
def test_what_transformers_has_with_layer_scale_alone_is_its_own_kind_without(name):
    """So the refusal says LayerScale, rather than that a ViT has no registers."""
    record = foreign.record(f"backbones/{name}")
    kind, facts = read(record, record["files"])
    model = dataclasses.replace(facts.model, layer_scale=None)
    assert kind.expresses(dataclasses.replace(facts, model=model))


@pytest.mark.parametrize(
    ("name", "size"), [("timm_beit_alone", (28, 28)), ("timm_dinov3_alone", (16 * 7, 16 * 7))]
)
def test_sizes_of_files_without_a_table_of_positions(name, size):
    """Offsets tell the patches of a square; rotary positions none, so they are 16 x 16."""
    facts = read(foreign.record(f"backbones/{name}"), {})[1]
    assert facts.data.image_size == size
    assert "data.image_size" in facts.assumed


def test_what_timm_needs_to_build_other_models_than_those_it_names():
    def arguments(name, **changes):
        record = foreign.record(f"backbones/{name}")
        kind, facts = read(record, record["files"])
        model = dataclasses.replace(facts.model, **changes)
        return kind.files(dataclasses.replace(facts, model=model))["config.json"]["model_args"]

    assert arguments("timm_dinov3_plus")["swiglu_align_to"] == 1
    assert "swiglu_align_to" not in arguments("timm_dinov3")
    assert "no_embed_class" not in arguments("timm_eva02")
    assert arguments("timm_eva02", class_position=False)["no_embed_class"] is True


def test_keys_without_biases_are_those_of_meta_and_eva():
    record = foreign.record("backbones/meta_dinov3")
    assert read(record, {})[1].model.biasless == ("key",)
    record = foreign.record("backbones/timm_eva")
    # The one value of this argument that is supported.
    record["files"]["config.json"]["model_args"]["attn_type"] = "eva"
    kind, facts = read(record, record["files"])
    assert kind.expresses(facts)
    model = dataclasses.replace(facts.model, norm_epsilon=1e-5)
    assert not kind.expresses(dataclasses.replace(facts, model=model))


POOLED = {"attn_pool__latent": [1, 1, 24]}


@pytest.mark.parametrize(
    ("name", "arguments", "more", "message"),
    [
        ("timm_pe_spatial", {"ref_feat_shape": [0, 4]}, {},
         "ref_feat_shape=0: must be a positive whole number"),
        ("timm_rope", {"ref_feat_shape": [4, 4]}, {},
         "config.json: model_args.ref_feat_shape: is not supported"),
        ("timm_rope", {}, POOLED, "global_pool=map: in timm's Eva it sees the class token too"),
        ("timm_eva02", {}, POOLED, "global_pool=map: in timm's Eva it sees the class token too"),
        ("timm_pe_lang", {}, POOLED, "global_pool=map: in timm's Eva it sees the class token too"),
        ("timm_eva", {"attn_type": "rope"}, {},
         "config.json: model_args.attn_type: is not supported"),
    ],
)  # fmt: skip
def test_what_timms_eva_computes_otherwise_is_refused(name, arguments, more, message):
    described = foreign.record(f"backbones/{name}")
    given = described["files"]["config.json"]
    given = {**given, "model_args": {**given["model_args"], **arguments}}
    with pytest.raises(weights.WeightsError, match=f"^{re.escape(message)}$"):
        read(foreign.changed(described, **more), {"config.json": given})


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("timm_folder", {"model_args": {"embed_dim": 192}}, "embed_dim=192: the arrays have 24"),
        ("timm_folder", {"model_args": {"depth": 12}}, "depth=12: the arrays have 2"),
        ("timm_folder", {"model_args": {"patch_size": [8, 16]}},
         "patch_size=[8, 16]: the arrays have 8,8"),
        ("timm_folder", {"model_args": {"in_chans": 1}}, "in_chans=1: the arrays have 3"),
        ("timm_folder", {"model_args": {"class_token": True}},
         "class_token=True: the arrays have False"),
        ("timm_folder", {"model_args": {"num_heads": 3, "init_values": 1e-5}},
         "init_values=1e-05: the arrays have none"),
        ("timm_folder", {"model_args": {"num_heads": 3, "num_classes": 7}},
         "num_classes=7: the arrays have 3"),
        ("timm_folder", {"num_classes": 7}, "num_classes=7: the arrays have 3"),
        ("timm_bit", {"architecture": "resnetv2_50x1_bit", "num_classes": 7},
         "num_classes=7: the arrays have 5"),
        ("hf_sharded", {"hidden_size": 1024}, "hidden_size=1024: the arrays have 24"),
        ("hf_sharded", {"num_hidden_layers": 24}, "num_hidden_layers=24: the arrays have 2"),
        ("hf_sharded", {"patch_size": 16}, "patch_size=16: the arrays have 8,8"),
        ("hf_sharded", {"num_labels": 5}, "num_labels=5: the arrays have 11"),
        ("backbones/hf_dinov3", {"use_gated_mlp": True, "hidden_act": "silu"},
         "use_gated_mlp=True: the arrays have False"),
        ("backbones/hf_dinov3_gated", {"use_gated_mlp": False},
         "use_gated_mlp=False: the arrays have True"),
        ("backbones/open_clip",
         {"model_cfg": {"vision_cfg": {"image_size": 28, "width": 48, "head_width": 12}}},
         "vision_cfg.width=48: the arrays have 24"),
    ],
)  # fmt: skip
def test_config_of_another_model_is_refused(name, changes, message):
    described = foreign.record(name)
    files = described.get("files", {})
    file = "open_clip_config.json" if name.endswith("open_clip") else "config.json"
    given = {**files, file: {**files.get(file, {}), **changes}}
    line = error_line(weights.WeightsError, read, described, given)
    assert line == f"{file}: {message}, so it describes another model"


def test_files_of_tips_have_two_tokens_and_pixels_from_0_to_1():
    table = {"encoder/ToTokenSequence_0/posembed_input": (1, 2, 4, 24)}
    kind, facts = read(edited("tips_scenic", **table), {})
    assert facts.data.image_size == (14, 28)
    assert (facts.data.mean, facts.data.std) == ((0.0,), (1.0,))
    assert kind.expresses(facts)
    for wrong in ({"registers": 2}, {"class_position": True}, {"layer_scale": 1.0}):
        model = dataclasses.replace(facts.model, **wrong)
        assert not kind.expresses(dataclasses.replace(facts, model=model))
    for count in (1, 3):
        tokens = {"encoder/ToTokenSequence_0/cls": (1, count, 24)}
        with pytest.raises(weights.WeightsError, match=f"contains {count} class tokens; TIPS has"):
            read(edited("tips_scenic", **tokens), {})


def test_config_of_timm_comes_out_as_it_went_in():
    """Arguments may be more: what a name says is written out."""
    for name, record, given, facts, files in fixtures("timm_"):
        written = files["config.json"]
        view, arguments = (
            {**given[key], **written[key]} for key in ("pretrained_cfg", "model_args")
        )
        assert given["global_pool"] == written["global_pool"], name
        for key, value in given["pretrained_cfg"].items():
            resizable = "dinov3" in name and key in ("input_size", "fixed_input_size")
            assert resizable or view[key] == value, (name, key)
        for key, value in given["model_args"].items():
            if key == "mlp_ratio":  # timm rounds down, and of SwiGLU once more
                hidden = int(facts.model.width * arguments[key])
                gated = facts.model.mlp == "swiglu"
                assert gated or hidden == int(facts.model.width * value), name
            elif name not in ("timm_reg2_placed", "timm_dinov3_plus"):  # said in another way
                assert arguments[key] == value, (name, key)
        again = read(record, {"config.json": written})[1]
        assert again.model == facts.model, name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("timm_dinov2", "hf"),
        ("meta_dinov2_giant_reg2", "hf"),
        ("hf_dinov2_reg", "timm"),
        ("timm_siglip", "hf"),
        ("hf_siglip", "timm"),
        ("hf_dinov3", "timm"),
        ("meta_dinov3_gated", "hf"),
        ("hf_clip", "timm"),
        ("hf_beit_model", "timm"),
        ("timm_beit_square", "hf"),
        ("tips_scenic", "timm"),
    ],
)
def test_backbones_go_from_one_library_to_the_other(tmp_path, name, kind):
    described, loaded = load(tmp_path / "in", name)
    assert described["output"] == "pre_logits"  # DINOv2's head in transformers reads the mean too
    weights.save(loaded.params, loaded.spec, kind, tmp_path / "out")
    again = weights.load(tmp_path / "out")
    assert again.kind == kind
    np.testing.assert_allclose(answers(again, described), described["logits"], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_the_text_tower_of_a_custom_clip_is_dropped(tmp_path):
    """open_clip's CustomTextCLIP keeps it under text., big_vision's and CoCa's towers too."""
    described = foreign.record("backbones/open_clip")
    own = foreign.write(tmp_path, described)
    arrays = {n: a for n, a in foreign.arrays(described).items() if n.startswith("visual.")}
    text = {"text.transformer.resblocks.0.ln_1.weight", "text.positional_embedding", "logit_scale"}
    arrays |= {name: np.ones(3, np.float32) for name in text}
    safetensors.save_file(arrays, own / "open_clip_model.safetensors")
    (own / "model.safetensors").unlink()
    loaded = weights.load(own, described["options"])
    assert loaded.report.dropped.keys() == text
    np.testing.assert_allclose(answers(loaded, described), described["logits"], rtol=0, atol=1e-5)


def test_a_run_that_starts_from_dinov2_has_its_parts(tmp_path):
    """The recipe names a plain ViT; tokens, scales and MLP are those of the weights."""
    _, loaded = load(tmp_path / "in", "hf_dinov2_reg_giant")
    sizes = {"width": 24, "depth": 2, "heads": 3, "mlp_dim": 64, "patch_size": (7, 7)}
    recipe = config.Config(
        init_from=str(tmp_path / "in"),
        model=config.Model(**sizes, num_classes=4),
        data=config.Data(image_size=(21, 21)),
    )
    cfg = directory.as_in_weights(recipe, {})
    model = cfg.model
    assert (model.mlp, model.layer_scale, model.registers) == ("swiglu", 1.0, 3)
    assert (model.gelu, model.pooling) == ("tanh", "token")
    target = models.create(model, image_size=(21, 21))
    params, report = weights.fit_params(loaded.params, loaded.spec, target, keep_head=False)
    assert set(report.fresh) == {"head/kernel", "head/bias"}
    assert list(report.resized) == ["position/table"]
    np.testing.assert_array_equal(params["registers"], loaded.params["registers"])
    without = dataclasses.replace(model, registers=0)
    plain = models.create(without, image_size=(28, 28))
    report = weights.fit_params(loaded.params, loaded.spec, plain, keep_head=False)[1]
    assert report.dropped["registers"] == "the model has no registers"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"), [("timm_deit_random5", "hf"), ("hf_deit_teacher", "timm")]
)
def test_deit_takes_both_heads_along(tmp_path, name, kind):
    _, loaded = load(tmp_path / "in", name)
    model = dataclasses.replace(loaded.spec.model, gelu="erf", activation="gelu", norm_epsilon=1e-6)
    facts = dataclasses.replace(loaded.spec, model=model)
    weights.save(loaded.params, facts, kind, tmp_path / "out")
    again = weights.load(tmp_path / "out")
    assert (again.kind, again.spec.model.pooling) == (kind, "distilled")
    foreign.equal(again.params, loaded.params)
    plain = models.create(
        dataclasses.replace(model, distillation=False, pooling="token"), image_size=(28, 28)
    )
    params, report = weights.fit_params(loaded.params, facts, plain, keep_head=False)
    assert report.dropped["distillation"] == "the model has no distillation token"
    before = loaded.params["position"]["table"]
    assert "of the tokens before them 1 of 2" in report.resized["position/table"]
    np.testing.assert_array_equal(params["position"]["table"][:, 0], before[:, 0])
