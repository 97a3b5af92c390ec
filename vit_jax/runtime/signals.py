"""SIGINT, SIGTERM and SIGHUP, handled from a command's first line, whatever its main thread does.

Python runs signal handlers in the main thread, between two instructions. That alone loses signals:
a thread in C++ (compiling, waiting for a device) runs no handler, and an exception raised in one
disappears where garbage is collected (jax has a callback there) or a library catches everything. So
a thread listens too. It reads the number that Python's C handler writes to a pipe, tells the user,
raises the interrupt again if it was lost, and ends the process if the main thread cannot.
"""

import atexit
import contextlib
import logging
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from typing import NoReturn

NUMBERS = (signal.SIGINT, signal.SIGTERM)
if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # which `nohup` asks for
    NUMBERS += (signal.SIGHUP,)  # the terminal is closed
RESUMABLE = ("train", "transfer", "reproduce")  # the same command continues
WITHOUT_DEVICES = ("list", "show", "prepare", "preflight", "push", "report")  # run no program
SAVED = 75  # the exit code of the resumable ones
TICK = 0.2  # seconds between looks at the main thread
GRACE = 1.0  # seconds until a main thread that runs no handler is given up
UNWIND = 10.0  # seconds that cleaning up may take after an interrupt
PATIENCE = 3.0  # seconds until the user is told what a save waits for

# The logger of `vit_jax.runtime.logs`, which takes longer to import than a signal may wait.
log = logging.getLogger("vit_jax")

# What `signal.signal` takes and returns.
Handler = Callable[[int, types.FrameType | None], object] | int | None


class Interrupted(KeyboardInterrupt):
    """A signal arrived while there was nothing to save."""


class StopSignal:
    """Notes signals in a `with` statement, instead of raising, while it holds something to save.

    A second SIGINT raises KeyboardInterrupt all the same. Outside the main thread, to which Python
    gives all signals, nothing is noted.
    """

    def __init__(self, *, holding: bool = True, says: str = "saving and stopping") -> None:
        """`says` is logged when a signal is noted."""
        self.signal: int | None = None
        self.holding = holding
        self.says = says
        self.waiting_for: Callable[[], str] = str  # what delays the save
        self._previous: dict[int, Handler] = {}

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, _handle) for number in NUMBERS}
            _stops.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self in _stops:
            _stops.remove(self)
        # What was noted has been seen to, or is about to be, and no interrupt to be waited for.
        if self.signal is not None and self.holding and not interrupted():
            answered()

    def hold(self) -> None:
        """From here on a signal is noted: there is something to save."""
        before, self.holding = self.holding, True
        if self.signal is not None and not before:
            _interrupt(self.signal)  # what it raised was lost

    def release(self) -> None:
        """From here on, as everything is saved, a signal raises; so does one noted before."""
        self.holding = False
        if self.signal is not None:
            _interrupt(self.signal)

    def noted(self, number: int) -> None:
        """Runs in the main thread for each signal that does not raise."""

    def note(self, number: int) -> bool:
        """Whether a signal was noted; if not, it must raise."""
        insisting = number == signal.SIGINT == self.signal
        self.signal = number
        if not self.holding or insisting:
            return False
        self.noted(number)
        if _listener is None and self.says:
            log.warning("%s received: %s", signal.Signals(number).name, self.says)
        return True


class _Listener(threading.Thread):
    """The thread that hears signals; the attributes are its view of the main thread.

    Attributes:
      heard: the signals, oldest first; empty once the command has answered.
      raised: the last interrupt, as long as anybody handles it.
      deferred: a signal came during an import, which an exception can crash, or the start of a
        child.
      unwound: an interrupt was raised, wherever the main thread was.
      final: the exit code, once the command has ended.
    """

    def __init__(self, *, resumable: bool) -> None:
        super().__init__(name="signals", daemon=True)
        self.resumable = resumable
        self.heard: list[int] = []
        self.raised: weakref.ref[BaseException] | None = None
        self.deferred = self.unwound = False
        self.final: int | None = None
        self._read, self._write = os.pipe()
        # Python refuses a wakeup descriptor that can block, and `_take` must not wait either.
        for end in (self._read, self._write):
            os.set_blocking(end, False)
        self._lock = threading.Lock()  # while bytes are taken from the pipe
        self._number = 0  # of the last signal that the main thread handled
        self._own = 0  # numbers in the pipe that this thread caused
        self._since = self._again = 0.0
        self._announced = self._explained = False

    def start(self) -> None:
        super().start()
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def handled(self, number: int, error: BaseException | None) -> None:
        """Notes the interrupt that the handler raises; an event loop may have taken the pipe."""
        self._number = number or self._number
        if error is not None:
            self.raised, self._again = weakref.ref(error), time.monotonic()
            self.unwound = True
        with contextlib.suppress(BlockingIOError):  # full of what is to be read anyway
            os.write(self._write, b"\0")

    def forget(self) -> None:
        """Marks all signals so far as dealt with, also those not yet heard."""
        with self._lock:
            self._take()
            self.heard, self.raised = [], None

    def _take(self) -> bytes:
        try:
            return os.read(self._read, 64)
        except BlockingIOError:
            return b""

    def run(self) -> None:
        while True:
            # Costs nothing until a signal comes; then the main thread is looked at every tick.
            select.select([self._read], [], [], TICK if self.heard else None)
            with self._lock:
                for number in self._take():
                    if number == signal.SIGINT and self._own:
                        self._own -= 1
                    elif number in NUMBERS:
                        self._hear(number)
                    elif number == 0 and not self.heard:  # the number went to an event loop
                        self._hear(self._number)
                if self.heard:
                    self._act(time.monotonic())

    def code(self) -> int:
        """The exit code of a command that was stopped before it could answer."""
        if self.resumable and not self.insisted():
            return SAVED
        # As a shell reports a process that a signal has ended.
        return 128 + (self.heard[0] if self.heard else self._number or signal.SIGINT)

    def insisted(self) -> bool:
        """Whether SIGINT came twice: the user does not want to wait."""
        return self.heard.count(signal.SIGINT) > 1

    def _hear(self, number: int) -> None:
        if self.final is not None:
            os._exit(self.final or self.code())
        self.heard.append(number)
        self._since = time.monotonic()
        self._announced = False

    def _act(self, now: float) -> None:
        stop = _stops[-1] if _stops else None
        waited = now - self._since
        if stop is not None and stop.holding and not self.insisted():
            self._announce(stop.says)
            what = stop.waiting_for() if waited > PATIENCE and not self._explained else ""
            if what:
                self._explained = True
                log.warning("waiting for: %s; a second Ctrl-C ends this at once, unsaved", what)
        elif self.raised is None:  # in C++, importing or starting a child
            if waited > TICK:
                self._announce("stopping")
            if waited > GRACE:
                self._end()
            elif self.deferred and not _is_busy(sys._current_frames().get(_main())):
                self._raise_in_main(now)
        else:
            if waited > TICK:
                self._announce("stopping")
            if waited > UNWIND:
                self._end()
            # The exception was freed and the command still runs: something swallowed it.
            elif self.raised() is None and now - self._again > TICK / 2:
                self._raise_in_main(now)

    def _raise_in_main(self, now: float) -> None:
        self._own += 1
        self._again = now
        signal.pthread_kill(_main(), signal.SIGINT)  # which also ends a wait in the kernel

    def _announce(self, doing: str) -> None:
        if not self._announced and doing:
            log.warning("%s received: %s", signal.Signals(self.heard[-1]).name, doing)
        self._announced = True

    def _end(self) -> None:
        """Ends the process as a kill would, from which every command recovers."""
        if sys.stderr is not None and sys.stderr.isatty():
            os.write(2, b"\x1b[?25h\n")  # the live line hides the cursor
        # Past sys.stderr, whose lock the main thread may hold.
        os.write(2, f"vit_jax: {last_line()}\n".encode())
        os._exit(self.code())


_stops: list[StopSignal] = []  # the innermost is last
_starting: list[None] = []  # one item for each child that is being started
_listener: _Listener | None = None


def listen() -> None:
    """Listens for signals until the command of this process ends; call it first."""
    global _listener
    if _listener is not None:
        return
    _listener = _Listener(resumable=len(sys.argv) > 1 and sys.argv[1] in RESUMABLE)
    for number in NUMBERS:
        signal.signal(number, _handle)
    _listener.start()
    os.register_at_fork(after_in_child=_forget)
    atexit.register(_ignore)  # the first registered is the last to run
    sys.unraisablehook = _without_interrupts(sys.unraisablehook)


def _ignore() -> None:
    """All is done and written: Python, taking itself apart, would restore the default action."""
    for number in NUMBERS:
        signal.signal(number, signal.SIG_IGN)


def _forget() -> None:
    """Gives signals back to a forked child, which would write to the pipe of its parent."""
    global _listener
    _listener = None
    _stops.clear()
    signal.set_wakeup_fd(-1)
    for number in NUMBERS:
        signal.signal(number, signal.SIG_DFL)
    # Python's own default: it raises KeyboardInterrupt, where SIG_DFL kills.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupted() -> bool:
    """Whether a signal has interrupted the command: its errors are consequences."""
    return _listener is not None and _listener.raised is not None


def unwound() -> bool:
    """Whether an interrupt was raised: C++ that it came through may crash at exit."""
    return _listener is not None and _listener.unwound


def answered() -> None:
    """The command deals with the signals so far, and needs no help to end."""
    if _listener is not None:
        _listener.forget()


def stopped() -> int:
    """Marks the interrupt as handled and gives the command's exit code."""
    if _listener is None:
        return 128 + signal.SIGINT
    code = _listener.code()
    answered()
    return code


def last_line() -> str:
    """The line that ends an interrupted command."""
    if _listener is None or _listener.code() != SAVED:
        return "interrupted"
    return "stopped before there was anything to save; the same command continues"


def finish(code: int) -> int:
    """The exit code of a command that ends with `code`: no signal was in vain.

    From here on a signal ends the process at once, also while Python waits for threads.
    """
    if _listener is None:
        return code
    # A command that has failed keeps its own code.
    if not code and (_listener.heard or _listener.raised):
        code = _listener.code()
    _listener.final = code
    _listener.forget()
    return code


def _handle(number: int, frame: types.FrameType | None) -> None:
    if _listener is not None and _listener.final is not None:
        os._exit(_listener.final or (SAVED if _listener.resumable else 128 + number))
    if not (_stops and _stops[-1].note(number)):
        if _listener is None or not _is_busy(frame):
            _interrupt(number)
        # The listener raises it once the import or start is over.
        _listener.deferred = True
    if _listener is not None:
        _listener.handled(number, None)


def _is_busy(frame: types.FrameType | None) -> bool:
    """Whether the main thread imports or a child is being started: no exception may break that."""
    if _starting:
        return True
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _main() -> int:
    ident = threading.main_thread().ident
    assert ident is not None
    return ident


def _interrupt(number: int) -> NoReturn:
    error = Interrupted()
    if _listener is not None:
        _listener.handled(number, error)
    try:
        raise error
    finally:
        del error  # the traceback has this frame: a cycle would keep a lost interrupt alive


def _without_interrupts(
    hook: Callable[["sys.UnraisableHookArgs"], object],
) -> Callable[["sys.UnraisableHookArgs"], None]:
    """Keeps interrupts that were lost, and are raised again, from being printed."""

    def filtered(unraisable: "sys.UnraisableHookArgs") -> None:
        if not issubclass(unraisable.exc_type, Interrupted):
            hook(unraisable)

    return filtered


@contextlib.contextmanager
def kept_from_children(*numbers: signal.Signals) -> Iterator[None]:
    """Signals that a process started in the `with` statement never gets, also while it imports.

    A terminal sends Ctrl-C to all processes of a command; the first one decides what it means. No
    signal interrupts a command here: nobody would wait for a child that is half started. The mask
    alone, which the child inherits, lets other threads take signals that the main thread handles.
    """
    resource_tracker.ensure_running()  # else the first child starts it, which unblocks signals
    _starting.append(None)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _starting.pop()


def follow_parent(*ignored: signal.Signals) -> None:
    """Makes this child process ignore some signals and end with its parent.

    A killed parent cannot notify its children, so they watch its sentinel.
    """
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
