"""Does harm to training runs, resumes them, and compares what comes out with runs left alone.

    nice -n 15 python -m research.faults --until=1000 --kinds=kill
    python -m research.faults                                       prints the table

Each batch is one run of a config drawn by its seed: digits or JPEGs, augmentations, labels, masked
patches, a teacher or LoRA, one to four simulated devices, ZeRO or not, accumulation, moments in
bfloat16, an average. Faults strike it at random moments, of starting, compiling, training, saving
or evaluating. Afterwards every loss, every image seen and every array of the final checkpoint must
be those of the unbroken run, bit for bit. A batch is one line of docs/records/faults.jsonl, so that
the command continues where another one was killed. Exit code 1 if anything differs or hangs.
"""

import argparse
import dataclasses
import itertools
import json
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
from importlib import metadata

import runs
from research.drawn_configs import WORK, configure, draw
from vit_jax.pages.markdown import grid
from vit_jax.runtime import provenance
from vit_jax.utils import limits, storage

RECORD = runs.ROOT / "docs/records/faults.jsonl"
FAULTS = 10  # of a run, at most
STEPS_BETWEEN = 20  # at most: faults that wait for training come after some steps more, by chance
PATIENCE = 900.0  # seconds in which a process has to end, on a machine that others keep busy


# --- Runs and faults ------------------------------------------------------------------------------


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


@dataclasses.dataclass(frozen=True)
class StruckRun:
    """A run, its processes, and the devices of each."""

    workdir: pathlib.Path
    cfg: object
    processes: int
    devices: int

    def start(self, cache=True):
        """Starts all processes; with the programs that other runs have compiled, or without."""
        kept = {"JAX_COMPILATION_CACHE_DIR": str(WORK / "programs")} if cache else {}
        kept |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        command = runs.command(self.workdir, cfg=self.cfg)
        return [
            Process(command, variables | kept)
            for variables in runs.environments(self.processes, self.devices)
        ]


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
        time.sleep(0.01)
    return any(p.poll() is not None for p in processes)


def kill(processes, workdir, rng):
    """Kills a process."""
    rng.choice(processes).kill()
    return True


def terminate(processes, workdir, rng):
    """Sends a process SIGTERM, as a preemption does."""
    rng.choice(processes).terminate()
    return True


def stop(processes, workdir, rng):
    """Makes one process stand still; the others have to notice, and it is killed then."""
    victim = rng.choice(processes)
    victim.send_signal(signal.SIGSTOP)
    others = [process for process in processes if process is not victim]
    hung = end(others)
    victim.kill()
    assert not hung, "the others wait for ever"
    return True


def fill_disk(processes, workdir, rng):
    """Lets no file of the process grow beyond what metrics.jsonl is, or a little more."""
    metrics = workdir / "metrics.jsonl"
    size = (metrics.stat().st_size if metrics.exists() else 0) + rng.choice((0, 20_000))
    for process in processes:
        hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, hard))
    return True


def damage(processes, workdir, rng):
    """Kills the run and flips a bit of its newest checkpoint, if there is another one.

    A run whose only checkpoint is damaged refuses to start over unasked, so it is only killed.
    """
    kill(processes, workdir, rng)
    end(processes)
    saved = sorted(workdir.glob("checkpoints/" + 8 * "[0-9]" + "/commit.json"))
    if len(saved) < 2:
        return False
    newest = saved[-1]
    file = rng.choice(sorted(p for p in newest.parent.rglob("*") if p.is_file() and p != newest))
    data = bytearray(file.read_bytes())
    if not data:
        return False
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    return True


@dataclasses.dataclass(frozen=True)
class FaultKind:
    """A fault, the processes of its runs, and the exit codes it may have.

    `strike` returns whether the harm was done; without it, a run was only killed.
    """

    strike: object
    processes: int
    codes: tuple[int, ...]


KINDS = {
    "kill": FaultKind(kill, 1, (-9,)),
    "kill-one-of-two": FaultKind(kill, 2, (-9, 70)),
    # Before Python has got to our handler, it ends the process.
    "sigterm": FaultKind(terminate, 1, (75, -15)),
    "sigstop-one-of-two": FaultKind(stop, 2, (-9, 70)),
    "disk-full": FaultKind(fill_disk, 1, (70,)),
    "damaged-checkpoint": FaultKind(damage, 1, (-9,)),
}


def committed(workdir):
    """The step of the newest committed checkpoint."""
    saved = workdir.glob("checkpoints/" + 8 * "[0-9]" + "/commit.json")
    return max((int(path.parent.name) for path in saved), default=0)


def reached(workdir):
    """The last logged step."""
    return max(runs.trace(workdir), default=0) if (workdir / "metrics.jsonl").exists() else 0


def teacher(photos):
    """A run to learn from."""
    folder = WORK / ("teacher-photos" if photos else "teacher-digits")
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        drawn = (draw(random.Random(seed), 1, lambda photos: "") for seed in itertools.count())
        fits = {"JPEGs" if photos else "digits", "labels", "1 devices"}
        sections = next(sections for sections, _, words in drawn if fits <= {*words.split(", ")})
        finish(StruckRun(folder, configure(sections), 1, 1))
        (folder / "done").write_text("")
    return folder


def finish(run):
    """Resumes a run until it ends."""
    processes = run.start()
    assert not end(processes), "the resumed run hangs"
    codes = [process.returncode for process in processes]
    assert set(codes) == {0}, f"exit codes {codes}: {processes[0].printed}"


def strike(kind, run, rng, faults):
    """Harms a run until it has ended, or so many times; returns (lost steps, resumed, hangs)."""
    lost, resumed, hangs = [], 0, 0
    while len(lost) < faults:
        processes = run.start(cache=rng.random() < 0.9)
        over = wait_for_a_moment(processes, run.workdir, rng)
        struck = not over and kind.strike(processes, run.workdir, rng)
        hung = end(processes)
        codes = {process.returncode for process in processes}
        if codes == {0}:
            return lost, resumed, hangs
        assert not over, f"ended by itself with {codes}: {processes[0].printed}"
        assert hung or codes <= {0, *kind.codes}, f"exit codes {codes}: {processes[0].printed}"
        hangs += hung
        if struck:
            lost.append(reached(run.workdir) - committed(run.workdir))
            resumed += committed(run.workdir) > 0
    finish(run)
    return lost, resumed, hangs


def batch(name, seed, faults=FAULTS):
    """A line of the record: one run of a drawn config, struck many times."""
    kind, rng = KINDS[name], random.Random(f"{name} {seed}")
    WORK.mkdir(parents=True, exist_ok=True)
    before = _cpu()
    line = {"fault": name, "seed": seed, "lost": [], "resumed": 0, "hangs": 0, "problem": None}
    with tempfile.TemporaryDirectory() as folder:
        sections, devices, words = draw(rng, kind.processes, teacher)
        oracle, struck = (
            StruckRun(pathlib.Path(folder) / one, configure(sections), kind.processes, devices)
            for one in ("oracle", "struck")
        )
        try:
            finish(oracle)
            line["lost"], line["resumed"], line["hangs"] = strike(kind, struck, rng, faults)
            runs.assert_equal_runs(struck.workdir, oracle.workdir)
        except AssertionError as error:
            line["problem"] = str(error)[-2000:]
    return line | {"config": words, "cpu_seconds": round(_cpu() - before, 1)}


def _cpu():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# --- The record -----------------------------------------------------------------------------------


def lines_of(path=RECORD):
    """The lines of a record, without one that a killed campaign has cut short."""
    return (
        [values for _, values in storage.read_lines(path, limits.METRICS)] if path.exists() else []
    )


HEADER = (
    "fault", "n", "configs", "with a checkpoint", "divergences", "hangs", "steps lost, mean",
    "most", "CPU s each",
)  # fmt: skip


def markdown(lines):
    """The lines of the table."""
    rows = []
    for name in KINDS:
        own = [line for line in lines if line["fault"] == name]
        lost = [steps for line in own for steps in line["lost"]]
        if own:
            rows.append((
                name, len(lost), len(own), sum(line["resumed"] for line in own),
                sum(line["problem"] is not None for line in own),
                sum(line["hangs"] for line in own),
                f"{statistics.fmean(lost or [0]):.1f}", max(lost, default=0),
                f"{sum(line['cpu_seconds'] for line in own) / max(len(lost), 1):.1f}",
            ))  # fmt: skip
    return grid(HEADER, rows)


def main():
    """Runs batches until every kind has so many faults, and prints the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--until", type=int, default=0, help="faults of each kind, in all")
    parser.add_argument(
        "--kinds", default=",".join(KINDS), help="which, comma-separated (default: all)"
    )
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    if set(kinds) - KINDS.keys():
        parser.error(f"--kinds: {', '.join(KINDS)}")
    while True:
        lines = lines_of()
        done = {name: [line for line in lines if line["fault"] == name] for name in kinds}
        counts = {name: sum(len(line["lost"]) for line in own) for name, own in done.items()}
        name = min(kinds, key=lambda name: counts[name])
        if counts[name] >= options.until:
            break
        line = batch(name, len(done[name])) | provenance.fields(
            "cpu", {"jax": metadata.version("jax")}
        )
        storage.append_line(RECORD, line)
        print(json.dumps(line), file=sys.stderr, flush=True)
    print("\n".join(markdown(lines)))
    return int(any(line["problem"] or line["hangs"] for line in lines))


if __name__ == "__main__":
    sys.exit(main())
