"""Small faults in the code, and the test that notices each: `python tests/helpers/mutation.py -h`.

A fault replaces one piece of text, which occurs once in its file, in a copy of the repository. The
table, tests/mutation/faults.jsonl, says of each which test fails with it and after how many
seconds, or why the fault changes nothing that could be noticed.
"""

import argparse
import ast
import dataclasses
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests" / "mutation" / "faults.jsonl"
# The tests of each file, the fastest first, tried in this order.
TESTS = json.loads((ROOT / "tests" / "mutation" / "tests.json").read_text())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault.

    Attributes:
      file: below the repository.
      old, new: texts; `old` occurs once in the file.
      test: that fails with it; empty if none is known.
      seconds: of that test alone, Python's start included.
      harmless: why nothing could notice it; empty if something should.
    """

    file: str
    old: str
    new: str
    test: str = ""
    seconds: float = 0.0
    harmless: str = ""

    def apply(self, root: pathlib.Path) -> None:
        """Puts the fault into a copy of the repository."""
        path = root / self.file
        text = path.read_text()
        assert text.count(self.old) == 1, f"{self.file}: {text.count(self.old)} times:\n{self.old}"
        path.write_text(text.replace(self.old, self.new))


def read(path: pathlib.Path = TABLE) -> list[Fault]:
    """Returns the faults of a table."""
    return [Fault(**json.loads(line)) for line in path.read_text().splitlines()]


def write(faults: list[Fault], path: pathlib.Path = TABLE) -> None:
    """Replaces a table, sorted by file and place."""

    def place(fault: Fault) -> tuple[str, int, str]:
        return fault.file, (ROOT / fault.file).read_text().find(fault.old), fault.new

    lines = []
    for fault in sorted(faults, key=place):
        values = {key: value for key, value in dataclasses.asdict(fault).items() if value}
        lines.append(json.dumps(values, ensure_ascii=False) + "\n")
    new = path.with_suffix(".new")
    new.write_text("".join(lines))
    new.replace(path)


class Copy:
    """A copy of the repository, with at most one fault at a time, and compiled programs kept."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._root, self._cache = folder / "repository", folder / "compiled"
        names = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.splitlines()  # fmt: skip
        extension = [str(path.relative_to(ROOT)) for path in (ROOT / "vit_jax").rglob("*.so")]
        for name in names + extension:
            (self._root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self._root / name)

    def run(self, fault: Fault, tests: list[str], limit: float) -> tuple[str, float]:
        """Returns the first of these tests that fails with a fault, or "", and seconds.

        A run that takes longer than `limit` seconds has noticed the fault too: it hangs.
        """
        path = self._root / fault.file
        before = path.read_text()
        fault.apply(self._root)
        environment = {"PYTHONPATH": str(self._root), "VIT_JAX_TESTS_CACHE": str(self._cache)}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:xdist", "-p",
                   "no:cacheprovider", "--tb=no", *tests]  # fmt: skip
        began = time.monotonic()
        try:
            done = subprocess.run(
                command, cwd=self._root, env=os.environ | environment, timeout=limit,
                capture_output=True, text=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"{tests[0]} (hangs)", limit
        finally:
            path.write_text(before)
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
        if done.returncode == 0:
            return "", time.monotonic() - began
        if done.returncode not in (1, 2) or failed is None:
            raise SystemExit(f"{done.args}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        return failed[1], time.monotonic() - began


def search(faults: list[Fault], limit: float) -> None:
    """Finds a test for every fault that has none, and saves the table after each."""
    with tempfile.TemporaryDirectory(prefix="faults_") as folder:
        copy = Copy(pathlib.Path(folder))
        for number, fault in enumerate(faults):
            if fault.test or fault.harmless:
                continue
            seconds = 0.0
            for tests in TESTS[fault.file]:
                found, seconds = copy.run(fault, [tests], limit)
                if found:
                    break
            else:
                found = ""
            faults[number] = dataclasses.replace(fault, test=found, seconds=round(seconds, 1))
            print(f"{found or 'SURVIVES'} {seconds:.1f} s\n{show(fault)}", flush=True)
            write(faults)


def missed(faults: list[Fault], limit: float = 120.0) -> Iterator[Fault]:
    """Yields the faults that their tests do not notice (any more)."""
    with tempfile.TemporaryDirectory(prefix="faults_") as folder:
        copy = Copy(pathlib.Path(folder))
        for fault in faults:
            if not fault.harmless and not copy.run(fault, [fault.test.split()[0]], limit)[0]:
                yield fault


def show(fault: Fault) -> str:
    """Returns a fault as the lines of a patch."""
    old = "".join(f"- {line}\n" for line in fault.old.splitlines())
    return f"{fault.file}\n{old}" + "".join(f"+ {line}\n" for line in fault.new.splitlines())


def generate(per_file: int, seed: int) -> Iterator[Fault]:
    """Yields faults of Cosmic Ray's operators (`pip install cosmic-ray`), drawn by a seed."""
    from cosmic_ray import mutating, plugins

    def wanted(name: str) -> bool:
        if "ReplaceBinaryOperator" in name:
            return name.endswith(("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul",
                                  "BitAnd_BitOr", "BitOr_BitAnd"))  # fmt: skip
        if "ReplaceComparison" in name:
            return name.endswith(("Eq_NotEq", "NotEq_Eq", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt",
                                  "Is_IsNot", "IsNot_Is"))  # fmt: skip
        return name.rpartition("/")[2] in (
            "AddNot", "NumberReplacer", "ReplaceAndWithOr", "ReplaceOrWithAnd",
            "ReplaceFalseWithTrue", "ReplaceTrueWithFalse", "ReplaceUnaryOperator_Delete_Not",
            "ReplaceUnaryOperator_Delete_USub", "ZeroIterationForLoop", "ReplaceBreakWithContinue",
        )  # fmt: skip

    operators = [name for name in sorted(plugins.operator_names()) if wanted(name)]
    for file in TESTS:
        text = (ROOT / file).read_text()
        found = []
        for name in operators:
            operator = plugins.get_operator(name)()
            for occurrence in range(1000):
                changed = mutating.mutate_code(text, operator, occurrence)
                if changed is None:
                    break
                found.append(changed)
        random.Random(f"{seed} {file}").shuffle(found)
        faults = (difference(file, text, changed) for changed in found if sensible(text, changed))
        yield from [fault for fault, _ in zip(faults, range(per_file), strict=False)]


def sensible(old: str, new: str) -> bool:
    """Whether the code has changed, and not only its annotations or texts."""

    def code(text: str) -> str:
        tree = ast.parse(text)
        for node in ast.walk(tree):
            for name in ("annotation", "returns"):
                if hasattr(node, name):
                    setattr(node, name, None)
        return ast.dump(tree)

    if old.count("frozen=True") != new.count("frozen=True") or "\n        /,\n" in new:
        return False
    try:
        return code(old) != code(new)
    except SyntaxError:
        return False


def difference(file: str, old: str, new: str) -> Fault:
    """Returns the fault that makes one text another, with as many lines as make it unique."""
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    start = next(n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b)
    end = next(n for n in range(1, len(before)) if before[-n] != after[-n]) - 1
    first = start
    while True:
        text = "".join(before[first : len(before) - end])
        if old.count(text) == 1:
            new = "".join(after[first : len(after) - end])
            return Fault(file=file, old=text, new=re.sub(r"([(\[{]) +(-?\d)", r"\1\2", new))
        first -= 1


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["generate", "search", "check", "missing"])
    parser.add_argument("--per-file", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", type=pathlib.Path, default=TABLE)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one run of tests")
    args = parser.parse_args()
    faults = read(args.table) if args.table.exists() else []
    if args.what == "generate":
        known = {(fault.file, fault.old, fault.new) for fault in faults}
        new = [f for f in generate(args.per_file, args.seed) if (f.file, f.old, f.new) not in known]
        write(faults + new, args.table)
    elif args.what == "search":
        search(faults, args.limit)
    elif args.what == "missing":
        print("\n".join(show(f) for f in faults if not f.test and not f.harmless))
    else:
        survivors = [show(fault) for fault in missed(faults)]
        sys.exit("\n".join(survivors))


if __name__ == "__main__":
    main()
