"""Images from files to batches in host memory: this package against tf.data, in turns."""

import contextlib
import dataclasses
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from vit_jax import config
from vit_jax.benchmarks import Table, sample_images, turns
from vit_jax.benchmarks.processes import Worker
from vit_jax.runtime import provenance
from vit_jax.training import run_config

PEER = "tf.data"
PEERS = {PEER: "", "tf.data, our pixels": "INTEGER_ACCURATE"}  # its default is a faster DCT
WHOLE = "vit_jax, whole images"
OURS = turns.OURS
REFERENCE = pathlib.Path("big_vision", "pp", "archive", "autoaugment.py")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Input:
    """Settings.

    Attributes:
      data: a folder or tar of JPEG files; None: generated ones.
      threads: of a process, each number tried; none: one per core.
      peer_python: an interpreter that may have TensorFlow.
      peer_path: a checkout of big_vision, whose RandAugment tf.data then takes.
      randaugment: operations and magnitude, such as 2,10; empty: none.
      rounds: turns of each pipeline.
      batches: of a turn, for each core.
    """

    data: pathlib.Path | None = None
    threads: tuple[int, ...] = ()
    peer_python: str = sys.executable
    peer_path: pathlib.Path | None = None
    randaugment: str = ""
    rounds: int = 5
    batches: int = 8

    def __post_init__(self) -> None:
        if self.rounds < 1 or any(threads < 1 for threads in self.threads):
            raise config.ConfigError("bench input: --rounds and --threads must be at least 1")
        if self.data is not None and not self.data.exists():
            raise config.ConfigError(f"--data={self.data}: no such folder or tar")
        if self.peer_path is not None and not self.randaugment:
            raise config.ConfigError(
                f"--peer-path={self.peer_path}: is for --randaugment, which is not set"
            )
        if self.peer_path is not None and not (self.peer_path / REFERENCE).is_file():
            raise config.ConfigError(f"--peer-path={self.peer_path}: no checkout of big_vision")
        some = {"model": {"variant": "ViT-B/16"}}
        run_config.config_from_values(some, {"data.randaugment": self.randaugment or "none"})

    @property
    def peer(self) -> str | None:
        """Version of the TensorFlow to compare with; None where it cannot do the same work."""
        version = _peer_version(self.peer_python)
        return None if self.randaugment and self.peer_path is None else version


@dataclasses.dataclass(frozen=True)
class Result:
    """A pipeline on some cores.

    Attributes:
      seconds: for an image, in every turn.
      cpu: CPU seconds for an image, likewise, which other programs disturb less.
      peak: memory in MiB.
    """

    cores: int
    name: str
    seconds: Sequence[float]
    cpu: Sequence[float]
    peak: float

    @property
    def rate(self) -> float:
        """Images per second, the median of the turns."""
        return 1 / statistics.median(self.seconds)


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
    where, augment = ",".join(map(str, cores)), options.randaugment
    worker = [sys.executable, "-m", "vit_jax.benchmarks.worker", where]
    commands = {}
    for threads in options.threads or (len(cores),):
        suffix = f", {threads} threads" if options.threads else ""
        commands[OURS + suffix] = [*worker, str(threads), "parts", str(names), augment]
        commands[WHOLE + suffix] = [*worker, str(threads), "whole", str(names), augment]
    if options.peer:
        script = str(pathlib.Path(__file__).with_name("tf_data.py"))
        checkout = str(options.peer_path or "")
        for name, dct in PEERS.items():
            given = [where, str(names), dct, augment, checkout]
            commands[name] = [options.peer_python, script, *given]
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    cpu: dict[str, list[float]] = {name: [] for name in commands}
    peaks = dict.fromkeys(commands, 0.0)
    with contextlib.ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker("input", name, line))
            for name, line in commands.items()
        }
        for one in workers.values():
            one.take(1)  # imports, file cache, tf.data's tuning
        for turn in range(options.rounds):
            order = list(workers) if turn % 2 else list(reversed(workers))
            for name in order:
                answer = workers[name].take(options.batches * len(cores))
                seconds[name].append(answer["seconds"] / answer["images"])
                cpu[name].append(answer["cpu"] / answer["images"])
                peaks[name] = max(peaks[name], answer["peak"])
    return [Result(len(cores), name, seconds[name], cpu[name], peaks[name]) for name in commands]


def table(results: list[Result]) -> Table:
    """Returns rows for people; ratios are to tf.data, or without it to decoding whole images."""
    rows = []
    for one in results:
        base, cpu = _base(one, results), statistics.median(one.cpu)
        ratio = "{:.2f}x ({:.2f} to {:.2f})".format(*turns.ratios(one, base))
        rows.append(
            (
                f"{one.cores}",
                one.name,
                f"{one.rate:,.0f}",
                f"{one.rate / one.cores:,.0f}",
                "1.00x" if one is base else ratio,
                f"{1000 * cpu:.2f}",
                f"{statistics.median(base.cpu) / cpu:.2f}x",
                f"{one.peak:,.0f}",
            )
        )
    against = PEER if any(r.name == PEER for r in results) else "whole images"
    vs = f"vs {against}"
    header = ("cores", "pipeline", "images/s", "per core", vs, "CPU ms/image", vs, "peak MiB")
    return header, rows


def _base(one: Result, results: Sequence[Result]) -> Result:
    """Returns the result that ratios on as many cores are to."""
    others = {other.name: other for other in results if other.cores == one.cores}
    whole = next(other for name, other in others.items() if name.startswith(WHOLE))
    return others.get(PEER, whole)


def record(options: Input, results: Sequence[Result], command: str) -> dict[str, Any]:
    """Returns a measurement as it is kept: what, by which code, when and where."""
    versions = {"tensorflow": options.peer} if options.peer else {}
    return {
        "command": command,
        **provenance.fields(_processor(), versions),
        "load": round(os.getloadavg()[0], 2),
        "work": {"batches": options.batches, "randaugment": options.randaugment or None},
        "results": [
            dataclasses.asdict(one) | {"ratio": turns.ratios(one, _base(one, results))}
            for one in results
        ],
    }


def title(options: Input) -> list[str]:
    """Returns lines that describe the measurement, the machine and the versions."""
    from vit_jax.data import jpeg

    peer, augment = options.peer, options.randaugment
    without = "big_vision's RandAugment (--peer-path=CHECKOUT)" if augment else ""
    without = without or "TensorFlow here (--peer-python=PATH)"
    return [
        "JPEG files -> Inception crop -> "
        + (f"RandAugment {augment} -> " if augment else "")
        + "224x224x3 uint8 batches of 256 in host memory; "
        + (
            f"files of {options.data}" if options.data else f"{sample_images.COUNT} files made here"
        ),
        f"{turns.machine(_processor())}; Python {platform.python_version()}",
        f"vit_jax decodes with {jpeg.decoder()}; "
        + (f"{PEER} of TensorFlow {peer}" if peer else f"no {without}"),
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
