import pytest

import foreign
from containers import refusal
from vit_jax import config, weights
from vit_jax.weights.families import timm_vit

HEADS, BIT = {"model.heads": "3"}, {"architecture": "resnetv2_50x1_bit"}


def load(folder, name, **changes):
    described = foreign.record(name)
    return weights.load(foreign.write(folder, described, **changes), described.get("options"))


def edited(folder, *, drop=(), **more):
    """Writes the encoder that has a class token, with other arrays."""
    described = foreign.changed(foreign.record("timm_no_embed_class"), drop, **more)
    described["arrays"]["pos_embed"] = [1, 17, 24]
    return foreign.write(folder, described)


# Values


def test_models_are_told_by_names_and_shapes(tmp_path):
    def model(name):
        (tmp_path / name).mkdir()
        if name == "timm_wide":
            return load(tmp_path / name, name).spec.model
        return weights.read_spec(foreign.write(tmp_path / name, foreign.record(name))).model

    token, mean, query = (model(f"timm_{k}") for k in ("no_embed_class", "fc_norm", "map"))
    assert (token.pooling, mean.pooling, query.pooling) == ("token", "gap", "map")
    assert (token.norm_place, mean.norm_place) == ("tokens", "pooled")
    assert (token.gelu, token.norm_epsilon, token.depth, token.mlp_dim) == ("erf", 1e-6, 2, 48)
    assert token.heads is None
    assert model("timm_pre_logits").representation_size == 24
    assert model("timm_wide").patch_size == (8, 4)
    hybrid, stem, resnet = (model(f"timm_{kind}") for kind in ("hybrid", "hybrid_stem", "bit"))
    assert (hybrid.resnet_units, stem.resnet_units, resnet.resnet_units) == ((1, 2), (), (2, 1))
    assert {m.resnet_epsilons for m in (hybrid, stem, resnet)} == {"timm"}
    assert (hybrid.resnet_version, resnet.resnet_version) == ("v1", "v2")
    assert (resnet.resnet_width, resnet.resnet_pool) == (0.5, "zeros")


def test_a_file_without_config_says_what_is_assumed(tmp_path):
    described = foreign.record("timm_bit")
    facts = weights.read_spec(foreign.write(tmp_path, described))
    assert facts.data.mean == facts.data.std == (0.5,)
    assert facts.data.resampling == "antialiased_bicubic"
    keys = ("image_size", "mean", "std", "resampling", "eval_crop")
    assert facts.assumed.keys() == {f"data.{key}" for key in keys}
    assert facts.classes == ()
    bare = foreign.changed(described, drop=("head.fc.weight", "head.fc.bias"))
    facts = weights.read_spec(foreign.write(tmp_path, bare))
    assert facts.model.num_classes == 1
    assert facts.fresh.keys() == {"head/kernel", "head/bias"}


@pytest.mark.parametrize(
    ("width", "heads"), [(192, 3), (768, 12), (1280, 16), (1152, 16), (1408, 16), (24, None)]
)
def test_heads_are_64_wide_but_in_the_largest_models(width, heads):
    found, assumed = timm_vit.read_heads({}, width)
    assert found == heads
    assert set(assumed) == ({"model.heads"} if heads else set())


def test_a_run_gives_the_heads_of_a_file_of_its_width_alone(tmp_path):
    described = foreign.record("timm_no_embed_class")
    wide = {
        name: [{24: 192, 72: 576}.get(side, side) for side in shape]
        for name, shape in described["arrays"].items()
    }

    def read(arrays, **model):
        wanted = config.Config(model=config.Model(**model))
        found = weights.read_spec(foreign.write(tmp_path, described | {"arrays": arrays}), wanted)
        return found.model.heads, found.assumed.get("model.heads")

    run = "as in the run; the file does not say"
    assert read(wide, width=192, heads=3) == (3, None)
    assert read(wide, width=192, heads=6) == (6, f"{run}, and layers of width 192 mostly have 3")
    assert read(wide, width=384, heads=6) == (3, "each 64 wide; the file does not say")
    assert read(described["arrays"], width=384, heads=6) == (6, run)


def test_names_tell_the_activation_unless_config_says_another():
    named = {
        "vit_so400m_patch16_siglip_384": "tanh",
        "vit_large_patch16_siglip_gap_512": "tanh",
        "vit_large_patch16_siglip_384": "erf",
        "vit_so400m_patch14_siglip_384": "erf",
        "vit_base_patch16_224": "erf",
    }
    for name, kind in named.items():
        assert timm_vit.read_activation({"architecture": name}) == {"gelu": kind}
        said = {"architecture": name, "model_args": {"act_layer": "gelu"}}
        assert timm_vit.read_activation(said) == {"gelu": "erf"}


# Pixels and classes


def test_a_folder_tells_heads_pixels_and_classes(tmp_path):
    facts = load(tmp_path, "timm_folder").spec
    assert facts.model.heads == 3
    assert facts.assumed == {}
    assert facts.classes == ("tench", "goldfish", "shark")
    data = facts.data
    assert (data.image_size, data.resampling) == ((32, 32), "antialiased_bicubic")
    assert (data.eval_crop, data.before_crop) == ("central", (35, 35))  # floor(32 / 0.9)
    assert (data.mean, data.std) == ((0.5,), (0.5,))
    names = {"label_names": ["d", "n02", "n3"], "label_descriptions": {"d": "a dog", "n02": "cow"}}
    config = {**names, "problem_type": "multi_label_classification"}
    facts = load(tmp_path, "timm_folder", config=config).spec
    assert facts.classes == ("d", "cow", "n3")  # words stand for WordNet's numbers alone
    assert facts.loss == "sigmoid"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"crop_pct": 1.0}, {"eval_crop": "central", "before_crop": (32, 32)}),
        ({"crop_pct": 0.875}, {"crop_rounding": "even", "before_crop": (36, 36)}),
        ({"crop_pct": 1.1}, {"fill": (0.0,), "before_crop": (29, 29)}),
        ({"crop_pct": 1.0, "crop_mode": "squash"}, {"eval_crop": "resize"}),
        ({"crop_pct": 0.8, "crop_mode": "squash"}, {"eval_crop": "squash"}),
        ({"crop_mode": "border"}, {"eval_crop": "border", "fill": None}),
        ({"interpolation": "bilinear"}, {"resampling": "antialiased_bilinear"}),
        ({"interpolation": "lanczos"}, {"resampling": "lanczos"}),
        (
            {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
            {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
        ),
    ],
)
def test_preprocessing(tmp_path, fields, expected):
    given = foreign.record("timm_folder")["files"]["config.json"]["pretrained_cfg"]
    facts = load(tmp_path, "timm_folder", config={"pretrained_cfg": {**given, **fields}}).spec
    assert {key: getattr(facts.data, key) for key in expected} == expected
    assert facts.assumed == {}


def test_a_crop_of_nothing_is_as_in_timm_and_said(tmp_path):
    given = foreign.record("timm_folder")["files"]["config.json"]["pretrained_cfg"]
    facts = load(tmp_path, "timm_folder", config={"pretrained_cfg": {**given, "crop_pct": 0}}).spec
    assert facts.data.crop_pct == 0.875
    assert facts.assumed == {"data.crop_pct": "as in timm, of crop_pct=0"}


# Refusals


@pytest.mark.parametrize(
    ("fields", "option"),
    [
        ({"crop_mode": "circle"}, "data.eval_crop=central"),
        ({"interpolation": "random"}, "data.resampling=antialiased_bicubic"),
        ({"crop_pct": 20.0}, "data.crop_pct=1"),
    ],
)
def test_views_that_nothing_here_makes_are_refused_unless_another_is_set(tmp_path, fields, option):
    given = foreign.record("timm_folder")["files"]["config.json"]["pretrained_cfg"]
    changed = {"pretrained_cfg": {**given, **fields}}
    folder = foreign.write(tmp_path, foreign.record("timm_folder"), config=changed)
    with pytest.raises(weights.WeightsError, match=f"no such views here; .*set {option}$"):
        weights.load(folder)
    assert weights.load(folder, dict([option.split("=")])).assumed == ()


@pytest.mark.parametrize(
    ("more", "feature"),
    [
        ({"blocks__0__attn__q_bias": (24,)}, "biases of queries and values only"),
        ({"attn_pool__q_norm__weight": (8,)}, "normalized queries and keys in its pooling"),
        ({"blocks__0__attn__rel_pos_h": (3, 8)}, "relative positions"),
        ({"rope__cos": (2, 8)}, "rotary positions"),
        ({"attn_pool__pos_embed": (17, 24)}, "positions in its attention pooling"),
        ({"patch_embed__backbone__bn1__running_mean": (32,)}, "BatchNorm"),
        (
            {"patch_embed__backbone__stem__conv2__weight": (4, 4, 3, 3)},
            "a stem of several convolutions",
        ),
    ],
)
def test_what_no_model_here_has_is_named(tmp_path, more, feature):
    text = refusal(edited(tmp_path, **more), overrides=HEADS)
    assert text == f"contains a model with {feature}, which is not supported"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_args": {"pool_include_prefix": True}},
         "config.json: model_args.pool_include_prefix: is not supported"),
        ({"model_args": {"num_heads": 3, "act_layer": "mish"}},
         "act_layer=mish: only gelu, gelu_erf, gelu_tanh, silu, swish, relu, quick_gelu are "
         "supported"),
        ({"model_args": {"num_heads": 0}}, "num_heads=0: must be a positive whole number"),
        ({"model_args": {"num_heads": 3, "global_pool": "prr"}},
         "global_pool=prr: only token, avg, max, avgmax, map are supported"),
        ({"model_args": {"num_heads": 3, "global_pool": "token"}},
         "global_pool=token: cls_token is missing"),
        ({"model_args": 3}, "model_args: must be a JSON object"),
        ({"architecture": "eva02_enormous_patch14_clip_224"},
         "architecture=eva02_enormous_patch14_clip_224: this model of timm is not supported, as "
         "its layers normalize after attention and MLP, not before"),
        ({"architecture": "my_vit"},
         "architecture=my_vit: this model of timm is not supported; if it is a ViT of other "
         "sizes, let config.json say vit_base_patch16_224"),
        ({"label_names": ["ant", "bee"]}, "label_names: names 2 classes; the head has 3"),
        ({"label_names": {"0": "ant", "2": "bee", "3": "cow"}},
         "label_names: must number the classes 0, 1, ..."),
        ({"label_names": ["ant", "bee", 3]}, "label_names: must be a list of names"),
        ({"pretrained_cfg": {"mean": [0.5, "x", 0.5]}},
         "mean=[0.5, 'x', 0.5]: must be a number or a list of numbers"),
        ({"pretrained_cfg": {"std": [0.5, 0.0, 0.5]}},
         "std=[0.5, 0.0, 0.5]: must be 3 values from 0 to 1"),
        ({"pretrained_cfg": {"mean": [0.5, 0.5]}}, "mean=[0.5, 0.5]: must be 3 values from 0 to 1"),
        ({"pretrained_cfg": {"input_size": [3, 32]}, "model_args": {"num_heads": 3}},
         "input_size=[3, 32]: must be channels, height and width"),
        ({"architecture": "vit_small_patch16_dinov3"},
         "architecture=vit_small_patch16_dinov3: has no blocks.0.attn.qkv.bias, as the file has"),
        ({"architecture": "beit_base_patch16_224"},
         "architecture=beit_base_patch16_224: has no blocks.0.attn.qkv.bias, as the file has"),
        ({"architecture": "resnetv2_50d_gn"},
         "architecture=resnetv2_50d_gn: of timm's ResNets, only BiT is supported"),
        (BIT | {"model_args": {"act_layer": "gelu"}},
         "config.json: model_args.act_layer: is not supported"),
        (BIT | {"model_args": {"global_pool": "max"}},
         "config.json: model_args.global_pool: is not supported"),
        (BIT | {"global_pool": "max"}, "global_pool=max: of timm's ResNets, only avg is supported"),
        ({"model_args": {"num_heads": 3, "act_layer": [1]}}, "act_layer=[1]: must be text"),
        ({"pretrained_cfg": {"interpolation": {}}}, "interpolation={}: must be text"),
        ({"num_classes": 7},
         "config.json: num_classes=7: the arrays have 3, so it describes another model"),
    ],
)  # fmt: skip
def test_what_config_says_is_refused_in_one_line(tmp_path, changes, message):
    name = "timm_bit" if "resnetv2" in changes.get("architecture", "") else "timm_folder"
    assert refusal(foreign.write(tmp_path, foreign.record(name), config=changes)) == message


def test_models_that_cannot_be_told_are_refused(tmp_path):
    assert refusal(edited(tmp_path)) == (
        "does not say how many heads its layers of width 24 have; "
        "give them, such as --config.model.heads=3"
    )
    path = foreign.write(
        tmp_path, foreign.record("timm_folder"), config={"model_args": {"global_pool": "map"}}
    )
    assert refusal(path, overrides=HEADS) == "global_pool=map: attn_pool.latent is missing"
    (path / "config.json").unlink()
    wide = foreign.write(tmp_path, foreign.record("timm_wide"))
    assert refusal(wide, overrides=HEADS) == (
        "contains positions of 20 patches, which is not a square; "
        "give the image size: --config.data.image_size=HEIGHT,WIDTH"
    )
    post = foreign.changed(foreign.record("timm_bit"), stem__norm__weight=(32,))
    assert refusal(foreign.write(tmp_path, post)) == (
        "contains a ResNet with post-activation units, which timm uses only in hybrids"
    )


def test_positions_may_be_missing(tmp_path):
    described = foreign.changed(foreign.record("timm_no_embed_class"), ("pos_embed",))
    path = foreign.write(tmp_path, described)
    assert refusal(path, overrides=HEADS) == (
        "contains no position embeddings; give the image size: "
        "--config.data.image_size=HEIGHT,WIDTH"
    )
    loaded = weights.load(path, {**HEADS, "data.image_size": "32,32"})
    assert loaded.spec.model.position == "none"
