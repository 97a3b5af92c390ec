"""A cell as `transfer.subprocesses` runs it."""

import dataclasses
import json

from research.findings.planning import Cell
from vit_jax import config


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A cell with the config of its run, which names the folder of its origin."""

    cell: Cell
    cfg: config.Config

    @property
    def directory(self) -> str:
        """The run directory, below the folder of all cells."""
        return self.cell.directory

    @property
    def worker(self) -> tuple[str, ...]:
        """The module that runs it, and what to measure."""
        looks = [(look.kind, dict(look.options)) for look in self.cell.training.looks]
        return "research.findings.worker", json.dumps(looks)
