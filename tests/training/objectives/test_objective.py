"""What an objective may be: views, parameters and state of its own, a loss of the whole batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plugins
import runs
import vit_jax
from stepping import BATCH, SIZE, Stepper, configure, losses_of
from vit_jax import config
from vit_jax.checkpoints import reader
from vit_jax.data.pipeline import View
from vit_jax.inference import loading
from vit_jax.training.build import build
from vit_jax.training.normalization import normalize_pixels
from vit_jax.training.objectives import Objective
from vit_jax.utils import tree_utils


class Contrast(Objective):
    """Two views of an image are nearer to each other than to any other image's in the batch.

    Keeps an average of all parameters, as a teacher is, and a center of the features.
    """

    needs_labels, whole_batch = False, True
    measures = ("similarity",)

    def __init__(self, setup, momentum: float = 0.75):
        super().__init__(setup)
        self.momentum = momentum

    @property
    def views(self):
        return (View("pair", self.cfg.data, 2),)

    def init(self, key):
        return {"kernel": jax.random.normal(key, (16, 4))}

    def init_state(self, params):
        return {"teacher": params, "center": jnp.zeros((1, 1, 4))}

    def forward(self, params, batch, inputs):
        pair = batch["pair"]
        pixels = normalize_pixels(pair.reshape(-1, *pair.shape[2:]), self.cfg.data)
        features = self.model.apply(params, pixels, key=inputs.key)[1]["pre_logits"]
        return (features @ params["objective"]["kernel"]).reshape(*pair.shape[:2], 4)

    def loss(self, outputs, inputs):
        first, second = jnp.moveaxis(outputs - inputs.state["center"], 1, 0)
        logits = first @ second.T
        loss = -jnp.mean(jnp.diagonal(jax.nn.log_softmax(logits)))
        center = outputs.mean((0, 1), keepdims=True)
        return loss, {"similarity": jnp.mean(first * second), "center": center}

    def update(self, state, params, measures, step, average):
        mix = lambda old, new: self.momentum * old + (1 - self.momentum) * new  # noqa: E731
        teacher = jax.tree.map(mix, state["teacher"], params)
        return {"teacher": teacher, "center": mix(state["center"], measures["center"])}


def crops(number):
    rng = np.random.default_rng(number)
    sizes = {"global_1": (SIZE, SIZE), "global_2": (SIZE, SIZE), "local": (3, 4, 4)}
    views = {name: rng.integers(0, 256, (BATCH, *s, 1), np.uint8) for name, s in sizes.items()}
    return views | {"label": np.full(BATCH, -1, np.int32)}


@pytest.fixture(autouse=True)
def registered():
    with plugins.forgotten():
        vit_jax.register("objective", "contrast")(Contrast)
        yield


@pytest.fixture
def example(monkeypatch):
    """The objective of the example project, LeJEPA."""
    monkeypatch.syspath_prepend(str(runs.ROOT / "docs/example_project"))
    import my_project  # noqa: F401


def views(number):
    return {"crops": pairs(number)["pair"], "label": pairs(number)["label"]}


def pairs(number):
    images = np.random.default_rng(number).integers(0, 256, (BATCH, 2, SIZE, SIZE, 1), np.uint8)
    return {"pair": images, "label": np.full(BATCH, -1, np.int32)}


DINO = {
    "name": "dino", "prototypes": 24, "head_hidden": 16, "head_bottleneck": 8, "local_views": 3,
    "local_size": 4, "freeze_last_layer": 2, "blur": (1.0, 0.1, 0.5),
}  # fmt: skip
SHARED = DINO | {"centering": "sinkhorn", "koleo": 0.1, "patch_loss": 1.0, "patch_head": True}
V3 = {  # what DINOv3's row has beside it, and Gram anchoring
    "objective": SHARED
    | {"norm_last_layer": False, "gram": 2.0, "gram_start": "1 step", "gram_every": "2 steps"},
    "model": {"position": "none", "rotary": 100.0, "layer_scale": 1e-5},
    "optimizer": {"lr": 0.05, "layer_decay": 0.9, "groups": {"embedding": {"lr": 0.2}}},
}
WHOLE = {  # of which each compares images with each other, or keeps a center
    "contrast": ({"objective": {"name": "contrast"}}, pairs),
    "dino": ({"objective": DINO | {"patch_loss": 1.0}}, crops),
    "dino-sinkhorn": ({"objective": SHARED}, crops),
    "dino-v3": (V3, crops),
    "lejepa": ({"objective": {"name": "lejepa"}}, views),
}


def stepper(devices=1, **sections):
    sections = {"objective": {"name": "contrast"}, "optimizer": {"lr": 0.05}} | sections
    return Stepper(configure(**sections), devices)


def state_of(made):
    return tree_utils.flatten(jax.device_get(made.state.get("objective", {})))


def test_state_follows_the_step_and_a_step_that_is_not_finite_changes_nothing():
    made = stepper()
    before, old = state_of(made), made.params
    (first,) = made.run(1, pairs)
    kept, new = state_of(made), made.params
    name = "encoder/mlp/fc1/kernel"
    assert (new[name] != old[name]).any()
    assert (new["objective/kernel"] != old["objective/kernel"]).any()
    expected = 0.75 * before[f"teacher/{name}"].astype(np.float64) + 0.25 * new[name]
    np.testing.assert_allclose(kept[f"teacher/{name}"], expected, rtol=1e-6, atol=1e-7)
    assert set(first) >= {"loss", "similarity"}
    assert "center" not in first  # no number to log
    made.state["params"]["objective"]["kernel"] *= jnp.inf
    (bad,) = made.run(1, pairs)
    assert not bad["finite"]
    after = state_of(made)
    for key, value in kept.items():
        np.testing.assert_array_equal(after[key], value, err_msg=key)


def test_what_an_objective_keeps_of_adapters_is_scaled_as_in_its_forward_pass():
    """A teacher of its own had B without alpha / rank."""
    made = stepper(lora={"rank": 2, "alpha": 6.0})
    made.run(1, pairs)
    name = "lora/encoder/mlp/fc1/kernel/b"
    assert made.params[name].any()
    expected = 0.25 * 3 * made.params[name].astype(np.float64)
    np.testing.assert_allclose(state_of(made)[f"teacher/{name}"], expected, rtol=1e-6)


def test_what_an_objective_counts_and_says():
    plain = build(configure(train={"ema": 0.9}), 1000).objective
    assert plain.decay(jnp.asarray(3)) == 0.9
    assert plain.describe() == []
    assert plain.update({"kept": 1}, {}, {}, jnp.asarray(3), None) == {"kept": 1}
    pair = build(configure(objective={"name": "contrast"}), 1000).objective
    assert pair.decay(jnp.asarray(3)) == 0.0
    (one,), (both,) = plain.views, pair.views
    assert (one.number, both.number) == (1, 2)
    assert pair.forward_flops(both) == 2 * pair.forward_flops(one)
    # Three passes; 16 x 4 weights of its own, of which each multiply-accumulate is two FLOPs.
    assert pair.flops(3) == 2 * 3 * pair.forward_flops(one) + 2 * 3 * 2 * 16 * 4
    count = sum(leaf.size for leaf in jax.tree.leaves(pair.model.shapes()))
    kept = f"center: 4 numbers; teacher: {count + 64:,} numbers"
    assert pair.describe() == [
        ("views", f"pair: 2 of {SIZE},{SIZE} pixels"),
        ("objective", f"64 parameters of its own; {kept}"),
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("example")
@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize(("devices", "accumulation"), [(1, 8), (4, 2), (8, 1)])
def test_a_loss_of_the_whole_batch_is_that_however_it_is_cut(name, devices, accumulation):
    options, batches = WHOLE[name]
    whole = stepper(**options)
    cut = stepper(devices, **options, train={"accumulation": accumulation})
    expected, found = whole.run(4, batches), cut.run(4, batches)
    assert len({float(one["loss"]) for one in expected}) == 4
    np.testing.assert_allclose(losses_of(found), losses_of(expected), rtol=5e-6)
    for measure in whole.trainer.objective.measures:
        if measure in expected[-1]:
            pair = found[-1][measure], expected[-1][measure]
            np.testing.assert_allclose(*pair, rtol=1e-4, atol=1e-5, err_msg=measure)
    kept = state_of(whole)
    for key, value in state_of(cut).items():
        np.testing.assert_allclose(value, kept[key], rtol=1e-4, atol=5e-6, err_msg=key)


LEJEPA = {"name": "lejepa", "crops": 3}
MAE = {"name": "mae", "decoder_width": 8, "decoder_depth": 1, "decoder_heads": 2}


def resume_and_compare(cfg, folder, monkeypatch, measure):
    """The losses of an unbroken run, which one that stops at step 5 equals to the bit."""
    whole = runs.assert_resumes(monkeypatch, cfg, folder, 5)
    losses = runs.trace(whole)
    assert runs.trace(whole, f"train/{measure}").keys() == losses.keys()
    return losses


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_dino_resumes_bit_for_bit_and_its_teacher_is_what_is_evaluated(tmp_path, monkeypatch):
    cfg = runs.configure(
        model={"dropout": 0.0, "stochastic_depth": 0.1},
        data={
            "train_crop": "inception",
            "rotation": 0.0,
            "eval_split": "train[200:250]",
            "test_split": "test[:50]",
        },  # which has no loss to measure
        objective=DINO
        | {"centering": "sinkhorn", "koleo": 0.1, "patch_loss": 1.0}
        | {"gram": 2.0, "gram_start": "2 steps", "gram_every": "3 steps"},
        train={"duration": "8 steps", "accumulation": 2, "ema": None, "clip_by": "parameter"},
        optimizer={"weight_decay": 0.04, "weight_decay_end": 0.4},
        checkpoint={"best": "auto"},
        evaluation={"knn": "self"},
    )
    resume_and_compare(cfg, tmp_path, monkeypatch, "information")
    teacher = reader.restore_subtree(
        tmp_path / "whole/checkpoints", 8, {"ema": {"cls": jax.ShapeDtypeStruct(
            (1, 1, 16), jnp.float32, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0])
        )}},
    )  # fmt: skip
    loaded = loading.load(tmp_path / "whole")
    np.testing.assert_array_equal(loaded.params["cls"], teacher["ema"]["cls"])
    assert not [name for name in loaded.params if name in ("head", "objective")]


@pytest.mark.slow
@pytest.mark.usefixtures("one_device", "example")
@pytest.mark.parametrize(
    ("options", "measure", "kept"), [(LEJEPA, "gaussian", False), (MAE, "loss", True)]
)
def test_an_objective_resumes_bit_for_bit(tmp_path, monkeypatch, options, measure, kept):
    cfg = runs.configure(
        model={"dropout": 0.1, "patch_size": 2},
        objective=options,
        train={"duration": "8 steps", "accumulation": 2},
        checkpoint={"best": "auto"},
        evaluation={"knn": "self"},
    )
    losses = resume_and_compare(cfg, tmp_path, monkeypatch, measure)
    assert losses[8] < losses[1]
    # An encoder: no head, and of the objective's only what draws reconstructions.
    loaded = loading.load(tmp_path / "whole")
    assert "head" not in loaded.params
    assert ("objective" in loaded.params) == kept
    learned = f"learned by objective.name={options['name']}, so it knows no"
    with pytest.raises(config.UserError, match=learned):
        loaded.require_head()


def test_what_is_no_objective_is_refused():
    vit_jax.register("objective", "wrong")(lambda setup: 7)
    with pytest.raises(config.ConfigError, match="objective.name=wrong: must make a training.obj"):
        Stepper(configure(objective={"name": "wrong"}))
