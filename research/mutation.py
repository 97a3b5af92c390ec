"""Mutation testing: which test notices a small fault of the code?

    python -m research.mutation draw --each=10 utils        adds faults of vit_jax/utils/
    python -m research.mutation run [--until=18:30] [WORD]  finds their killers; resumes
    python -m research.mutation check [--share=100]         do they still kill them?
    python -m research.mutation table                       counts by package

tests/mutation/faults.jsonl has one fault a line: the test that kills it with the CPU seconds from
the start of the tests, imports included, or why no test can. Rows may be written by hand.

A fault of vit_jax/<package>/ has to be noticed by tests/<package>/, one of a package without such a
folder by the files of tests/ itself. Those of its tests that call the changed function run, the
quickest first, in a copy of the repository and in forks of a process that has imported jax and the
like. Which test calls what is measured once for each file of tests, and kept in build/mutation/.
"""

import argparse
import dataclasses
import fcntl
import hashlib
import itertools
import json
import os
import pathlib
import random
import statistics
import sys
import time

import rotation
from research import fault_operators, forked_tests
from vit_jax.pages.markdown import grid

ROOT = pathlib.Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests/mutation/faults.jsonl"
BY_HAND = "by hand"  # the operator of a fault that somebody wrote


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaultRow:
    """A fault and what became of it.

    Attributes:
      killed_by: the first test that failed; empty where none did, or none has run yet.
      seconds: CPU seconds until then.
      why: why no test can notice it, if so.
    """

    fault: fault_operators.Fault
    killed_by: str = ""
    seconds: float | None = None
    why: str = ""

    def line(self):
        """The row as values for JSON."""
        return dataclasses.asdict(self.fault) | {
            "killed_by": self.killed_by, "seconds": self.seconds, "why": self.why,
        }  # fmt: skip


def read(path=TABLE):
    """The table's rows."""
    rows = []
    for text in path.read_text().splitlines() if path.exists() else []:
        line = json.loads(text)
        own = {name: line.pop(name) for name in ("killed_by", "seconds", "why")}
        rows.append(FaultRow(fault=fault_operators.Fault(**line), **own))
    return rows


def write(rows, path=TABLE):
    """Writes the table, whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text("".join(json.dumps(row.line()) + "\n" for row in rows))
    part.replace(path)


def modules(words):
    """Yields the modules whose path has one of the words, relative to the repository."""
    for folder in ("vit_jax", "research"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            file = path.relative_to(ROOT).as_posix()
            if any(word in file for word in words):
                yield file


def package(file):
    """The package of a module: `utils` of vit_jax/utils/limits.py; empty for vit_jax/api.py."""
    top, *folders = pathlib.PurePosixPath(file).parts[:-1]
    return top if top == "research" else "".join(folders[:1])


def room(file, root=ROOT):
    """The files of tests that have to notice a fault of a module."""
    tests, own = root / "tests", package(file)
    own_files = sorted((tests / own).rglob("test_*.py")) if own else []
    return [str(path.relative_to(root)) for path in own_files or sorted(tests.glob("test_*.py"))]


def draw(rows, words, each, seed):
    """The rows with new ones, up to `each` for every module that a word names.

    Rows of these modules that no longer fit the code are dropped. Operators take turns, so that
    rare ones are drawn as often as comparisons and constants. Faults written by hand do not count.
    """
    for file in modules(words):
        text = (ROOT / file).read_text()
        for row in [row for row in rows if row.fault.file == file and not _fits(row.fault, text)]:
            print(f"dropped, as it no longer fits: {row.fault}")
            rows.remove(row)
        known = {row.fault for row in rows if row.fault.file == file}
        rng = random.Random(f"{seed} {file}")
        faults = list(fault_operators.generate(file, text))
        rng.shuffle(faults)
        operators = sorted({fault.operator for fault in faults})
        rng.shuffle(operators)
        turns = [[one for one in faults if one.operator == operator] for operator in operators]
        drawn = [one for turn in itertools.zip_longest(*turns) for one in turn if one is not None]
        left = each - sum(fault.operator != BY_HAND for fault in known)
        new = [FaultRow(fault=fault) for fault in drawn if fault not in known][: max(left, 0)]
        rows = _inserted(rows, file, new)
    return rows


def _fits(fault, text):
    try:
        return bool(fault.applied(text))
    except ValueError:
        return False


def _inserted(rows, file, new):
    """Rows with new ones behind the last of the module, or else of its package, or else of all.

    Rows never change their order: several people edit the table at once.
    """
    own = [at for at, row in enumerate(rows) if row.fault.file == file]
    near = [at for at, row in enumerate(rows) if package(row.fault.file) == package(file)]
    end = 1 + (own or near or [len(rows) - 1])[-1]
    return rows[:end] + new + rows[end:]


def baseline(copy, file, files):
    """Yields (test, seconds, the functions of `file` it calls) of files of tests without a fault.

    Measured anew when the tests or the package of `file` have changed. A test that fails while its
    calls are traced is left out.
    """
    sources = copy.root.joinpath(file).parts[: len(copy.root.parts) + 2]  # the package or module
    folder = pathlib.Path(*sources)
    paths = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]
    state = hashlib.sha256(b"".join(path.read_bytes() for path in paths))
    for tests in files:
        own = state.copy()
        own.update((copy.root / tests).read_bytes())
        name = f"{tests.replace('/', '.')}.{folder.stem}.{own.hexdigest()[:16]}.json"
        kept = forked_tests.WORK / name
        if not kept.exists():
            events, seconds = copy.tests([tests], functions=True)
            failed = [event[1] for event in events if event[0] == "failed"]
            if "import" in failed:
                raise RuntimeError((copy.root.parent / "output").read_text()[-2000:])
            print(f"traced {tests} in {seconds} s", *(f"left out: {x}" for x in failed), sep="\n")
            ended = [event[1:] for event in events if event[0] == "end" and event[1] not in failed]
            part = kept.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(ended))
            part.replace(kept)  # whole or not at all: several campaigns may run side by side
        for test, seconds, calls in json.loads(kept.read_text()):
            yield test, seconds, [call for call in calls if call.startswith(f"{file}:")]


def killer(copy, fault, known, budget=None):
    """The first test that fails with a fault, and CPU seconds; "" for none.

    None instead of a test: the CPU seconds of `budget` were too few to tell. `known` are the tests
    that `baseline` yields.
    """
    called = f"{fault.file}:{fault.function}"
    calling = {
        test: seconds
        for test, seconds, calls in known
        if any(call == called or call.startswith(f"{called}.") for call in calls)
        or (calls and not fault.function)
    }
    # Without such a test it may be one that runs the code in another process.
    seconds = calling or {test: seconds for test, seconds, _ in known}
    order = sorted(seconds, key=seconds.__getitem__)
    if not order:
        return "", 0.0
    with copy.with_fault(fault):
        files = sorted({test.partition("::")[0] for test in order})
        events, spent = copy.tests(files, order, seconds, budget=budget)
    failed = [event[1] for event in events if event[0] == "failed"]
    if not failed and ["unfinished"] in events:
        return None, spent
    if failed == ["import"]:  # before any test began
        failed = order
    return (failed or [""])[0], spent


def search(rows, *, until=None, budget=None, say=print):
    """Yields rows with the tests that kill them."""
    measured, known = "", []
    with forked_tests.Copy.made() as copy:
        for row in rows:
            if until is not None and time.strftime("%H:%M") >= until:
                break
            file = row.fault.file
            if file != measured:
                # With files that notice other faults of the module, wherever they are.
                others = {
                    one.killed_by.partition("::")[0] for one in read() if one.fault.file == file
                }
                files = sorted({*room(file, copy.root), *others} - {""})
                measured, known = file, list(baseline(copy, file, files))
            test, seconds = killer(copy, row.fault, known, budget)
            outcome = "not noticed so far" if test is None else test or "SURVIVED"
            say(f"{outcome} {seconds} s: {file} {row.fault.function}: {row.fault.after!r}")
            if test is not None:
                yield dataclasses.replace(row, killed_by=test, seconds=seconds)


def unnoticed(rows):
    """Yields rows whose recorded test no longer fails."""
    with forked_tests.Copy.made() as copy:
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


HEADER = ("package", "faults", "tried", "killed", "explained", "left", "CPU s, median", "most")


def markdown(rows):
    """The lines of a table of counts by package."""
    lines = []
    packages = {row: package(row.fault.file) or pathlib.Path(row.fault.file).stem for row in rows}
    for name in [*sorted(set(packages.values())), "all"]:
        own = [row for row in rows if name in ("all", packages[row])]
        tried = sum(row.seconds is not None or bool(row.killed_by or row.why) for row in own)
        killed = [row for row in own if row.killed_by]
        seconds = [row.seconds for row in killed if row.seconds is not None]
        explained = sum(bool(row.why) for row in own)
        lines.append((
            name, len(own), tried, len(killed), explained, tried - len(killed) - explained,
            f"{statistics.median(seconds or [0]):.0f}", f"{max(seconds, default=0):.0f}",
        ))  # fmt: skip
    return grid(HEADER, lines)


def _named(row, words):
    return not words or any(word in row.fault.file for word in words)


def main():
    """Runs a command; exit code 1 if `check` finds a fault that is no longer noticed."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("command", choices=("draw", "run", "check", "table"))
    parser.add_argument("words", nargs="*", help="modules, by part of their path")
    parser.add_argument("--each", type=int, default=10, help="faults to draw of each module")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--until", help="begin with no fault after this time of day, HH:MM")
    parser.add_argument("--share", type=int, default=100, help="check each so-manieth fault")
    parser.add_argument("--budget", type=float, help="CPU seconds of tests for a fault")
    parser.add_argument("--survivors", action="store_true", help="run those that survived again")
    options = parser.parse_intermixed_args()
    rows = read()
    if options.command == "draw":
        if not options.words:
            parser.error("which modules? by part of their path: preflight/, vit_jax for all")
        write(draw(rows, options.words, options.each, options.seed))
    elif options.command == "run":

        def waiting():
            for fault in [row.fault for row in rows if _named(row, options.words)]:
                for row in read():  # again: others may be at work
                    survived = row.seconds is not None and not row.killed_by
                    untried = row.seconds is None or (options.survivors and survived)
                    if row.fault == fault and untried and not row.why:
                        yield row

        for found in search(waiting(), until=options.until, budget=options.budget):
            record(found)
    elif options.command == "check":
        killed = [row for row in rows if row.killed_by and _named(row, options.words)]
        number, source = rotation.number()
        repeated = killed[number % options.share :: options.share]
        print(f"{len(repeated)} of {len(killed)} faults, by {source}")
        lost = [row.fault for row in unnoticed(repeated)]
        print(*(f"not noticed by its test: {fault}" for fault in lost), sep="\n")
        return int(bool(lost) or not repeated)
    else:
        print("\n".join(markdown(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
