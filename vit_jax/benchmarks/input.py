"""Images of files, a tar, Parquet and prepared data to batches in memory, in turns with tf.data."""

import collections
import contextlib
import dataclasses
import math
import os
import pathlib
import platform
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from vit_jax import config, models
from vit_jax.benchmarks import input_worker, sample_images, turns
from vit_jax.benchmarks.train import output
from vit_jax.benchmarks.turns import OURS, PYTHON, Compared, Worker
from vit_jax.data.prepare import pack
from vit_jax.data.prepare.request import Request
from vit_jax.models import variants
from vit_jax.preflight import program, topologies
from vit_jax.runtime import provenance
from vit_jax.training import run_config
from vit_jax.utils import machine

PEER = "tf.data"
PEERS = {PEER: "", "tf.data, our pixels": "INTEGER_ACCURATE"}  # its default is a faster DCT
WHOLE = "vit_jax, whole images"
PREPARED = "vit_jax, prepared data"
TAR = "vit_jax, tar"
PARQUET = "vit_jax, parquet"
ARROW = "vit_jax, arrow"
MOST = 4096  # files that are read, and packed for that
REFERENCE = pathlib.Path("big_vision", "pp", "archive", "autoaugment.py")
BATCHES = 8  # of a turn, for each core
TRAINING = 3  # a backward pass is two products for each one of the forward pass
# An interpreter's TensorFlow, without importing it.
VERSION = """
import importlib.metadata as m
names = {d.name.lower().replace('_', '-'): d.version for d in m.distributions()}
print(names.get('tensorflow') or names.get('tensorflow-cpu') or '')
"""


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
    """

    data: pathlib.Path | None = None
    threads: tuple[int, ...] = ()
    peer_python: str = sys.executable
    peer_path: pathlib.Path | None = None
    randaugment: str = ""
    rounds: int = 5

    def __post_init__(self) -> None:
        if self.data is not None and not self.data.exists():
            raise config.ConfigError(f"--data={self.data}: no such folder or tar")
        if self.peer_path is not None and not self.randaugment:
            raise config.ConfigError(
                f"--peer-path={self.peer_path}: is for --randaugment, which is not set"
            )
        if self.peer_path is not None and not (self.peer_path / REFERENCE).is_file():
            raise config.ConfigError(f"--peer-path={self.peer_path}: no checkout of big_vision")
        # Only to validate randaugment; a config needs some model.
        some = {"model": {"variant": "ViT-B/16"}}
        run_config.config_from_values(some, {"data.randaugment": self.randaugment or "none"})

    @property
    def peer(self) -> str | None:
        """Version of the TensorFlow to compare with; None where it cannot do the same work."""
        version = output(self.peer_python, VERSION)
        return None if self.randaugment and self.peer_path is None else version or None


def measure(options: Input) -> Iterator[Compared]:
    """Yields the comparison of all available pipelines on one core, then on all cores.

    Each pipeline runs in its own process, which waits while another is measured. A turn is
    `BATCHES` batches of 256 for each core, after one that is not counted.
    """
    every = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        files = sample_images.gather(options.data, folder)
        # Evenly spaced: sorted files are often grouped by class.
        files = files[:: math.ceil(len(files) / MOST)]
        packed = _prepare(files, folder)
        names = folder / "names"
        # As bytes: a name on Linux need not be valid text.
        names.write_bytes(b"".join(os.fsencode(file) + b"\n" for file in files))
        for cores in [every] if len(every) == 1 else [every[:1], every]:
            yield _compare(options, cores, names, packed)


def _prepare(files: Sequence[pathlib.Path], folder: pathlib.Path) -> pathlib.Path:
    """The data_dir of these files as `vit_jax prepare` packs them; a tar and tables beside it."""
    photos, data_dir = folder / "photos", folder / "data"
    for number in range(max(len(files), 2)):  # of both classes
        link = photos / ("even", "odd")[number % 2] / f"{number:06}.jpg"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(files[number % len(files)].absolute())
    # The photos are symbolic links, and a tar of links would have no images.
    with tarfile.open(data_dir.with_suffix(".tar"), "w", dereference=True) as archive:
        archive.add(photos, ".")
    paths = sorted(photos.rglob("*.jpg"))
    rows = pa.table(
        {
            "image": [path.read_bytes() for path in paths],
            "label": [path.parent.name for path in paths],
        }
    )
    with (
        pa.OSFile(str(data_dir.with_suffix(".arrow")), "wb") as file,
        pa.ipc.new_stream(file, rows.schema) as writer,
    ):
        writer.write_table(rows)
    pyarrow.parquet.write_table(
        rows,
        data_dir.with_suffix(".parquet"),
        row_group_size=100,
        use_content_defined_chunking=True,  # with this size, as `datasets` writes them
    )
    workers = machine.cores()
    request = Request(data_dir=str(data_dir), sources=(str(photos),), holdout=0, workers=workers)
    # Runs the generator to its end, without its lines.
    collections.deque(pack.prepare(input_worker.PACKED, None, request), maxlen=0)
    return data_dir


def _compare(
    options: Input, cores: list[int], names: pathlib.Path, packed: pathlib.Path
) -> Compared:
    where, augment = ",".join(map(str, cores)), options.randaugment
    worker = [*PYTHON, "-m", "vit_jax.benchmarks.input_worker", where]
    commands = {}
    for threads in options.threads or (len(cores),):
        suffix = f", {threads} threads" if options.threads else ""
        for name, decoder, data in (
            (OURS, "parts", names),
            (TAR, "parts", packed.with_suffix(".tar")),
            (PARQUET, "parts", packed.with_suffix(".parquet")),
            (ARROW, "parts", packed.with_suffix(".arrow")),
            (PREPARED, "parts", packed),
            (WHOLE, "whole", names),
        ):
            commands[name + suffix] = [*worker, str(threads), decoder, str(data), augment]
    if options.peer:
        script = str(pathlib.Path(__file__).with_name("tf_data.py"))
        for name, dct in PEERS.items():
            given = [where, str(names), dct, augment, str(options.peer_path or "")]
            commands[name] = [options.peer_python, script, *given]
    with contextlib.ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker("input", name, line))
            for name, line in commands.items()
        }
        for one in workers.values():
            one.take(1)  # imports, file cache, tf.data's tuning
        # Per core, so that a turn takes about as long on one core as on all.
        count = BATCHES * len(cores)
        programs = {name: lambda one=one: one.take(count) for name, one in workers.items()}
        results = turns.take(programs, rounds=options.rounds)
    what = f"{len(cores)} core{'s' * (len(cores) > 1)}"
    return Compared(
        work=what, unit="images", amount=1, results=results, device=provenance.processor()
    )


def names_of(options: Input) -> list[str]:
    """Our programs that read files, one for each number of threads."""
    return [f"{OURS}, {threads} threads" for threads in options.threads] or [OURS]


def title(options: Input) -> list[str]:
    """Lines that describe the measurement, the machine and the versions."""
    from vit_jax.data import jpeg

    peer, augment = options.peer, options.randaugment
    without = "big_vision's RandAugment (--peer-path=CHECKOUT)" if augment else ""
    without = without or "TensorFlow here (--peer-python=PATH)"
    files = f"files of {options.data}" if options.data else f"{sample_images.COUNT} files made here"
    return [
        f"JPEG files -> Inception crop -> {f'RandAugment {augment} -> ' if augment else ''}"
        f"224x224x3 uint8 batches of 256 in host memory; {files}",
        f"{turns.machine(provenance.processor())}; Python {platform.python_version()}",
        f"vit_jax decodes with {jpeg.decoder()}; "
        + (f"{PEER} of TensorFlow {peer}" if peer else f"no {without}"),
    ]


def host_cores(variant: str, topology: str, per_core: float) -> list[tuple[str, str]]:
    """Labeled lines about the host cores that feed a model on a slice.

    The model has 224 x 224 pixels; nothing is compiled for the topology. `per_core` is images per
    second and host core, as measured here.
    """
    generation, shape = topologies.parse_topology(topology)
    chips = math.prod(shape)
    model = models.complete(config.Model(variant=variant, num_classes=1000))
    flops = TRAINING * variants.required(variants.flops(model, (224, 224), 3))
    peak = chips * topologies.CHIPS[generation].flops
    rate = peak / flops
    mfu, source = program.expected_mfu(model.width)
    what = f"{variant} at 224 px on {topology}: {chips} chips, {peak:.3g} FLOP/s in bfloat16"
    return [
        ("feed", what),
        ("training an image", f"{flops:.3g} FLOPs: 6 for each of {flops / 6:.3g} multiply-adds"),
        ("at the roofline", f"{rate:,.0f} images/s, the peak of the matrix units"),
        ("", f"{rate / per_core:,.1f} host cores like these, at {per_core:,.0f} images/s each"),
        (f"at {mfu:.0%} of it", f"{mfu * rate:,.0f} images/s: {mfu * rate / per_core:,.1f} cores"),
        ("", source),
    ]
