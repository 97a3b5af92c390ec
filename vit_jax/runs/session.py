"""One process of a run: its locks, signals, peers, time limits and progress."""

import contextlib
import dataclasses
import pathlib
import platform
import time
from collections.abc import Callable, Iterator

import jax

from vit_jax import config
from vit_jax.config import checks, components
from vit_jax.runtime import (
    collectives,
    device,
    distributed,
    locking,
    preemption,
    watchdog,
)
from vit_jax.runtime.progress import Progress
from vit_jax.runtime.run_files import RunFiles
from vit_jax.training import run_config
from vit_jax.utils.digests import digest

REMEDIES = (
    "raise train.accumulation, set model.remat=full or mesh.fsdp, or lower train.batch_size "
    "(and evaluation.batch_size, where it is set)"
)
NOTHING_LEFT = "there was nothing left to save; resume with the same command"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Session:
    """A process of a run.

    Attributes:
      workdir: the run directory.
      stop: tells whether the run is to stop.
      phases: times the phases of the process.
      progress: shows what the process does.
      check_lease: raises LeaseLost once another process has taken over the directory.
      began: when the process began, by `time.monotonic`.
    """

    workdir: pathlib.Path
    stop: preemption.Stop
    phases: watchdog.PhaseTimer
    progress: Progress
    check_lease: Callable[[], None] = lambda: None
    began: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def age(self) -> float:
        """Seconds since the process began."""
        return time.monotonic() - self.began

    def compare(self, **facts: str) -> list[str]:
        """Raises ConfigError, in every process, if one of the facts differs among them.

        Returns a line for each process; none if there is one process.
        """
        own = {"host": platform.node(), "seconds": f"{self.age:.1f}"}
        return distributed.check_consistency(self.workdir, own | facts)

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Shows and times the compilation of the step."""
        before = self.age
        self.progress.doing("compiling the step", slow=0.0)
        with self.phases("compile"):
            yield
        self.progress.say(
            f"step compiled in {self.age - before:.1f} s, ready after {self.age:.1f} s"
        )

    def open_files(self, cfg: config.Config) -> RunFiles:
        """Opens the files of the run; from now on compiled programs are kept."""
        files = RunFiles(self.workdir, cfg, self.phases, self.check_lease)
        device.cache_programs()
        return files


@contextlib.contextmanager
def open_session(cfg: config.Config, workdir: pathlib.Path) -> Iterator[Session]:
    """Runs the `with` statement as a process of the run in `workdir`.

    Locks the directory, joins the other processes and compares configs with them, notes signals
    and maintenance, shows progress, ends a process that hangs (exit code 70), and turns failures
    of devices and processes into one line. Raises InUse or another UserError; Preempted where a
    signal comes while there is nothing to save.
    """
    run_config.check_trains(cfg)
    # There is nothing to save yet, so a signal interrupts at once.
    stop = preemption.Stop(holding=False)
    try:
        with _open(cfg, workdir, stop) as session:
            yield session
    except KeyboardInterrupt as error:
        if stop.signal is None or stop.holding:  # the second one
            raise
        raise preemption.Preempted(f"stopped; {NOTHING_LEFT}") from error


@contextlib.contextmanager
def _open(cfg: config.Config, workdir: pathlib.Path, stop: preemption.Stop) -> Iterator[Session]:
    device.step_by_step()  # before jax starts its threads
    began, phases = time.monotonic(), watchdog.PhaseTimer("start")
    # The lock first: a refused process must leave the directory alone. Progress closes first, so
    # that errors find the terminal restored. `failures` leaves memory to `memory_errors`.
    with (
        locking.attempt(workdir, wanted=distributed.is_first()) as (refusal, check_lease),
        stop,
        device.memory_errors(REMEDIES),
        distributed.failures(cfg.watchdog.heartbeat),
        watchdog.Watchdog(phases, dataclasses.asdict(cfg.watchdog)),
        contextlib.closing(Progress(active=distributed.is_first())) as progress,
    ):
        # After Stop: with several processes SIGTERM is jax's, which passes it on to all of them.
        directory = None if refusal else workdir  # another run's directory stays as it is
        stop.waiting_for = lambda: progress.activity or "the current step"
        distributed.initialize(directory, cfg.watchdog)
        if jax.distributed.is_initialized():
            stop.hold()  # the processes stop together
        if refusal := collectives.first_problem(refusal):
            raise locking.InUse(refusal)
        session = Session(
            workdir=workdir,
            stop=stop,
            phases=phases,
            progress=progress,
            check_lease=check_lease,
            began=began,
        )
        # Options that do not change a result must be equal too, or a process would wait.
        whole = digest(repr(cfg).encode())
        plugins = digest(repr(components.digests(components.plugins())).encode())
        code = distributed.code_digest()
        session.compare(config=whole, code=code, plugins=plugins, jax=jax.__version__)
        # The devices are known only now; a batch that does not divide ends before data are opened.
        count = jax.device_count()
        checks.check_devices(checks.with_accumulation(cfg, count), count)
        with preemption.watch_maintenance():
            yield session
