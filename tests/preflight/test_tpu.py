"""Steps compiled for real TPU slices by libtpu, which needs none of them."""

import importlib.util

import pytest

from vit_jax import config, preflight
from vit_jax.config import catalog

pytestmark = [
    pytest.mark.slow,  # half a minute to two minutes each
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None,
        reason="libtpu is not installed; pip install 'vit_jax[tpu]'",
    ),
]
GIB = 2**30


def prepare(name, **options):
    """A row of the paper in the quickest program to compile, with options changed."""
    options = {"model.unroll": 1, "model.remat": "dots_no_batch", "schedule.warmup": 0} | options
    texts = {key: str(value) for key, value in options.items()}
    return preflight.prepare_config(config.build(config.override(catalog.load_values(name), texts)))


@pytest.fixture(scope="module")
def slice_():
    return preflight.open_slice("v3:2x2")


def test_slices_have_the_devices_that_their_names_say():
    for name, devices, cores in [
        ("v2-8", 8, 8), ("v3:2x2", 8, 8), ("v3-32", 32, 32), ("v4-8", 4, 8), ("v5p:2x2x1", 4, 8),
        ("v5e-16", 16, 16), ("v5e-256", 256, 256), ("v6e-16", 16, 16),
        ("tpu7x:2x2x1", 8, 8),
    ]:  # fmt: skip
        where = preflight.open_slice(name)
        assert (len(where.devices), where.cores, where.platform) == (devices, cores, "tpu"), name
    with pytest.raises(config.ConfigError, match="libtpu knows no v3:3x3"):
        preflight.open_slice("v3:3x3")


def test_the_state_of_a_base_model_is_split_and_its_gradients_are_scattered(slice_):
    cfg = prepare("pretrain/ViT-B_16-imagenet-300ep", **{
        "train.batch_size": 64, "model.dropout": 0,
    })  # fmt: skip
    report = preflight.measure(cfg, slice_, 1_281_167)
    assert report.fits
    # Float32 parameters, bfloat16 and float32 moments: 10 bytes for each of 87 million, on 8.
    assert report.params + report.optimizer < 10 * 87e6 / 8 * 1.01
    # Beside it, bfloat16 weights and gradients of all.
    assert 4 * 87e6 < report.peak < 0.7 * GIB
    # In bytes for each parameter: all are gathered in two, and the gradients of MLPs, two thirds of
    # all, are scattered in two; the others take one ring whole.
    moved = {kind: one["bytes"] / 87e6 for kind, one in report.collectives.items()}
    assert 1.9 < moved["all-gather"] < 2.1
    assert 1.3 < moved["reduce-scatter"] < 2.1
    assert moved["all-reduce"] < 1.3
    assert report.compiler_flops == pytest.approx(report.model_flops, rel=0.06)
    assert report.steps == 300 * 1_281_167 // 64 + 1


def test_hybrid_fits_and_too_large_a_batch_is_reported(slice_):
    for batch, fits in ((64, True), (65536, False)):
        cfg = prepare("augreg/R26+ViT-S_32-imagenet", **{
            "train.batch_size": batch, "train.mixup": 0, "model.dropout": 0,
            "model.stochastic_depth": 0, "model.resnet_units": "1,1", "model.depth": 2,
        })  # fmt: skip
        report = preflight.measure(cfg, slice_, 1000)
        assert report.fits == fits
    line = dict(preflight.lines(report, 0.4))["memory per device"]
    assert line.startswith("does not fit")
    assert "15.48G" in line or "GiB too much" in line


def test_step_of_a_small_model_is_lighter_than_big_visions():
    # Comments give its step for the same model by the same compiler: docs/preflight.md.
    where = preflight.open_slice("v3-128")
    cfg = prepare("pretrain/ViT-B_32-jft-7ep", **{
        "model.num_classes": 1000, "model.unroll": 12, "model.remat": "none",
    })  # fmt: skip
    report = preflight.measure(cfg, where, 1_281_167)
    assert report.peak <= 0.73 * GIB  # 1.41
    assert report.bytes_accessed <= 6.2e9  # 7.99e9
    assert report.collectives["reduce-scatter"]["bytes"] > 1.6 * 87e6


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "shares"),
    [  # of the bytes of a kind
        ("v5p:4x4x4", {"all-gather": 0.88, "reduce-scatter": 0.9, "all-reduce": 0.98}),
        ("v6e:8x8", {"all-gather": 0.71, "reduce-scatter": 0.9, "all-reduce": 0.98}),
        ("tpu7x:2x2x1", {"all-gather": 1.0, "reduce-scatter": 1.0, "all-reduce": 0.99}),
    ],
)
def test_collectives_run_beside_arithmetic(name, shares):
    where = preflight.open_slice(name)
    cfg = prepare("pretrain/ViT-B_32-jft-7ep", **{
        "model.depth": 2, "model.unroll": 2, "model.remat": "none",
        "train.batch_size": 8 * len(where.devices),
    })  # fmt: skip
    report = preflight.measure(cfg, where, 1_281_167)
    for kind, share in shares.items():
        beside = sum(
            one["bytes"] * one["count"] for one in report.asynchronous if one["kind"] == kind
        )
        assert beside >= share * report.collectives[kind]["bytes"], kind
