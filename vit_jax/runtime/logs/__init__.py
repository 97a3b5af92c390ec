"""Run output: metrics.jsonl, TensorBoard events and log messages."""

import contextlib
import glob
import logging
import os
import pathlib
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from vit_jax import config
from vit_jax.config import components
from vit_jax.runtime.logs.trackers import LOGGERS
from vit_jax.utils import limits, messages, storage
from vit_jax.utils.errors import AssumptionWarning, NotWritten

log = logging.getLogger("vit_jax")

UNREADABLE = re.compile(r"Error reading persistent compilation cache entry for '(.+?)'")  # jax's

# Dense bfloat16 peak, FLOP/s per jax device (v2, v3 and 7x: per core, half a chip).
# TPU: cloud.google.com/tpu/docs/system-architecture; GPU: NVIDIA's data sheets, without sparsity.
PEAK_FLOPS = {
    "TPU v2": 23e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "TPU7x": 1153.5e12,
    "A100": 312e12,
    "H100": 989e12,
    "H200": 989e12,
    "B200": 2250e12,
}


def peak_flops(device_kind: str) -> float | None:
    """A device's dense bfloat16 peak in FLOP/s, or None if unknown."""
    matches = [kind for kind in PEAK_FLOPS if kind in device_kind]
    # The longest, as "TPU v5" is part of "TPU v5 lite".
    return PEAK_FLOPS[max(matches, key=len)] if matches else None


def setup() -> None:
    """Logs this package's messages to standard error as single lines and silences libraries."""
    handler = _Stderr()
    handler.setFormatter(_Line("%(message)s"))
    log.handlers = [handler]
    # absl puts a handler on the root logger, which would print every line again.
    log.propagate = False
    log.setLevel(logging.INFO)
    logging.getLogger("absl").setLevel(logging.ERROR)


@contextlib.contextmanager
def shown() -> Iterator[None]:
    """Logs to standard error as commands do, unless the program has set a level for messages."""
    if log.level != logging.NOTSET or log.isEnabledFor(logging.INFO):
        yield
        return
    before = log.handlers, log.propagate
    setup()
    try:
        yield
    finally:
        log.handlers, log.propagate = before
        log.setLevel(logging.NOTSET)


# Once per file, whichever lines of a program load it; filters of the user come before this one.
warnings.filterwarnings("once", category=AssumptionWarning, append=True)


def warn_of_assumptions(reference: str | os.PathLike[str], lines: Sequence[str]) -> None:
    """Warns at the caller's line outside this package; commands log these warnings."""
    if not lines:
        return
    level, frame = 1, sys._getframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("vit_jax."):
        level, frame = level + 1, frame.f_back
    warnings.warn(AssumptionWarning(os.fspath(reference), lines), stacklevel=level)


@contextlib.contextmanager
def assumptions_logged() -> Iterator[None]:
    """Logs each AssumptionWarning as lines, for users of commands."""
    with warnings.catch_warnings():
        ignore_full_cache()
        warnings.simplefilter("default", AssumptionWarning)
        others = warnings.showwarning

        def show(message: Warning | str, *about: Any, **more: Any) -> None:
            if program := UNREADABLE.match(str(message)):
                _forget_program(program[1])
                return
            if not isinstance(message, AssumptionWarning):
                others(message, *about, **more)
                return
            if not log.handlers:  # of a command that logs nothing else
                setup()
            for line in message.lines:
                log.info("%s: %s", message.reference, line)

        warnings.showwarning = show  # restored by catch_warnings
        yield


def _forget_program(name: str) -> None:
    """Removes a compiled program that a kill or a full disk has cut short.

    jax compiles it again, as it would at every start: it does not replace a file that is there.
    """
    import jax  # commands that log need not import it

    folder = pathlib.Path(jax.config.values["jax_compilation_cache_dir"])
    for file in folder.glob(f"{glob.escape(name)}-*-cache"):
        file.unlink(missing_ok=True)  # by another process, meanwhile


def ignore_full_cache() -> None:
    """Silences jax about a full disk: a cache may be missing, and failed saves are reported."""
    text = "Error writing persistent compilation cache entry"
    # A further filter would make Python forget which warnings were shown once.
    if not any(pattern and pattern.pattern == text for _, pattern, *_ in warnings.filters):
        warnings.filterwarnings("ignore", text)


class _Line(logging.Formatter):
    """Formats messages as single lines; bounds warnings and errors, which quote foreign text."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if record.levelno < logging.WARNING:  # e.g. a command to copy must stay whole
            return messages.printable(messages.without_secrets(text))
        return messages.one_line(text, limit=messages.LIMIT)


class _Stderr(logging.StreamHandler):
    """Writes to the current `sys.stderr`, which a live line may temporarily replace."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr  # `setStream` flushes the last one, which may be closed
        super().emit(record)


class Logger(Protocol):
    """Writes the numbers of a run somewhere; made by a component as `factory(directory)`."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the numbers of a step; keys are `group/name`."""
        ...

    def close(self) -> None:
        """Flushes and closes all loggers."""
        ...


@components.register("logger", "jsonl")
class JsonLines:
    """Appends lines to `metrics.jsonl`; the only logger that gets text, such as a split, too."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._file = storage.open_lines(directory / "metrics.jsonl")

    def write(self, step: int, values: Mapping[str, float | str]) -> None:
        """Writes one line; numbers that are not finite become null."""
        try:
            self._file.write(storage.as_line({"step": step, **values}))
            self._file.flush()
        except OSError as error:
            raise NotWritten(f"{self._file.name}: cannot be written: {error.strerror}") from error

    def close(self) -> None:
        """Closes the file."""
        with contextlib.suppress(OSError):  # raised again for a line that failed earlier
            self._file.close()


@components.register("logger", "tensorboard")
class TensorBoard:
    """Writes TensorBoard event files to `tensorboard/`."""

    def __init__(self, directory: pathlib.Path) -> None:
        from tensorboardX import SummaryWriter  # slow to import

        # It warns of every number that is not finite, without its name; the run has said so.
        logging.getLogger("tensorboardX").setLevel(logging.ERROR)
        self._folder, self._writer = directory / "tensorboard", SummaryWriter
        self._events: SummaryWriter | None = None  # a run that writes nothing has no file

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one scalar per name."""
        with storage.naming(self._folder):
            if self._events is None:
                self._events = self._writer(str(self._folder))
            for name, value in values.items():
                self._events.add_scalar(name, value, step)

    def close(self) -> None:
        """Flushes and closes the event file."""
        with storage.naming(self._folder):
            if self._events is not None:
                self._events.close()


class Metrics:
    """Writes scalars to `metrics.jsonl`, and to every other logger of a run."""

    def __init__(
        self, directory: pathlib.Path, *, tensorboard: bool, loggers: Sequence[config.Logger] = ()
    ) -> None:
        """Opens the loggers; raises ConfigError for one of `loggers` that cannot be made."""
        wanted = [config.Logger(name="tensorboard")] if tensorboard else []
        others = dict.fromkeys((*wanted, *loggers))  # each once
        others.pop(config.Logger(name="jsonl"), None)
        self._others: list[tuple[str, Logger]] = []
        with contextlib.ExitStack() as failing:  # one that cannot be made closes the others
            self._lines = JsonLines(directory)
            failing.callback(self.close)
            for one in others:
                made = components.make(one, LOGGERS, directory)
                if not callable(getattr(made, "write", None)) or not hasattr(made, "close"):
                    raise config.ConfigError(
                        f"{LOGGERS}={one.name}: must have write(step, numbers) and close()"
                    )
                self._others.append((one.name, made))
            failing.pop_all()

    def write(self, step: int, values: Mapping[str, float | str]) -> None:
        """Writes the numbers of a step; keys are `group/name`.

        Text, such as a split, stands in metrics.jsonl only.
        """
        self._lines.write(step, values)
        numbers = {name: value for name, value in values.items() if not isinstance(value, str)}
        for name, logger in self._others:
            with components.calling(LOGGERS, name):
                logger.write(step, numbers)

    def close(self) -> None:
        """Flushes and closes every logger."""
        # An ExitStack closes the remaining loggers even if one of them raises.
        with contextlib.ExitStack() as closing:
            closing.callback(self._lines.close)
            for name, logger in self._others:
                closing.callback(components.guarded(LOGGERS, name)(logger.close))


def read_metrics(path: pathlib.Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl in step order.

    A resumed run repeats the steps after its checkpoint, so the last of several lines with equal
    step and keys wins. Truncated or damaged lines are skipped.
    """
    lines: dict[tuple[int, tuple[str, ...]], dict[str, Any]] = {}
    for _, line in storage.read_lines(path, limits.METRICS):
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            # Names included: a step's training metrics and its evaluation are separate lines.
            key = line["step"], tuple(sorted(line))
            lines.pop(key, None)  # so that lines of a step are in the order of the last ones
            lines[key] = line
    return sorted(lines.values(), key=lambda line: line["step"])


def duration(seconds: float) -> str:
    """A duration as text: `42s`, `3m07s`, `5h02m` or `3d04h`."""
    # First, or 59.7 would be "60s".
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    if seconds < 86400:
        return f"{seconds // 3600}h{seconds // 60 % 60:02d}m"
    return f"{seconds // 86400}d{seconds // 3600 % 24:02d}h"
