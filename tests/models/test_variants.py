import dataclasses

import pytest

from vit_jax import config
from vit_jax.models import complete, variants


def test_sizes_are_those_of_the_papers():
    assert variants.SIZES == {
        "Ti": (192, 12, 768, 3),
        "S": (384, 12, 1536, 6),
        "B": (768, 12, 3072, 12),
        "L": (1024, 24, 4096, 16),
        "H": (1280, 32, 5120, 16),
    }


@pytest.mark.parametrize(
    ("name", "width", "patch"),
    [("ViT-B/16", 768, 16), ("ViT-B_16", 768, 16), ("ViT-H/14", 1280, 14), ("ViT-Ti/2", 192, 2)],
)
def test_names(name, width, patch):
    size, side = variants.parse(name)
    assert (size.width, side) == (width, patch)


FORM = "not a name like ViT-B/16, a size and a patch side in pixels"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ViT-X/16", "no size X (sizes: Ti, S, B, L, H); did you mean ViT-S/16?"),
        ("ViT-b_32", "no size b (sizes: Ti, S, B, L, H); did you mean ViT-B/32?"),
        ("vit-l/16", f"{FORM}; did you mean ViT-L/16?"),
        ("ViT-B16", f"{FORM}; did you mean ViT-B/16?"),
        ("H/14", f"{FORM}; did you mean ViT-H/14?"),
        ("ViT-B/0", f"{FORM}; did you mean ViT-B/8?"),
        ("ViT-B/16 ", f"{FORM}; did you mean ViT-B/16?"),
        ("ViT-B/16\n", f"{FORM}; did you mean ViT-B/16?"),
        ("ViT-B/١٦", f"{FORM}; did you mean ViT-B/8?"),
        ("resnet50", FORM),
        ("", FORM),
    ],
)
def test_wrong_names(name, message):
    with pytest.raises(config.ConfigError) as raised:
        variants.parse(name)
    assert str(raised.value) == f"model.variant={name}: {message}"


def test_complete_fills_only_what_is_left_open():
    model = config.Model(variant="ViT-S/16", depth=3, patch_size=(4, 8), dropout=0.1)
    assert complete(model) == dataclasses.replace(model, width=384, mlp_dim=1536, heads=6)
    assert complete(complete(model)) == complete(model)


def test_complete_without_a_variant_changes_nothing():
    model = config.Model(width=8)
    assert complete(model) is model
