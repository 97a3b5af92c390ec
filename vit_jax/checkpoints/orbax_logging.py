"""Suppresses orbax's log noise: this package raises or logs every failure in one line.

When one array fails, orbax closes the event loop that the others still use. Each of those then
reports through its own channel, with tracebacks of several kilobytes.
"""

import asyncio
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable

ORBAX = os.path.join("orbax", "checkpoint")  # noqa: PTH118
# Files whose functions stand between a log call and the filter, its own among them.
WITHIN = (
    os.path.join("logging", "__init__.py"),  # noqa: PTH118 (Python's, and absl's)
    os.path.join("logging", "converter.py"),  # noqa: PTH118
    os.path.basename(__file__),  # noqa: PTH119
)


def silence_orbax() -> None:
    """Drops orbax's log entries and the errors of its abandoned tasks, and nothing else."""
    logging.getLogger("absl").addFilter(_not_orbax)
    logging.getLogger("asyncio").addFilter(_not_abandoned)
    # Only orbax starts coroutines here; its leftovers would still warn at interpreter exit.
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    # Once, as every manager and every restore comes here; loggers add a filter once by themselves.
    if not isinstance(sys.unraisablehook, _Hook):
        sys.unraisablehook = _Hook(sys.unraisablehook)


def _not_orbax(entry: logging.LogRecord) -> bool:
    """Whether an entry of absl's log comes from elsewhere.

    Its `pathname` is that of the caller only if absl made the logger. Whoever asks for the logger
    "absl" before absl is imported gets a plain one, for which all entries come from absl itself.
    """
    if ORBAX in entry.pathname:
        return False
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_filename.endswith(WITHIN):
        frame = frame.f_back
    return frame is None or ORBAX not in frame.f_code.co_filename


def _not_abandoned(entry: logging.LogRecord) -> bool:
    text = entry.getMessage()
    return not ("never retrieved" in text and ("orbax" in text or "tensorstore" in text))


class _Hook:
    """Forwards unraisable errors, except those of orbax's abandoned work."""

    def __init__(self, previous: "Callable[[sys.UnraisableHookArgs], object]") -> None:
        self.previous = previous

    def __call__(self, unraisable: "sys.UnraisableHookArgs") -> None:
        code = getattr(unraisable.object, "cr_code", None)
        coroutine = code is not None and "orbax" in code.co_filename
        if not coroutine and not _called_a_closed_loop(unraisable):
            self.previous(unraisable)


def _called_a_closed_loop(unraisable: "sys.UnraisableHookArgs") -> bool:
    """Whether one of tensorstore's threads called an event loop that is closed."""
    frames = list(traceback.walk_tb(unraisable.exc_traceback))
    # Such a thread has no Python of its own: asyncio's function is the outermost frame.
    return (
        unraisable.object is None
        and bool(frames)
        and frames[0][0].f_code is asyncio.BaseEventLoop.call_soon_threadsafe.__code__
        and str(unraisable.exc_value) == "Event loop is closed"
    )
