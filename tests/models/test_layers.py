"""Parts of a Vision Transformer against float64 formulas."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax import config, models
from vit_jax.models import layers
from vit_jax.training import compiler_options

TINY = {"num_classes": 2, "patch_size": (4, 4), "width": 32, "heads": 1, "mlp_dim": 128}
IMAGES = np.random.default_rng(0).integers(0, 256, (3, 8, 12, 3), np.uint8)


def test_join_undoes_cut():
    again = layers.unpatchify(layers.patchify(jnp.asarray(IMAGES), (4, 2)), (8, 12))
    np.testing.assert_array_equal(again, IMAGES)


def test_what_fills_no_patch_is_left_out():
    found = layers.patchify(jnp.asarray(IMAGES), (3, 5))
    np.testing.assert_array_equal(found, layers.patchify(jnp.asarray(IMAGES[:, :6, :10]), (3, 5)))


@pytest.mark.slow
def test_cudnn_gets_padded_tokens_that_change_nothing(monkeypatch):
    """Its backward pass takes even lengths only; XLA stands in for it here, with its arguments."""
    model = config.Model(width=12, heads=3, mlp_dim=8, depth=1, attention="cudnn", dropout=0.0)
    attention = layers.Attention(model, jnp.float32, rngs=nnx.Rngs(0))
    x, to = (
        jnp.asarray(np.random.default_rng(n).normal(size=(2, n, 12)), jnp.float32) for n in (1, 11)
    )
    expected = [attention(a, to=b, capture=True)[0] for a, b in ((to, to), (x, to))]
    lengths, xla = [], jax.nn.dot_product_attention

    def cudnn(query, key, value, *, implementation, **given):
        assert implementation == "cudnn"
        lengths.append((query.shape[1], key.shape[1], value.shape[1]))
        return xla(query, key, value, implementation="xla", **given)

    monkeypatch.setattr(jax.nn, "dot_product_attention", cudnn)
    for one, (a, b) in zip(expected, ((to, to), (x, to)), strict=True):
        np.testing.assert_allclose(attention(a, to=b)[0], one, rtol=0, atol=1e-6)
    assert lengths == [(16, 16, 16), (8, 16, 16)]


@pytest.mark.parametrize("inputs", [(6,), (2, 3)])
def test_a_bfloat16_matmul_multiplies_rounded_numbers_and_adds_in_float32(inputs):
    random = np.random.default_rng(0)
    shapes = (3, 4, *inputs), (*inputs, 5, 7), (3, 4, 5, 7)
    x, kernel, gradient = (jnp.float32(random.normal(size=shape)) for shape in shapes)
    call = jax.jit(functools.partial(layers.bfloat16_matmul, axes=len(inputs)))
    out, gradients = jax.vjp(call, x, kernel)
    found = out, *gradients(gradient)
    a, b, g = (
        np.float64(array.astype(jnp.bfloat16)).reshape(shape)
        for array, shape in ((x, (12, 6)), (kernel, (6, 35)), (gradient, (12, 35)))
    )
    for given, expected in zip(found, (a @ b, g @ b.T, a.T @ g), strict=True):
        assert given.dtype == jnp.float32
        np.testing.assert_allclose(given.reshape(expected.shape), expected, rtol=0, atol=2e-6)
    assert [one.shape for one in found[1:]] == [x.shape, kernel.shape]


@pytest.mark.parametrize("shape", [(128, 8), (8, 16, 8)])
def test_a_bfloat16_matmul_may_be_transposed(shape):
    """And what it is given: the CPU's compiler would make products of both that it cannot run."""
    random = np.random.default_rng(0)
    x, kernel = (jnp.float32(random.integers(-3, 4, size)) for size in (shape, (8, 100)))

    def loss(x, kernel):
        y = jnp.swapaxes(layers.bfloat16_matmul(x, kernel), -1, -2)
        return jnp.sum(jnp.abs(y) * y) / 2

    @jax.jit
    def gradients(x, kernel):
        first, second = jax.grad(loss, (0, 1))(x, kernel)
        return first, second.T

    rows, columns = np.float64(x).reshape(128, 8), np.float64(kernel)
    g = np.float64(jnp.float32(np.abs(rows @ columns)).astype(jnp.bfloat16))
    found = gradients(x, kernel)
    np.testing.assert_allclose(found[0].reshape(128, 8), g @ columns.T, rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(found[1], g.T @ rows, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_rate_and_scale(rate):
    x = jnp.ones((100, 100))
    y = np.asarray(layers.dropout(x, rate, jax.random.key(2)))
    kept = y != 0
    np.testing.assert_allclose(y[kept], 1 / (1 - rate), rtol=1e-6)
    spread = 5 * np.sqrt(rate * (1 - rate) / x.size)
    assert abs(1 - kept.mean() - rate) < spread


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 7, 64])
def test_dropout_falls_on_every_element_by_itself(width):
    """Two elements come from one random word: as often both as the product of their rates."""
    y = np.asarray(layers.dropout(jnp.ones((20_000, width)), 0.3, jax.random.key(4)))
    dropped = (y == 0).astype(np.float64)
    sigma = np.sqrt(0.3 * 0.7 / len(y))
    assert np.abs(dropped.mean(axis=0) - 0.3).max() < 5 * sigma
    covariance = np.cov(dropped, rowvar=False).reshape(width, width)
    off = covariance[~np.eye(width, dtype=bool)]
    assert np.abs(off).max(initial=0) < 5.5 * 0.3 * 0.7 / np.sqrt(len(y))


PLAIN = {
    "gelu_tanh": functools.partial(nnx.gelu, approximate=True),
    "gelu_erf": functools.partial(nnx.gelu, approximate=False),
    "gelu_quick": lambda x: x * nnx.sigmoid(1.702 * x),
}


def temporaries(loss, *arguments, options=None):
    """Bytes that the value and gradient of a loss take beside arguments and results."""
    compiled = jax.jit(jax.value_and_grad(loss)).lower(*arguments).compile(options)
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("name", PLAIN)
def test_the_backward_pass_keeps_the_input_of_an_activation_alone(name):
    x, kernels = jnp.ones((512, 128)), [jnp.eye(128)] * 6

    def loss(x, kernels):
        for kernel in kernels:
            x = layers.ACTIVATIONS[name](x @ kernel)
        return jnp.sum(x * x)

    # Six such arrays for six layers, where nothing would be gained 12 or 18.
    assert temporaries(loss, x, kernels) < 9 * x.nbytes


def test_the_backward_pass_keeps_attention_weights_once():
    def loss(x):
        for _ in range(4):
            weights = layers.attention_weights(x, x)
            x = jnp.einsum("bhqk,bkhd->bqhd", weights, x)
        return jnp.sum(x * x)

    # Eight such arrays for four layers, where nothing would be gained 15.
    assert temporaries(loss, jnp.ones((4, 197, 6, 64))) < 10 * (4 * 6 * 197 * 197 * 4)


def test_what_layers_compute_anew_is_free_before_the_next_layer():
    cfg = config.Model(**TINY, depth=4, unroll=4, remat="full")
    network = models.create(cfg, image_size=(32, 32), channels=1, dtype="float32")

    def loss(params, images):
        return jnp.sum(network.apply(params, images)[0])

    images = jax.ShapeDtypeStruct((16, 32, 32, 1), jnp.float32)
    hidden = 16 * 64 * TINY["mlp_dim"] * 4
    # Of one layer; 25 such arrays if the gradients of all layers wait for the end.
    needed = temporaries(loss, network.shapes(), images, options=compiler_options.CPU)
    assert needed < 12 * hidden


@pytest.mark.parametrize(
    ("ours", "plain"),
    [*((layers.ACTIVATIONS[name], PLAIN[name]) for name in PLAIN), (layers.softmax, nnx.softmax)],
    ids=[*PLAIN, "softmax"],
)
def test_derivatives_are_those_of_the_plain_functions(ours, plain):
    draw = np.random.default_rng(3)
    x, tangent = draw.normal(size=(2, 3, 5)).astype(np.float32) * 2
    weights = jnp.float32(draw.normal(size=(3, 5)))

    def derivatives(function):
        gradient = jax.grad(lambda x: jnp.sum(weights * function(x)))
        along = jax.jvp(function, (x,), (tangent,))
        return *along, gradient(x), jax.jvp(gradient, (x,), (tangent,))[1]

    for one, other in zip(derivatives(ours), derivatives(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-7)
