import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import config
from vit_jax.training import optimizers
from vit_jax.utils import tree_utils

PARAMS = {
    "head": {"kernel": jnp.array([[1.0, -2.0]]), "bias": jnp.array([0.5, 0.5])},
    "cls": jnp.array([[[3.0]]]),
    "encoder": {"norm1": {"scale": jnp.array([1.0])}},
}
GRADS = jax.tree.map(lambda x: 0.1 * x + 0.01, PARAMS)
SCALES = (1.0, -3.0, 0.25)  # of the gradients of steps: of equal ones any average is the same
MOMENTS = {  # no defaults
    "adam": {"b1": 0.8, "b2": 0.97, "eps": 1e-5},
    "sgd": {"momentum": 0.7},
}


def run(cfg, lr, steps, clip_norm=None):
    """Three updates of our chain, applied as the training step applies them."""
    tx = optimizers.create_optimizer(cfg, clip_norm=clip_norm)
    params, state = PARAMS, tx.init(PARAMS)
    for scale in SCALES[:steps]:
        grads = jax.tree.map(lambda g, scale=scale: g * scale, GRADS)
        updates, state = tx.update(grads, state, params)
        params = jax.tree.map(lambda p, u: p - lr * u, params, updates)
    return tree_utils.flatten(params), state


def by_hand(kind, lr, steps, wd, decayed, clip=None):
    """The same in float64, written out from the definitions."""
    flat = {k: np.asarray(v, np.float64) for k, v in tree_utils.flatten(PARAMS).items()}
    whole = {k: np.asarray(v, np.float64) for k, v in tree_utils.flatten(GRADS).items()}
    norm = np.sqrt(sum((g**2).sum() for g in whole.values()))
    (b1, b2, eps), (momentum,) = (one.values() for one in MOMENTS.values())
    m = {k: np.zeros_like(v) for k, v in flat.items()}
    v = {k: np.zeros_like(x) for k, x in flat.items()}
    for t, scale in enumerate(SCALES[:steps], 1):
        cut = 1.0 if clip is None else min(1.0, clip / (abs(scale) * norm))
        for k, full in whole.items():
            g = full * scale * cut
            if kind == "adam":
                m[k] = b1 * m[k] + (1 - b1) * g
                v[k] = b2 * v[k] + (1 - b2) * g * g
                update = (m[k] / (1 - b1**t)) / (np.sqrt(v[k] / (1 - b2**t)) + eps)
            else:
                m[k] = momentum * m[k] + g
                update = m[k]
            if decayed == "all" or k.endswith("kernel"):
                update = update + wd * flat[k]
            flat[k] = flat[k] - lr * update
    return flat


@pytest.mark.parametrize("name", ["adam", "sgd"])
@pytest.mark.parametrize("decayed", ["kernels", "all"])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_against_float64(name, decayed, clip):
    cfg = config.Optimizer(name=name, weight_decay=0.3, decayed=decayed, **MOMENTS[name])
    ours, _ = run(cfg, 0.01, 3, clip)
    for key, expected in by_hand(name, 0.01, 3, 0.3, decayed, clip).items():
        np.testing.assert_allclose(ours[key], expected, rtol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_moment_dtype(name):
    _, state = run(config.Optimizer(name=name, moment_dtype="bfloat16"), 0.01, 1)
    moments = [x for k, x in tree_utils.flatten(state).items() if "mu" in k or "trace" in k]
    assert len(moments) == 4
    assert all(x.dtype == jnp.bfloat16 for x in moments)


def orthogonalized(matrix):
    """Muon's direction for one gradient (inputs, outputs), in float64, from its definition."""
    x = matrix / (np.linalg.norm(matrix) + 1e-8)
    turned = x.shape[0] > x.shape[1]
    x = x.T if turned else x
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    inputs, outputs = matrix.shape
    return (x.T if turned else x) * np.sqrt(max(1.0, outputs / inputs))


def test_muon_takes_the_matrices_of_each_layer_and_adam_the_rest():
    shapes = {
        "encoder/attention/query/kernel": ((2, 6, 2, 4), (6, 8)),
        "encoder/attention/out/kernel": ((2, 2, 4, 6), (8, 6)),
        "encoder/mlp/fc1/bias": ((2, 12), None),
        "head/kernel": ((6, 3), None),
    }
    rng = np.random.default_rng(0)
    grads = {name: rng.normal(size=shape) for name, (shape, _) in shapes.items()}
    tree = tree_utils.nest({k: jnp.asarray(v, jnp.float32) for k, v in grads.items()})
    tx = optimizers.create_optimizer(config.Optimizer(name="muon", nesterov=False), clip_norm=None)
    updates, _ = jax.jit(lambda grads: tx.update(grads, tx.init(grads), grads))(tree)
    for name, update in tree_utils.flatten(updates).items():
        grad, form = grads[name], shapes[name][1]
        if form is None:
            np.testing.assert_allclose(update, np.sign(grad), rtol=1e-5)
            continue
        wanted = [orthogonalized(layer.reshape(form)).reshape(layer.shape) for layer in grad]
        np.testing.assert_allclose(update, np.stack(wanted), rtol=1e-3, atol=1e-4, err_msg=name)


def test_lamb_scales_each_layer_to_its_parameters_decay_included():
    """You et al. 2020, written out in float64; what does not decay takes Adam's updates."""
    rng = np.random.default_rng(0)
    params = {
        "encoder": {"mlp": {"kernel": rng.normal(size=(2, 3, 4)), "bias": rng.normal(size=(2, 4))}},
        "head": {"kernel": rng.normal(size=(4, 5))},
        "zero": {"kernel": np.zeros((2, 2))},
    }
    params = jax.tree.map(np.float32, params)
    grads = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), params)
    cfg = config.Lamb(name="lamb", b1=0.8, b2=0.97, eps=1e-5, weight_decay=0.1)
    tx = optimizers.create_optimizer(cfg, clip_norm=None)
    updates, _ = tx.update(grads, tx.init(params), params)
    flat, given = tree_utils.flatten(params), tree_utils.flatten(grads)
    for name, update in tree_utils.flatten(updates).items():
        gradient = np.float64(given[name])
        expected = gradient / (np.abs(gradient) + 1e-5)  # the first step of Adam
        if name.endswith("kernel"):
            param = np.float64(flat[name])
            expected += 0.1 * param
            for layer in range(2) if name.startswith("encoder") else [...]:
                norm = np.linalg.norm(param[layer])
                if norm:
                    expected[layer] *= norm / np.linalg.norm(expected[layer])
        np.testing.assert_allclose(update, expected, rtol=2e-6, err_msg=name)


def test_lars_is_that_of_the_masked_autoencoder():
    """Its code's, in float64: decay, then the trust ratio of what decays, then momentum."""
    rng = np.random.default_rng(0)
    shapes = {"encoder/mlp/kernel": (2, 3, 4), "head/kernel": (4, 5), "head/bias": (5,)}
    shapes["zero/kernel"] = (2, 2)
    params = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    params["zero/kernel"] *= 0
    ours = {name: np.float32(leaf) for name, leaf in params.items()}
    cfg = config.Lars(name="lars", weight_decay=0.1, trust_coefficient=0.01, momentum=0.8)
    tx = optimizers.create_optimizer(cfg, clip_norm=None)
    update, state = jax.jit(tx.update), tx.init(tree_utils.nest(ours))
    trace = {name: np.zeros(shape) for name, shape in shapes.items()}
    for _ in range(3):
        grads = {name: np.float32(rng.normal(size=shape)) for name, shape in shapes.items()}
        found, state = update(tree_utils.nest(grads), state, tree_utils.nest(ours))
        ours = {name: ours[name] - 0.5 * leaf for name, leaf in tree_utils.flatten(found).items()}
        for name, param in params.items():
            change = np.float64(grads[name])
            for layer in range(2) if name.startswith("encoder") else [...]:
                if not name.endswith("bias"):
                    change[layer] += 0.1 * param[layer]
                    norm = np.linalg.norm(param[layer])
                    change[layer] *= 0.01 * norm / np.linalg.norm(change[layer]) if norm else 1
            trace[name] = 0.8 * trace[name] + change
            params[name] = param - 0.5 * trace[name]
    for name, param in params.items():
        np.testing.assert_allclose(ours[name], param, rtol=1e-5, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("name", optimizers.WHOLE)
def test_each_layer_is_updated_as_an_array_of_its_own(name):
    """Stacks may have unlike numbers of layers."""
    rng = np.random.default_rng(0)
    shapes = {"encoder/mlp/kernel": (2, 3, 4), "encoder/norm/scale": (1, 4), "head/kernel": (3, 4)}
    trees = [
        {
            key: np.float32(
                rng.normal(size=size) * (1 + 9 * rng.random(size[:1] + (1,) * len(size[1:])))
            )
            for key, size in shapes.items()
        }
        for _ in range(3)
    ]
    tx = optimizers.create_optimizer(config.Optimizer(name=name), clip_norm=None)

    @jax.jit
    def last_update(params, first, second):
        _, state = tx.update(first, tx.init(params), params)
        return tx.update(second, state, params)[0]

    def layers(tree):
        return {
            f"{key.replace('/', '_')}_{n}": layer
            for key, leaf in tree.items()
            for n, layer in enumerate(leaf if key.startswith("encoder") else [leaf])
        }

    found = last_update(*map(tree_utils.nest, trees))
    expected = last_update(*map(layers, trees))
    for key, update in layers(tree_utils.flatten(found)).items():
        np.testing.assert_allclose(update, expected[key], rtol=1e-5, err_msg=key)


def test_each_parameter_is_clipped_by_its_own_norm():
    """Of stacked layers each, and queries, keys and values of a layer together."""
    rng = np.random.default_rng(0)
    grads = {"head/kernel": rng.normal(size=(3, 2)), "head/bias": 1e-3 * rng.normal(size=2)}
    qkv = [f"encoder/attention/{name}/kernel" for name in ("query", "key", "value")]
    grads |= {name: rng.normal(size=(2, 3, 1, 4)) for name in qkv}
    tx = optimizers.create_optimizer(
        config.Optimizer(name="sgd", momentum=0.0), clip_norm=0.5, clip_by="parameter"
    )
    tree = tree_utils.nest({name: jnp.float32(leaf) for name, leaf in grads.items()})
    found = tree_utils.flatten(jax.jit(tx.update)(tree, tx.init(tree), tree)[0])
    kernel = grads["head/kernel"]
    expected = {"head/kernel": kernel * 0.5 / np.linalg.norm(kernel)}
    expected["head/bias"] = grads["head/bias"]
    squares = sum((grads[name] ** 2).sum((1, 2, 3)) for name in qkv)
    factors = np.minimum(1, 0.5 / np.sqrt(squares)).reshape(2, 1, 1, 1)
    expected |= {name: grads[name] * factors for name in qkv}
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=name)


def test_parameters_that_wait_have_no_moments_until_they_train():
    tx = optimizers.create_optimizer(config.Optimizer(), clip_norm=None, waits={"head/": 2})
    plain = optimizers.create_optimizer(config.Optimizer(), clip_norm=None)
    update, state, alone = jax.jit(tx.update), tx.init(PARAMS), plain.init(PARAMS)
    first, _ = plain.update(GRADS, alone, PARAMS)
    for step in range(3):
        found, state = update(GRADS, state, PARAMS)
        expected, alone = plain.update(GRADS, alone, PARAMS)
        np.testing.assert_allclose(found["cls"], expected["cls"], rtol=1e-6)
        wanted = first["head"]["kernel"] * float(step == 2)
        np.testing.assert_allclose(found["head"]["kernel"], wanted, rtol=1e-6)
