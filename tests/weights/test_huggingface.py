import json

import numpy as np
import pytest
from safetensors import numpy as safetensors

import foreign
from containers import refusal
from vit_jax import config, weights
from vit_jax.weights import family
from vit_jax.weights.families import huggingface

VIT = foreign.FOLDER / "hf_vit_tiny"


def load(folder, name, **changes):
    described = foreign.record(name)
    return weights.load(foreign.write(folder, described, **changes))


def tiny(folder, drop=(), config=None, **more):
    """Copies the stored ViT with other fields of config.json, and arrays more or less."""
    arrays = safetensors.load_file(VIT / "model.safetensors")
    kept = {name: array for name, array in arrays.items() if name not in drop}
    added = {n.replace("__", "."): np.ones(shape, np.float32) for n, shape in more.items()}
    safetensors.save_file(kept | added, folder / "model.safetensors")
    fields = json.loads((VIT / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**fields, **(config or {})}))
    return folder


# Values


def newer(name):
    """The name that version 5 of transformers gives an array while it runs."""
    for old, new in (
        ("encoder.layer.", "layers."),
        ("attention.attention.query", "attention.q_proj"),
        ("attention.attention.key", "attention.k_proj"),
        ("attention.attention.value", "attention.v_proj"),
        ("attention.output.dense", "attention.o_proj"),
        ("intermediate.dense", "mlp.fc1"),
        ("output.dense", "mlp.fc2"),
    ):
        name = name.replace(old, new)
    return name


@pytest.mark.parametrize("rename", [str, newer])
def test_older_and_newer_names_give_the_same_model(tmp_path, rename):
    arrays = safetensors.load_file(VIT / "model.safetensors")
    renamed = {rename(name): array for name, array in arrays.items()}
    assert (renamed.keys() == arrays.keys()) == (rename is str)
    safetensors.save_file(renamed, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((VIT / "config.json").read_bytes())
    loaded = weights.load(tmp_path)
    with np.load(VIT / "io.npz") as stored:
        given = foreign.logits(loaded, stored["images"])
        np.testing.assert_allclose(given, stored["logits"], rtol=0, atol=1e-5)


def test_patches_may_be_higher_than_wide(tmp_path):
    facts = weights.read_spec(
        tiny(
            tmp_path,
            config={"patch_size": [8, 4]},
            vit__embeddings__patch_embeddings__projection__weight=(24, 3, 8, 4),
            vit__embeddings__position_embeddings=(1, 1 + 4 * 8, 24),
        )
    )
    assert facts.model.patch_size == (8, 4)


@pytest.mark.parametrize(
    ("activation", "kind"),
    [("gelu", "erf"), ("gelu_new", "tanh"), ("gelu_fast", "tanh"), ("gelu_pytorch_tanh", "tanh")],
)
def test_activations(tmp_path, activation, kind):
    assert weights.load(tiny(tmp_path, config={"hidden_act": activation})).spec.model.gelu == kind


def test_what_belongs_to_other_heads_is_dropped_with_the_reason(tmp_path):
    more = {"vit__pooler__dense__weight": (24, 24), "vit__embeddings__mask_token": (1, 1, 24)}
    report = weights.load(tiny(tmp_path, **more)).report
    assert report.dropped == {
        "vit.embeddings.mask_token": "of masked image modeling",
        "vit.pooler.dense.weight": "a pooler that the classifier does not use",
    }


# Pixels and classes


def test_classes_come_in_the_order_of_their_numbers(tmp_path):
    facts = load(tmp_path, "hf_sharded").spec
    assert facts.classes == (
        *("zebra", "ant", "mole", "cow", "bee", "yak", "emu", "rat", "hen", "cat", "dog"),
    )
    assert weights.load(VIT).spec.classes == ()  # LABEL_0, LABEL_1, ... are no names


def test_names_stand_in_either_table():
    placeholders = {"0": "LABEL_0", "1": "LABEL_1"}
    numbers = {"dog": 1, "cat": 0}
    for given in ({}, {"id2label": placeholders}):
        assert huggingface.read_classes({**given, "label2id": numbers}, 2) == ("cat", "dog")
        assert (
            huggingface.read_classes({**given, "label2id": {"LABEL_1": 1, "LABEL_0": 0}}, 2) == ()
        )
        assert huggingface.read_classes({**given, "label2id": {"dog": 7, "cat": 0}}, 2) == ()
    both = {"id2label": {"0": "emu", "1": "fox"}, "label2id": numbers}
    assert huggingface.read_classes(both, 2) == ("emu", "fox")


def test_preprocessing_of_a_bit(tmp_path):
    facts = load(tmp_path, "hf_bit").spec
    data = facts.data
    assert facts.assumed == {}
    assert (data.image_size, data.eval_crop, data.resize_to) == ((48, 48), "central", 64)
    assert (data.mean, data.std, data.resampling) == ((0.5,), (0.5,), "antialiased_bicubic")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("fields", "expected", "assumed"),
    [
        ({"size": 32, "resample": 2}, {"resampling": "antialiased_bilinear"}, set()),
        ({"do_normalize": False}, {"mean": (0.0,), "std": (1.0,)}, set()),
        ({"do_rescale": False, "image_mean": [127.5], "image_std": [127.5]},
         {"mean": (0.5,), "std": (0.5,)}, set()),
        ({"rescale_factor": 1 / 127.5, "image_mean": [1], "image_std": [1]},
         {"mean": (0.5,), "std": (0.5,)}, set()),
        ({"resample": 0}, {"resampling": "nearest"}, set()),
        ({"resample": 1}, {"resampling": "lanczos"}, set()),
        ({"size": {"shortest_edge": 36}, "do_center_crop": True, "crop_size": 32},
         {"eval_crop": "central", "resize_to": 36}, set()),
        ({"size": {"height": 40, "width": 40}, "do_center_crop": True, "crop_size": 32},
         {"eval_crop": "squash", "resize_to": 40, "crop_rounding": "down"}, set()),
        ({"size": {"shortest_edge": 30}, "do_center_crop": True, "crop_size": 32},
         {"eval_crop": "central", "resize_to": 30, "fill": (0.0,)}, set()),
        # As DINOv2, of 518 pixels, whose processor makes 224: the same part of the image.
        ({"size": {"shortest_edge": 18}, "do_center_crop": True, "crop_size": 16},
         {"eval_crop": "central", "resize_to": 36}, {huggingface.OWN_SIZE}),
        ({"size": 20, "do_center_crop": True, "crop_size": 16},
         {"eval_crop": "squash", "resize_to": 40}, {huggingface.OWN_SIZE}),
        ({"size": {"height": 20, "width": 40}, "do_center_crop": True,
          "crop_size": {"height": 16, "width": 32}},
         {"eval_crop": "squash", "crop_pct": 0.8, "fill": None}, {huggingface.OWN_SIZE}),
        ({"size": 36}, {"eval_crop": "resize"}, {huggingface.OWN_SIZE}),
        ({"size": {"height": 32, "width": 32, "shortest_edge": None}}, {}, set()),
        ({"crop_size": 16}, {"eval_crop": "resize"}, set()),  # ViT's crops only when told to
        ({"size": 36, "default_to_square": False, "do_center_crop": True, "crop_size": 32},
         {"eval_crop": "central", "resize_to": 36}, set()),
        ({"do_flip_channel_order": True}, {}, {"pixels"}),
        ({"crop_pct": 0.9}, {}, {"pixels"}),
        ({"image_processor_type": "BlipImageProcessor"}, {},
         {"pixels as ViT's processor makes them"}),
    ],
)  # fmt: skip
def test_preprocessing(tmp_path, fields, expected, assumed):
    facts = load(tmp_path, "hf_sharded", preprocessor_config=fields).spec
    for key, value in expected.items():
        assert getattr(facts.data, key) == (
            pytest.approx(value, rel=1e-12) if key in ("mean", "std") else value
        )
    assert set(facts.assumed) == assumed


@pytest.mark.parametrize(
    ("fields", "option"),
    [
        # transformers makes views of an image's own shape, which its models refuse too.
        ({"size": {"shortest_edge": 36}}, "data.eval_crop"),
        ({"size": {"shortest_edge": 24, "longest_edge": 36}}, "data.eval_crop"),
        ({"size": {"max_height": 32, "max_width": 32}}, "data.eval_crop"),
        ({"do_pad": True}, "data.eval_crop"),
        ({"do_resize": False, "do_center_crop": True, "crop_size": 32}, "data.eval_crop"),
        ({"size": {"height": 40, "width": 44}, "do_center_crop": True, "crop_size": 32},
         "data.eval_crop"),
        ({"size": {"shortest_edge": 400}, "do_center_crop": True, "crop_size": 32},
         "data.eval_crop"),
        ({"resample": 9}, "data.resampling"),
    ],
)  # fmt: skip
def test_views_that_nothing_here_makes_are_refused_unless_another_is_set(tmp_path, fields, option):
    path = foreign.write(tmp_path, foreign.record("hf_sharded"), preprocessor_config=fields)
    with pytest.raises(weights.WeightsError, match=f"there are no such views here; .*{option}="):
        weights.load(path)
    value = {"data.eval_crop": "resize", "data.resampling": "antialiased_bicubic"}[option]
    assert weights.load(path, {option: value}).assumed == ()
    assert weights.load(path, wanted=config.build({})).assumed == ()  # which has its own views


def test_processors_have_the_defaults_of_their_class():
    """As transformers 5.24 sets them, for fields that its older versions did not write."""

    def read(files):
        hints = family.Hints(files=files)
        data, assumed = huggingface.read_data(hints, huggingface.seen_size(hints), 3)
        assert not assumed
        return data

    deit = read({"preprocessor_config.json": {"feature_extractor_type": "DeiTFeatureExtractor"}})
    assert (deit.eval_crop, deit.before_crop) == ("squash", (256, 256))
    assert (deit.image_size, deit.resampling) == ((224, 224), "antialiased_bicubic")
    old = {"feature_extractor_type": "CLIPFeatureExtractor", "size": 240}
    clip = read({"preprocessor_config.json": old})
    assert (clip.eval_crop, clip.before_crop) == ("central", (240, 240))
    # Version 5 writes a section of processor_config.json, which it prefers.
    section = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 230}}
    files = {"processor_config.json": {"image_processor": section, "processor_class": "CLIP"}}
    new = read(files | {"preprocessor_config.json": old})
    assert (new.before_crop, new.mean) == ((230, 230), (0.48145466, 0.4578275, 0.40821073))
    beit = read({"preprocessor_config.json": {"image_processor_type": "BeitImageProcessor",
                                              "crop_size": 224, "size": 224}})  # fmt: skip
    assert beit.eval_crop == "resize"


def test_a_view_of_the_size_that_the_user_sets_is_the_same_part_of_an_image(tmp_path):
    fields = {"size": {"shortest_edge": 18}, "do_center_crop": True, "crop_size": 16}
    path = foreign.write(tmp_path, foreign.record("hf_sharded"), preprocessor_config=fields)
    loaded = weights.load(path, {"data.image_size": "16"})
    assert (loaded.spec.data.resize_to, loaded.assumed) == (18, ())


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        ("vit", ("resize", (0.5,), "antialiased_bilinear")),
        ("vit_mae", ("resize", huggingface.IMAGENET, "antialiased_bilinear")),
        ("ijepa", ("resize", huggingface.IMAGENET, "antialiased_bilinear")),
        ("deit", ("squash", huggingface.IMAGENET, "antialiased_bicubic")),
        ("dinov2", ("central", huggingface.IMAGENET, "antialiased_bicubic")),
        ("dinov3_vit", ("resize", huggingface.IMAGENET, "antialiased_bilinear")),
        ("clip", ("central", huggingface.CLIP, "antialiased_bicubic")),
        ("siglip", ("resize", (0.5,), "antialiased_bicubic")),
    ],
)
def test_what_is_assumed_of_pixels_follows_from_the_model_type(model_type, expected):
    hints = family.Hints(files={"config.json": {"model_type": model_type}})
    data, assumed = huggingface.read_data(hints, (224, 224), 3)
    crop, mean, resampling = expected
    mean = mean if isinstance(mean, tuple) else mean["image_mean"]
    assert (data.eval_crop, data.mean, data.resampling) == (crop, mean, resampling)
    assert set(assumed.values()) == {
        f"as of {model_type} by default; there is no preprocessor_config.json"
    }
    assert huggingface.read_data(hints, (224, 224), 1)[0].mean == (0.5,)  # nobody says three


@pytest.mark.parametrize("field", ["layer_norm_eps", "hidden_act", "qkv_bias", "id2label"])
def test_a_field_that_is_null_is_as_one_that_is_missing(tmp_path, field):
    described = foreign.record("hf_model")
    described["files"]["config.json"].pop(field, None)
    missing = foreign.write(tmp_path, described)
    expected = weights.load(missing).spec
    assert weights.load(foreign.write(tmp_path, described, config={field: None})).spec == expected


def test_one_channel_without_a_preprocessor_has_one_mean(tmp_path):
    path = tiny(tmp_path, vit__embeddings__patch_embeddings__projection__weight=(24, 1, 8, 8))
    fields = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**fields, "num_channels": 1}))
    data = weights.load(path).spec.data
    assert (data.channels, data.mean, data.std) == (1, (0.5,), (0.5,))


# Refusals


NORMALIZE = "rescale_factor=0.00392157: normalize no pixels of 3 channels"


@pytest.mark.parametrize(
    ("name", "file", "fields", "message"),
    [
        ("hf_sharded", "config", {"hidden_act": "mish"},
         f"hidden_act=mish: only {', '.join(huggingface.ACTIVATIONS)} are supported"),
        ("hf_sharded", "config", {"model_type": "swin"},
         "model_type=swin: of the Hugging Face models, only bit, aimv2, aimv2_vision_model, "
         "beit, dinov3_vit, siglip2, siglip2_vision_model, clip, clip_vision_model, "
         "metaclip_2, metaclip_2_vision_model, siglip, siglip_vision_model, dinov2, "
         "dinov2_with_registers, ijepa, vit, deit, vit_mae, vit_msn are supported"),
        ("hf_sharded", "config", {"model_type": "dinov3_vit"},
         "model_type=dinov3_vit: there is no embeddings.patch_embeddings.weight in the file"),
        ("hf_sharded", "config", {"head_dim": 16}, "head_dim=16: is not 24 / 3 heads"),
        ("hf_sharded", "config", {"num_attention_heads": "3"},
         "num_attention_heads='3': must be a positive whole number"),
        ("hf_sharded", "config", {"layer_norm_eps": 0}, "layer_norm_eps=0: must be more than 0"),
        ("hf_sharded", "config", {"layer_norm_eps": float("nan")},
         "layer_norm_eps=nan: must be a number or a list of numbers"),
        ("hf_sharded", "config", {"image_size": [32]},
         "image_size=[32]: must be a height and a width"),
        ("hf_sharded", "config", {"model_type": "beit"},
         "model_type=beit: there is no beit.embeddings.patch_embeddings.projection.weight in "
         "the file"),
        ("hf_sharded", "config", {"id2label": {"0": "ant"}},
         "id2label: names 1 classes; the head has 11"),
        ("hf_sharded", "config", {"image_size": 48},
         "vit.embeddings.position_embeddings is (1, 17, 24), not (1, 37, 24)"),
        ("hf_sharded", "config", {"num_attention_heads": 5},
         "model.heads=5: does not divide model.width 24; nearest: 4"),
        ("hf_bit", "config", {"layer_type": "basic"},
         "layer_type=basic: only preactivation and bottleneck are supported"),
        ("hf_bit", "config", {"num_groups": 16}, "num_groups=16: only 32 is supported"),
        ("hf_bit", "config", {"hidden_act": "gelu"}, "hidden_act=gelu: only relu is supported"),
        ("hf_bit", "config", {"output_stride": 4},
         "output_stride=4: dilated units are not supported"),
        ("hf_bit", "config", {"global_padding": "SAME"},
         "global_padding=same with embedding_dynamic_padding=false: "
         "preactivation units pad by none and false here"),
        ("hf_bit", "config", {"layer_type": "bottleneck"},
         "global_padding=none with embedding_dynamic_padding=false: "
         "bottleneck units pad by same and true here"),
        ("hf_sharded", "preprocessor_config", {"image_std": [0.5, 0, 0.5]},
         f"image_mean=[0.4, 0.5, 0.6], image_std=[0.5, 0.0, 0.5], {NORMALIZE}"),
        ("hf_sharded", "preprocessor_config", {"image_mean": [0.5, 0.5]},
         f"image_mean=[0.5, 0.5], image_std=[0.2, 0.25, 0.3], {NORMALIZE}"),
        ("hf_sharded", "preprocessor_config", {"size": {"shortest_edge": -1}},
         "shortest_edge=-1: must be a positive whole number"),
        ("hf_sharded", "config", {"hidden_act": ["gelu"]}, "hidden_act=['gelu']: must be text"),
        ("hf_sharded", "config", {"hidden_act": {"a": 1}}, "hidden_act={'a': 1}: must be text"),
        ("hf_pooler_relu", "config", {"pooler_act": []}, "pooler_act=[]: must be text"),
        ("hf_pooler_relu", "config", {"pooler_act": "mish"},
         "pooler_act=mish: only tanh, relu, silu, swish are supported"),
        ("hf_sharded", "config", {"layer_norm_eps": 10**400},
         f"layer_norm_eps=1{'0' * 76}...: must be a number or a list of numbers"),
    ],
)  # fmt: skip
def test_fields_are_refused_in_one_line(tmp_path, name, file, fields, message):
    path = foreign.write(tmp_path, foreign.record(name), **{file: fields})
    assert refusal(path) == message


def test_arrays_without_config_or_class_token_are_refused(tmp_path):
    (tiny(tmp_path) / "config.json").unlink()
    assert refusal(tmp_path) == (
        "contains a Hugging Face model; its config.json defines heads and epsilons; "
        "put that file next to it"
    )
    path = tiny(tmp_path, drop=("vit.embeddings.cls_token",))
    assert refusal(path) == "contains no vit.embeddings.cls_token"
