"""Writes the shards of a dataset, each completely or not at all, and reads TFDS's metadata."""

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow_datasets as tfds
from array_record.python import array_record_module  # pyright: ignore
from etils import epath

from vit_jax.config import NO_ROOM, Data
from vit_jax.data import tfds_metadata
from vit_jax.data.source import DataError
from vit_jax.utils import storage
from vit_jax.utils.storage import reason

# One record per chunk, for random access; riegeli stores and checks a hash of every chunk.
# Uncompressed, as JPEG does not get smaller.
OPTIONS = "group_size:1,uncompressed"
SHARD_BYTES, MOST_SHARDS = 2**26, 1024  # a shard is an open file while a run trains
MAX_PIXELS = Data().max_pixels  # of an image, the limit of training


class PrepareError(DataError):
    """A temporary failure of preparation, such as a full disk or a killed worker."""

    exit_code = 70


class Shard(NamedTuple):
    """A planned file: the positions of its examples in a split, and their bytes in all."""

    path: Path
    split: str
    positions: np.ndarray
    size: int


@dataclasses.dataclass
class ShardResult:
    """Counts and problems of a written shard, stored next to it until all shards are done."""

    examples: int = 0
    bytes: int = 0
    resized: int = 0
    sha256: str = ""
    bad: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    duplicates: list[tuple[str, str, int]] = dataclasses.field(default_factory=list)


class Encoder(Protocol):
    """Makes the examples of a dataset; every process has one."""

    @property
    def features(self) -> Any:
        """TFDS's features of the dataset."""
        ...

    def __call__(self, entry: Any, outcome: ShardResult, /) -> tuple[str, dict[str, Any]] | None:
        """The name and values of an example; None if it is left out, which `outcome` then lists."""
        ...


def divide(
    path: Path, split: str, positions: np.ndarray, sizes: np.ndarray, shard_bytes: int
) -> Iterator[Shard]:
    """Yields the shards of a split; the names of their files begin with `path`.

    `positions` are its examples (N,) in order, `sizes` the bytes of the example at each position. A
    shard has about `shard_bytes`.
    """
    number = round(int(sizes[positions].sum()) / shard_bytes)
    # No shard is empty, and sizes differ by one example at most.
    number = min(max(1, number), MOST_SHARDS, len(positions))
    bounds = [len(positions) * k // number for k in range(number + 1)]
    for k, (low, high) in enumerate(itertools.pairwise(bounds)):
        name = f"{path.name}-{split}.array_record-{k:05d}-of-{number:05d}"
        part = positions[low:high]
        yield Shard(path.with_name(name), split, part, int(sizes[part].sum()))


def write_shard(
    path: Path, entries: Sequence[object], encode: Encoder, count: Callable[[], None]
) -> ShardResult:
    """Writes a shard, the names of its examples, and its outcome; calls `count` for every entry.

    Raises PrepareError if the disk is full.
    """
    outcome, names = ShardResult(), []
    serializer = tfds.core.example_serializer.ExampleSerializer(  # pyright: ignore
        encode.features.get_serialized_info()
    )

    def records() -> Iterator[bytes]:
        for entry in entries:
            count()
            example = encode(entry, outcome)
            if example is None:
                continue
            name, values = example
            # The order in a map of protobuf is not fixed otherwise.
            proto: Any = serializer.get_tf_example(values)
            record = proto.SerializeToString(deterministic=True)
            outcome.examples += 1
            outcome.bytes += len(record)
            names.append(f"{name}\n")
            yield record

    write_records(path, records())
    outcome.sha256 = storage.sha256(path)
    with disk_errors(path):
        storage.write_atomically(_beside(path, "txt"), "".join(names))
        # Last: a shard with this file counts as finished.
        storage.write_atomically(_beside(path, "json"), json.dumps(dataclasses.asdict(outcome)))
    return outcome


def find_outcome(path: Path) -> ShardResult | None:
    """The outcome of a shard, or None if it is unfinished."""
    try:
        values = json.loads(_beside(path, "json").read_text())
        return ShardResult(**values) if path.is_file() else None
    except (OSError, ValueError, TypeError):
        return None


def join_names(file: Path, packed: Sequence[tuple[Shard, ShardResult]]) -> dict[str, Any]:
    """Writes the names of a split's examples to a file; returns their number and the digest."""
    with storage.naming(file), file.open("wb") as names:
        for shard, _ in packed:
            names.write(_beside(shard.path, "txt").read_bytes())
    examples = sum(outcome.examples for _, outcome in packed)
    return {"examples": examples, "names_sha256": storage.sha256(file)}


def _beside(path: Path, suffix: str) -> Path:
    """A file about a shard, next to the folder of shards, which holds nothing else."""
    return path.parent.with_name(f"{path.name}.{suffix}")


def write_records(path: Path, records: Iterator[bytes]) -> None:
    """Writes an array_record file that gets its name once complete and synced to disk."""
    with disk_errors(path), storage.replacing(path) as part:
        writer = array_record_module.ArrayRecordWriter(str(part), OPTIONS)
        try:
            for record in records:
                writer.write(record)
        finally:
            writer.close()


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turns disk errors while `path` is written into one line."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        # array_record has no error type of its own.
        if not isinstance(error, OSError) and type(error) is not RuntimeError:
            raise
        full = getattr(error, "errno", None) in NO_ROOM
        # array_record reports errors of the disk as texts alone.
        full = full or any(text in str(error) for text in ("No space left", "too large"))
        why = getattr(error, "strerror", None) or str(error).partition(";")[0]
        remedy = "; free some space and run the same command again to resume" if full else ""
        kind = PrepareError if full else DataError
        raise kind(f"{path.parent}: cannot write: {why}{remedy}") from None


def read_info(folder: epath.PathLike) -> Any:
    """The TFDS info of a prepared dataset; raises DataError if it is damaged."""
    try:
        return tfds_metadata.builder_of_folder(folder).info
    except DataError:
        raise
    except Exception as error:  # JSON, protobuf and TFDS raise many types
        raise DataError(f"{folder}: its metadata cannot be read: {reason(error)}") from None


def shard_files(info: Any) -> list[tuple[epath.Path, int]]:
    """The files of a dataset, split by split, each with the number of its records."""
    found = []
    for split in info.splits.values():
        paths = split.filename_template.sharded_filepaths(len(split.shard_lengths))
        found += zip(paths, split.shard_lengths, strict=True)
    return found
