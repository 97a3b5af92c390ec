"""Reads every record of a prepared dataset and reports bad ones by name."""

import hashlib
import itertools
import pathlib
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from array_record.python import array_record_data_source

from vit_jax.data import decoding, tfds_source
from vit_jax.data.prepare.shards import read_info, shard_files
from vit_jax.data.prepare.staging import FACTS
from vit_jax.data.source import DataError
from vit_jax.runtime.progress import Bar
from vit_jax.utils import limits, storage
from vit_jax.utils.storage import reason

CHUNK = 64


def verify(folder: pathlib.Path, *, workers: int, max_pixels: int) -> Iterator[str]:
    """Yields a line for every fault of the dataset in `folder`.

    Reads every record, which checks its array_record hash, decodes its images, and compares the
    number of records with the metadata. For datasets packed by `vit_jax prepare`, also compares
    the SHA-256 of shards and example names.
    """
    info = read_info(folder)
    if info.file_format != tfds.core.FileFormat.ARRAY_RECORD:
        raise DataError(f"{folder}: is {info.file_format.value}, not array_record")
    facts = folder / FACTS
    if facts.exists():
        try:
            packed = limits.read_json(facts, limits.TABLE)
            names = [*packed["shards"], *packed["splits"]]
            digests = [about["names_sha256"] for about in packed["splits"].values()]
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataError(f"{facts}: cannot be read: {_line(error)}") from None
        if not all(isinstance(one, str) and "/" not in one for one in (*names, *digests)):
            raise DataError(f"{facts}: names a file outside of {folder}")
        yield from _hashes(folder, packed)
    check = _Check(info, max_pixels)
    with (
        Bar(f"verifying {info.full_name}", info.splits.total_num_examples) as progress,
        futures.ThreadPoolExecutor(workers) as pool,
    ):
        done = 0
        for path, length in shard_files(info):
            try:
                with array_record_data_source.ArrayRecordDataSource(str(path)) as source:
                    there = len(source)
                    for bad in _records(check, source, min(there, length), pool):
                        yield f"{path.name}: {bad}"
                if there != length:
                    yield f"{path.name}: {there} records, not {length}"
            except (OSError, RuntimeError, ValueError) as error:
                yield f"{path.name}: cannot be read: {_line(error)}"
            done += length
            progress.update(done)


def _records(check: "_Check", source: Any, length: int, pool: futures.Executor) -> Iterator[str]:
    def some(start: int) -> list[str]:
        numbers = range(start, min(start + CHUNK, length))
        found = ((number, check(source, number)) for number in numbers)
        return [f"record {number}: {reason}" for number, reason in found if reason]

    yield from itertools.chain.from_iterable(pool.map(some, range(0, length, CHUNK)))


class _Check:
    """The fault of a record, or None."""

    def __init__(self, info: Any, max_pixels: int) -> None:
        self._max_pixels = max_pixels
        pictures = tfds_source.features(info, tfds.features.Image)
        labels = tfds_source.features(info, tfds.features.ClassLabel)
        self._images = [name for name, one in pictures.items() if one.np_dtype == np.uint8]
        self._labels = {name: one.num_classes for name, one in labels.items()}
        self._features = tfds.features.FeaturesDict(pictures | labels)
        self._skip = dict.fromkeys(pictures, tfds.decode.SkipDecoding())

    def __call__(self, source: Any, number: int) -> str | None:
        try:
            example: Any = self._features.deserialize_example_np(
                source[number], decoders=self._skip
            )
            for name in self._images:
                decoding.decode(example[name], channels=3, max_pixels=self._max_pixels)
        except decoding.BadImage as error:
            return f"its image {error}"
        except Exception as error:  # array_record and TFDS raise many types
            return _line(error)
        for name, classes in self._labels.items():
            if classes and not -1 <= int(example[name]) < classes:  # TFDS: -1 is no label
                return f"{name} is {int(example[name])}, of {classes} classes"
        return None


def _hashes(folder: pathlib.Path, facts: dict[str, Any]) -> Iterator[str]:
    for name, expected in facts["shards"].items():
        path = folder / name
        if path.exists() and storage.sha256(path) != expected:
            yield f"{name}: its SHA-256 is not that in {FACTS}"
    for split, about in facts["splits"].items():
        path = folder / f"{split}.txt"
        if not path.exists():
            yield f"{path.name}: is missing"
        elif hashlib.sha256(path.read_bytes()).hexdigest() != about["names_sha256"]:
            yield f"{path.name}: its SHA-256 is not that in {FACTS}"


def _line(error: Exception) -> str:
    return reason(error).partition(";")[0]
