import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from containers import FIXTURES, read, refusal, write
from foreign import equal, exported
from vit_jax import config, models, weights

TOKEN = FIXTURES / "vit_tiny_token.npz"

TINY = config.Model(
    patch_size=(8, 8), width=24, depth=2, mlp_dim=48, heads=3, num_classes=7,
    representation_size=24, patch_remainder="drop",
)  # fmt: skip
BIG_VISION = dataclasses.replace(TINY, num_classes=6)
SIZE_32 = {"data.image_size": "32,32"}


def written(loaded):
    return exported(loaded.params, loaded.spec, "google")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "overrides", "model"),
    [
        ("vit_tiny_token", {}, TINY),
        ("vit_tiny_gap", {}, dataclasses.replace(TINY, representation_size=None, pooling="gap")),
        (
            "vit_tiny_finetuned",
            {},
            config.Model(
                patch_size=(16, 16), width=32, depth=3, mlp_dim=64, heads=4, num_classes=5,
                patch_remainder="drop",
            ),
        ),
        ("bv_vit_tok", {}, dataclasses.replace(BIG_VISION, class_position=False)),
        (
            "bv_vit_gap_sincos",
            SIZE_32,
            dataclasses.replace(
                BIG_VISION, representation_size=None, pooling="gap", position="sincos_2d"
            ),
        ),
        (
            "bv_vit_map",
            {},
            dataclasses.replace(BIG_VISION, representation_size=None, pooling="map"),
        ),
        (
            "hybrid_tiny",
            {},
            config.Model(
                patch_size=(1, 1), width=32, depth=2, mlp_dim=48, heads=4, num_classes=7,
                representation_size=32, resnet_units=(1, 2, 1), resnet_width=0.5,
                patch_remainder="drop",
            ),
        ),
    ],
)  # fmt: skip
def test_parity_and_round_trip(tmp_path, name, overrides, model):
    source = FIXTURES / f"{name}.npz"
    loaded = weights.load(source, overrides)
    assert loaded.kind == "google"
    assert loaded.spec.model == models.complete(model)
    assert loaded.report.lines() == [f"used: {len(read(source))} arrays"]

    expected = read(FIXTURES / f"{name}.io.npz")
    assert loaded.spec.data.image_size == expected["images"].shape[1:3]
    classifier = models.create(
        loaded.spec.model, image_size=loaded.spec.data.image_size, channels=3
    )
    with jax.default_matmul_precision("highest"):
        logits, out = jax.jit(classifier.apply)(loaded.params, expected["images"])
    np.testing.assert_allclose(logits, expected["logits"], rtol=0, atol=1e-6)
    if "pre_logits" in expected:
        np.testing.assert_allclose(out["pre_logits"], expected["pre_logits"], rtol=0, atol=2e-6)

    arrays = written(loaded)
    equal(arrays, read(source))
    again = weights.load(write(tmp_path / "again.npz", arrays), overrides)
    assert again.spec == loaded.spec
    equal(again.params, loaded.params)


def test_the_image_tower_of_two(tmp_path):
    """As big_vision saves SigLIP: both towers, the temperature and the bias of the loss."""
    tower = read(FIXTURES / "bv_vit_map.npz")
    arrays = {f"params/img/{name}": array for name, array in tower.items()}
    text = {"txt/Encoder_0/encoder_norm/scale": (8,), "txt/head/bias": (4,), "t": (1,), "b": (1,)}
    arrays |= {f"params/{name}": np.ones(shape, np.float32) for name, shape in text.items()}
    loaded = weights.load(write(tmp_path / "both.npz", arrays))
    assert loaded.spec.model.pooling == "map"
    names = [f"params/{name}" for name in text]
    assert loaded.report.dropped == dict.fromkeys(names, "of the text tower and the loss")
    equal(loaded.params, weights.load(FIXTURES / "bv_vit_map.npz").params)
    equal(written(loaded), tower)


def test_the_layer_before_the_head_may_be_of_any_width(tmp_path):
    arrays = read(TOKEN)
    arrays |= {"pre_logits/kernel": np.ones((24, 10), np.float32),
               "pre_logits/bias": np.ones(10, np.float32),
               "head/kernel": np.ones((10, 7), np.float32)}  # fmt: skip
    path = write(tmp_path / "w.npz", arrays)
    assert weights.load(path).spec.model.representation_size == 10


def test_groupnorms_with_and_without_the_axes_of_the_map(tmp_path):
    source = FIXTURES / "hybrid_tiny.npz"
    arrays = {
        name: array.reshape(-1) if re.search(r"gn(\d|_root|_proj)/", name) else array
        for name, array in read(source).items()
    }
    assert arrays["gn_root/scale"].shape == (32,)
    given = weights.load(write(tmp_path / "flat.npz", arrays))
    equal(given.params, weights.load(source).params)


def test_half_precision_is_widened(tmp_path):
    """numpy writes bfloat16 as two bytes of unknown meaning."""
    arrays = read(TOKEN)
    arrays["head/kernel"] = arrays["head/kernel"].astype(jnp.bfloat16)
    arrays["head/bias"] = arrays["head/bias"].astype(np.float16)
    path = write(tmp_path / "half.npz", arrays)
    assert read(path)["head/kernel"].dtype == "V2"
    for file in (path, write(tmp_path / "half.safetensors", arrays)):
        head = weights.load(file).params["head"]
        for name in ("kernel", "bias"):
            assert head[name].dtype == np.float32
            np.testing.assert_array_equal(head[name], arrays[f"head/{name}"].astype(np.float32))


def test_what_belongs_to_a_run_is_dropped_with_the_reason(tmp_path):
    arrays = {f"opt/target/{name}": array for name, array in read(TOKEN).items()}
    others = {
        "opt/state/param_states/cls/grad_ema": np.zeros((1, 1, 24), np.float32),
        "opt/state/step": np.zeros((), np.int32),
        "chrono/accum_train_time": np.zeros(()),
    }
    loaded = weights.load(write(tmp_path / "run.npz", arrays | others))
    equal(loaded.params, weights.load(TOKEN).params)
    assert loaded.report.lines() == [
        "used: 42 arrays under opt/target/",
        "dropped: chrono/accum_train_time (of big_vision's clock, not of the model)",
        "dropped: opt/state/param_states/cls/grad_ema, opt/state/step "
        "(of the optimizer, not of the model)",
    ]


def test_image_size_comes_from_the_file_or_the_caller(tmp_path):
    name = "Transformer/posembed_input/pos_embedding"
    arrays = read(TOKEN)
    arrays[name] = arrays[name][:, :7]  # 2 x 3 patches and the class
    path = write(tmp_path / "wide.npz", arrays)
    give = "; give the image size: --config.data.image_size=HEIGHT,WIDTH"
    assert refusal(path) == "contains positions of 6 patches, which is not a square" + give
    wide = weights.load(path, {"data.image_size": "16,24"})
    assert wide.spec.data.image_size == (16, 24)
    np.testing.assert_array_equal(wide.params["position"]["table"], arrays[name])
    assert refusal(path, overrides={"data.image_size": "16,16"}) == (
        f"{name} is (1, 7, 24), not (1, 5, 24)"
    )
    # As in the reference, the last 4 columns fill no patch.
    assert refusal(path, overrides={"data.image_size": "16,20"}) == (
        f"{name} is (1, 7, 24), not (1, 5, 24)"
    )
    assert refusal(path, overrides={"data.image_size": "7,24"}) == (
        "data.image_size=7,24: height 7 is not a multiple of model.patch_size 8; nearest: 8"
    )
    assert refusal(FIXTURES / "bv_vit_gap_sincos.npz") == "contains no position embeddings" + give


def with_(**changes):
    """A change of some arrays, `__` for `/`; None removes one."""

    def change(arrays):
        for key, value in changes.items():
            name = key.replace("__", "/")
            arrays.pop(name) if value is None else arrays.update({name: value(arrays[name])})

    return change


BLOCK = "Transformer__encoderblock_1__"


def unknown(arrays):
    arrays["extra/kernel"] = np.zeros(3, np.float32)
    arrays["Transformer/encoderblock_1/LayerNorm_7/bias"] = np.zeros(3, np.float32)


def twice(arrays):
    name = "Transformer/encoderblock_0/LayerNorm_2/scale"
    arrays["Transformer/encoderblock_0/LayerNorm_1/scale"] = arrays[name]


def doubled(arrays):
    arrays["params/cls"] = arrays["cls"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_(cls=None), "contains positions of 17 patches, which is not a square; give the "),
        (with_(**{f"{BLOCK}LayerNorm_2__scale": None}),
         "Transformer/encoderblock_1/LayerNorm_2/scale is missing"),
        (with_(head__bias=lambda x: x.astype("U7")), "head/bias is <U7, not a type of weights"),
        (with_(head__bias=lambda x: x + np.float64(1e300)), "head/bias is not finite"),
        (with_(embedding__kernel=lambda x: x[:0]),
         "contains no model of this kind: no embedding/kernel with 4 axes"),
        (dict.clear, "is not one of the supported model layouts ("),
        (unknown,
         "Transformer/encoderblock_1/LayerNorm_7/bias is not part of the model; "
         "extra/kernel is not part of the model"),
        (twice, "Transformer/encoderblock_0/LayerNorm_1/scale is not part of the model"),
        (doubled, "params/cls is not part of the model"),
    ],
)  # fmt: skip
def test_wrong_arrays(tmp_path, change, message):
    arrays = read(TOKEN)
    change(arrays)
    assert refusal(write(tmp_path / "wrong.npz", arrays)).startswith(message)


def renamed(arrays, old, new):
    return {name.replace(old, new): array for name, array in arrays.items()}


def test_stages_of_a_hybrid(tmp_path):
    arrays = read(FIXTURES / "hybrid_tiny.npz")
    path = write(tmp_path / "gap.npz", renamed(arrays, "block2/", "block5/"))
    assert refusal(path) == "its ResNet has the stages [1, 3, 5], not 1, 2, ... up to 4"
    more = arrays | renamed(arrays, "block3/", "block4/") | renamed(arrays, "block3/", "block5/")
    assert refusal(write(tmp_path / "five.npz", more)) == (
        "its ResNet has the stages [1, 2, 3, 4, 5], not 1, 2, ... up to 4"
    )
    told = refusal(write(tmp_path / "unit.npz", renamed(arrays, "block2/unit2", "block2/unit4")))
    assert "block2/unit2/conv1/kernel is missing" in told
    assert "block2/unit3/conv1/kernel is missing" in told
