"""Kills a training run again and again, resumes it, and compares it with a run left alone.

    python tests/campaign.py --kills=200 --seed=1

Each kill is a SIGKILL at a random moment: while Python starts, compiles, trains, saves or
evaluates. Afterwards every loss, every image seen and every array of the final checkpoint must be
those of the unbroken run, bit for bit. Prints one line of JSON; exit code 1 if anything differs.
"""

import argparse
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

import runs

SECONDS_OF_TRAINING = 2.0  # kills that wait for training come up to this long after its first step
RUN = {"duration": 400}  # seconds of steps, 80 saves, 40 evaluations


def command(workdir: pathlib.Path) -> list[str]:
    return runs.command(workdir, cfg=runs.configure(train=RUN))


def kill_once(workdir: pathlib.Path, rng: random.Random) -> tuple[bool, int]:
    """Starts or resumes the run and kills it; returns if it finished first, and its last step."""
    metrics = workdir / "metrics.jsonl"
    size = metrics.stat().st_size if metrics.exists() else 0
    process = subprocess.Popen(
        command(workdir), env=runs.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    if rng.random() < 0.25:  # anywhere, starting up included
        wait = rng.uniform(0, 6)
    else:
        while process.poll() is None and not (metrics.exists() and metrics.stat().st_size > size):
            time.sleep(0.002)
        wait = rng.uniform(0, SECONDS_OF_TRAINING)
    try:
        process.wait(timeout=wait)
    except subprocess.TimeoutExpired:
        process.kill()
    _, errors = process.communicate()
    if process.returncode not in (0, -9):
        raise AssertionError(f"exit code {process.returncode}: {errors.decode()}")
    return process.returncode == 0, max(runs.trace(workdir), default=0) if metrics.exists() else 0


def campaign(folder: pathlib.Path, *, kills: int, seed: int) -> dict[str, float]:
    """Returns the figures of a campaign; raises AssertionError at the first difference."""
    oracle = folder / "oracle"
    subprocess.run(command(oracle), env=runs.environment(), check=True, capture_output=True)
    steps = max(runs.trace(oracle))
    rng = random.Random(seed)
    done, lost, finished, number = 0, [], 0, 0
    began = time.monotonic()
    while done < kills:
        workdir = folder / f"run{number}"
        number += 1
        while True:
            over, reached = kill_once(workdir, rng)
            if over:
                break
            done += 1
            saved = [int(p.parent.name) for p in workdir.glob("checkpoints/*/commit.json")]
            lost.append(reached - max((s for s in saved), default=0))
            if done >= kills:
                subprocess.run(
                    command(workdir), env=runs.environment(), check=True, capture_output=True
                )
                break
        runs.assert_equal_runs(workdir, oracle)
        finished += 1
        shutil.rmtree(workdir)
    return {
        "kills": done, "runs": finished, "steps_per_run": steps, "divergences": 0,
        "most_steps_lost": max(lost), "seconds": round(time.monotonic() - began),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            figures = campaign(pathlib.Path(folder), kills=options.kills, seed=options.seed)
        except AssertionError as error:
            print(json.dumps({"divergences": 1, "seed": options.seed, "what": str(error)}))
            return 1
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
