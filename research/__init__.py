"""Campaigns, from a checkout: findings of the paper, faults, mutations, damage, repetitions.

They use the helpers of the tests, by the names that tests import them by.
"""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests/helpers"))
