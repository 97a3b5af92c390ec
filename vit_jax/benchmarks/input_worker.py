"""Loads batches on command, in a process of its own: `python -m vit_jax.benchmarks.input_worker`.

Each line on standard input is a number of batches to load; the reply is one line of JSON: images,
seconds, CPU seconds, and peak memory in bytes. The arguments are the cores to run on, threads, the
decoder (parts, whole), a file with the image paths, a tar, a Parquet file or a folder with prepared
data, and those of RandAugment, as in 2,10, or none.
"""

import io
import json
import os
import pathlib
import sys
import time

from vit_jax import config
from vit_jax.benchmarks import step_timing
from vit_jax.data import pipeline, transforms
from vit_jax.data.source import Record, Source
from vit_jax.data.sources import open_source

BATCH = 256
PACKED = "bench"  # the name of the prepared data


class Files:
    """Image files as a source; the label is the position modulo 2."""

    classes = ("even", "odd")

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Record:
        with io.FileIO(self._paths[index]) as file:
            return Record(file.readall(), index % 2)

    def name(self, index: int) -> str:
        """The path of the file."""
        return self._paths[index]

    def fingerprint(self) -> str:
        """Empty: this is not training data."""
        return ""


def load(source: Source, data: config.Data, count: int) -> dict[str, float]:
    """Images, seconds and CPU seconds of `count` batches, after one that is not counted."""
    # stop_step is more than any turn asks for.
    with pipeline.batches(
        source,
        transforms.train_transforms(data),
        data,
        seed=0,
        batch_size=BATCH,
        rows=range(BATCH),
        train=True,
        stop_step=10**6,
    ) as batches:
        next(batches)
        began, busy = time.perf_counter(), time.process_time()
        images = sum(len(next(batches)["label"]) for _ in range(count))
        seconds, cpu = time.perf_counter() - began, time.process_time() - busy
        return {"images": images, "seconds": seconds, "cpu": cpu}


def settings(threads: int, decoder: str, augment: str) -> config.Data:
    """The options of the pipeline."""
    return config.Data(
        train_crop="inception",
        flip=False,
        threads=threads,
        partial_decoding=decoder == "parts",
        randaugment=tuple(int(number) for number in augment.split(",") if number) or None,
    )


def main(cores: str, threads: str, decoder: str, names: str, augment: str) -> None:
    """Answers until standard input ends."""
    # First: a thread inherits the cores of the one that starts it.
    os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    data = settings(int(threads), decoder, augment)
    if (path := pathlib.Path(names)).is_dir():
        source = open_source(config.Tfds(name=PACKED, root=names), "train")
    elif path.suffix in (".tar", ".parquet", ".arrow"):
        options = {"source": path.suffix[1:], "root": names, "cache": str(path.parent)}
        source = open_source(config.build({"data": options}).data, "train")
    else:
        # The text after the last newline is empty.
        source = Files(os.fsdecode(path.read_bytes()).split("\n")[:-1])
    for line in sys.stdin:
        answer = load(source, data, int(line))
        print(json.dumps(answer | {"peak": step_timing.process_peak()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
