"""A cell: one training run of a study."""

import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from vit_jax import config


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One training run of a study.

    Attributes:
      directory: the run directory, below that of the study.
      cfg: the run; the `init_from` of one with an origin is set when it runs.
      facts: what its record says besides the result, as JSON values.
      origin: the cell whose final weights it starts from.
      worker: the module that runs it in a process; it calls `studies.worker.serve`.
      measurements: what that measures on the trained network besides its splits, as JSON values.
      alike: whether it is compared with the runs beside it, and must have their data.
    """

    directory: str
    cfg: config.Config
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    origin: "Cell | None" = None
    worker: str = "vit_jax.studies.worker"
    measurements: tuple[Mapping[str, Any], ...] = ()
    alike: bool = False

    @property
    def lr(self) -> float:
        """The peak learning rate."""
        return self.cfg.optimizer.lr

    @functools.cached_property
    def digest(self) -> str:
        """16 hex digits of everything that determines the result."""
        # Options that decide no result, such as data.workers, are not in a fingerprint.
        origin = self.origin.digest if self.origin else None
        what = [config.fingerprint(self.cfg), origin, list(self.measurements)]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]

    def in_workdir(self, workdir: pathlib.Path) -> config.Config:
        """The config to run, initialized from the origin's run directory."""
        if self.origin is None:
            return self.cfg
        return dataclasses.replace(self.cfg, init_from=str(workdir / self.origin.directory))
