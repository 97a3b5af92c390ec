"""Real cells: processes that train on digits, one of them killed."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from helpers import toy_findings
from research import findings

SCRIPT = """
import pathlib, sys
from helpers import toy_findings
from research import findings
path = pathlib.Path(sys.argv[1])
toy_findings.measured_digits(path).perform()
"""


@pytest.mark.slow
def test_cells_that_a_kill_leaves_are_finished_and_repeated_ones_are_the_same(tmp_path):
    here = pathlib.Path(__file__).parent
    paths = map(str, (here.parents[2], here.parents[1], here.parents[1] / "helpers"))
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "XLA_FLAGS": ""},
    )
    records = tmp_path / "records.jsonl"
    end = time.monotonic() + 300
    while not (records.exists() and records.read_text()) and time.monotonic() < end:
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    first = records.read_text()
    assert first.count("\n") in (1, 2)
    whole = toy_findings.measured_digits(tmp_path)
    whole.perform()
    lines = records.read_text()
    assert lines.startswith(first)
    found = [json.loads(line) for line in lines.splitlines()]
    assert [one["seed"] for one in found] == [0, 1, 2]
    assert len({one["measures"]["test/top1"] for one in found}) > 1
    for one in found:
        widest = one["measures"]["distance/first_widest"]
        assert 0.5 < one["measures"]["distance/first_narrowest"] <= widest < 1.5
    (repeated,) = findings.verify(whole, 1)
    assert repeated.repeated == pytest.approx(repeated.recorded, abs=0.01)
