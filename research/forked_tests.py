"""Tests in forks of a process that has imported all but vit_jax, in a copy of the repository."""

import contextlib
import dataclasses
import importlib
import json
import os
import pathlib
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORK = ROOT / "build/mutation"  # what a later run need not do again; remove it to do so
# Of one test, beyond ten times what it takes without a fault: what a loop without end takes, and
# one that waits for ever.
CPU_SECONDS, SECONDS = 60, 600
NOTHING_COLLECTED = 5  # pytest's exit code, such as of a file of slow tests alone
FAILED = 70  # pytest itself
CHANGED = ("vit_jax", "research")  # where faults are made
COPIED = (*CHANGED, "tests", "configs", "docs", "launch",
          "pyproject.toml", "setup.py", "README.md")  # fmt: skip
# What most tests import, so that forks have jax and the like already.
IMPORTED = ("pytest", "vit_jax.api", "vit_jax.train_loop", "vit_jax.cli")


class Recorder:
    """A pytest plugin: chooses tests, and notes which passed in how long, calling what.

    Attributes:
      root: the copy of the repository.
      order: the tests to run, in this order; None for all.
      durations: seconds of each test without a fault.
      functions: whether to note what each test calls.
      budget: CPU seconds after which no further test begins; None for any.
    """

    def __init__(self, root, order, durations, functions, budget, report):
        self.root, self.sources = root, tuple(f"{root}/{name}/" for name in CHANGED)
        self.order, self.durations, self.functions = order, durations, functions
        self.budget = budget
        self.report, self.began, self.called = report, {}, set()

    def pytest_collection_modifyitems(self, items):
        """Keeps the named tests, in their order; a name without a case means every case."""
        if self.order is not None:
            places = {name: place for place, name in enumerate(self.order)}
            found = [
                (places.get(item.nodeid, places.get(item.nodeid.partition("[")[0])), item)
                for item in items
            ]
            kept = [(place, item) for place, item in found if place is not None]
            items[:] = [item for _, item in sorted(kept, key=lambda pair: pair[0])]

    def pytest_runtest_logstart(self, nodeid):
        """Begins to measure and to trace; a test that takes far longer than usual is ended."""
        if self.budget is not None and time.process_time() > self.budget:
            self._say("unfinished")
            os._exit(0)
        usual = self.durations.get(nodeid, 60)
        signal.alarm(int(SECONDS + 10 * usual))
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS + 10 * usual)
        self._say("start", nodeid)
        self.began[nodeid], self.called = time.process_time(), set()
        if self.functions:
            threading.settrace(self._trace)
            sys.settrace(self._trace)

    def pytest_runtest_logfinish(self, nodeid):
        """Notes what a test took and called."""
        sys.settrace(None)
        seconds = round(time.process_time() - self.began[nodeid], 2)
        self._say("end", nodeid, seconds, sorted(self.called))

    def pytest_runtest_logreport(self, report):
        """Notes a failure."""
        if report.failed:
            self._say("failed", report.nodeid)

    def pytest_collectreport(self, report):
        """Notes a file that cannot be imported."""
        if report.failed:
            self._say("failed", report.nodeid)

    def _trace(self, frame, event, arg):
        name = frame.f_code.co_filename
        if name.startswith(self.sources):
            function = frame.f_code.co_qualname.replace("<locals>.", "")
            self.called.add(f"{name.removeprefix(f'{self.root}/')}:{function}")

    def _say(self, *words):
        self.report.write(json.dumps(words) + "\n")
        self.report.flush()


@dataclasses.dataclass
class Copy:
    """A copy of the repository in which tests run, and a cache of programs that all share."""

    root: pathlib.Path

    @classmethod
    @contextlib.contextmanager
    def made(cls):
        """Makes a copy, and imports what its code imports, but not the code itself."""
        with tempfile.TemporaryDirectory(prefix="mutation_") as folder:
            root = pathlib.Path(folder) / "copy"
            WORK.mkdir(parents=True, exist_ok=True)
            for name in COPIED:
                place = ROOT / name
                (shutil.copytree if place.is_dir() else shutil.copy)(place, _parent(root, name))
            os.environ["OPENBLAS_NUM_THREADS"] = "1"
            os.environ["JAX_PLATFORMS"] = "cpu"
            os.environ["JAX_COMPILATION_CACHE_DIR"] = str(WORK / "programs")
            os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
            os.environ["PYTHONPATH"] = os.pathsep.join(
                [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
            )
            sys.path.insert(0, str(root))
            for module in IMPORTED:
                importlib.import_module(module)
            for name in [
                one for one in sys.modules if one.partition(".")[0] in (*CHANGED, "tests")
            ]:
                del sys.modules[name]
            yield cls(root)

    def tests(self, files, order=None, durations=None, functions=False, budget=None):
        """Runs tests in a fork until one fails; returns what `Recorder` noted, and CPU seconds."""
        report = self.root.parent / "report"
        report.write_text("")
        child = os.fork()
        if child == 0:
            os.setsid()
            self._run(files, order, durations or {}, functions, budget, report)
        _, status, used = os.wait4(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        events = [json.loads(line) for line in report.read_text().splitlines()]
        seconds = round(used.ru_utime + used.ru_stime, 1)
        if os.waitstatus_to_exitcode(status) not in (0, 1, NOTHING_COLLECTED):  # hangs, or crashes
            events.append(["failed", events[-1][1] if events else "import"])
        return events, seconds

    def _run(self, files, order, durations, functions, budget, report):
        import pytest

        os.chdir(self.root)
        sys.dont_write_bytecode = False  # or every fork compiles the whole package, in 2 s
        output = os.open(self.root.parent / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        code = FAILED
        try:
            with report.open("a") as stream:
                plugin = Recorder(self.root, order, durations, functions, budget, stream)
                stop = [] if functions else ["-x"]
                marks = [] if order is None else ["-m", ""]  # a named test runs though it is slow
                arguments = ["-p", "no:cacheprovider", "-p", "no:xdist", *stop, *marks, *files]
                code = pytest.main(arguments, [plugin])
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    @contextlib.contextmanager
    def with_fault(self, fault):
        """The copy with a fault, for as long as the context lasts."""
        path = self.root / fault.file
        sound = path.read_text()
        try:
            self._write(path, fault.applied(sound))
            yield
        finally:
            self._write(path, sound)

    @staticmethod
    def _write(path, text):
        for stale in path.parent.glob(f"__pycache__/{path.stem}.*"):
            stale.unlink()  # which would stand for a source of the same size and second
        path.write_text(text)


def _parent(root, name):
    root.mkdir(exist_ok=True)
    return root / name
