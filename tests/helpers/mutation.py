"""Mutation testing: which test notices a small fault of the code?

    python tests/helpers/mutation.py draw --each=10 --seed=1     adds faults to the table
    python tests/helpers/mutation.py run [--until=18:30] [WORD]  finds their killers, resuming
    python tests/helpers/mutation.py check [--share=25]          do they still kill them?
    python tests/helpers/mutation.py table                       counts by module

tests/mutation/faults.jsonl has one fault a line, with the test that kills it, the CPU seconds that
this took from the start of the tests, imports included, or why no test can. Faults are made one at
a time in a copy of the repository. Its tests run in forks of a process that has imported jax and
the like: first the tests that called the function, the quickest first, then the others of
its module's files.
"""

import argparse
import contextlib
import dataclasses
import fcntl
import importlib
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time

import fault_operators
import rotation

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests/mutation/faults.jsonl"
TRAINING = ("schedules", "cooldown", "losses", "optimizer", "step", "loop", "notices", "sessions",
            "trainable", "masked", "mixup")  # fmt: skip
# Modules of vit_jax, and the files of tests that have to notice a fault in them.
TARGETS = {
    ("training", "step loop state schedules"): [f"training/test_{one}.py" for one in TRAINING],
    ("models", "vit layers patches positions"): [
        f"models/test_{one}.py"
        for one in ("patches", "positions", "layers", "vit", "variants", "backbone_parts", "macs")
    ],
    ("data", "pipeline sampling"): [
        f"data/test_{one}.py" for one in ("sampling", "feed", "subset", "pipeline", "csv_source")
    ],
    ("checkpoints", "record manager digests reader"): [
        f"checkpoints/test_{one}.py" for one in ("record", "digests", "manager", "faults")
    ],
    ("evaluators", "evaluation classification fewshot knn probe"): [
        f"evaluators/test_{one}.py"
        for one in ("classification", "exact", "fewshot", "knn", "probe", "several", "further")
    ],
    ("weights", "mapping google readers timm huggingface position_grid"): [
        f"weights/test_{one}.py"
        for one in ("files", "layout", "bit", "google", "timm", "huggingface", "targets", "unsaid",
                    "backbones")
    ],
}  # fmt: skip
GROUPS = {
    f"vit_jax/{folder}/{module}.py": (folder, [f"tests/{file}" for file in files])
    for (folder, modules), files in TARGETS.items()
    for module in modules.split()
}
# Of one test, beyond ten times what it takes without a fault: what a loop without end takes, and
# one that waits for ever.
CPU_SECONDS, SECONDS = 60, 600
WORK = ROOT / "build/mutation"  # what a later run need not do again; remove it to do so
COPIED = (
    "vit_jax",
    "tests",
    "configs",
    "docs",
    "launch",
    "pyproject.toml",
    "setup.py",
    "README.md",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A fault and what became of it.

    Attributes:
      fault: what is changed.
      killed_by: the first test that failed; empty where none did, or none has run yet.
      seconds: CPU seconds until then.
      why: why no test can notice it, if so.
    """

    fault: fault_operators.Fault
    killed_by: str = ""
    seconds: float | None = None
    why: str = ""

    def line(self):
        return dataclasses.asdict(self.fault) | {
            "killed_by": self.killed_by, "seconds": self.seconds, "why": self.why,
        }  # fmt: skip


def read(path=TABLE):
    """Returns the table's rows."""
    rows = []
    for text in path.read_text().splitlines() if path.exists() else []:
        line = json.loads(text)
        own = {name: line.pop(name) for name in ("killed_by", "seconds", "why")}
        rows.append(Row(fault=fault_operators.Fault(**line), **own))
    return rows


def write(rows, path=TABLE):
    order = list(GROUPS)
    rows = sorted(rows, key=lambda row: order.index(row.fault.file))  # stable
    part = path.with_suffix(".part")
    part.write_text("".join(json.dumps(row.line()) + "\n" for row in rows))
    part.replace(path)


def draw(rows, each, seed):
    """Returns new faults of each module, as many of every operator as there are."""
    known, new = {row.fault for row in rows}, []
    for file in GROUPS:
        rng = random.Random(f"{seed} {file}")
        faults = list(fault_operators.generate(file, (ROOT / file).read_text()))
        rng.shuffle(faults)
        kinds = sorted({fault.operator for fault in faults})
        rng.shuffle(kinds)
        turns = [[one for one in faults if one.operator == kind] for kind in kinds]
        taken = [
            one for turn in zip(*map(_padded(each), turns), strict=True) for one in turn if one
        ]
        new += [fault for fault in taken if fault not in known][:each]
    return [Row(fault=fault) for fault in new]


def _padded(length):
    return lambda items: (items + length * [None])[:length]


# --- Running tests in forks -----------------------------------------------------------------------


class Recorder:
    """A pytest plugin: chooses tests, and notes which passed in how long, calling what.

    Attributes:
      order: the tests to run, in this order; None for all.
      durations: seconds of each test without a fault.
      functions: where to note what each test calls; None not to.
    """

    def __init__(self, order, durations, functions, report):
        self.order, self.durations, self.functions = order, durations, functions
        self.report, self.began, self.called = report, {}, set()

    def pytest_collection_modifyitems(self, items):
        if self.order is not None:
            places = {name: place for place, name in enumerate(self.order)}
            items[:] = sorted(
                (item for item in items if item.nodeid in places),
                key=lambda item: places[item.nodeid],
            )

    def pytest_runtest_logstart(self, nodeid):
        usual = self.durations.get(nodeid, 60)
        signal.alarm(int(SECONDS + 10 * usual))
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS + 10 * usual)
        self._say("start", nodeid)
        self.began[nodeid], self.called = time.process_time(), set()
        if self.functions is not None:
            threading.settrace(self._trace)
            sys.settrace(self._trace)

    def pytest_runtest_logfinish(self, nodeid):
        sys.settrace(None)
        seconds = round(time.process_time() - self.began[nodeid], 2)
        self._say("end", nodeid, seconds, sorted(self.called))

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self._say("failed", report.nodeid)

    def pytest_collectreport(self, report):
        if report.failed:
            self._say("failed", report.nodeid)

    def _trace(self, frame, event, arg):
        name = frame.f_code.co_filename
        if "/vit_jax/" in name:
            function = frame.f_code.co_qualname.replace("<locals>.", "")
            self.called.add(f"{name[name.index('/vit_jax/') + 1 :]}:{function}")

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
        """Makes a copy, and imports what its tests need but for vit_jax itself."""
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
            importlib.import_module("pytest")
            for file in GROUPS:
                importlib.import_module(file.removesuffix(".py").replace("/", "."))
            importlib.import_module("vit_jax.experiment")
            for name in [one for one in sys.modules if one.partition(".")[0] == "vit_jax"]:
                del sys.modules[name]
            yield cls(root)

    def tests(self, files, order=None, durations=None, functions=False):
        """Runs tests in a fork until one fails; returns what `Recorder` noted, and CPU seconds."""
        report = self.root.parent / "report"
        report.write_text("")
        child = os.fork()
        if child == 0:
            os.setsid()
            self._run(files, order, durations or {}, functions, report)
        _, status, used = os.wait4(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        events = [json.loads(line) for line in report.read_text().splitlines()]
        seconds = round(used.ru_utime + used.ru_stime, 1)
        if os.waitstatus_to_exitcode(status) < 0:  # hangs, or crashes
            events.append(["failed", events[-1][1] if events else "import"])
        return events, seconds

    def _run(self, files, order, durations, functions, report):
        import pytest

        os.chdir(self.root)
        sys.dont_write_bytecode = order is not None
        output = os.open(self.root.parent / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        code = 1
        try:
            with report.open("a") as stream:
                plugin = Recorder(order, durations, set() if functions else None, stream)
                stop = [] if functions else ["-x"]
                arguments = ["-p", "no:cacheprovider", "-p", "no:xdist", *stop, *files]
                code = pytest.main(arguments, [plugin])
                if code not in (0, 1) and order is None:
                    plugin._say("failed", "collection")
        finally:
            os._exit(code)

    @contextlib.contextmanager
    def with_fault(self, fault):
        path = self.root / fault.file
        sound = path.read_text()
        for stale in path.parent.glob(f"__pycache__/{path.stem}.*"):
            stale.unlink()  # which would stand for a source of the same size and second
        path.write_text(fault.applied(sound))
        try:
            yield
        finally:
            path.write_text(sound)


def _parent(root, name):
    root.mkdir(exist_ok=True)
    return root / name


def baseline(copy, folder, files):
    """Returns the seconds of a group's tests, and what each of them calls.

    A test that fails while its calls are traced is left out.
    """
    known = {"seconds": {}, "calls": {}}
    for file in files:
        kept = WORK / f"{file.replace('/', '.')}.json"
        if not kept.exists():
            events, _ = copy.tests([file], functions=True)
            failed = [event[1] for event in events if event[0] == "failed"]
            print(*(f"left out: {test}" for test in failed), sep="\n")
            ended = [event for event in events if event[0] == "end" and event[1] not in failed]
            assert ended, f"{file}: {(copy.root.parent / 'output').read_text()[-2000:]}"
            kept.write_text(json.dumps([event[1:] for event in ended]))
        for test, seconds, calls in json.loads(kept.read_text()):
            known["seconds"][test], known["calls"][test] = seconds, calls
    return known


def killer(copy, fault, known):
    """Returns the first test that fails with a fault, and CPU seconds; "" for none."""
    files, seconds = GROUPS[fault.file][1], known["seconds"]
    place, begins = f"{fault.file}:{fault.function}", f"{fault.file}:{fault.function}."
    concerned = {
        test
        for test, calls in known["calls"].items()
        if any(call == place or call.startswith(begins) for call in calls)
    }
    total = 0.0
    with copy.with_fault(fault):
        for chosen in (concerned, seconds.keys() - concerned):
            order = sorted(chosen, key=lambda test: seconds[test])
            named = [file for file in files if any(test.startswith(file) for test in order)]
            if not order:
                continue
            events, spent = copy.tests(named, order, seconds)
            total += spent
            failed = [event[1] for event in events if event[0] == "failed"]
            if failed:
                return failed[0], round(total, 1)
    return "", round(total, 1)


def search(rows, *, until=None, say=print):
    """Yields rows with the tests that kill them."""
    known = {}
    with Copy.made() as copy:
        for row in rows:
            if until is not None and time.strftime("%H:%M") >= until:
                break
            folder, files = GROUPS[row.fault.file]
            if folder not in known:
                known[folder] = baseline(copy, folder, files)
                say(f"{folder}: {len(known[folder]['seconds'])} tests")
            test, seconds = killer(copy, row.fault, known[folder])
            say(f"{test or 'SURVIVED'} {seconds} s: {row.fault.file} {row.fault.after!r}")
            yield dataclasses.replace(row, killed_by=test, seconds=seconds)


def unnoticed(rows):
    """Yields rows whose recorded test no longer fails."""
    with Copy.made() as copy:
        for row in rows:
            with copy.with_fault(row.fault):
                file = row.killed_by.partition("::")[0]
                events, _ = copy.tests([file], [row.killed_by], {})
            if not any(event[0] == "failed" for event in events):
                yield row


def record(found, path=TABLE):
    """Puts a row into the table, which other processes may be changing too."""
    with (path.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = read(path)
        write([found if row.fault == found.fault else row for row in rows], path)


HEADER = ("module", "faults", "tried", "killed", "explained", "left", "CPU s, median", "most")


def markdown(rows):
    """Returns the lines of a table of counts by module."""
    lines = [HEADER, ["---"] * len(HEADER)]
    for file in [*GROUPS, ""]:
        own = [row for row in rows if row.fault.file == file or not file]
        tried = [row for row in own if row.seconds is not None or row.why]
        seconds = [row.seconds for row in own if row.killed_by]
        explained = sum(bool(row.why) for row in own)
        lines.append((
            f"`{file.removeprefix('vit_jax/').removesuffix('.py')}`" if file else "all",
            len(own), len(tried), len(seconds), explained, len(tried) - len(seconds) - explained,
            f"{statistics.median(seconds or [0]):.0f}", f"{max(seconds, default=0):.0f}",
        ))  # fmt: skip
    return [f"| {' | '.join(map(str, line))} |" for line in lines]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=("draw", "run", "check", "table"))
    parser.add_argument("words", nargs="*", help="modules to run, by part of their path")
    parser.add_argument("--each", type=int, default=10, help="faults to draw of each module")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--until", help="begin with no fault after this time of day, HH:MM")
    parser.add_argument("--share", type=int, default=25, help="check each so-manieth fault")
    parser.add_argument("--survivors", action="store_true", help="run those that survived again")
    options = parser.parse_args()
    rows = read()
    if options.command == "draw":
        write(rows + draw(rows, options.each, options.seed))
    elif options.command == "run":
        waiting = [
            row
            for row in rows
            if (row.seconds is None or (options.survivors and not row.killed_by)) and not row.why
            and (not options.words or any(word in row.fault.file for word in options.words))
        ]  # fmt: skip
        for found in search(waiting, until=options.until):
            record(found)
    elif options.command == "check":
        killed = [row for row in rows if row.killed_by]
        number, source = rotation.number()
        chosen = killed[number % options.share :: options.share]
        print(f"{len(chosen)} of {len(killed)} faults, by {source}")
        lost = [row.fault for row in unnoticed(chosen)]
        print(*(f"not noticed by its test: {fault}" for fault in lost), sep="\n")
        return int(bool(lost) or not chosen)
    else:
        print("\n".join(markdown(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
