"""launch/slurm.sh with stand-ins for sbatch, srun and scontrol."""

import os
import shlex
import shutil
import subprocess

import pytest

import worlds

SCRIPT = worlds.ROOT / "launch/slurm.sh"
PROGRAM = """\
#!/usr/bin/env bash
echo "$JAX_COORDINATOR_ADDRESS $JAX_PROCESS_ID of $JAX_NUM_PROCESSES on $JAX_LOCAL_DEVICE_IDS: $*"
read -r code <"$CLOUD/codes"
[ "$JAX_PROCESS_ID" != $((JAX_NUM_PROCESSES - 1)) ] || sed -i 1d "$CLOUD/codes"
exit "$code"
"""
TRAIN = ["digits", "--workdir=/shared/run", "--config.train.duration=20 epochs"]


@pytest.fixture
def slurm(tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("sbatch", "srun", "scontrol"):
        shutil.copy(worlds.STANDINS / name, tmp_path / "bin")
    program = tmp_path / "program"
    program.write_text(PROGRAM)
    program.chmod(0o755)

    def run(*words, codes=(0,), code=0, **environment):
        (tmp_path / "codes").write_text("".join(f"{one}\n" for one in codes))
        path = f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [SCRIPT, *words],
            env={"PATH": path, "CLOUD": str(tmp_path), "VIT_JAX": str(program)} | environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def noted(tmp_path):
    return (tmp_path / "sbatch").read_text().splitlines()


def tasks(printed):
    return [line for line in printed.splitlines() if line.startswith("gpu3")]


def test_one_process_for_each_gpu(slurm, tmp_path):
    printed = slurm("--nodes=2", "--gpus-per-node=a100:4", "--time=8:00:00", "--", *TRAIN)
    assert noted(tmp_path) == [
        "--job-name=vit_jax",
        "--ntasks-per-node=4",
        "--signal=TERM@120",
        "--requeue",
        "--open-mode=append",
        "--nodes=2",
        "--gpus-per-node=a100:4",
        "--time=8:00:00",
        str(SCRIPT),
        str(worlds.ROOT),
        *TRAIN,
    ]
    # The port follows from the job's number, so that two jobs on a node do not meet.
    assert tasks(printed) == [
        f"gpu3:61007 {n} of 8 on {n % 4}: train digits --workdir=/shared/run "
        "--config.train.duration=20 epochs"
        for n in range(8)
    ]
    flags = shlex.split((tmp_path / "srun").read_text())[:3]
    assert flags == ["--kill-on-bad-exit=0", "--wait=600", "--label"]


def test_one_process_for_each_node_has_all_its_gpus(slurm, tmp_path):
    printed = slurm("--nodes=2", "--gpus-per-node=4", "--per-node", "--", *TRAIN[:2])
    assert "--ntasks-per-node=1" in noted(tmp_path)
    assert tasks(printed) == [
        f"gpu3:61007 {n} of 2 on 0,1,2,3: train digits --workdir=/shared/run" for n in range(2)
    ]


@pytest.mark.parametrize(
    ("codes", "runs", "code"),
    [
        ((75, 70, 0), 3, 0),
        ((2,), 1, 2),
        ((78,), 1, 78),
        ((71,), 1, 71),
        ((72,), 1, 72),
        ((75,) * 9, 3, 75),
    ],
)
def test_what_is_worth_another_turn_is_queued_again(slurm, codes, runs, code):
    words = ("--nodes=2", "--gpus-per-node=4", "--per-node", "--", *TRAIN[:2])
    printed = slurm(*words, codes=codes, code=code, VIT_JAX_MAX_RESTARTS="2")
    assert len(tasks(printed)) == 2 * runs


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--nodes=2", "--gpus-per-node=4"], "what is to run comes after --, as in: "),
        (["--gpus-per-node=4", "--", *TRAIN], "set --nodes=N"),
        (["--nodes=2", "--", *TRAIN], "set --gpus-per-node=G"),
        (["--nodes=2", "--gpus-per-node=4", "--", "digits", "x"], "set --workdir=DIR, on stor"),
    ],
)
def test_what_is_missing_is_one_line(slurm, words, line):
    printed = slurm(*words, code=2)
    assert printed.startswith(f"slurm.sh: {line}")
    assert printed.count("\n") == 1


def test_a_dry_run_is_the_command(slurm, tmp_path):
    words = ["--nodes=2", "--gpus-per-node=4", "--", *TRAIN]
    printed = slurm("--dry-run", *words)
    assert not (tmp_path / "sbatch").exists()
    slurm(*words)
    assert shlex.split(printed) == ["sbatch", *noted(tmp_path)]
