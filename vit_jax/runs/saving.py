"""Decides when a run saves, and records facts with every save."""

import contextlib
import time
from collections.abc import Mapping

import jax

from vit_jax import config
from vit_jax.checkpoints.manager import Manager
from vit_jax.data import split_roles
from vit_jax.runs.patience import Patience
from vit_jax.runs.session import Session
from vit_jax.runtime import collectives
from vit_jax.runtime.progress import Progress
from vit_jax.runtime.run_files import RunFiles
from vit_jax.training.build import Trainer
from vit_jax.training.state import State


def open_manager(cfg: config.Config, session: Session) -> contextlib.closing[Manager]:
    """The checkpoints of a run, to be closed by a `with` statement."""
    return contextlib.closing(
        Manager(
            session.workdir / "checkpoints",
            keep=cfg.checkpoint.keep,
            best=split_roles.best_metric(cfg),
            check_lease=session.check_lease,
        )
    )


class Saver:
    """Saves states of a run, in the background.

    Attributes:
      step: the newest step saved by this process, or None.
    """

    def __init__(
        self,
        manager: Manager,
        trainer: Trainer,
        facts: Mapping[str, object],
        session: Session,
        files: RunFiles,
        patience: Patience,
    ) -> None:
        """`facts`, and the state of `patience`, are recorded with every checkpoint."""
        self._manager, self._facts, self._files = manager, facts, files
        self._patience = patience
        self._durations, self._cfg = trainer.durations, trainer.cfg
        self._progress, self._phases = session.progress, session.phases
        self._saved_at = time.monotonic()
        self.step: int | None = None

    def poll(self) -> None:
        """Raises SaveFailed if the save in the background failed."""
        self._manager.poll()

    def due(self, step: int) -> bool:
        """Whether to save after a step; all processes ask at every step, and agree."""
        return self._durations.saves(step) or self._minutes_are_over(step)

    def is_best(self, results: Mapping[str, float]) -> bool:
        """Whether these results are better than those of all checkpoints."""
        return self._manager.is_best(results)

    def save(self, step: int, live: State, results: Mapping[str, float] | None) -> None:
        """Starts saving a state with its evaluation; waits for the save before."""
        self._progress.doing("saving", slow=Progress.MOST_SECONDS)
        with self._phases("save"):
            self._files.sync(now=True)  # first: a checkpoint has all numbers that led to it
            facts = {**self._facts, **self._patience.facts}
            self._manager.save(step, live, record=facts, metrics=results)
        self._progress.doing("")
        # From the end of the call: a save that had to wait for the last one does not make the next
        # one due.
        self.step, self._saved_at = step, time.monotonic()

    def wait(self) -> None:
        """Waits until the last save is committed; raises SaveFailed."""
        self._progress.doing("saving")
        with self._phases("save"):
            self._manager.wait()

    def _minutes_are_over(self, step: int) -> bool:
        minutes = self._cfg.checkpoint.minutes
        if minutes is None:
            return False
        over = time.monotonic() - self._saved_at > 60 * minutes
        if jax.process_count() == 1:
            return over
        # Clocks differ: process 0 decides, now and then, as asking costs a round trip.
        asked = self._durations.logs(step, self._cfg.logging.every)
        return asked and collectives.broadcast_from_main(lambda: over)
