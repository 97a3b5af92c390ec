"""`--profile`: a profiler trace of some steps."""

import jax

from vit_jax.config import ConfigError
from vit_jax.runs.session import Session
from vit_jax.utils import storage


class Profiler:
    """Traces the steps FIRST to LAST to a folder of the run directory; without steps, nothing."""

    def __init__(self, steps: tuple[int, int] | None, last: int, session: Session) -> None:
        """Takes the steps to trace and the last step of the run; raises ConfigError."""
        self._first, self._last = steps or (0, -1)
        self._session = session
        self._tracing = False
        if steps is None:
            return
        if not 1 <= self._first <= self._last <= last:
            raise ConfigError(
                f"--profile={self._first}:{self._last}: must be FIRST:LAST within steps 1 to {last}"
            )
        if storage.is_remote(session.workdir):
            raise ConfigError(f"--profile: needs a --workdir on a disk, not {session.workdir}")

    def before(self, step: int) -> None:
        """Starts or stops the trace before a step."""
        if self._first <= step <= self._last and not self._tracing:
            jax.profiler.start_trace(self._session.workdir / "profile")
            self._tracing = True
        elif step > self._last:
            self.end()

    def end(self) -> None:
        """Stops the trace."""
        if self._tracing:
            jax.profiler.stop_trace()
            self._tracing = False
            folder = self._session.workdir / "profile"
            self._session.progress.say(f"profile of steps {self._first}:{self._last} in {folder}")
