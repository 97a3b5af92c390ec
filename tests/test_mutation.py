"""Small faults of the code are noticed: the table of faults, and tests that still fail at them."""

import ast
import subprocess
import sys

import pytest

import rotation
from research import fault_operators, mutation

ROWS = mutation.read()


def test_every_fault_still_fits_the_code():
    """One that does not is drawn or written anew, and its killer found: see mutation.py."""
    for row in sorted(ROWS, key=lambda row: row.fault.file):  # so that each is parsed once
        row.fault.applied((mutation.ROOT / row.fault.file).read_text())  # raises
    assert len({row.fault for row in ROWS}) == len(ROWS) > 0


def test_every_killer_exists():
    functions = {}
    for row in ROWS:
        assert not (row.killed_by and row.why)
        file, _, name = row.killed_by.partition("::")
        if name:
            path = mutation.ROOT / file
            if file not in functions:
                tree = ast.parse(path.read_text())
                functions[file] = {node.name for node in ast.walk(tree) if hasattr(node, "name")}
            assert name.partition("[")[0] in functions[file], row


def test_every_killer_is_a_case_that_pytest_collects():
    """Of the tests collected here: all of them in a run of all tests."""
    tests = {case.partition("[")[0] for case in rotation.COLLECTED}
    killers = {row.killed_by for row in ROWS if row.killed_by.partition("[")[0] in tests}
    assert killers <= rotation.COLLECTED | tests  # a test without brackets: all its cases


SOURCE = '''
def total(values, scale=2):
    """Returns 1."""
    found = 0
    for value in values:
        if value > 1 and not scale == 0:
            found += value * scale
    return max(found, -1)
'''


def test_the_operators():
    faults = list(fault_operators.generate("x.py", SOURCE))
    assert {(fault.operator, fault.after) for fault in faults} >= {
        ("comparison", "if value >= 1 and not scale == 0:"),
        ("comparison", "if value > 1 and not scale != 0:"),
        ("boolean", "if (value > 1 or not scale == 0):"),
        ("not", "if value > 1 and (scale == 0):"),
        ("constant", "found = 1"),
        ("constant", "def total(values, scale=3):"),
        ("arithmetic", "found += (value / scale)"),
        ("statement deleted", "pass"),
        ("arguments swapped", "return max(-1, found)"),
        ("sign", "return max(found, 1)"),
    }
    for fault in faults:
        changed = fault.applied(SOURCE)
        before, after = SOURCE.splitlines(), changed.splitlines()
        assert sum(a != b for a, b in zip(before, after, strict=True)) == 1
        assert '"""Returns 1."""' in changed


def test_a_fault_that_no_longer_fits():
    fault = fault_operators.Fault("x.py", "total", "constant", "found = 0", "found = 1")
    assert "    found = 1\n" in fault.applied(SOURCE)
    with pytest.raises(ValueError, match="no line 'found = 0'"):
        fault.applied(SOURCE.replace("found = 0", "found = 0.0"))
    with pytest.raises(ValueError, match="there is no function total"):
        fault.applied(SOURCE.replace("total", "sum_of"))


@pytest.mark.slow
def test_a_sample_is_still_noticed():
    """Another one in every run of continuous integration."""
    command = [sys.executable, "-m", "research.mutation", "check"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=mutation.ROOT)
    assert result.returncode == 0, result.stdout + result.stderr[-2000:]
