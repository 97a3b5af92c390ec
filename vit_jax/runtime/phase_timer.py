"""What a process is doing: its phases, how long each took in all, and when it last got on."""

import collections
import contextlib
import time
from collections.abc import Callable, Iterator


class PhaseTimer:
    """A stack of named phases; the innermost one is what the time goes to.

    Attributes:
      seconds: what each phase took so far, up to the last change or beat.
    """

    def __init__(self, first: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._names, self._since = clock, [first], clock()
        self.seconds: dict[str, float] = collections.defaultdict(float)

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Is in a phase until the `with` statement ends."""
        self.beat()
        self._names.append(name)
        try:
            yield
        finally:
            self.beat()
            self._names.pop()

    def beat(self) -> None:
        """Notes that the phase got on: a step, a batch of an evaluation."""
        now = self._clock()
        self.seconds[self._names[-1]] += now - self._since
        self._since = now

    @property
    def now(self) -> tuple[str, float]:
        """The phase, and the seconds since it got on."""
        return self._names[-1], self._clock() - self._since
