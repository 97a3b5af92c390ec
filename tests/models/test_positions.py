import numpy as np
import pytest
from flax import nnx

from vit_jax import config
from vit_jax.models import positions


def table(position, pooling, grid, width=8):
    model = config.Model(width=width, position=position, pooling=pooling)
    return positions.Positions(model, grid, rngs=nnx.Rngs(0))


def parameters(module):
    return nnx.to_pure_dict(nnx.state(module, nnx.Param))


# Fixed


def test_sincos_2d_by_hand():
    """Token 5 of a 2 x 3 grid is row 1, column 2; the two frequencies are 1 and 1e-4."""
    expected = [np.sin(2), np.sin(2e-4), np.cos(2), np.cos(2e-4)]
    expected += [np.sin(1), np.sin(1e-4), np.cos(1), np.cos(1e-4)]
    np.testing.assert_allclose(positions.sincos_2d(2, 3, 8)[5], expected, rtol=1e-5)


def test_sincos_1d_by_hand():
    """Position 3 of 4 features: frequencies 1 and 1/100, sine and cosine side by side."""
    expected = [np.sin(3), np.cos(3), np.sin(0.03), np.cos(0.03)]
    np.testing.assert_allclose(positions.sincos_1d(4, 4)[3], expected, rtol=1e-5)


# Learned


@pytest.mark.parametrize(("pooling", "tokens"), [("token", 7), ("gap", 6), ("map", 6)])
def test_learned_1d_is_one_row_per_token(pooling, tokens):
    module = table("learned_1d", pooling, (2, 3))
    assert {n: p.shape for n, p in parameters(module).items()} == {"table": (1, tokens, 8)}
    np.testing.assert_array_equal(module(), module.table[...])


@pytest.mark.parametrize("pooling", ["token", "gap", "map"])
def test_learned_2d_joins_column_and_row(pooling):
    """Half the features say the column (X), half the row (Y); the class token has its own row."""
    module = table("learned_2d", pooling, (2, 3))
    names = {"rows": (2, 4), "columns": (3, 4)} | ({"cls": (1, 8)} if pooling == "token" else {})
    assert {n: p.shape for n, p in parameters(module).items()} == names
    given = np.asarray(module())
    assert given.shape == (1, 6 + (pooling == "token"), 8)
    if pooling == "token":
        np.testing.assert_array_equal(given[:, 0], module.cls[...])
    patches = given[0, -6:]
    for token in range(6):
        row, column = divmod(token, 3)
        np.testing.assert_array_equal(patches[token, :4], module.columns[...][column])
        np.testing.assert_array_equal(patches[token, 4:], module.rows[...][row])


# Relative
