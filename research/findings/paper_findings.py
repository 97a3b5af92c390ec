"""The findings of the paper by name, in the order to run them: cheap ones that others share first.

They are declared before they are run. A bound in a claim is fixed with it: changing one after its
cells have run would be choosing the verdict.
"""

import fnmatch
from collections.abc import Callable

from research.findings import networks, pretraining
from research.findings.arms import Arms
from research.findings.declaration import Finding
from vit_jax import config

_FINDINGS: dict[str, Callable[[Arms], Finding]] = {
    "attention-distance": networks.distance,
    "rows-and-columns": networks.rows_and_columns,
    "positions": networks.positions,
    "pooling": networks.pooling,
    "little-data": pretraining.little_data,
    "regularization": pretraining.regularization,
    "shape": networks.shape,
    "masked": pretraining.masked,
    "hybrids": pretraining.hybrids,
    "compute": pretraining.equal_compute,
    "adam": pretraining.adam,
}
NAMES = tuple(_FINDINGS)


def select(patterns: str | None) -> tuple[str, ...]:
    """The names of findings, all or those of a list; raises ConfigError."""
    if patterns is None:
        return NAMES
    selected: dict[str, None] = {}
    for pattern in patterns.split(","):
        matching = fnmatch.filter(NAMES, pattern)
        if not matching:
            raise config.ConfigError(
                f"--only={pattern}: no such finding{config.suggest(pattern, NAMES)}"
            )
        selected |= dict.fromkeys(matching)
    return tuple(name for name in NAMES if name in selected)


def declare(arms: Arms) -> list[Finding]:
    """All findings at a scale, in the order to run them."""
    return [declaration(arms) for declaration in _FINDINGS.values()]
