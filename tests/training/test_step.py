"""The step: one device or eight, whole or split, at once or accumulated, and when it goes wrong."""

import contextlib
import dataclasses
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import plugins
import vit_jax
from stepping import (
    BATCH,
    CLASSES,
    SIZE,
    Stepper,
    TwoLayers,
    assert_same_training,
    batch_of,
    configure,
    losses_of,
)
from vit_jax import config
from vit_jax.runtime import device
from vit_jax.training import normalization, sharding, step, streams
from vit_jax.training.build import build
from vit_jax.utils import machine, tree_utils

REPLICATED = {"mesh": {"zero": False}}
ADAM = {"optimizer": {"name": "adam", "eps": 1e-3, "lr": 1e-2}, "train": {"ema": 0.5}}


def trained(cfg):
    """Losses and parameters of six steps on one device."""
    stepper = Stepper(cfg, devices=1)
    return losses_of(stepper.run(6)), stepper.params


@pytest.fixture(scope="module")
def alone():
    return trained(configure())


@pytest.fixture(scope="module")
def adam_alone():
    """The same with Adam's moments and an average, on clipped gradients."""
    return trained(configure(**ADAM))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("fsdp", "zero"), [(1, True), (2, True), (8, False)])
def test_split_moments_and_average_as_on_one_device(fsdp, zero, adam_alone):
    split = Stepper(configure(mesh={"fsdp": fsdp, "zero": zero}, **ADAM))
    for tree in (split.state[key] for key in ("params", "opt", "ema")):
        flat = tree_utils.flatten(tree)
        name = next(name for name in flat if name.endswith("encoder/mlp/fc1/kernel"))
        assert flat[name].addressable_shards[0].data.size == flat[name].size // 8
    assert split.collectives == {"all-gather", "all-reduce"}
    assert_same_training(split, *adam_alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"fsdp": 4}, {"zero": False}], ids=["zero", "fsdp", "replicated"]
)
def test_accumulation_as_the_big_batch(options, alone):
    cut = Stepper(configure(train={"accumulation": 4}, mesh=options), devices=4)
    gathers = {"all-gather"} if options.get("zero", True) else set()
    assert cut.collectives == {"all-reduce"} | gathers
    assert_same_training(cut, *alone)


@pytest.mark.slow
@pytest.mark.parametrize(("unroll", "accumulation"), [(2, 2), (1, 1)])
def test_weights_gathered_in_bfloat16_are_those_gathered_whole(unroll, accumulation):
    """The forward pass is the same; of a gradient, each device's part is rounded before the sum."""
    model = {"unroll": unroll, "dtype": "bfloat16"}
    options = {"model": model, "train": {"accumulation": accumulation}}
    (whole,) = Stepper(configure(**options)).run(1)
    (replicated,) = Stepper(configure(**options, **REPLICATED)).run(1)
    assert whole["loss"] == replicated["loss"]
    assert whole["grad_norm"] == pytest.approx(replicated["grad_norm"], rel=2**-8)


def test_accumulation_averages_loss_and_gradient():
    """Without clipping, which would hide the length of a sum."""
    big, cut = (
        Stepper(configure(train={"clip_norm": None, "accumulation": parts}), 1, model=TwoLayers())
        for parts in (1, 4)
    )
    (whole,), (parts,) = big.run(1), cut.run(1)
    for name in ("loss", "top1", "grad_norm"):
        np.testing.assert_allclose(parts[name], whole[name], rtol=1e-6, err_msg=name)
    others = tree_utils.flatten(big.state["params"])
    for name, value in tree_utils.flatten(cut.state["params"]).items():
        np.testing.assert_allclose(value, others[name], rtol=0, atol=1e-6, err_msg=name)


class Coin:
    """A model that predicts class 0 or 1 by its key alone; it compiles in no time."""

    def init(self, key):
        return {"w": jnp.ones(())}

    def apply(self, params, images, *, key):
        heads = jax.random.bernoulli(key).astype(jnp.float32)
        logits = jnp.stack([heads, 1 - heads, *[jnp.zeros(())] * (CLASSES - 2)]) * params["w"]
        return jnp.broadcast_to(logits[None], (len(images), CLASSES)), {}


def heads_of(seed):
    """The share of microbatches of 16, in each of 8 steps, whose dropout key came up heads."""
    cfg = configure(model={"dropout": 0.1}, train={"accumulation": 16, "clip_norm": None})
    cfg = dataclasses.replace(cfg, seed=seed)
    trainer = Stepper(cfg, 1, model=Coin(), schedule=lambda _: jnp.zeros(())).trainer
    pure, now = jax.jit(trainer.step), trainer.create_state()
    batch = {"image": batch_of(0)["image"], "label": np.zeros(BATCH, np.int32)}
    shares = []
    for _ in range(8):
        now, metrics = pure(now, batch)
        shares.append(float(metrics["top1"]))
    return shares


def test_every_microbatch_step_and_seed_has_a_dropout_key_of_its_own():
    shares = heads_of(0)
    # With one key for all 16 microbatches every share is 0 or 1.
    assert sum(0 < share < 1 for share in shares) >= 7
    assert 0.3 < np.mean(shares) < 0.7
    assert len(set(shares)) > 2
    assert heads_of(0) == shares
    assert heads_of(1) != shares


@pytest.mark.slow
def test_layers_that_run_one_by_one_are_gathered_one_by_one(monkeypatch):
    def gathered(unroll, **options):
        text = Stepper(configure(model={"unroll": unroll}, **options)).compiled.as_text()
        shapes = re.findall(r"= f32\[([\d,]+)\]\S* all-gather\(", text)
        return {tuple(map(int, shape.split(","))) for shape in shapes}

    def stacked(shapes):  # the kernel of the MLP, of 2 layers or of 1
        return (2, 16, 32) in shapes or (2, 32, 16) in shapes

    assert stacked(gathered(1))
    one_by_one = gathered(2)
    assert not stacked(one_by_one)
    assert {shape[-2:] for shape in one_by_one} & {(16, 32), (32, 16)}
    assert stacked(gathered(2, train={"accumulation": 2}))
    monkeypatch.setattr(step, "FEW", 1)  # of 2 images a device
    assert stacked(gathered(2))


def test_memory_of_the_compiler_is_returned(monkeypatch):
    returned = []
    monkeypatch.setattr(device, "return_freed_memory", lambda: returned.append(True))
    Stepper(configure(), devices=1)
    assert returned


@pytest.mark.slow
@pytest.mark.parametrize("moments", ["float32", "bfloat16"])
def test_not_finite_changes_nothing_but_the_count(moments):
    cfg = configure(train={"ema": 0.9}, optimizer={"moment_dtype": moments})
    stepper = Stepper(cfg)
    stepper.run(2)
    poisoned = stepper.state["params"]["head"]["kernel"]
    good = jax.device_get(stepper.state)
    stepper.state["params"]["head"]["kernel"] = poisoned.at[0, 0].set(jnp.inf)
    (metrics,) = stepper.run(1)
    assert not metrics["finite"]
    assert metrics["bad_steps"] == 1
    after = jax.device_get(stepper.state)
    assert (after["step"], after["bad_steps"]) == (3, 1)
    after["params"]["head"]["kernel"] = good["params"]["head"]["kernel"]
    for part in ("params", "opt", "ema"):
        chex.assert_trees_all_equal(after[part], good[part])
    # Every one of them counts, and a step that is finite again forgets none.
    assert [one["bad_steps"] for one in stepper.run(2)] == [2, 3]
    stepper.state["params"]["head"]["kernel"] = poisoned
    (metrics,) = stepper.run(1)
    assert metrics["finite"]
    assert metrics["bad_steps"] == 3


@pytest.mark.parametrize("kind", ["optimizer", "schedule"])
def test_an_update_of_a_plug_in_that_is_not_finite_changes_nothing(kind):
    """It would be noticed a step later, with all parameters lost."""
    with plugins.forgotten():

        @vit_jax.register(kind, "fails")
        def fails(**given):
            if kind == "schedule":
                return lambda step: jnp.where(step == 1, jnp.nan, 0.1)

            def update(updates, count, params=None):
                factor = jnp.where(count == 1, jnp.nan, 1.0)
                return jax.tree.map(lambda one: factor * one, updates), count + 1

            return optax.GradientTransformation(lambda params: jnp.zeros((), jnp.int32), update)

        stepper = Stepper(configure(**{kind: {"name": "fails"}}), 1, model=TwoLayers())
        stepper.run(1)
        good = jax.device_get(stepper.state["params"])
        metrics = stepper.run(2)[0]
    assert np.isfinite([metrics["loss"], metrics["grad_norm"]]).all()
    assert (metrics["finite"], metrics["bad_steps"]) == (False, 1)
    if kind == "optimizer":  # whose count stays too, so it fails again
        chex.assert_trees_all_equal(jax.device_get(stepper.state["params"]), good)
    assert all(np.isfinite(leaf).all() for leaf in stepper.params.values())


@pytest.mark.parametrize("clip", [pytest.param(None, marks=pytest.mark.slow), 1.0])
def test_a_gradient_too_long_for_float32_changes_nothing_though_the_loss_is_finite(clip):
    """Features of 1e25 on weights of 1e-25: no gradient's square fits."""
    stepper = Stepper(configure(train={"clip_norm": clip}))
    params = stepper.state["params"]
    params["encoder_norm"]["scale"] *= 1e25
    params["head"]["kernel"] *= 1e-25
    good = jax.device_get(stepper.state["params"])
    (metrics,) = stepper.run(1)
    assert np.isfinite(metrics["loss"])
    assert np.isinf(metrics["grad_norm"])
    assert not metrics["finite"]
    assert metrics["bad_steps"] == 1
    chex.assert_trees_all_equal(jax.device_get(stepper.state["params"]), good)


def test_ema_by_hand():
    stepper = Stepper(configure(train={"ema": 0.75}), model=TwoLayers())
    average = jax.device_get(stepper.state["ema"]["body"]["kernel"])
    for number in range(3):
        stepper.run(1, lambda _, n=number: batch_of(n))
        kernel = jax.device_get(stepper.state["params"]["body"]["kernel"])
        average = 0.75 * average.astype(np.float64) + 0.25 * kernel
    gathered = stepper.state["ema"]["body"]["kernel"]
    np.testing.assert_allclose(gathered, average, rtol=1e-6, atol=1e-8)
    evaluated = stepper.trainer.eval_params(stepper.state)
    assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(evaluated))
    chex.assert_trees_all_equal(evaluated, stepper.state["ema"])


@pytest.mark.slow
def test_dropout_is_a_function_of_seed_and_step():
    options = {"dropout": 0.3, "stochastic_depth": 0.5}
    cfg = configure(model=options, optimizer={"lr": 1e-30})
    same = lambda _: batch_of(0)  # noqa: E731
    stepper = Stepper(cfg)
    first = losses_of(stepper.run(3, same))
    del stepper.state  # begins afresh
    second = losses_of(stepper.run(3, same))
    np.testing.assert_array_equal(first, second)
    assert len(set(first.tolist())) == 3
    one_device = losses_of(Stepper(cfg, devices=1).run(3, same))
    np.testing.assert_allclose(first, one_device, rtol=2e-6)


def test_sharding_rule_by_hand():
    each = ("fsdp", "zero", "data")
    cases = [  # name, shape, axes on a mesh of 2 x 2 x 8, of 1 x 1 x 8
        ("params/encoder/mlp/fc1/kernel", (8, 16, 64), (None, None, each), (None, None, "fsdp")),
        ("params/encoder/mlp/fc1/kernel", (8, 64, 72), (None, each), (None, None, "fsdp")),
        ("opt/0/mu/encoder/mlp/fc2/kernel", (8, 48, 16), (None, each[:2]), (None, "fsdp")),
        ("opt/0/mu/encoder/mlp/fc2/kernel", (8, 24, 8), (None, "fsdp"), (None, "fsdp")),
        ("params/encoder/norm1/scale", (8, 15), (), ()),  # the depth axis is never split
        ("params/resnet/stage3/rest/conv1/kernel", (8, 1, 1, 4, 15), (), ()),  # nor that of units
        ("params/resnet/stage3/first/gn3/scale", (64,), (each,), ("fsdp",)),
        ("params/embedding/kernel", (4, 4, 3, 768), (None,) * 3 + (each,), (None,) * 3 + ("fsdp",)),
        ("params/head/bias", (10,), (), ()),
        ("step", (), (), ()),
    ]
    options, off = config.Mesh(fsdp_min_size=64), config.Mesh(fsdp_min_size=64, zero=False)
    square, line = {"data": 2, "zero": 2, "fsdp": 8}, {"data": 1, "zero": 1, "fsdp": 8}
    for name, shape, split, fsdp in cases:
        assert tuple(sharding.spec(name, shape, square, options)) == split, name
        for given in (options, off):
            assert tuple(sharding.spec(name, shape, line, given)) == fsdp, name
        assert tuple(sharding.spec(name, shape, square, off)) == fsdp, name
        one = dict.fromkeys(square, 1)
        assert tuple(sharding.spec(name, shape, one, options)) == ()
        # Gathering and reducing move no part to another axis.
        for axes in (sharding.COMPUTE, sharding.REDUCE):
            found = tuple(sharding.spec(name, shape, square, options, axes))
            assert len(found) == len(split)
            assert all((a is None) == (b is None) for a, b in zip(found, split, strict=True))


@pytest.mark.parametrize(
    ("count", "fsdp", "sides"),
    [(8, 1, (2, 4, 1)), (8, 2, (2, 2, 2)), (6, 1, (2, 3, 1)), (5, 1, (1, 5, 1)), (8, 8, (1, 1, 8))],
)
def test_the_mesh_is_as_square_as_devices_allow(count, fsdp, sides):
    mesh = sharding.create_mesh(fsdp, jax.devices()[:count])
    assert (mesh.axis_names, mesh.devices.shape) == (("data", "zero", "fsdp"), sides)


def test_host_rows_and_put_batch_on_any_device_order():
    devices = jax.devices()
    for order in (devices, devices[::-1], devices[1::2] + devices[::2]):
        mesh = sharding.Mesh(np.array(order).reshape(2, 2, 2), ("data", "zero", "fsdp"))
        rows = sharding.host_rows(mesh, 32)
        np.testing.assert_array_equal(rows, np.arange(32))
        placed = sharding.put_batch({"x": rows * 10}, mesh, 32, rows)["x"]
        np.testing.assert_array_equal(placed, np.arange(32) * 10)
        assert {s.data.shape for s in placed.addressable_shards} == {(4,)}


# Pixels


def test_pixels_are_normalized_by_mean_and_deviation():
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 3), np.uint8)
    plain = normalization.normalize_pixels(images, config.Data())
    np.testing.assert_array_equal(plain, images.astype(np.float32) / np.float32(127.5) - 1)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    exact = (images / 255 - np.array(mean)) / np.array(std)
    given = normalization.normalize_pixels(images, config.Data(mean=mean, std=std))
    assert given.dtype == np.float32
    np.testing.assert_allclose(given, exact, rtol=0, atol=5e-7)


def test_every_augmentation_of_every_step_and_seed_has_a_key_of_its_own():
    keys = []

    def augment(key, images, labels):
        jax.debug.callback(lambda data: keys.append(tuple(data.tolist())), jax.random.key_data(key))
        return images, labels

    with plugins.forgotten():
        for name in ("first", "second"):
            vit_jax.register("batch_augmentation", name)(lambda: augment)
        for seed in (0, 1):
            cfg = configure(model={"dropout": 0.1}, train={"augmentations": ["first", "second"]})
            cfg = dataclasses.replace(cfg, seed=seed)
            Stepper(cfg, 1, model=Coin(), schedule=lambda _: jnp.zeros(())).run(2)
    jax.effects_barrier()
    assert len(keys) == len(set(keys)) == 8
    expected = [jax.random.fold_in(jax.random.key(seed), streams.AUGMENTATION) for seed in (0, 1)]
    for count in (2, 2):  # steps, and augmentations of each
        expected = [jax.random.fold_in(key, k) for key in expected for k in range(count)]
    assert set(keys) == {tuple(jax.random.key_data(key).tolist()) for key in expected}


def test_what_cannot_fit_is_refused_before_it_is_allocated(monkeypatch):
    """The state of each device, and this host's rows of a batch."""
    made = build(configure(**REPLICATED), 1000, devices=jax.devices()[:2])
    made.check_memory()
    state = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(made.state_shapes))
    for limit, line in (
        (2 * state - 1, "the training state takes .* set mesh.fsdp"),
        (2 * state, ""),
    ):
        monkeypatch.setattr(machine, "memory", lambda limit=limit: limit)
        with pytest.raises(device.OutOfMemory, match=line) if line else contextlib.nullcontext():
            made.check_memory()
    monkeypatch.setattr(device, "memory", lambda one: None)  # unknown
    monkeypatch.setattr(machine, "memory", lambda: BATCH * SIZE * SIZE)  # without labels
    with pytest.raises(device.OutOfMemory, match=f"train.batch_size={BATCH}: a batch takes"):
        made.check_memory()
