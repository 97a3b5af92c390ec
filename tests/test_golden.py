"""Results that must not change unnoticed: arguments, options of configs, losses of small runs.

What differs on purpose is written anew by `tests/helpers/golden_runs.py`, and shows in its commit.
"""

import json

import jax
import numpy as np
import pytest

import golden_runs

RECORDED = json.loads(golden_runs.LOSSES.read_text())
FAST = ("adam-fsdp",)


def test_no_argument_of_a_command_has_changed():
    found = list(golden_runs.command_lines())
    recorded = golden_runs.COMMANDS.read_text().splitlines()
    assert recorded == found, "meant? python tests/helpers/golden_runs.py commands"


def test_no_config_has_changed():
    recorded = golden_runs.CONFIGS.read_text().splitlines()
    found = list(golden_runs.config_lines())
    changed = sorted({line.split()[0] for line in {*recorded} ^ {*found}})
    assert not changed, "meant? python tests/helpers/golden_runs.py configs"
    assert recorded == found


@pytest.mark.parametrize(
    "name",
    [one if one in FAST else pytest.param(one, marks=pytest.mark.slow) for one in golden_runs.RUNS],
)
def test_losses_are_the_recorded_ones(name):
    """Of this version of jax, else of the one recorded last, to what its rounding amplifies."""
    key = f"{jax.default_backend()} jax {jax.__version__}"
    known = [one for one in RECORDED if one.startswith(f"{jax.default_backend()} ")]
    if not known:
        pytest.skip(f"no losses are recorded on {jax.default_backend()}")
    recorded = RECORDED[key if key in RECORDED else known[-1]][name]
    assert len(set(recorded)) >= golden_runs.STEPS - 1  # the first step has a learning rate of 0
    np.testing.assert_allclose(
        golden_runs.losses(name), recorded, rtol=golden_runs.TOLERANCES[name]
    )
