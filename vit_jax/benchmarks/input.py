"""Images from files to batches in host memory: this package against tf.data, in turns."""

import contextlib
import dataclasses
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from vit_jax import config
from vit_jax.benchmarks import Table, sample_images

PEER = "tf.data"
PEERS = {PEER: "", "tf.data, our pixels": "INTEGER_ACCURATE"}  # its default is a faster DCT
WHOLE = "vit_jax, whole images"
OURS = "vit_jax"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Input:
    """Settings: files, threads per process (none: one per core), rounds, the TensorFlow Python."""

    data: pathlib.Path | None = None
    threads: tuple[int, ...] = ()
    peer_python: str = sys.executable
    rounds: int = 5
    batches: int = 8

    def __post_init__(self) -> None:
        if self.rounds < 1 or any(threads < 1 for threads in self.threads):
            raise config.ConfigError("bench input: --rounds and --threads must be at least 1")
        if self.data is not None and not self.data.exists():
            raise config.ConfigError(f"--data={self.data}: no such folder or tar")


@dataclasses.dataclass(frozen=True)
class Result:
    """A pipeline on some cores: medians over its rounds, and the peak memory in MiB."""

    cores: int
    name: str
    rate: float  # images/s
    cpu: float  # CPU seconds per image, less sensitive to other programs
    peak: float


def measure(options: Input) -> list[Result]:
    """Returns a result for every available pipeline, on one core and on all of them.

    Each pipeline runs in its own process, which waits while another is measured. A round is
    `batches` batches of 256, after one that is not counted.
    """
    every = sorted(os.sched_getaffinity(0))
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        files = sample_images.gather(options.data, folder)
        names = folder / "names"
        names.write_bytes(b"".join(os.fsencode(file) + b"\n" for file in files))
        for cores in [every] if len(every) == 1 else [every[:1], every]:
            results += _compare(options, cores, names)
    return results


def _compare(options: Input, cores: list[int], names: pathlib.Path) -> list[Result]:
    """Measures all pipelines on some cores, in a different order each round."""
    where = ",".join(map(str, cores))
    worker = [sys.executable, "-m", "vit_jax.benchmarks.worker", where]
    commands = {}
    for threads in options.threads or (len(cores),):
        suffix = f", {threads} threads" if options.threads else ""
        commands[OURS + suffix] = [*worker, str(threads), "parts", str(names)]
        commands[WHOLE + suffix] = [*worker, str(threads), "whole", str(names)]
    if _peer_version(options.peer_python):
        script = str(pathlib.Path(__file__).with_name("tf_data.py"))
        for name, dct in PEERS.items():
            commands[name] = [options.peer_python, script, where, str(names), dct]
    rates: dict[str, list[float]] = {name: [] for name in commands}
    cpu: dict[str, list[float]] = {name: [] for name in commands}
    peaks = dict.fromkeys(commands, 0.0)
    with contextlib.ExitStack() as stack:
        asks = {name: stack.enter_context(_process(line)) for name, line in commands.items()}
        for ask in asks.values():
            _turn(ask, 1)  # imports, file cache, tf.data's tuning
        for turn in range(options.rounds):
            order = list(asks) if turn % 2 else list(reversed(asks))
            for name in order:
                answer = _turn(asks[name], options.batches * len(cores))
                rates[name].append(answer["images"] / answer["seconds"])
                cpu[name].append(answer["cpu"] / answer["images"])
                peaks[name] = max(peaks[name], answer["peak"])
    middle = statistics.median
    return [Result(len(cores), n, middle(rates[n]), middle(cpu[n]), peaks[n]) for n in commands]


@contextlib.contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Starts a worker; closing its standard input ends it."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _turn(process: subprocess.Popen[str], batches: int) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{batches}\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        command = [str(word) for word in process.args]  # pyright: ignore[reportGeneralTypeIssues]
        raise config.ConfigError(f"bench input: a process ended early: {' '.join(command)}")
    return json.loads(line)


def table(results: list[Result]) -> Table:
    """Returns rows for people; ratios are to tf.data, or without it to decoding whole images."""
    rows = []
    for one in results:
        others = {r.name: r for r in results if r.cores == one.cores}
        whole = next(r for name, r in others.items() if name.startswith(WHOLE))
        base = others.get(PEER, whole)
        rows.append(
            (
                f"{one.cores}",
                one.name,
                f"{one.rate:,.0f}",
                f"{one.rate / one.cores:,.0f}",
                f"{one.rate / base.rate:.2f}x",
                f"{1000 * one.cpu:.2f}",
                f"{base.cpu / one.cpu:.2f}x",
                f"{one.peak:,.0f}",
            )
        )
    against = PEER if any(r.name == PEER for r in results) else "whole images"
    vs = f"vs {against}"
    header = ("cores", "pipeline", "images/s", "per core", vs, "CPU ms/image", vs, "peak MiB")
    return header, rows


def title(options: Input) -> list[str]:
    """Returns lines that describe the measurement, the machine and the versions."""
    from vit_jax.data import partial_jpeg

    peer = _peer_version(options.peer_python)
    return [
        "JPEG files -> Inception crop -> 224x224x3 uint8 batches of 256 in host memory; "
        + (
            f"files of {options.data}" if options.data else f"{sample_images.COUNT} files made here"
        ),
        f"{_processor()}, {len(os.sched_getaffinity(0))} cores; Python {platform.python_version()}",
        f"vit_jax decodes with {partial_jpeg.decoder()}; "
        + (f"{PEER} of TensorFlow {peer}" if peer else "no TensorFlow here (--peer-python=PATH)"),
    ]


def _processor() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(": ")[2]
    return platform.processor() or platform.machine()


def _peer_version(python: str) -> str | None:
    """Returns the TensorFlow version of an interpreter without importing it; empty if none."""
    code = (
        "import importlib.metadata as m\n"
        "names = {d.name.lower().replace('_', '-'): d.version for d in m.distributions()}\n"
        "print(names.get('tensorflow') or names.get('tensorflow-cpu') or '')"
    )
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise config.ConfigError(f"--peer-python={python}: does not run: {error}") from None
    return done.stdout.strip() or None
