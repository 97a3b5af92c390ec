"""Models by name, what their options imply, and options that do not fit each other."""

import dataclasses

import pytest

from vit_jax import config
from vit_jax.models import architectures, check_model, complete, find_architecture, variants

FORM = "not a name like ViT-B/16, R50+ViT-B/32, R50x1, AxialViT-B/16 or AxialResNet50"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ViT-X/16", "no size X (sizes: Ti, S, b, B, L, H); nearest: ViT-S/16, ViT-b/16, ViT"),
        ("vit-l/16", f"{FORM}; nearest: ViT-L/16, ViT-S/16, ViT-b/16"),
        ("ViT-B/0", f"{FORM}; nearest: ViT-B/8, ViT-B/14, ViT-B/16"),
        ("ViT-B/16\n", f"{FORM}; nearest: ViT-B/16, ViT-b/16, ViT-S/16"),
        ("ViT-B/\u0661\u0666", f"{FORM}; nearest: ViT-B/8, ViT-B/14, ViT-B/16"),
        ("R51x1", "no ResNet R51 (ResNets: R26, R50, R101, R152, R200); nearest: R50x1, R101x1"),
        ("R50x0", f"{FORM}; nearest: R50x1, R50x2, R50x3"),
        ("R50+ViT-Q/16", "no size Q (sizes: Ti, S, b, B, L, H); nearest: R50+ViT-S/16, R50+ViT"),
        ("R49+ViT-B/32", "no ResNet R49 (ResNets: R26, R50, R101, R152, R200); nearest: R26+ViT-"),
        ("R50+ViT-B/8", "no hybrid samples down by 8 (16 or 32); nearest: R50+ViT-B/16, R50+ViT-"),
        ("R+ViT-Ti/32", "no hybrid samples down by 32 (16); nearest: R26+ViT-Ti/32, R50+ViT-Ti/3"),
        ("axialresnet50", f"{FORM}; nearest: AxialResNet50"),
        ("vit_tiny_patch16_224", f"{FORM}; nearest: ViT-Ti/16"),
        ("vit-base-patch16-224", f"{FORM}; nearest: ViT-B/16"),
        ("vit_l_32", f"{FORM}; nearest: ViT-L/32"),
        ("dinov2_vits14", f"{FORM}; nearest: ViT-S/14"),
        ("mixer", FORM),
        ("", FORM),
    ],
)
def test_wrong_names(name, message):
    with pytest.raises(config.ConfigError) as raised:
        variants.parse_variant(name)
    shown = name.replace("\n", "\\n")  # messages are one line
    assert str(raised.value).startswith(f"model.variant={shown}: {message}")


# Completing


def test_complete_fills_only_what_is_left_open():
    model = config.Model(variant="ViT-S/16", depth=3, patch_size=(4, 8), dropout=0.1)
    filled = dataclasses.replace(model, architecture="vit", width=384, mlp_dim=1536, heads=6)
    assert complete(model) == filled
    assert complete(filled) == filled


def test_complete_without_a_variant():
    """Names the plain architecture, and the width of a ResNet whose units are given."""
    model = config.Model(width=8)
    assert complete(model) == dataclasses.replace(model, architecture="vit")
    model = config.Model(architecture="resnet", resnet_units=(1, 2))
    assert complete(model) == dataclasses.replace(model, resnet_width=1.0)


@pytest.mark.parametrize(
    ("variant", "multiple"), [("ViT-B/16", (16, 16)), ("R50+ViT-B/32", (32, 32)), ("R50x1", (1, 1))]
)
def test_images_are_of_whole_patches_and_of_any_size_for_a_resnet(variant, multiple):
    model = complete(config.Model(variant=variant))
    assert find_architecture(model).multiple(model) == multiple


def test_without_an_architectures_own_word_nothing_is_cast_and_there_is_no_grid():
    base = architectures.Architecture()
    assert not base.reads_in_compute_type("layers/kernel")
    with pytest.raises(config.ConfigError, match=r"^model.architecture=vit: has no grid of"):
        base.grid(config.Model(architecture="vit"), (8, 8))


def test_a_small_resnet_has_the_parts_of_the_whole_one():
    model = complete(config.Model(variant="R50x1", representation_size=300))
    for unroll, kept in ((None, None), (1, 1), (7, 2)):
        given = dataclasses.replace(model, unroll=unroll)
        small, size = find_architecture(given).shrink(given, (224, 224))
        assert (small.unroll, small.representation_size) == (kept, architectures.SMOKE_WIDTH)
        assert find_architecture(small).grid(small, size) == (2, 2)


@pytest.mark.parametrize(
    ("variant", "image_size", "grid"),
    [
        ("ViT-B/16", (224, 224), (14, 14)),
        ("ViT-H/14", (518, 224), (37, 16)),
        ("R50+ViT-B/16", (224, 224), (14, 14)),
        ("R50+ViT-L/32", (384, 224), (12, 7)),
        ("R+ViT-Ti/16", (224, 224), (7, 7)),
        ("R50x1", (224, 224), (7, 7)),
        ("R50x1", (33, 65), (2, 3)),
        ("AxialViT-B/16", (224, 224), (14, 14)),
        ("AxialResNet50", (224, 224), (7, 7)),
    ],
)
def test_grid(variant, image_size, grid):
    assert variants.grid(complete(config.Model(variant=variant)), image_size) == grid


@pytest.mark.parametrize(
    ("changes", "image_size", "covered"),
    [
        ({}, (224, 192), (224, 192)),
        ({"patch_remainder": "drop"}, (230, 207), (224, 192)),
        ({"variant": "R50+ViT-B/16"}, (224, 224), (224, 224)),
        ({"variant": "R+ViT-Ti/16", "patch_remainder": "drop"}, (70, 33), (64, 32)),
        ({"variant": "R50x1"}, (33, 65), (33, 65)),
    ],
)
def test_what_patches_lie_on(changes, image_size, covered):
    model = complete(dataclasses.replace(config.Model(variant="ViT-B/16"), **changes))
    assert variants.covered(model, image_size) == covered


# Checking

TINY = config.Model(patch_size=(4, 4), width=16, depth=2, mlp_dim=24, heads=2)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"position": "sincos_2d"},
        {"position": "learned_2d", "position_place": "shared", "width": 6},
        {"position": "relative", "pooling": "map"},
        {"architecture": "axial_vit", "pooling": "gap"},
        {"unroll": 2},
        {"pooled_layers": 2},
        {"patch_size": (3, 5), "patch_remainder": "drop"},
        {"pooling": "gap", "class_token": True, "class_position": False},
        {"variant": "R50x1", "patch_size": None, "width": None, "depth": None},
    ],
)
def test_fitting_models_pass(changes):
    check_model(complete(dataclasses.replace(TINY, **changes)), (8, 8))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": None}, "depth=none: not known; set it, or name a size with model.variant"),
        ({"heads": 5}, "heads=5: does not divide model.width 16; nearest: 4"),
        ({"width": 18, "position": "sincos_2d"}, "width=18: model.position sincos_2d needs"),
        ({"width": 9, "heads": 3, "position": "sincos_1d"}, "width=9: model.position sincos_1d"),
        ({"width": 9, "heads": 3, "position": "learned_2d"}, "width=9: model.position learned_2d"),
        ({"position": "relative", "position_place": "shared"}, "position_place=shared: only"),
        ({"position": "relative", "attention": "xla"}, "attention=xla: relative positions need"),
        ({"relative_bias": "layers", "attention": "xla"}, "attention=xla: relative positions need"),
        ({"architecture": "axial_vit"}, "pooling=token: axial_vit keeps its tokens in rows and"),
        ({"architecture": "axial_vit", "pooling": "gap", "position": "relative"},
         "position=relative: axial_vit has no relative positions; set learned_1d"),
        ({"architecture": "axial_vit", "pooling": "gap", "class_token": True},
         "class_token=true: axial_vit keeps its tokens in rows and columns, without a class token"),
        ({"class_token": False}, "class_token=false: model.pooling=token reads the class "
         "token; set none, or model.pooling=first"),
        ({"pooling": "token_gap", "class_token": False}, "class_token=false: "
         "model.pooling=token_gap reads the class token; set none, or model.pooling=gap"),
        ({"unroll": 3}, "unroll=3: more than model.depth 2"),
        ({"architecture": "resnet"}, "resnet_units=none: resnet needs the units of its stages"),
        ({"variant": "R50x1", "dropout": 0.1}, "dropout=0.1: resnet has none; set 0"),
        ({"variant": "R50x1", "remat": "attention"}, "remat=attention: resnet has no encoder"),
        ({"variant": "AxialResNet50", "stochastic_depth": 0.25}, "stochastic_depth=0.25: axial_r"),
        ({"pooling": "first", "registers": 2}, "pooling=first: would read the first of 2 regis"),
        ({"pooling": "token_gap", "norm_place": "pooled"}, "norm_place=pooled: model.pooling tok"),
        ({"pooled_layers": 2, "norm_place": "pooled"}, "norm_place=pooled: model.pooled_layers 2"),
        ({"pooled_layers": 3}, "pooled_layers=3: more than model.depth 2"),
        ({"pooling": "distilled"}, "distillation=false: model.pooling distilled reads that token"),
        ({"pooling": "gap", "distillation": True}, "distillation=true: the token follows a class"),
        ({"biasless": ("head",), "head_bias": -10.0}, "head_bias=-10: model.biasless leaves the"),
        ({"rotary": 100.0, "heads": 8}, "rotary=100: turns pairs of features by row and column"),
        ({"rotary": 100.0, "rotary_grid": (4, 4), "rotary_span": "max"}, "rotary_span=max: spans"),
        ({"distillation": True, "pooling": "distilled", "representation_size": 4},
         "representation_size=4: model.pooling distilled has two heads, without a layer"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit(changes, message):
    with pytest.raises(config.ConfigError) as raised:
        check_model(complete(dataclasses.replace(TINY, **changes)), (8, 12))
    assert str(raised.value).startswith(f"model.{message}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patch_size": (4, 8)}, "width 12 is not a multiple of model.patch_size 8; nearest: 8"),
        ({"patch_size": (16, 4)}, "height 8 is not a multiple of model.patch_size 16; nearest: 16"),
        ({"patch_size": (4, 16), "patch_remainder": "drop"},
         "width 12 is not a multiple of model.patch_size 16; nearest: 16"),
        ({"resnet_units": (1, 1), "patch_size": (1, 1)}, "width 12 is not a multiple of "
         "model.patch_size 1 x 8 (the ResNet's down-sampling); nearest: 8"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_the_patches(changes, message):
    with pytest.raises(config.ConfigError) as raised:
        check_model(complete(dataclasses.replace(TINY, **changes)), (8, 12))
    assert str(raised.value) == f"data.image_size=8,12: {message}"


def test_options_that_a_family_does_not_read():
    """False is an answer; 0, none and an empty list ask for nothing."""
    axial = dataclasses.replace(TINY, architecture="axial_vit", class_position=False)
    with pytest.raises(
        config.ConfigError, match="class_position=[Ff]alse: model.arch.*=axial_vit does"
    ):
        variants.check_read(axial, ["registers", "class_position"])
    variants.check_read(dataclasses.replace(axial, architecture="vit"), ["class_position"])


def test_only_patches_can_be_masked():
    color = config.MaskedPatches(rate=0.45)
    assert variants.masked_patches(color, 6) == 3  # of 2.7
    variants.check_masked(complete(TINY), color)
    with pytest.raises(config.ConfigError, match="^objective.name=masked_patches: resnet has no"):
        variants.check_masked(complete(config.Model(variant="R50x1")), color)
