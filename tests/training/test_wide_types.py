"""With JAX_ENABLE_X64=1 a run computes in the same types: every array is given its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import runs
from vit_jax.training import build

SECTIONS = {
    "tokens": {
        "model": {"pooling": "token", "registers": 2, "distillation": True, "init": "mae"},
        "train": {"mixup": 0.8, "cutmix": 1.0, "accumulation": 2},
    },
    "map": {
        "model": {"pooling": "map", "relative_bias": "shared", "init": "beit"},
        "lora": {"rank": 2},
        "optimizer": {"name": "sgd"},
    },
    "masked": {"objective": {"name": "masked_patches"}, "checkpoint": {"best": "loss"}},
    "hybrid": {
        "model": {"resnet_units": (1,), "resnet_width": 0.5, "patch_size": 1},
        "loss": {"name": "sigmoid"},
        "train": {"label_smoothing": 0.1, "ema": None},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SECTIONS)
def test_a_step_has_the_types_it_has_by_default(kind):
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        sections = dict(SECTIONS[kind])
        classes = None if kind == "masked" else 10
        sections["model"] = {"num_classes": classes} | sections.get("model", {})
        cfg = runs.configure(**sections)
        trainer = build.build(cfg, 200, devices=jax.devices()[:1])
        target = trainer.state_shapes
        with jax.set_mesh(trainer.mesh):
            after, metrics = jax.eval_shape(trainer.step, target, trainer.batch_shapes)
    assert {leaf.dtype for leaf in jax.tree.leaves(target)} <= {
        np.dtype(kind) for kind in (jnp.float32, jnp.int32, jnp.bfloat16)
    }
    types = [jax.tree.map(lambda leaf: leaf.dtype, tree) for tree in (target, after)]
    assert types[0] == types[1]
    assert not [name for name, leaf in metrics.items() if leaf.dtype.itemsize > 4]
