"""Adapters computed apart from their matrices: as those added to them, without their arithmetic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stepping import BATCH, Stepper, configure
from vit_jax import config, models
from vit_jax.training import build, lora
from vit_jax.training import trainable as trainables
from vit_jax.training.teacher import Teacher
from vit_jax.utils import tree_utils


class Merged(trainables.Trainable):
    """As the paper writes it: the network computes with the sums."""

    def network(self, trained, params):
        return lora.merge(self.lora, self.join(trained, params))


def created(cfg, devices=1):
    """A stepper with random heads and adapters, and a teacher where the config has one."""
    teacher = teacher_params = None
    if cfg.distillation:
        teacher = Teacher(build.create_model(cfg), cfg.data)
        teacher_params = jax.device_get(teacher.model.init(jax.random.key(5)))
        kernel = np.random.default_rng(5).normal(size=(16, 5)).astype(np.float32)
        teacher_params["head"]["kernel"] = kernel
    stepper = Stepper(cfg, devices, teacher, teacher_params)

    def drawn(name, leaf):
        if not name.startswith("lora/"):
            return leaf
        values = np.random.default_rng(len(name)).normal(size=leaf.shape) / 4
        return jax.device_put(values.astype(np.float32), leaf.sharding)

    stepper.state["params"] = tree_utils.map_named(drawn, stepper.state["params"])
    return stepper


def trained(cfg, devices):
    """Losses and norms of gradients of four steps, and the parameters after them."""
    stepper = created(cfg, devices)
    found = [[float(one["loss"]), float(one["grad_norm"])] for one in stepper.run(4)]
    return np.array(found), stepper.params


def test_adapters_begin_unlike_each_other():
    """Each as in peft: `a` uniform within 1 / sqrt(inputs), `b` zero."""
    cfg = configure(lora={"rank": 2})
    model = models.create(cfg.model, image_size=cfg.data.image_size, channels=1)
    flat = tree_utils.flatten(jax.device_get(lora.initial(cfg.lora, model, seed=3)))
    first = [leaf.ravel()[:4].tolist() for name, leaf in flat.items() if name.endswith("/a")]
    assert len({tuple(one / np.abs(one).max()) for one in map(np.array, first)}) == len(first)
    assert len(first) > 2
    for name, leaf in flat.items():
        bound = 1 / np.sqrt(leaf.shape[-2])
        assert np.abs(leaf).max() <= bound if name.endswith("/a") else not leaf.any()


def test_a_sum_is_rounded_once():
    """1 + 2^-8 + 2^-17 is above the middle of two numbers of bfloat16; 2^-8 alone is a tie."""
    options = config.Lora(rank=1, alpha=1.0)
    params = {
        "head": {"kernel": jnp.ones((1, 1), jnp.bfloat16)},
        "lora": {"head": {"kernel": {
            "a": jnp.full((1, 1), 2.0**-8 + 2.0**-17), "b": jnp.ones((1, 1))
        }}},
    }  # fmt: skip
    merged = lora.merge(options, params)
    assert merged["head"]["kernel"].dtype == jnp.bfloat16
    assert float(merged["head"]["kernel"][0, 0]) == 1 + 2.0**-7


CASES = {
    "a loop over layers": {},
    "unrolled": {"model": {"unroll": 2}},
    "recomputed in a loop": {"model": {"remat": "dots"}},
    "split and accumulated": {"devices": 8, "train": {"accumulation": 2}},
    "gathered layer by layer": {"devices": 4, "mesh": {"fsdp": 2}, "model": {"unroll": 2}},
    "every dense layer": {
        "model": {"mlp": "swiglu", "pooling": "map", "representation_size": 8},
        "lora": {"where": ["*"]},
    },
    "axial": {"model": {"architecture": "axial_vit", "position": "learned_1d"}},
    "masked": {
        "objective": {"name": "masked_patches"},
        "optimizer": {"only": ["mask*"], "lr": 0.005},  # its gradients are thirty times as large
        "model": {"num_classes": None},
    },
    "distilled": {"objective": {"name": "distillation", "teacher": "x", "weight": 0.5}},
    "blended and dropped": {"model": {"dropout": 0.2}, "train": {"mixup": 0.5}},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_as_if_added_to_the_matrices(name, monkeypatch):
    sections = {key: value for key, value in CASES[name].items() if key != "devices"}
    sections["lora"] = {"rank": 3, "alpha": 6.0} | sections.get("lora", {})
    # Rates at which rounding does not grow from step to step.
    sections["optimizer"] = {"lr": 0.05} | sections.get("optimizer", {})
    cfg = configure(**sections)
    apart = trained(cfg, CASES[name].get("devices", 1))
    monkeypatch.setattr(trainables, "Trainable", Merged)
    merged = trained(cfg, CASES[name].get("devices", 1))
    assert apart[0][0, 0] != apart[0][-1, 0]
    # 5.3e-6 on a CPU with AVX2 but no AVX-512, below 5e-6 on others: rounding.
    np.testing.assert_allclose(apart[0], merged[0], rtol=1e-5)
    for key, value in apart[1].items():
        np.testing.assert_allclose(value, merged[1][key], rtol=1e-4, atol=2e-6, err_msg=key)


def flops(**sections):
    """FLOPs of a compiled step, in forward passes of the model."""
    cfg = configure(
        model={"patch_size": 8, "width": 64, "depth": 4, "mlp_dim": 256, "unroll": 4},
        data={"image_size": 32},
        **sections,
    )
    model = models.create(cfg.model, image_size=(32, 32), channels=1)
    counted = created(cfg).compiled.cost_analysis()["flops"] / BATCH / model.flops
    return counted, trainables.from_config(model, cfg).passes()


@pytest.mark.slow
def test_what_is_frozen_costs_no_arithmetic():
    """Matrices beside adapters have no gradients, layers below the first that trains no backward.

    What the compiler counts beyond matrix products: norms, softmax, the update.
    """
    everything, expected = flops()
    assert expected == 3
    assert everything == pytest.approx(3, rel=0.1)
    for sections in (
        {"lora": {"rank": 1}},
        {"optimizer": {"only": ["head"]}},
        {"optimizer": {"only": ["head", "encoder[-1]"]}},
        {"optimizer": {"only": ["encoder[2]/mlp"]}},
    ):
        counted, passes = flops(**sections)
        assert passes < 2.3
        assert counted == pytest.approx(passes, rel=0.1), sections


@pytest.mark.slow
def test_adapters_of_no_layer_are_refused():
    model = models.create(configure().model, image_size=(8, 8), channels=1)
    adapters = {"encoder": {"mlp": {"fc3": {"kernel": {"a": jnp.ones((2, 16, 1))}}}}}
    params = model.init(jax.random.key(0)) | {"lora": adapters}
    message = "parameters do not fit the model: encoder/mlp/fc3/kernel/a is unknown"
    with pytest.raises(models.ParameterError, match=message):
        model.apply(params, jnp.zeros((1, 8, 8, 1)))


def test_convolutions_take_no_adapters():
    cfg = config.Model(variant="R50+ViT-B/32", num_classes=3)
    model = models.create(cfg, image_size=(64, 64))
    assert "embedding/kernel" in model.dense
    assert not [name for name in model.dense if name.startswith("resnet/")]
    with pytest.raises(config.ConfigError, match=r"lora.where=resnet: matches no"):
        lora.shapes(config.Lora(rank=2, where=("resnet",)), model)
