"""Training on images at their own aspect ratio, as padded sequences of patches (NaFlex)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import runs
from commands import error_line
from stepping import BATCH, CLASSES, configure
from vit_jax import config, models
from vit_jax.training import build, run_config
from vit_jax.weights import adapting

LENGTHS = (4, 6, 9)
GRIDS = np.array([(1, 4), (2, 2), (1, 2), (3, 1)])
NATIVE = {"aspect": "native", "lengths": LENGTHS}


def sequences(number):
    """Random patches of images of unlike grids, with noise for padding; a function of the step."""
    rng = np.random.default_rng(number)
    length = LENGTHS[number % len(LENGTHS)]
    return {
        "image": rng.integers(0, 256, (BATCH, length, 4, 4, 1), np.uint8),
        "grids": GRIDS[rng.integers(0, len(GRIDS), BATCH)].astype(np.int32),
        "label": rng.integers(0, CLASSES, BATCH).astype(np.int32),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        *({"pooling": name} for name in ("token", "gap_max", "map", "token_gap")),
        {"position": "learned_2d", "pooling": "max"},
        {"position": "sincos_1d", "pooling": "gap"},
        {"position": "sincos_2d"},
        {"position_resize": "bicubic_offset"},
        {"position_resize": "antialiased_bilinear"},
        {"position": "none", "rotary": 100.0, "rotary_span": "max"},
        {"rotary": 100.0, "rotary_grid": (16, 16)},
        {"rotary": 100.0, "rotary_span": "patches", "rotary_offset": 1.0, "norm_place": "none"},
        {"rotary": 10.0, "rotary_span": "patches", "rotary_learned": True, "registers": 1},
        {"rotary": 100.0, "registers": 3, "distillation": True, "pooling": "distilled"},
        {"position_place": "layers"},
        {"position_place": "shared", "attention": "xla", "pooling": "map"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)  # fmt: skip
def test_a_padded_image_as_alone(options):
    """Compared with the network of its own image size, one image at a time."""
    sizes = {"patch_size": (4, 4), "width": 16, "depth": 2, "mlp_dim": 32, "heads": 2}
    model = models.create(config.Model(num_classes=3, **sizes, **options), image_size=(12, 12))
    params = model.init(jax.random.key(0))
    leaves, tree = jax.tree.flatten(params)
    drawn = [jax.random.normal(jax.random.key(n), x.shape) / 4 for n, x in enumerate(leaves)]
    params = jax.tree.unflatten(tree, drawn)
    grids, rng = [(2, 5), (3, 3), (1, 1), (6, 2)], np.random.default_rng(0)
    patches = rng.normal(size=(4, 12, 4, 4, 3)).astype(np.float32)
    found, _ = jax.jit(model.apply_sequences)(params, patches, np.array(grids, np.int32))
    alone = adapting.any_size(model)
    for (rows, columns), own, logits in zip(grids, patches, found, strict=True):
        image = own[: rows * columns].reshape(rows, columns, 4, 4, 3).swapaxes(1, 2)
        image = image.reshape(1, 4 * rows, 4 * columns, 3)
        expected, _ = jax.jit(alone.apply)(params, image)
        np.testing.assert_allclose(logits, expected[0], rtol=1e-5, atol=2e-6)


@pytest.mark.slow
def test_dropout_of_padded_patches_is_a_function_of_the_key():
    sizes = {"patch_size": (4, 4), "width": 16, "depth": 1, "mlp_dim": 32, "heads": 2}
    cfg = config.Model(num_classes=3, dropout=0.5, **sizes)
    model = models.create(cfg, image_size=(12, 12))
    params = model.init(jax.random.key(0))
    params["head"]["kernel"] = jnp.ones_like(params["head"]["kernel"]).at[1:].set(0)
    patches = np.random.default_rng(0).normal(size=(2, 6, 4, 4, 3)).astype(np.float32)
    grids = np.array([(2, 3), (1, 2)], np.int32)
    apply = jax.jit(lambda key: model.apply_sequences(params, patches, grids, key=key)[0])
    once, again, other = (apply(jax.random.key(n)) for n in (1, 1, 2))
    np.testing.assert_array_equal(once, again)
    assert (once != other).all()


def test_padding_has_no_gradient_and_no_answer():
    trainer = build.build(configure(data=NATIVE), 1000, devices=jax.devices()[:1])
    params = trainer.model.init(jax.random.key(0))
    params["head"]["kernel"] = jnp.ones_like(params["head"]["kernel"])
    batch = {key: jnp.asarray(value[:2]) for key, value in sequences(1).items()}
    batch["grids"] = jnp.array([(2, 2), (1, 3)], jnp.int32)
    pixels = batch["image"].astype(jnp.float32)

    @jax.jit
    @jax.grad
    def slope(pixels):
        logits, _ = trainer.model.apply_sequences(params, pixels / 255, batch["grids"])
        return jnp.sum(logits)

    found = np.abs(slope(pixels)).sum(axis=(2, 3, 4))
    np.testing.assert_array_equal(found > 0, [[1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]])


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_a_killed_run_goes_on_bit_for_bit(tmp_path, monkeypatch):
    """Stopped at every fifth step, beside one that goes through; evaluated at native aspect."""
    cfg = runs.configure(
        data=NATIVE | {"train_crop": "inception"}, train={"duration": "12 steps"},
        evaluation={"every": 12},
    )  # fmt: skip
    runs.assert_resumes(monkeypatch, cfg, tmp_path, 5, 10)


def test_costs_are_the_mean_over_lengths():
    cfg = configure(data=NATIVE)
    made = build.build(cfg, 1000, devices=jax.devices()[:1])
    each = [
        build.build(configure(data=NATIVE | {"lengths": (n,)}), 1000, devices=jax.devices()[:1])
        for n in LENGTHS
    ]
    mean = np.mean([one.flops_per_image for one in each])
    np.testing.assert_allclose(made.flops_per_image, mean, rtol=1e-3)
    assert (
        each[0].flops_per_image
        == build.build(configure(), 1000, devices=jax.devices()[:1]).flops_per_image
    )
    assert made.batch_shapes["image"].shape == (BATCH, 9, 4, 4, 1)
    assert ("views", "at most 4 or 6 or 9 patches, at the image's own aspect ratio") in (
        build.describe_run(cfg)
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"train": {"mixup": 0.2}}, "train.mixup=0.2: needs images of one shape"),
        ({"train": {"cutmix": 1.0}}, "train.cutmix=1: needs images of one shape"),
        ({"data": {"train_crop": "random"}}, "data.train_crop=random: cuts one size"),
        ({"model": {"relative_bias": "layers", "attention": "explicit"}},
         "model.relative_bias=layers: needs one grid for all images"),
        ({"model": {"position": "relative"}}, "model.position=relative: needs one grid"),
        ({"model": {"architecture": "axial_vit", "position": "none"}},
         "model.architecture=axial_vit: takes no padded patches"),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value),
)  # fmt: skip
def test_what_needs_one_shape_refuses_in_one_line(options, said):
    both = {**options, "data": NATIVE | options.get("data", {})}
    cfg = run_config.complete(configure(**both))
    assert error_line(config.ConfigError, run_config.check_trains, cfg).startswith(said)
