import dataclasses

import pytest

from vit_jax import config
from vit_jax.models import check, complete, variants


def test_sizes_are_those_of_the_papers():
    assert variants.SIZES == {
        "Ti": (192, 12, 768, 3),
        "S": (384, 12, 1536, 6),
        "b": (384, 12, 1536, 6),
        "B": (768, 12, 3072, 12),
        "L": (1024, 24, 4096, 16),
        "H": (1280, 32, 5120, 16),
    }


@pytest.mark.parametrize(
    ("name", "architecture", "width", "patch"),
    [
        ("ViT-B/16", "vit", 768, 16),
        ("ViT-B_16", "vit", 768, 16),
        ("ViT-b/32", "vit", 384, 32),
        ("ViT-H/14", "vit", 1280, 14),
        ("ViT-Ti/2", "vit", 192, 2),
        ("AxialViT-B/16", "axial_vit", 768, 16),
        ("AxialViT-B_32", "axial_vit", 768, 32),
    ],
)
def test_encoders(name, architecture, width, patch):
    size = {192: (12, 768, 3), 384: (12, 1536, 6), 768: (12, 3072, 12), 1280: (32, 5120, 16)}
    depth, mlp_dim, heads = size[width]
    assert variants.parse(name) == {
        "architecture": architecture, "patch_size": (patch, patch), "width": width, "depth": depth,
        "mlp_dim": mlp_dim, "heads": heads,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "width", "units", "patch"),
    [
        ("R50+ViT-B/32", 768, (3, 4, 6, 3), 1),
        ("R50+ViT-B/16", 768, (3, 4, 9), 1),  # stage 4's units added to stage 3
        ("R50x1+ViT-L_32", 1024, (3, 4, 6, 3), 1),
        ("R26+ViT-S/32", 384, (2, 2, 2, 2), 1),
        ("R+ViT-Ti/16", 192, (), 8),
    ],
)
def test_hybrids(name, width, units, patch):
    options = variants.parse(name)
    assert (options["architecture"], options["width"]) == ("vit", width)
    assert (options["resnet_units"], options["resnet_width"]) == (units, 1.0)
    assert options["patch_size"] == (patch, patch)


@pytest.mark.parametrize(
    ("name", "architecture", "units", "width"),
    [
        ("R50x1", "resnet", (3, 4, 6, 3), 1.0),
        ("R50x2", "resnet", (3, 4, 6, 3), 2.0),
        ("R101x1", "resnet", (3, 4, 23, 3), 1.0),
        ("R152x2", "resnet", (3, 8, 36, 3), 2.0),
        ("R200x3", "resnet", (3, 24, 36, 3), 3.0),
        ("AxialResNet50", "axial_resnet", (3, 4, 6, 3), 1.0),
    ],
)
def test_resnets(name, architecture, units, width):
    expected = {"architecture": architecture, "resnet_units": units, "resnet_width": width}
    assert variants.parse(name) == expected


FORM = "not a name like ViT-B/16, R50+ViT-B/32, R50x1, AxialViT-B/16 or AxialResNet50"
SIZES = "(sizes: Ti, S, b, B, L, H)"
RESNETS = "(ResNets: R26, R50, R101, R152, R200)"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ViT-X/16", f"no size X {SIZES}; nearest: ViT-S/16, ViT-b/16, ViT-B/16"),
        ("ViT-h/14", f"no size h {SIZES}; nearest: ViT-H/14, ViT-S/14, ViT-b/14"),
        ("vit-l/16", f"{FORM}; nearest: ViT-L/16, ViT-S/16, ViT-b/16"),
        ("vit_b_16", f"{FORM}; nearest: ViT-b/16, ViT-B/16"),
        ("ViT-B16", f"{FORM}; nearest: ViT-B/16, ViT-b/16, ViT-S/16"),
        ("H/14", f"{FORM}; nearest: ViT-H/14"),
        ("ViT-B/0", f"{FORM}; nearest: ViT-B/8, ViT-B/14, ViT-B/16"),
        ("ViT-B/016", f"{FORM}; nearest: ViT-B/16, ViT-b/16, ViT-S/16"),
        ("ViT-B/16 ", f"{FORM}; nearest: ViT-B/16, ViT-b/16, ViT-S/16"),
        ("ViT-B/16\n", f"{FORM}; nearest: ViT-B/16, ViT-b/16, ViT-S/16"),
        ("ViT-B/١٦", f"{FORM}; nearest: ViT-B/8, ViT-B/14, ViT-B/16"),
        ("R51x1", f"no ResNet R51 {RESNETS}; nearest: R50x1, R101x1, R152x1"),
        ("R50", f"{FORM}; nearest: R50x1, R50x2, R50x3"),
        ("R50X1", f"{FORM}; nearest: R50x1, R50x2, R50x3"),
        ("R50x0", f"{FORM}; nearest: R50x1, R50x2, R50x3"),
        ("R\u0665\u0660x1", FORM),
        (
            "R50+ViT-Q/16",
            f"no size Q {SIZES}; nearest: R50+ViT-S/16, R50+ViT-b/16, R50+ViT-B/16",
        ),
        (
            "R49+ViT-B/32",
            f"no ResNet R49 {RESNETS}; nearest: R26+ViT-B/32, R50+ViT-B/32, ViT-B/32",
        ),
        (
            "R50+ViT-B/8",
            "no hybrid samples down by 8 (16 or 32); "
            "nearest: R50+ViT-B/16, R50+ViT-B/32, R50+ViT-b/16",
        ),
        (
            "R+ViT-Ti/32",
            "no hybrid samples down by 32 (16); nearest: R26+ViT-Ti/32, R50+ViT-Ti/32, ViT-Ti/32",
        ),
        (
            "R50x2+ViT-B/16",
            f"{FORM}; nearest: R50+ViT-B/16, R152+ViT-B/16, R50+ViT-b/16",
        ),
        ("axialresnet50", f"{FORM}; nearest: AxialResNet50"),
        ("AxialViT-Z/16", f"no size Z {SIZES}; nearest: AxialViT-B/16, AxialViT-B/32, ViT-S/16"),
        ("mixer", FORM),
        ("", FORM),
    ],
)
def test_wrong_names(name, message):
    with pytest.raises(config.ConfigError) as raised:
        variants.parse(name)
    shown = name.replace("\n", "\\n")  # messages are one line
    assert str(raised.value) == f"model.variant={shown}: {message}"


# Completing


def test_complete_fills_only_what_is_left_open():
    model = config.Model(variant="ViT-S/16", depth=3, patch_size=(4, 8), dropout=0.1)
    filled = dataclasses.replace(model, architecture="vit", width=384, mlp_dim=1536, heads=6)
    assert complete(model) == filled
    assert complete(filled) == filled


def test_complete_keeps_what_is_set_of_a_resnet():
    model = config.Model(variant="R50x2", resnet_units=(1, 1), resnet_width=0.5)
    assert complete(model) == dataclasses.replace(model, architecture="resnet")
    model = config.Model(variant="R50+ViT-B/16", architecture="axial_vit", resnet_width=2.0)
    completed = complete(model)
    assert (completed.architecture, completed.resnet_width) == ("axial_vit", 2.0)
    assert completed.resnet_units == (3, 4, 9)


def test_complete_without_a_variant():
    """Names the plain architecture, and the width of a ResNet whose units are given."""
    model = config.Model(width=8)
    assert complete(model) == dataclasses.replace(model, architecture="vit")
    model = config.Model(architecture="resnet", resnet_units=(1, 2))
    assert complete(model) == dataclasses.replace(model, resnet_width=1.0)


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
        {"patch_size": (3, 5), "patch_remainder": "drop"},
        {"pooling": "gap", "class_token": True, "class_position": False},
        {"variant": "R50x1", "patch_size": None, "width": None, "depth": None},
    ],
)
def test_fitting_models_pass(changes):
    check(complete(dataclasses.replace(TINY, **changes)), (8, 8))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"depth": None},
            "model.depth=none: not known; set it, or name a size with model.variant=ViT-B/16",
        ),
        ({"heads": 5}, "model.heads=5: does not divide model.width 16; nearest: 4"),
        (
            {"width": 18, "position": "sincos_2d"},
            "model.width=18: model.position sincos_2d needs a multiple of 4; nearest: 16",
        ),
        (
            {"width": 9, "heads": 3, "position": "sincos_1d"},
            "model.width=9: model.position sincos_1d needs a multiple of 2; nearest: 8",
        ),
        (
            {"width": 9, "heads": 3, "position": "learned_2d"},
            "model.width=9: model.position learned_2d needs a multiple of 2; nearest: 8",
        ),
        (
            {"position": "sincos_2d", "position_place": "layers"},
            "model.position_place=layers: only learned_1d and learned_2d can be added at every "
            "layer, not sincos_2d; set stem",
        ),
        (
            {"position": "relative", "position_place": "shared"},
            "model.position_place=shared: only learned_1d and learned_2d can be added at every "
            "layer, not relative; set stem",
        ),
        (
            {"position": "relative", "attention": "xla"},
            "model.attention=xla: relative positions need explicit",
        ),
        (
            {"architecture": "axial_vit"},
            "model.pooling=token: axial_vit keeps its tokens in rows and columns, without a class "
            "token; set gap",
        ),
        (
            {"architecture": "axial_vit", "pooling": "gap", "position": "relative"},
            "model.position=relative: axial_vit has no relative positions; set learned_1d",
        ),
        (
            {"architecture": "axial_vit", "pooling": "gap", "class_token": True},
            "model.class_token=true: axial_vit keeps its tokens in rows and columns, without a "
            "class token; set none",
        ),
        (
            {"class_token": False},
            "model.class_token=false: model.pooling token is what the class token becomes; set "
            "none, or model.pooling=first",
        ),
        (
            {"patch_size": (4, 16), "patch_remainder": "drop"},
            "data.image_size=8,12: width 12 is not a multiple of model.patch_size 16; nearest: 16",
        ),
        ({"unroll": 3}, "model.unroll=3: more than model.depth 2"),
        (
            {"resnet_units": (1, 1), "patch_size": (1, 1)},
            "data.image_size=8,12: width 12 is not a multiple of model.patch_size 1 x 8 (the "
            "ResNet's down-sampling); nearest: 8",
        ),
        (
            {"patch_size": (4, 8)},
            "data.image_size=8,12: width 12 is not a multiple of model.patch_size 8; nearest: 8",
        ),
        (
            {"patch_size": (16, 4)},
            "data.image_size=8,12: height 8 is not a multiple of model.patch_size 16; nearest: 16",
        ),
        (
            {"architecture": "resnet"},
            "model.resnet_units=none: resnet needs the units of its stages; set 3,4,6,3, or name "
            "one with model.variant=R50x1",
        ),
        (
            {"variant": "R50x1", "dropout": 0.1},
            "model.dropout=0.1: resnet has none; set 0",
        ),
        (
            {"variant": "R50x1", "remat": "attention"},
            "model.remat=attention: resnet has no encoder whose attention could be recomputed; "
            "set full, dots or none",
        ),
        (
            {"variant": "AxialResNet50", "stochastic_depth": 0.25},
            "model.stochastic_depth=0.25: axial_resnet has none; set 0",
        ),
        (
            {"pooling": "token_gap", "class_token": False},
            "model.class_token=false: model.pooling token_gap is what the class token becomes; set "
            "none, or model.pooling=gap",
        ),
        (
            {"pooling": "first", "registers": 2},
            "model.pooling=first: the first of 2 registers, which stand before the patches, is not "
            "made for that; set token or gap",
        ),
        (
            {"pooling": "token_gap", "norm_place": "pooled"},
            "model.norm_place=pooled: model.pooling token_gap puts two vectors side by side, which "
            "are normalized apart; set tokens",
        ),
        (
            {"pooling": "distilled"},
            "model.distillation=false: model.pooling distilled reads that token; set true, or "
            "model.pooling=token",
        ),
        (
            {"pooling": "gap", "distillation": True},
            "model.distillation=true: the token follows a class token; set model.class_token=true",
        ),
        (
            {"biasless": ("head",), "head_bias": -10.0},
            "model.head_bias=-10: model.biasless leaves the head without one; set 0",
        ),
        (
            {"rotary": 100.0, "heads": 8},
            "model.rotary=100: turns pairs of features by row and column, so heads must be "
            "multiples of 4 wide, not 2; set model.heads or model.width",
        ),
        (
            {"distillation": True, "pooling": "distilled", "representation_size": 4},
            "model.representation_size=4: model.pooling distilled has two heads, without a layer "
            "before them; set none",
        ),
        (
            {"pooling": "token_gap", "architecture": "axial_vit"},
            "model.pooling=token_gap: axial_vit keeps its tokens in rows and columns, without a "
            "class token; set gap",
        ),
        (
            {"relative_bias": "layers", "attention": "xla"},
            "model.attention=xla: relative positions need explicit",
        ),
        (
            {"rotary": 100.0, "rotary_grid": (4, 4), "rotary_span": "max"},
            "model.rotary_span=max: spans -1 to 1, which model.rotary_grid replaces; set separate",
        ),
    ],
)
def test_models_that_do_not_fit(changes, message):
    with pytest.raises(config.ConfigError) as raised:
        check(complete(dataclasses.replace(TINY, **changes)), (8, 12))
    assert str(raised.value) == message
