import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import special

import vit_reference
from vit_jax.models import layers, positions


@pytest.mark.parametrize(
    ("height", "width", "features"), [(3, 5, 16), (1, 1, 8), (4, 2, 4), (14, 14, 192)]
)
def test_sincos_equals_float64(height, width, features):
    given = positions.sincos_2d(height, width, features)
    assert given.dtype == jnp.float32
    np.testing.assert_allclose(
        given, vit_reference.sincos(height, width, features), rtol=0, atol=3e-6
    )


def test_sincos_by_hand():
    """Token 5 of a 2 x 3 grid is row 1, column 2; the two frequencies are 1 and 1e-4."""
    expected = [np.sin(2), np.sin(2e-4), np.cos(2), np.cos(2e-4)]
    expected += [np.sin(1), np.sin(1e-4), np.cos(1), np.cos(1e-4)]
    np.testing.assert_allclose(positions.sincos_2d(2, 3, 8)[5], expected, rtol=1e-5)


def test_attention_weights_equal_float64():
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, 2, 7, 3, 5)).astype(np.float32) * 2
    weights = layers.attention_weights(q, k)
    logits = np.einsum("bqhd,bkhd->bhqk", q.astype(np.float64), k) / np.sqrt(5)
    np.testing.assert_allclose(weights, special.softmax(logits, -1), rtol=2e-5, atol=1e-7)


def test_attention_weights_of_bfloat16_are_float32_and_sum_to_one():
    q = np.random.default_rng(0).normal(size=(2, 50, 2, 8)).astype(jnp.bfloat16)
    weights = jax.jit(layers.attention_weights)(q, q)
    assert weights.dtype == jnp.float32
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)


def test_layer_norm_of_bfloat16_is_rounded_once():
    """Statistics of bfloat16 numbers with a large mean would be useless in bfloat16."""
    norm = nnx.LayerNorm(64, epsilon=1e-6, rngs=nnx.Rngs(0))
    x = np.random.default_rng(1).normal(20, 1, (3, 64)).astype(jnp.bfloat16)
    given = jax.jit(lambda x: layers.normalise(norm, x))(x)
    assert given.dtype == jnp.bfloat16
    wide = np.asarray(x, np.float64)
    exact = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(np.asarray(given, np.float64), exact, rtol=2**-8, atol=1e-3)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_rate_and_scale(rate):
    x = jnp.ones((100, 100))
    y = np.asarray(layers.dropout(x, rate, jax.random.key(2)))
    kept = y != 0
    np.testing.assert_allclose(y[kept], 1 / (1 - rate), rtol=1e-6)
    spread = 5 * np.sqrt(rate * (1 - rate) / x.size)
    assert abs(1 - kept.mean() - rate) < spread


def test_dropout_without_key_or_rate_is_the_identity():
    x = jnp.arange(6.0)
    np.testing.assert_array_equal(layers.dropout(x, 0.5, None), x)
    np.testing.assert_array_equal(layers.dropout(x, 0.0, jax.random.key(0)), x)
