"""Projection heads beside encoders: DINO's, iBOT's and DINOv2's names, read and written back."""

import dataclasses

import jax
import numpy as np
import pytest

from commands import error_line
from vit_jax import config, models
from vit_jax.training.objectives import dino
from vit_jax.weights import arrays as named
from vit_jax.weights import projection_heads
from vit_jax.weights.arrays import WeightsError

WIDTH, HIDDEN, BOTTLENECK, K = 6, 8, 4, 10
OWN = config.Dino(
    name="dino", head_hidden=HIDDEN, head_bottleneck=BOTTLENECK, prototypes=K, patch_loss=0.0
)
SHAPES = {
    "mlp.0.weight": (HIDDEN, WIDTH), "mlp.0.bias": (HIDDEN,),
    "mlp.2.weight": (HIDDEN, HIDDEN), "mlp.2.bias": (HIDDEN,),
    "mlp.4.weight": (BOTTLENECK, HIDDEN), "mlp.4.bias": (BOTTLENECK,),
    "last_layer.weight_v": (K, BOTTLENECK), "last_layer.weight_g": (K, 1),
}  # fmt: skip


def head(prefix="teacher.head.", seed=0, **changed):
    rng = np.random.default_rng(seed)
    made = {n: rng.normal(size=shape).astype(np.float32) for n, shape in SHAPES.items()}
    made["last_layer.weight_g"] = np.ones((K, 1), np.float32)
    return {prefix + name: array for name, array in (made | changed).items() if array is not None}


def read(values, own=OWN, encoder="teacher.backbone."):
    specs = {n: named.ArraySpec(a.shape, a.dtype) for n, a in values.items()}
    return projection_heads.from_arrays(
        named.Arrays(specs, values.__getitem__), encoder, own, WIDTH
    )


def logits(values, prefix, x):
    """DINOHead.forward in float64: dense layers with GELU between, length 1, prototypes."""
    erf = np.vectorize(__import__("math").erf)
    for i in (0, 2, 4):
        x = x @ values[f"{prefix}mlp.{i}.weight"].T.astype(np.float64)
        x = x + values[f"{prefix}mlp.{i}.bias"]
        x = x * (1 + erf(x / np.sqrt(2))) / 2 if i < 4 else x
    x = x / np.linalg.norm(x, axis=-1, keepdims=True)
    v = values[f"{prefix}last_layer.weight_v"].astype(np.float64)
    return x @ (values[f"{prefix}last_layer.weight_g"] * v / np.linalg.norm(v, axis=1)[:, None]).T


@pytest.mark.parametrize("norm", [True, False])
def test_logits_are_those_of_the_authors_head(norm):
    lengths = np.ones((K, 1)) if norm else np.linspace(0.5, 2, K)[:, None]
    values = head(**{"last_layer.weight_g": lengths.astype(np.float32)})
    found = read(values, dataclasses.replace(OWN, norm_last_layer=norm))
    sizes = config.Model(patch_size=(4, 4), width=WIDTH, depth=1, mlp_dim=WIDTH, heads=1)
    model = models.create(sizes, image_size=(8, 8), headless=True)  # computes in float32
    x = np.random.default_rng(1).normal(size=(5, WIDTH)).astype(np.float32)
    with jax.default_matmul_precision("highest"):
        ours = dino.head(found, x, model)
    np.testing.assert_allclose(ours, logits(values, "teacher.head.", x), rtol=0, atol=2e-6)
    written = projection_heads.to_arrays(found)
    assert written.keys() == {name.removeprefix("teacher.") for name in values}
    for name, array in written.items():
        np.testing.assert_array_equal(array, values[f"teacher.{name}"])


def test_a_plain_last_layer_has_prototypes_of_its_lengths():
    """As in DINOv3, which norms none of its weights."""
    rows = np.random.default_rng(2).normal(size=(K, BOTTLENECK)).astype(np.float32)
    plain = {"last_layer.weight_v": None, "last_layer.weight_g": None, "last_layer.weight": rows}
    found = read(head(**plain), dataclasses.replace(OWN, norm_last_layer=False))
    assert found is not None
    directions = found["prototypes"]["kernel"] / np.linalg.norm(rows, axis=1)
    np.testing.assert_allclose(directions * found["prototypes"]["length"], rows.T, atol=1e-6)


def test_the_head_is_that_of_the_encoder_taken():
    values = head() | head("student.module.head.", seed=1)
    student = read(values, encoder="student.module.backbone.")
    teacher = read(values)
    assert student is not None
    assert teacher is not None
    name = "student.module.head.mlp.0.bias"
    np.testing.assert_array_equal(student["dense_0"]["bias"], values[name])
    assert not np.array_equal(teacher["dense_0"]["bias"], values[name])
    assert read({"teacher.backbone.cls_token": np.ones((1, 1, WIDTH))}) is None


@pytest.mark.parametrize("layout", ["ibot", "dinov2"])
def test_heads_of_patches(layout):
    own = dataclasses.replace(OWN, patch_loss=1.0, patch_head=True)
    token = np.arange(WIDTH, dtype=np.float32)[None]
    if layout == "ibot":
        second = head(seed=2)["teacher.head.last_layer.weight_v"]
        values = head(**{"last_layer2.weight_v": second})
        values["teacher.head.last_layer2.weight_g"] = np.ones((K, 1), np.float32)
        values["teacher.backbone.masked_embed"] = token
    else:
        values = head("teacher.dino_head.") | head("teacher.ibot_head.", seed=2)
        second = values["teacher.ibot_head.last_layer.weight_v"]
        values["teacher.backbone.mask_token"] = token
    found = read(values, own)
    assert found is not None
    np.testing.assert_array_equal(found["mask_token"][0], token)
    np.testing.assert_array_equal(found["patches"]["prototypes"]["kernel"], second.T)
    again = read(projection_heads.to_arrays(found), own, "backbone.")
    jax.tree.map(np.testing.assert_array_equal, again, found)


@pytest.mark.parametrize(
    ("values", "changed", "message"),
    [
        (head(), {"prototypes": 65536}, "set objective.prototypes=10, or init_head=new"),
        (head(), {"head_layers": 2}, "set objective.head_layers=3"),
        (head(), {"head_bottleneck": 5, "head_hidden": 9}, "head_hidden=8 objective.head_bott"),
        (head(**{"last_layer.weight_g": np.full((K, 1), 2.0)}), {}, "norm_last_layer=false"),
        (head(), {"patch_loss": 1.0, "patch_head": True}, "have no head of patches; set false"),
        (head() | head("teacher.ibot_head."), {"patch_loss": 1.0}, "a head of patches; set true"),
        (head(**{"mlp.1.running_mean": np.ones(8)}), {}, "has BatchNorm"),
        (head(**{"mlp.0.bias": np.full(HIDDEN, np.nan)}), {}, "mlp.0.bias is not finite"),
        (head(**{"mlp.2.bias": None}), {}, "mlp.2.bias: is missing"),
        (head(**{"last_layer.weight_v": None}), {}, "no head of dense layers and prototypes"),
        (head(**{"mlp.0.weight": np.ones((HIDDEN, 5))}), {}, "not from 6 to 8 to 8 to 4"),
        (head(**{"last_layer.weight_g": np.ones((3, 1))}), {}, "layers of"),
    ],
)  # fmt: skip
def test_another_head_is_refused_with_the_options_to_set(values, changed, message):
    own = dataclasses.replace(OWN, **changed)
    assert message in error_line(WeightsError, read, values, own)
