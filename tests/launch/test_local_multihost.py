"""launch/local_multihost.sh: several real processes as one run."""

import json
import os
import signal
import subprocess
import sys

import pytest

import worlds
from worlds import wait_for

SCRIPT = worlds.ROOT / "launch/local_multihost.sh"
PROGRAM = """\
#!/usr/bin/env bash
number=$JAX_PROCESS_ID/$JAX_NUM_PROCESSES
echo "$JAX_PLATFORMS $JAX_COORDINATOR_ADDRESS $number ${JAX_LOCAL_DEVICE_IDS:-} $*"
case $CODES in
  wait)
    trap 'echo saved; exit 75' TERM
    touch "$READY/$JAX_PROCESS_ID"
    while true; do sleep 0.05; done
    ;;
esac
codes=($CODES)
exit "${codes[$JAX_PROCESS_ID]}"
"""


@pytest.fixture
def environment(tmp_path):
    program = tmp_path / "program"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    return {"PATH": os.environ["PATH"], "VIT_JAX": str(program), "READY": str(tmp_path)}


def run(*words, env):
    return subprocess.run([SCRIPT, *words], env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ("0 0 0", 0),
        ("0 70 75", 70),
        ("75 75 75", 75),
        ("70 2 70", 2),
        ("70 1 70", 1),
        ("2 78 0", 78),
        ("70 71 75", 71),
    ],
)
def test_the_exit_code_is_the_one_that_decides(environment, codes, code):
    done = run("3", "digits", "--config.x=a  b", env=environment | {"CODES": codes})
    assert done.returncode == code
    lines = sorted(done.stdout.splitlines())
    address = lines[0].split()[2]
    assert address.startswith("127.0.0.1:")
    assert lines == [f"{n}: cpu {address} {n}/3  train digits --config.x=a  b" for n in range(3)]


def test_processes_on_gpus_have_one_each(environment):
    done = run("2", "digits", env=environment | {"CODES": "0 0", "JAX_PLATFORMS": "cuda"})
    assert sorted(line.split("/2 ")[1] for line in done.stdout.splitlines()) == [
        "0 train digits",
        "1 train digits",
    ]


@pytest.mark.parametrize("send", [os.kill, os.killpg])  # a terminal and `timeout` signal the group
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_all(environment, tmp_path, number, send):
    process = subprocess.Popen(
        [SCRIPT, "3", "digits"],
        env=environment | {"CODES": "wait"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for(lambda: all((tmp_path / str(n)).exists() for n in range(3)))
    send(process.pid, number)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 75
    assert sorted(line for line in printed.splitlines() if "saved" in line) == [
        "0: saved",
        "1: saved",
        "2: saved",
    ]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["two", "digits"], "two: must be a number of processes, at least 1"),
        (["2"], "which config? see vit_jax list"),
    ],
)
def test_mistakes_are_one_line(environment, words, line):
    done = run(*words, env=environment)
    assert (done.returncode, done.stderr) == (2, f"local_multihost.sh: {line}\n")


@pytest.mark.slow
def test_two_real_processes_train(tmp_path):
    program = tmp_path / "vit_jax"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m vit_jax "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {
        "VIT_JAX": str(program),
        "PYTHONPATH": str(worlds.ROOT),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
    }
    workdir = tmp_path / "run"
    done = run(
        "2", "digits", f"--workdir={workdir}", "--config.train.duration=6 steps",
        "--config.schedule.warmup=2 steps", "--config.logging.every=1", env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "in 2 processes" in done.stdout
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "train/loss" in line] == list(range(1, 7))


@pytest.mark.parametrize("words", [["--workdir=runs/x"], ["runs/x", "--config.seed=1", "runs/y"]])
def test_one_command_of_a_fresh_machine_takes_one_directory(words):
    """Another would be trained in, and the first evaluated."""
    done = subprocess.run(
        [worlds.ROOT / "launch/local.sh", *words], capture_output=True, text=True, timeout=60
    )
    told = f"local.sh: {words[-1]}: must be --config.KEY=VALUE; WORKDIR comes first\n"
    assert (done.returncode, done.stderr) == (2, told)
