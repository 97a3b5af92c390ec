"""Reads every record of a prepared dataset and reports bad ones by name."""

import itertools
import pathlib
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from array_record.python import array_record_data_source

from vit_jax.data import decoding, tfds_source
from vit_jax.data.prepare import staging
from vit_jax.data.prepare.shards import MAX_PIXELS, read_info, shard_files
from vit_jax.data.prepare.staging import FACTS
from vit_jax.data.source import DataError
from vit_jax.runtime.progress import Bar
from vit_jax.utils import storage
from vit_jax.utils.storage import reason

CHUNK = 64


def verify(folder: pathlib.Path, *, workers: int) -> Iterator[str]:
    """Yields a line for every fault of the dataset in `folder`.

    Reads every record, which checks its array_record hash, decodes its images, and compares the
    number of records with the metadata. For datasets packed by `vit_jax prepare`, also compares
    the SHA-256 of shards and example names.
    """
    info = read_info(folder)
    if info.file_format != tfds.core.FileFormat.ARRAY_RECORD:
        raise DataError(f"{folder}: is {info.file_format.value}, not array_record")
    if (folder / FACTS).exists():
        facts = staging.read_facts(folder)
        if facts is None:
            raise DataError(f"{folder / FACTS}: is damaged; remove the folder and prepare it again")
        yield from _wrong_digests(folder, facts)
    check = _Check(info)
    with (
        Bar(f"verifying {info.full_name}", info.splits.total_num_examples) as progress,
        futures.ThreadPoolExecutor(workers) as pool,
    ):
        done = 0
        for path, length in shard_files(info):
            try:
                with array_record_data_source.ArrayRecordDataSource(str(path)) as source:
                    there = len(source)
                    # Those that both have: another number of records is a fault of its own, below.
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

    def __init__(self, info: Any) -> None:
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
                decoding.decode_image(example[name], channels=3, max_pixels=MAX_PIXELS)
        except decoding.BadImage as error:
            return f"its image {error}"
        except Exception as error:  # array_record and TFDS raise many types
            return _line(error)
        for name, classes in self._labels.items():
            if classes and not -1 <= int(example[name]) < classes:  # TFDS: -1 is no label
                return f"{name} is {int(example[name])}, of {classes} classes"
        return None


def _wrong_digests(folder: pathlib.Path, facts: dict[str, Any]) -> Iterator[str]:
    digests = dict(facts["shards"])
    digests |= {f"{split}.txt": about["names_sha256"] for split, about in facts["splits"].items()}
    for name, expected in digests.items():
        # The facts are a file like any other, and must not have this read files elsewhere.
        if "/" in name:
            raise DataError(f"{folder / FACTS}: names a file outside of {folder}")
        path = folder / name
        if path.is_file() and storage.sha256(path) != expected:
            yield f"{name}: its SHA-256 is not that in {FACTS}"
        elif not path.is_file() and name.endswith(".txt"):  # a missing shard is reported below
            yield f"{name}: is missing"


def _line(error: Exception) -> str:
    return reason(error).partition(";")[0]
