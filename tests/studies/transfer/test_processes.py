"""Transfers by the command line, each cell a process: stopped, killed, resumed."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

import runs
import sweeps


def command(workdir, name=sweeps.NAME, *arguments, **overrides):
    """The command line of a tiny transfer."""
    cut = ["--rates=0.003,0.03", "--choose-seeds=0", "--seeds=0,1"]
    flags = [*cut, *sweeps.flags(**overrides), *arguments]
    return [sys.executable, "-m", "vit_jax", "transfer", name, f"--workdir={workdir}", *flags]


def read(workdir):
    return json.loads((workdir / "transfer.json").read_text())


@pytest.mark.slow
def test_a_signal_saves_the_cell_that_runs(tmp_path):
    line = command(tmp_path, train__duration="100000 steps", checkpoint__every="none")
    process = runs.start(line, env=runs.environment())
    metrics = tmp_path / "choose/vit-lr0.003/metrics.jsonl"
    try:
        while not (metrics.exists() and metrics.stat().st_size > 2000):
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == 75, output
    assert output.splitlines()[-1] == (
        "vit_jax: stopped; every cell has saved its state; the same command resumes"
    )
    (saved,) = (tmp_path / "choose/vit-lr0.003/checkpoints").glob("*/commit.json")
    assert int(saved.parent.name) == max(runs.trace(metrics.parent))
    assert {cell["state"] for cell in read(tmp_path)["cells"]} == {"waiting"}


def comparable(workdir):
    """Everything in transfer.json that an interrupted transfer must repeat: all but times."""
    found = read(workdir)
    for cell in found["cells"]:
        cell.pop("seconds")
    found.pop("date")
    return found


def environment():
    """That of a process which compiles quickly."""
    quick = "--xla_force_host_platform_device_count=1 --xla_backend_optimization_level=0"
    return runs.environment(XLA_FLAGS=quick)


def workers(workdir):
    """The processes that run a cell below a folder."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"vit_jax.studies.worker" in words and os.fsencode(str(workdir)) in words:
            found.append(int(path.parent.name))
    return found


@pytest.mark.long
def test_five_kills_and_the_same_table(tmp_path):
    """SIGKILL at random moments of the whole: while planning, in any cell, or between two."""
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"

    def begun(workdir):
        return command(workdir, sweeps.NAME, "--choose-seeds=0,1")

    began = time.monotonic()
    subprocess.run(begun(unbroken), env=environment(), check=True, capture_output=True)
    length = time.monotonic() - began
    rng = random.Random(6)
    for _ in range(5):
        process = subprocess.Popen(
            begun(broken), env=environment(),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            process.wait(timeout=rng.uniform(0.1, 0.5) * length)
        except subprocess.TimeoutExpired:
            process.kill()
        _, errors = process.communicate()
        assert process.returncode in (0, -9), errors.decode()
        end = time.monotonic() + 10
        while workers(broken):  # a cell does not outlive the transfer
            assert time.monotonic() < end
            time.sleep(0.05)
    subprocess.run(begun(broken), env=environment(), check=True, capture_output=True)
    assert comparable(broken) == comparable(unbroken)
    for cell in read(unbroken)["cells"]:
        runs.assert_equal_runs(broken / cell["directory"], unbroken / cell["directory"])
