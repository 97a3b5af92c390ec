"""Does harm to training runs, resumes them, and compares what comes out with runs left alone.

    python tests/helpers/campaign.py --faults=20 --seed=1 --output=campaign

Each fault strikes at a random moment, of starting, compiling, training, saving or evaluating.
Afterwards every loss, every image seen and every array of the final checkpoint must be those of the
unbroken run, bit for bit. Prints a table, writes it to campaign.md and campaign.json besides, and
ends with exit code 1 if anything differs or hangs.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import runs

STEPS_BETWEEN = 40  # at most: faults that wait for training come after some steps more, by chance
PATIENCE = 600.0  # seconds in which a process has to end, on a machine that others keep busy
WATCHDOG = {"heartbeat": 5, "join": 30}


class Process(subprocess.Popen):
    """One process of a run, what it prints kept in a file: nobody reads while it runs."""

    def __init__(self, command, environment):
        self.file = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.printed = ""
        super().__init__(command, env=environment, stdout=self.file, stderr=self.file)

    def collect(self):
        """Reads what an ended process has printed."""
        if not self.file.closed:
            self.file.seek(0)
            self.printed = self.file.read()
            self.file.close()


def start(workdir, count, steps):
    cfg = runs.configure(train={"duration": steps}, watchdog=WATCHDOG)
    command = runs.command(workdir, cfg=cfg)
    return [Process(command, variables) for variables in runs.environments(count)]


def end(processes):
    """Waits for all to end; returns whether any had to be killed."""
    until, hung = time.monotonic() + PATIENCE, False
    for process in processes:
        try:
            process.wait(max(until - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            hung = True
        process.collect()
    return hung


def wait_for_a_moment(processes, workdir, rng):
    """Waits for a random moment; returns whether the run has ended before."""
    metrics = workdir / "metrics.jsonl"

    def lines():
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0

    wanted = 0
    until = time.monotonic() + rng.uniform(0, 6)  # anywhere, starting up included
    if rng.random() < 0.75:
        # By steps, not by the clock: on a slow machine no save would ever be done in time.
        wanted = lines() + rng.randint(1, STEPS_BETWEEN)
        until = time.monotonic() + PATIENCE
    while time.monotonic() < until and all(p.poll() is None for p in processes):
        if wanted and lines() >= wanted:
            wanted, until = 0, time.monotonic() + rng.uniform(0, 0.5)
        time.sleep(0.002)
    return all(p.poll() is not None for p in processes)


def kill(processes, workdir, rng):
    rng.choice(processes).kill()


def terminate(processes, workdir, rng):
    rng.choice(processes).terminate()


def stop(processes, workdir, rng):
    """Makes one process stand still; the others have to notice, and it is killed then."""
    chosen = rng.choice(processes)
    chosen.send_signal(signal.SIGSTOP)
    others = [process for process in processes if process is not chosen]
    hung = end(others)
    chosen.kill()
    assert not hung, "the others wait for ever"


def fill_disk(processes, workdir, rng):
    """Lets no file of the process grow beyond what metrics.jsonl is, or a little more."""
    metrics = workdir / "metrics.jsonl"
    size = (metrics.stat().st_size if metrics.exists() else 0) + rng.choice((0, 20_000))
    for process in processes:
        hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, hard))


def damage(processes, workdir, rng):
    """Kills the run and flips a bit of its newest checkpoint."""
    kill(processes, workdir, rng)
    end(processes)
    newest = max(workdir.glob("checkpoints/" + 8 * "[0-9]" + "/commit.json"), default=None)
    if newest is None:
        return
    file = rng.choice(sorted(p for p in newest.parent.rglob("*") if p.is_file() and p != newest))
    data = bytearray(file.read_bytes())
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(data)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A fault, the processes of its runs, and the exit codes it may have."""

    strike: object
    processes: int
    codes: tuple[int, ...]


KINDS = {
    "kill": Kind(kill, 1, (-9,)),
    "kill-one-of-two": Kind(kill, 2, (-9, 70)),
    # Before Python has got to our handler, it ends the process.
    "sigterm": Kind(terminate, 1, (75, -15)),
    "sigstop-one-of-two": Kind(stop, 2, (-9, 70)),
    "disk-full": Kind(fill_disk, 1, (70,)),
    "damaged-checkpoint": Kind(damage, 1, (-9,)),
}


def committed(workdir):
    saved = workdir.glob("checkpoints/" + 8 * "[0-9]" + "/commit.json")
    return max((int(path.parent.name) for path in saved), default=0)


def reached(workdir):
    return max(runs.trace(workdir), default=0) if (workdir / "metrics.jsonl").exists() else 0


def finish(workdir, count, steps):
    """Resumes a run until it ends."""
    processes = start(workdir, count, steps)
    assert not end(processes), "the resumed run hangs"
    codes = [process.returncode for process in processes]
    assert set(codes) == {0}, f"exit codes {codes}: {processes[0].printed}"


def strike_many(name, folder, *, faults, seed, steps):
    """Returns the row of one kind of fault."""
    kind, rng = KINDS[name], random.Random(f"{name} {seed}")
    oracle = folder / f"oracle{kind.processes}"
    if not oracle.exists():
        finish(oracle, kind.processes, steps)
    done, lost, resumed, runs_done, hangs, problems = 0, [], 0, 0, 0, []
    began = time.monotonic()
    while done < faults:
        workdir = folder / f"{name}{runs_done}"
        try:
            over = False
            while not over and done < faults:
                processes = start(workdir, kind.processes, steps)
                over = wait_for_a_moment(processes, workdir, rng)
                if not over:
                    kind.strike(processes, workdir, rng)
                hung = end(processes)
                hangs += hung
                codes = {process.returncode for process in processes}
                over = codes == {0}
                if not over:
                    assert hung or codes <= {0, *kind.codes}, (
                        f"exit codes {codes}: {processes[0].printed}"
                    )
                    done += 1
                    lost.append(reached(workdir) - committed(workdir))
                    resumed += committed(workdir) > 0
            if not over:
                finish(workdir, kind.processes, steps)
            runs.assert_equal_runs(workdir, oracle)
        except AssertionError as error:
            problems.append(f"seed {seed}, run {runs_done}: {error}")
            done += 1
        runs_done += 1
        shutil.rmtree(workdir, ignore_errors=True)
    return {
        "fault": name, "n": done, "resumed": resumed, "runs": runs_done,
        "divergences": len(problems),
        "steps_lost_mean": round(statistics.fmean(lost), 1) if lost else 0.0,
        "steps_lost_max": max(lost, default=0), "hangs": hangs,
        "seconds_per_fault": round((time.monotonic() - began) / max(done, 1), 1),
        "problems": problems,
    }  # fmt: skip


def markdown(rows):
    """Returns the lines of the table."""
    header = (
        "fault", "n", "with a checkpoint", "runs", "divergences", "steps lost, mean", "most",
        "hangs", "s each",
    )  # fmt: skip
    cells = [
        (
            row["fault"], row["n"], row["resumed"], row["runs"], row["divergences"],
            row["steps_lost_mean"], row["steps_lost_max"], row["hangs"], row["seconds_per_fault"],
        )
        for row in rows
    ]  # fmt: skip
    return [f"| {' | '.join(map(str, line))} |" for line in (header, ["---"] * len(header), *cells)]


def campaign(folder, *, kinds, faults, seed, steps):
    """Yields the row of each kind."""
    for name in kinds:
        yield strike_many(name, folder, faults=faults, seed=seed, steps=steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=20, help="of each kind (default: 20)")
    parser.add_argument(
        "--kinds", default=",".join(KINDS), help="which, comma-separated (default: all)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--steps", type=int, default=200, help="of a run, with a save every 5 (default: 200)"
    )
    parser.add_argument("--output", type=pathlib.Path, help="write OUTPUT.json and OUTPUT.md")
    options = parser.parse_args()
    unknown = set(options.kinds.split(",")) - KINDS.keys()
    if unknown or options.faults < 1 or options.steps < 10:
        parser.error(f"--kinds: {', '.join(KINDS)}; --faults: at least 1; --steps: at least 10")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        kinds = options.kinds.split(",")
        for row in campaign(
            pathlib.Path(folder),
            kinds=kinds,
            faults=options.faults,
            seed=options.seed,
            steps=options.steps,
        ):
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    lines = markdown(rows)
    print("\n".join(lines))
    if options.output is not None:
        about = {"seed": options.seed, "cores": os.cpu_count(), "steps_per_run": options.steps}
        options.output.with_suffix(".json").write_text(json.dumps(about | {"rows": rows}) + "\n")
        options.output.with_suffix(".md").write_text("\n".join(lines) + "\n")
    return 1 if any(row["divergences"] or row["hangs"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
