"""The files that a run writes in its directory, except for checkpoints."""

import json
import pathlib
from collections.abc import Callable, Mapping
from types import TracebackType

import jax

from vit_jax import config
from vit_jax.runtime import goodput, logs
from vit_jax.runtime.watchdog import PhaseTimer
from vit_jax.utils import storage
from vit_jax.utils.digests import digest
from vit_jax.utils.errors import LeaseLost


class RunFiles:
    """Config, metrics and goodput of a run; process 0 writes them, the others write nothing.

    Attributes:
      folder: local folder of these files, or None in the other processes. For a run directory in
        a bucket it is a mirror.
    """

    def __init__(
        self,
        workdir: pathlib.Path,
        cfg: config.Config,
        phases: PhaseTimer,
        check_lease: Callable[[], None] = lambda: None,
    ) -> None:
        """Creates the directory; checks its lease before each write.

        Raises ConfigError if the directory cannot be written, NotWritten if the disk is full.
        """
        self.folder: pathlib.Path | None = None
        self._workdir, self._phases, self._check = workdir, phases, check_lease
        self._goodput: goodput.GoodputLog | None = None
        self._metrics: logs.Metrics | None = None
        self._options = digest(json.dumps(config.to_dict(cfg), sort_keys=True).encode())
        if jax.process_index() != 0:
            return
        with storage.writing("--workdir", workdir):
            workdir.mkdir(parents=True, exist_ok=True)
        with storage.readable_errors(f"--workdir={workdir}"):
            self._mirror = storage.RemoteSync(workdir, check_lease)
        self.folder = self._mirror.folder

    def __enter__(self) -> "RunFiles":
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        # Before the upload below: a restart reads sessions.json from the bucket.
        if self._goodput is not None and isinstance(error, Exception) and _from_state(error):
            self._goodput.failed()
        if self.folder is None:
            return
        if self._metrics is not None:
            self._metrics.close()
        # The directory is another process's then, and so are the objects of these names.
        if not isinstance(error, LeaseLost):
            self._mirror.bring(now=True)

    def open(self, cfg: config.Config) -> None:
        """Writes config.json and opens the loggers, which may read it.

        A later command without options goes on with this config. Raises ConfigError if a file or
        a logger cannot be opened, NotWritten if the disk is full.
        """
        if self.folder is not None:
            with storage.writing("--workdir", self._workdir):
                text = json.dumps(config.to_dict(cfg), indent=2) + "\n"
                storage.write_atomically(self._workdir / "config.json", text)
            self._metrics = logs.Metrics(
                self.folder, tensorboard=cfg.logging.tensorboard, loggers=cfg.logging.loggers
            )

    def write(self, step: int, values: Mapping[str, float | str]) -> None:
        """Writes the numbers of a step; keys are `group/name`."""
        if self._metrics is not None:
            if self.folder == self._workdir:  # else the mirror checks
                self._check()
            self._metrics.write(step, values)

    def sync(self, *, now: bool = False) -> None:
        """Uploads changed files of a run directory in a bucket, periodically or `now`."""
        if self.folder is not None:
            self._mirror.bring(now=now)

    def begin(self, step: int, *, age: float) -> None:
        """Starts counting goodput of a process that is `age` seconds old, after `step`."""
        if self.folder is not None:
            self._goodput = goodput.GoodputLog(self.folder, step, age=age, options=self._options)

    def spent(self, step: int) -> goodput.Summary | None:
        """Writes the time spent up to `step`; returns its summary in process 0."""
        self._phases.beat()
        return self._goodput and self._goodput.update(step, self._phases.seconds)

    def suspects(self) -> list[int]:
        """Steps from which this run has failed twice with its options; for process 0."""
        assert self.folder is not None
        sessions = goodput.read_sessions(self.folder / goodput.FILE)
        return sorted(goodput.suspects(sessions, self._options))


def _from_state(error: Exception) -> bool:
    """Whether a failure may come from the state, and not from a disk, data or a peer."""
    if isinstance(error, config.UserError):
        return error.from_state
    # With peers, it may be the consequence of one that is lost.
    return jax.process_count() == 1
