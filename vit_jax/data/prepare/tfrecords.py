"""Converts TFRecord copies of TFDS datasets to array_record, record by record."""

import json
import pathlib
import shutil
import struct
from collections.abc import Iterator
from typing import IO, Any

import google_crc32c
import tensorflow_datasets as tfds
from etils import epath

from vit_jax.data.availability import INFO
from vit_jax.data.prepare import request as lines
from vit_jax.data.prepare import shards, staging
from vit_jax.data.prepare.request import Request
from vit_jax.data.prepare.shards import read_info, shard_files
from vit_jax.data.source import DataError
from vit_jax.runtime.progress import Bar
from vit_jax.utils import digests, limits, storage
from vit_jax.utils.messages import size_text

SUFFIX = "tfrecord"
MOST_BYTES = 2**30  # of a record
CHUNK = 2**20  # bytes to read at a time, because a damaged length may be huge


def find_copy(folder: epath.Path, name: str) -> epath.Path | None:
    """The folder of a prepared dataset: `folder` itself, or the newest below it."""
    if (folder / INFO).exists():
        return folder
    versions = []
    for root in (folder, folder / name.partition(":")[0]):
        if root.is_dir():
            versions += [each for each in root.iterdir() if tfds.core.Version.is_valid(each.name)]
    found = [each for each in versions if (each / INFO).exists()]
    return max(found, key=lambda each: tfds.core.Version(each.name), default=None)


def prepare(name: str, tfds_name: str, copy: epath.Path, request: Request) -> Iterator[str]:
    """Converts the copy in a folder and yields lines for the user."""
    request.refuse_packing(name)
    request.refuse_partial(name)
    with storage.readable_errors(f"--from={copy}", DataError):
        if not request.dry_run:
            yield f"{name}: converted, in {convert(copy, tfds_name, request.directory())}"
            return
        folder, info = _target(copy, tfds_name, request.directory())
        files = shard_files(info)
        total = sum(path.stat().length for path, _ in files)
        yield lines.reads(name, [copy], f"{len(files):,} TFRecord files", total)
        for split, one in info.splits.items():
            yield f"{name}: {split}: {one.num_examples:,} examples"
        contents = f"{len(files):,} shards, about {size_text(total)}"
        yield from lines.writes(name, folder, contents, total)


def _target(source: epath.Path, name: str, data_dir: pathlib.Path) -> tuple[pathlib.Path, Any]:
    """The folder that `convert` writes, `data_dir/NAME/VERSION`, and TFDS's info of the source.

    Raises DataError if `source` is another dataset or format, or the folder exists.
    """
    info = read_info(source)
    found = info.full_name.rpartition("/")[0]
    if found != name.partition(":")[0]:
        raise DataError(f"--from={source}: is a copy of {found}, not of {name}")
    if info.file_format != tfds.core.FileFormat.TFRECORD:
        raise DataError(f"--from={source}: is {info.file_format.value}; only tfrecord is converted")
    folder = data_dir / info.full_name
    if folder.exists():
        raise DataError(f"--data-dir={data_dir}: {folder} exists; choose another, or remove it")
    return folder, info


def convert(source: epath.Path, name: str, data_dir: pathlib.Path) -> pathlib.Path:
    """Converts a dataset and returns its new folder, `data_dir/NAME/VERSION`.

    Keeps the number of shards and their records, and shards that an earlier attempt finished.
    Raises DataError for a damaged record, by file and number, and for another dataset.
    """
    folder, info = _target(source, name, data_dir)
    part = staging.hidden(folder)
    whole = part / staging.WHOLE
    with (
        staging.alone(part),
        Bar(f"converting {info.full_name}", info.splits.total_num_examples) as progress,
    ):
        # An attempt that was stopped may have had another copy, whose shards have these names. Not
        # their sizes, as a damaged one is copied again.
        staging.begin(part, digests.digest((source / INFO).read_bytes()))
        done = 0
        for path, length in shard_files(info):
            target = whole / path.name.replace(f".{SUFFIX}", ".array_record")
            # A shard gets its name once it is whole: one of an earlier attempt is done.
            if not target.exists():
                shards.write_records(target, _counted(path, length, done, progress))
            done += length
            progress.update(done)
        with shards.disk_errors(folder):
            _copy_metadata(source, whole)
            staging.publish(whole, folder)
    shutil.rmtree(part, ignore_errors=True)
    return folder


def _copy_metadata(source: epath.Path, folder: pathlib.Path) -> None:
    for path in source.iterdir():
        if not path.is_dir() and f".{SUFFIX}" not in path.name and path.name != INFO:
            # By streams, as the copy may lie in a bucket.
            with path.open("rb") as old, (folder / path.name).open("wb") as new:
                shutil.copyfileobj(old, new)
    values = limits.read_json(source / INFO, limits.TABLE)
    # TFDS chooses the reader by this.
    values["fileFormat"] = "array_record"
    storage.write_atomically(folder / INFO, json.dumps(values, indent=2))


def _counted(path: epath.Path, length: int, done: int, progress: Bar) -> Iterator[bytes]:
    """Yields the records of a shard, which must be `length`."""
    with storage.errors_as(DataError, str(path)):
        file = path.open("rb")
    count = 0
    with file:
        for _, record in read_records(file, str(path)):
            count += 1
            progress.update(done + count)
            yield record
    if count != length:
        raise DataError(f"{path}: has {count} records, but {INFO} lists {length}; copy it again")


def read_records(
    file: IO[bytes], name: str, *, most: int = MOST_BYTES, end: int | None = None
) -> Iterator[tuple[int, bytes]]:
    """Yields where each record of a TFRecord file begins, and its bytes.

    A record is its length (uint64), the checksum of those 8 bytes, its bytes, and their checksum;
    the checksums are CRC-32C, masked, uint32, all little-endian. Grain's reader checks neither
    checksum, and allocates whatever the length says.

    Args:
      file: the file, at its first record.
      name: what to call it in messages.
      most: bytes of a record.
      end: where the records end; None: with the file.

    Raises DataError with the number of a record that is damaged or cut off.
    """
    number, at = 0, file.tell()
    while end is None or at < end:
        head = file.read(12)
        if not head and end is None:
            return
        try:
            length, check = struct.unpack("<QI", head)
            if check != masked(head[:8]):
                raise DataError(f"{name}: record {number}: its length is damaged; copy it again")
            # After the checksum: a damaged length is more likely than a huge record.
            if length > most:
                raise DataError(
                    f"{name}: record {number}: has {length:,} bytes, more than {most:,}"
                )
            # The file may go on behind `end`, as a tar does behind a member.
            if end is not None and at + 16 + length > end:
                raise DataError(f"{name}: record {number}: is cut off; copy it again")
            record = b"".join(_chunks(file, length))
            (check,) = struct.unpack("<I", file.read(4))
        except struct.error:
            raise DataError(f"{name}: record {number}: is cut off; copy it again") from None
        if check != masked(record):
            raise DataError(f"{name}: record {number}: its bytes are damaged; copy it again")
        yield at + 12, record
        number, at = number + 1, at + 16 + length


def _chunks(file: IO[bytes], length: int) -> Iterator[bytes]:
    while length and (chunk := file.read(min(length, CHUNK))):
        length -= len(chunk)
        yield chunk


def masked(data: bytes) -> int:
    """The checksum of a TFRecord: CRC-32C rotated right by 15 bits plus a constant."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
