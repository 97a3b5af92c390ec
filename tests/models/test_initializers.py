"""Initial values are drawn between the bounds, or with the deviations, that their authors have."""

import jax
import numpy as np
import pytest

from vit_jax import config
from vit_jax.models import initializers
from vit_jax.utils import tree_utils

SHAPES = {  # of two layers of width 48 in 3 heads, of patches of 8 x 8
    "embedding/kernel": (8, 8, 3, 48),
    "encoder/attention/query/kernel": (2, 48, 3, 16),
    "encoder/attention/out/kernel": (2, 3, 16, 48),
    "encoder/mlp/fc1/kernel": (2, 48, 192),
}


@pytest.mark.parametrize(
    ("style", "bounds"),
    [
        ("mae", {"embedding": 192 + 48, "query": 4 * 48, "out": 2 * 48, "fc1": 48 + 192}),
        ("timm", {"embedding": 6 * 192}),
    ],
)
def test_uniform_values_fill_the_bounds_of_their_fans(style, bounds):
    zeros = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    params = tree_utils.nest(zeros)
    drawn = initializers.redraw(config.Model(init=style), params, jax.random.key(0))
    for name, values in tree_utils.flatten(drawn).items():
        (fans,) = [one for part, one in bounds.items() if part in name] or [None]
        if fans is None:
            assert np.std(values) == pytest.approx(0.02, rel=0.05), name
        else:
            bound = (6 / fans) ** 0.5
            assert bound * 0.99 < np.abs(values).max() <= bound, name
            assert np.std(values) == pytest.approx(bound / 3**0.5, rel=0.05), name
