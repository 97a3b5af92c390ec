"""launch/slurm.sh with stand-ins for sbatch, srun and scontrol."""

import os
import shlex
import shutil
import subprocess
import sys

import pytest

import worlds

SCRIPT = worlds.ROOT / "launch/slurm.sh"
PROGRAM = """\
#!/usr/bin/env bash
if [ "$1" = show ]; then
  [ -z "${PYTHON:-}" ] || exec "$PYTHON" -m vit_jax "$@"
  exit 0
fi
echo "$JAX_COORDINATOR_ADDRESS $JAX_PROCESS_ID of $JAX_NUM_PROCESSES on $JAX_LOCAL_DEVICE_IDS: $*"
read -r code <"$CLOUD/codes"
[ "$JAX_PROCESS_ID" != $((JAX_NUM_PROCESSES - 1)) ] || sed -i 1d "$CLOUD/codes"
exit "$code"
"""
TRAIN = ["digits", "--workdir=/shared/run", "--config.train.duration=20 epochs"]
CHECKED = {"PYTHON": sys.executable}  # the config is vit_jax's to judge, in most of a CPU second
TWO = ("--nodes=2", "--gpus-per-node=4", "--per-node", "--", *TRAIN[:2])  # processes


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
            env={"PATH": path, "CLOUD": str(tmp_path), "VIT_JAX": str(program)}
            | {"VIT_JAX_BACKOFF_SECONDS": "0"}
            | environment,
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
    printed = slurm(*TWO)
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
    printed = slurm(*TWO, codes=codes, code=code, VIT_JAX_MAX_RESTARTS="2")
    assert len(tasks(printed)) == 2 * runs


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--nodes=2", "--gpus-per-node=4"], "what is to run comes after --, as in: "),
        (["--gpus-per-node=4", "--", *TRAIN], "set --nodes=N"),
        (["--nodes=2", "--", *TRAIN], "set --gpus-per-node=G"),
        (["--nodes=2", "--gpus-per-node=4", "--", "digits", "x"], "set --workdir=DIR, on stor"),
        (["--nodes=2", "--gpus-per-node=4", "--", "digits", "--workdir="], "set --workdir=DIR, on"),
        (
            ["--nodes=2", "--gpus-per-node=4", "--", "digitz", TRAIN[1]],
            "--config=digitz: no such config; did",
        ),
        (
            ["--nodes=2", "--gpus-per-node=4", "--", *TRAIN[:2], "--config.train.duratio=2"],
            "train.duratio: unknown",
        ),
    ],
)
def test_what_is_missing_is_one_line(slurm, words, line):
    printed = slurm(*words, code=2, **CHECKED)
    assert printed.startswith(f"slurm.sh: {line}")
    assert printed.count("\n") == 1


def test_a_dry_run_is_the_command(slurm, tmp_path):
    words = ["--nodes=2", "--gpus-per-node=4", "--", *TRAIN]
    printed = slurm("--dry-run", *words, **CHECKED)
    assert not (tmp_path / "sbatch").exists()
    slurm(*words)
    assert shlex.split(printed) == ["sbatch", *noted(tmp_path)]


def test_a_run_that_goes_on_has_its_config_in_its_directory(slurm):
    words = ["--dry-run", "--nodes=1", "--gpus-per-node=1", "--", TRAIN[1], "--config.seed=x"]
    assert slurm(*words, **CHECKED).endswith("--config.seed=x \n")


BUSY = "sbatch: error: Batch job submission failed: Unable to contact slurm controller"


@pytest.mark.parametrize(
    ("met", "asked", "code", "last"),
    [
        ([BUSY] * 3, 4, 0, ""),
        ([BUSY] * 9, 4, 70, BUSY),
        (["sbatch: error: invalid partition specified: x"], 1, 78, "sbatch: error: invalid"),
        (["sbatch: error: Socket timed out on send/recv operation"], 1, 1, "sbatch: error: Socket"),
        (["HANG"], 1, 70, "slurm.sh: sbatch did not answer within 1 s; look with squeue"),
    ],
)
def test_slurm_is_asked_again_where_no_job_can_have_come_of_it(
    slurm, tmp_path, met, asked, code, last
):
    (tmp_path / "sbatch_meets").write_text("".join(f"{line}\n" for line in met))
    printed = slurm(*TWO, code=code, VIT_JAX_TIMEOUT_SECONDS="1" if "HANG" in met else "60")
    assert (tmp_path / "asked").read_text().split() == ["asked"] * asked
    assert code == 0 or printed.splitlines()[-1].startswith(last)


@pytest.mark.parametrize(("failures", "runs", "code"), [(3, 2, 0), (4, 1, 75)])
def test_a_requeue_is_tried_four_times(slurm, tmp_path, failures, runs, code):
    (tmp_path / "scontrol_meets").write_text("Socket timed out\n" * failures)
    printed = slurm(*TWO, codes=(75, 0), code=code)
    assert len(tasks(printed)) == 2 * runs


def test_no_secret_reaches_a_log_of_a_job(slurm):
    secret = {"HF_TOKEN": "hf_planted0123456789", **CHECKED}
    words = ["--nodes=2", "--gpus-per-node=4", "--comment=hf_planted0123456789", "--"]
    words += [*TRAIN[:2], "--config.name=https://me:planted@host/"]
    assert "planted" not in slurm("--dry-run", *words, **secret)
    printed = slurm(*words, **secret)
    told = [line for line in printed.splitlines() if not line.startswith("gpu3")]
    assert "planted" not in "".join(told)
