"""Training steps without a loop: a tiny config, its compiled step, batches by hand."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config
from vit_jax.training import objectives, sharding
from vit_jax.training.build import build
from vit_jax.utils import tree_utils

BATCH, SIZE, CLASSES = 16, 8, 5


def configure(**sections):
    """A ViT of two layers on four patches; `sections` add to its options."""
    values = {
        "model": {
            "patch_size": 4, "width": 16, "depth": 2, "mlp_dim": 32, "heads": 2,
            "num_classes": CLASSES, "pooling": "gap",
        },
        "data": {"image_size": SIZE, "channels": 1},
        "train": {"batch_size": BATCH, "duration": 10, "clip_norm": 1.0},
        # SGD: under Adam the key bias, whose true gradient is zero, amplifies rounding.
        "optimizer": {"name": "sgd", "lr": 0.5},
        "mesh": {"fsdp_min_size": 1},
    }  # fmt: skip
    for section, options in sections.items():
        values[section] = values.get(section, {}) | options
    return config.build(values)


def batch_of(number, channels=1, rows=BATCH):
    """Random pixels and labels, a function of the step's number."""
    rng = np.random.default_rng(number)
    images = rng.integers(0, 256, (rows, SIZE, SIZE, channels), np.uint8)
    return {"image": images, "label": rng.integers(0, CLASSES, rows).astype(np.int32)}


class TwoLayers:
    """The least that is trained like a model; it compiles in a fraction of the time."""

    def init(self, key):
        first, second = jax.random.split(key)
        return {
            "body": {"kernel": jax.random.normal(first, (SIZE * SIZE, 16)) / SIZE},
            "head": {"kernel": jax.random.normal(second, (16, CLASSES))},
        }

    def apply(self, params, images, key=None):
        x = images.reshape(images.shape[0], -1) @ params["body"]["kernel"]
        return jnp.tanh(x) @ params["head"]["kernel"], {}

    def cast(self, params):
        return params  # it computes in float32


class Stepper:
    """A trainer on the first devices, and its state; `parts` replace those of the trainer."""

    def __init__(self, cfg, devices=8, teacher=None, teacher_params=None, model=None, **parts):
        made = build(cfg, 1000, devices=jax.devices()[:devices], teacher=teacher)
        if model is not None:
            model.config = made.model.config
            setup = objectives.Setup(made.cfg, model, made.durations, 1000, teacher)
            parts["objective"] = objectives.create_objective(setup)
        self.trainer = dataclasses.replace(made, **parts)
        self.cfg, self.mesh, self.model = made.cfg, made.mesh, self.trainer.model
        self.compiled = self.trainer.compile_step()
        self.teacher_params = teacher and teacher.put(teacher_params, self.mesh, cfg.mesh)

    @functools.cached_property
    def state(self):
        """The training state, with random heads: zero ones hide the encoder from gradients."""
        live = self.trainer.init_state()

        def drawn(name, leaf):
            if not name.startswith(("head/kernel", "prediction/kernel")):
                return leaf
            values = np.random.default_rng(0).normal(size=leaf.shape).astype(np.float32)
            return jax.device_put(values, leaf.sharding)

        return live | {"params": tree_utils.map_named(drawn, live["params"])}

    def put(self, batch):
        rows = sharding.host_rows(self.mesh, len(batch["label"]))
        return sharding.put_batch(batch, self.mesh, len(batch["label"]), rows)

    def run(self, steps, batches=None):
        """The metrics of each of the next steps, on `batches(number)`."""
        batches = batches or functools.partial(batch_of, channels=self.cfg.data.channels)
        metrics = []
        for number in range(steps):
            live = self.state, self.put(batches(number)), self.teacher_params
            self.state, one = self.compiled(*live)
            metrics.append(jax.device_get(one))
        return metrics

    @property
    def params(self):
        """The parameters by name, on the host."""
        return tree_utils.flatten(jax.device_get(self.state["params"]))

    @property
    def collectives(self):
        """The kinds of communication in the compiled step."""
        kinds = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
        found = re.findall(
            rf"\b({kinds}|collective-broadcast)(?:-start)?\(", self.compiled.as_text()
        )
        return set(found)


def losses_of(metrics):
    return np.array([one["loss"] for one in metrics])


def assert_same_training(stepper, losses, params, steps=6, rtol=2e-6):
    """Asserts that steps give these losses and parameters, to rounding, and that they train."""
    found = losses_of(stepper.run(steps))
    assert found[-1] != found[0]
    np.testing.assert_allclose(found, losses, rtol=rtol)
    assert stepper.params.keys() == params.keys()
    for name, value in stepper.params.items():
        np.testing.assert_allclose(value, params[name], rtol=1e-4, atol=2e-6, err_msg=name)
