"""The results of a finished run."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping

from vit_jax import config
from vit_jax.checkpoints import manager
from vit_jax.checkpoints.record import NEWEST
from vit_jax.data import split_roles
from vit_jax.runs.session import Session
from vit_jax.runtime import collectives
from vit_jax.runtime.run_files import RunFiles


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The results of a finished run.

    Attributes:
      workdir: the run directory.
      steps: the last step.
      seconds: duration of this process.
      results: the evaluation of the checkpoint that stands for the run, and the test split's.
      last: the evaluation after the last step.
      checkpoint: which checkpoint stands for the run, and why, as `vit_jax.load` chooses it.
      files: what the run wrote.
      splits: expressions of the evaluated splits, by the name of their metrics.
    """

    workdir: pathlib.Path
    steps: int
    seconds: float
    results: Mapping[str, float]
    last: Mapping[str, float]
    checkpoint: str
    files: tuple[pathlib.Path, ...]
    splits: Mapping[str, str] = dataclasses.field(default_factory=dict)


def finish(
    cfg: config.Config,
    steps: int,
    last: Mapping[str, float],
    tested: Mapping[str, float],
    session: Session,
    files: RunFiles,
) -> Outcome:
    """Draws the curves and collects the results.

    Args:
      cfg: the run.
      steps: the last step.
      last: the evaluation after it; empty in a run that was complete before.
      tested: the results of the test split, if there is one.
      session: this process.
      files: the run's.
    """
    workdir, final = session.workdir, split_roles.final(cfg.data)
    last = last or _evaluation(workdir, NEWEST)[1]
    checkpoint, results = _evaluation(workdir)
    roles = [split_roles.evaluation(cfg.data), *([final] if final else [])]
    written = ["config.json", "metrics.jsonl", "checkpoints"]
    if (folder := files.folder) is not None:
        from vit_jax.pages import curves  # matplotlib is slow to import

        names = [role.name for role in roles]
        curves.draw(folder / "metrics.jsonl", folder / "curves.png", names)
        written.append("curves.png")
    return Outcome(
        workdir=workdir,
        steps=steps,
        seconds=session.age,
        results={**results, **tested},
        last={**last, **tested},
        checkpoint=checkpoint,
        files=tuple(workdir / name for name in written),
        splits={role.name: role.split for role in roles},
    )


def _evaluation(workdir: pathlib.Path, at: str | None = None) -> tuple[str, dict[str, float]]:
    """Which checkpoint is meant by `at`, in words, and its evaluation."""
    found = collectives.broadcast_from_main(lambda: manager.find(workdir / "checkpoints", at)[1])
    metrics = found["metrics"].items()  # which has None for what was not finite
    return found["chosen"], {key: math.nan if one is None else one for key, one in metrics}
