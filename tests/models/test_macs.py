"""Counted FLOPs: those of the paper's table 6, and of the compiled program."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import resnet_reference
from vit_jax import config, models

ENCODER = config.Model(
    architecture="vit", patch_size=(2, 2), width=16, depth=2, mlp_dim=24, heads=2, num_classes=5
)
RESNET = config.Model(architecture="resnet", resnet_width=0.5, num_classes=5)
HYBRID = dataclasses.replace(ENCODER, patch_size=(1, 1), resnet_width=0.5)

AXIAL = dataclasses.replace(ENCODER, architecture="axial_vit", pooling="gap")
AXIAL_RESNET = config.Model(
    architecture="axial_resnet", resnet_units=(1, 2), resnet_width=0.5, num_classes=5
)
PARTS = [
    {"distillation": True, "pooling": "distilled"},
    {"layer_scale": 0.1},
    {"registers": 2},
    {"mlp": "swiglu"},
    {"pooling": "token_gap"},
    {"stem_norm": True, "biasless": ("patches", "head"), "gelu": "quick"},
    {"rotary": 100.0, "position": "none", "registers": 2, "biasless": ("key",)},
    {"rotary": 10000.0, "rotary_grid": (16, 16), "sub_norm": ("attention", "mlp")},
    {"relative_bias": "layers", "mlp": "swiglu", "sub_norm": ("mlp",)},
    {"relative_bias": "shared", "position": "none", "registers": 1},
    {"norm": "rms", "qk_norm": True, "stem_norm": True, "pooling": "map"},
    {"pooling": "map", "pooling_heads": 1, "pooling_prefix": True, "class_token": True},
    {"pooling": "map", "pooling_mlp_dim": 20, "rotary": 10.0, "rotary_learned": True},
    {"norm": "rms", "patch_norm": True, "mlp": "swiglu", "pooling": "gap"},
]


def macs(model, image_size, channels):
    return models.flops(model, image_size, channels) // 2


def in_pretraining(variant, version="v1"):
    """The multiply-accumulates as the paper's runs on JFT had them, at 224 pixels.

    A head for 18,291 classes; Transformers have a tanh layer of their width before it.
    """
    model = models.complete(
        config.Model(variant=variant, num_classes=18_291, resnet_version=version)
    )
    if model.architecture == "vit":
        model = dataclasses.replace(model, representation_size=model.width)
    return macs(model, (224, 224), 3)


def exaflops(count, epochs):
    """Two operations per multiply-accumulate, and a backward pass that costs two forward ones."""
    return 6 * count * epochs * 303e6 / 1e18


TABLE_6 = [
    ("ViT-B/32", 7, 4.42, 55),
    ("ViT-B/16", 7, 17.58, 224),
    ("ViT-L/32", 7, 15.40, 196),
    ("ViT-L/16", 7, 61.57, 783),
    ("ViT-L/16", 14, 61.57, 1567),
    ("ViT-H/14", 14, 167.32, 4262),
    ("R50x1", 7, 3.98, 50),
    ("R50x2", 7, 15.63, 199),
    ("R101x1", 7, 7.51, 96),
    ("R152x1", 7, 11.06, 141),
    ("R152x2", 7, 43.95, 563),
    ("R152x2", 14, 43.95, 1126),
    ("R200x3", 14, 129.31, 3306),
    ("R50x1+ViT-B/32", 7, 8.33, 106),
    ("R50x1+ViT-B/16", 7, 21.43, 274),
    ("R50x1+ViT-L/32", 7, 19.29, 246),
    ("R50x1+ViT-L/16", 7, 65.44, 859),
    ("R50x1+ViT-L/16", 14, 65.44, 1668),
]


@pytest.mark.parametrize(("variant", "epochs", "gmacs", "printed"), TABLE_6)
def test_compute_of_table_6(variant, epochs, gmacs, printed):
    count = in_pretraining(variant)
    assert abs(count / 1e9 - gmacs) < 0.0051
    ratio = exaflops(count, epochs) / printed
    if printed == 859:
        # The paper's own slip: the same model costs 1668 in twice the epochs, and half of that
        # is what we count.
        assert abs(ratio - 832.8 / 859) < 1e-4
        assert abs(exaflops(count, epochs) / (1668 / 2) - 1) < 0.002
    elif variant in ("ViT-B/32", "R50x1"):  # printed 55 and 50: rounding alone is 1 %
        assert abs(ratio - 1) < 0.025
    else:
        assert abs(ratio - 1) < 0.007


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("model", "changes", "image_size"),
    [
        (RESNET, {"resnet_units": (1,)}, (224, 224)),
        (RESNET, {"resnet_units": (2, 1, 3), "representation_size": 7}, (45, 34)),
        (RESNET, {"resnet_units": (2, 1, 3), "resnet_version": "v2"}, (45, 34)),
        (RESNET, {"resnet_units": (1, 1, 1, 1), "resnet_width": 1.0}, (5, 64)),
        (RESNET, {"resnet_units": (1, 1, 1, 1), "resnet_version": "v2"}, (1, 3)),
        (HYBRID, {"resnet_units": (1, 2)}, (32, 48)),
        (HYBRID, {"resnet_units": (1, 2), "resnet_version": "v2", "pooling": "gap"}, (32, 48)),
        (HYBRID, {"resnet_units": (), "patch_size": (2, 3)}, (32, 48)),
        (ENCODER, {}, (8, 6)),
        (ENCODER, {"pooling": "gap", "position": "relative"}, (8, 6)),
        (ENCODER, {"position": "relative", "representation_size": 7}, (8, 6)),
        (ENCODER, {"pooling": "map"}, (8, 6)),
        (ENCODER, {"pooling": "map", "position": "relative"}, (4, 4)),
        (ENCODER, {"pooling": "map", "class_token": True}, (8, 6)),
        (ENCODER, {"pooling": "gap", "class_token": True}, (8, 6)),
        (ENCODER, {"pooling": "first"}, (8, 6)),
        (ENCODER, {"pooling": "max", "activation": "silu"}, (8, 6)),
        (ENCODER, {"class_position": False, "activation": "relu"}, (8, 6)),
        (ENCODER, {"patch_remainder": "drop"}, (9, 7)),
        (HYBRID, {"resnet_units": (), "patch_size": (2, 3), "patch_remainder": "drop"}, (33, 50)),
        *((ENCODER, part, (8, 6)) for part in PARTS),
        (AXIAL, {}, (8, 12)),
        (AXIAL, {"pooling": "map"}, (8, 12)),
        (AXIAL_RESNET, {}, (45, 70)),
        (AXIAL_RESNET, {"resnet_units": (1,), "resnet_version": "v2"}, (16, 16)),
    ],
)
def test_counts_are_those_of_the_program(model, changes, image_size):
    classifier = models.create(
        dataclasses.replace(model, **changes), image_size=image_size, channels=1
    )
    images = jnp.zeros((1, *image_size, 1))
    program = jax.make_jaxpr(lambda p, x: classifier.apply(p, x)[0])
    assert classifier.flops == 2 * resnet_reference.macs(program(classifier.shapes(), images).jaxpr)
