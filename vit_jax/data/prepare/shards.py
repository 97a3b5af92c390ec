"""Writes one shard of a packed dataset, completely or not at all."""

import dataclasses
import itertools
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
import tensorflow_datasets as tfds
from array_record.python import array_record_module  # pyright: ignore
from etils import epath

from vit_jax.config import NO_ROOM
from vit_jax.data import decoding, tfds_metadata
from vit_jax.data.decoding import BadImage
from vit_jax.data.prepare import dedup, image_listing
from vit_jax.data.source import DataError
from vit_jax.utils import storage
from vit_jax.utils.storage import reason

# One record per chunk, for random access; riegeli stores and checks a hash of every chunk.
# JPEG does not compress any more.
OPTIONS = "group_size:1,uncompressed"
QUALITY = 95  # of what is resized
SHARD_BYTES, MOST_SHARDS = 2**26, 1024  # a shard is an open file while a run trains
KEPT = (b"\xff\xd8", b"\x89PNG", b"RIFF")  # as it is: JPEG, PNG, WebP


Named = tuple[str, dict[str, Any]]  # an example with its name


class PrepareError(DataError):
    """A temporary failure of preparation, such as a full disk or a killed worker."""

    exit_code = 70


class Settings(NamedTuple):
    """Settings common to all shards.

    Attributes:
      classes: names of the classes.
      below: bytes at the start of a path that the name of an example omits.
      max_side: longest side of an image; larger ones are resized and encoded again.
      max_pixels: largest image to decode.
      prints: file with fingerprints of images to leave out, or None.
      distance: largest Hamming distance of a near duplicate's hash.
    """

    classes: tuple[str, ...]
    below: int
    max_side: int | None
    max_pixels: int
    prints: pathlib.Path | None
    distance: int


class Shard(NamedTuple):
    """The images of a shard in order, each with its label, and the file they go to."""

    path: pathlib.Path
    images: list[image_listing.FileEntry]
    labels: list[int]
    evaluated: bool  # a split to evaluate on, from which duplicates are not removed


@dataclasses.dataclass
class Outcome:
    """The result of packing a shard, stored next to it until all shards are done."""

    examples: int = 0
    bytes: int = 0
    resized: int = 0
    sha256: str = ""
    bad: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    duplicates: list[tuple[str, str, int]] = dataclasses.field(default_factory=list)


def features(classes: tuple[str, ...]) -> Any:
    """The TFDS features of a packed dataset."""
    return tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=(None, None, 3)),
            "label": tfds.features.ClassLabel(names=list(classes)),
            "file_name": tfds.features.Text(),
        }
    )


def outcome(path: pathlib.Path) -> Outcome | None:
    """The outcome of a shard, or None if it is unfinished."""
    try:
        values = json.loads(_sidecar(path).read_text())
        return Outcome(**values) if path.is_file() else None
    except (OSError, ValueError, TypeError):
        return None


def names_file(path: pathlib.Path) -> pathlib.Path:
    """The file with the names of a shard's examples, next to the folder of shards."""
    return path.parent.with_name(f"{path.name}.txt")


def _sidecar(path: pathlib.Path) -> pathlib.Path:
    return path.parent.with_name(f"{path.name}.json")


class Packer:
    """Packs shards one after another; each process owns one."""

    def __init__(self, settings: Settings, each: Callable[[], None]) -> None:
        self._settings, self._each = settings, each
        self._read = image_listing.Reader()
        self._write = Writer(features(settings.classes))
        self._index = None
        if settings.prints:
            prints = dedup.Prints.load(settings.prints)
            self._index = dedup.Index(prints, settings.distance)

    def __call__(self, shard: Shard) -> Outcome:
        """Writes a shard, then its outcome; calls `each` for every image.

        Raises PrepareError if the disk is full, DataError if a source has disappeared.
        """
        result = Outcome()
        return self._write(shard.path, self._examples(shard, result), result)

    def _examples(self, shard: Shard, result: Outcome) -> Iterator[Named]:
        for found, label in zip(shard.images, shard.labels, strict=True):
            self._each()
            raw = os.fsencode(found.path)[self._settings.below :]
            name = raw.decode(errors="backslashreplace").replace("\n", "\\n")
            try:
                encoded = self._read(found)
                pixels = decoding.decode(encoded, channels=3, max_pixels=self._settings.max_pixels)
            except BadImage as error:
                result.bad.append((name, str(error)))
                continue
            if self._index is not None and not shard.evaluated:
                match = self._index.find(pixels)
                if match is not None:
                    result.duplicates.append((name, match.name, match.distance))
                    continue
            if self._settings.max_side and max(pixels.shape[:2]) > self._settings.max_side:
                encoded = shrink(pixels, self._settings.max_side)
                result.resized += 1
            elif not encoded.startswith(
                KEPT
            ):  # TFDS cannot read BMP, and reads all frames of a GIF
                encoded = png(pixels)
            yield name, {"image": encoded, "label": np.int64(label), "file_name": name.encode()}


class Writer:
    """Writes shards of examples with some features of TFDS."""

    def __init__(self, features: Any) -> None:
        self._serialize = tfds.core.example_serializer.ExampleSerializer(  # pyright: ignore
            features.get_serialized_info()
        )

    def __call__(self, path: pathlib.Path, examples: Iterator[Named], result: Outcome) -> Outcome:
        """Writes the file of a shard, the names of its examples, and what became of it.

        By the latter, which is last, the shard counts as finished.
        """
        names: list[str] = []

        def records() -> Iterator[bytes]:
            for name, example in examples:
                # The order in a map of protobuf is not fixed otherwise.
                proto: Any = self._serialize.get_tf_example(example)
                record = proto.SerializeToString(deterministic=True)
                result.examples += 1
                result.bytes += len(record)
                names.append(name)
                yield record

        write_records(path, records())
        result.sha256 = storage.sha256(path)
        with disk_errors(path):
            storage.write_atomically(names_file(path), "".join(f"{name}\n" for name in names))
            storage.write_atomically(_sidecar(path), json.dumps(dataclasses.asdict(result)))
        return result


class Planned(NamedTuple):
    """A shard as positions in a split, of `size` bytes, which become examples in its turn."""

    path: pathlib.Path
    split: str
    positions: np.ndarray
    size: int


def divide(
    path: pathlib.Path, split: str, positions: np.ndarray, sizes: np.ndarray, shard_bytes: int
) -> Iterator[Planned]:
    """Yields the shards of a split; the names of their files begin with `path`.

    Args:
      path: the folder and the name of the dataset.
      split: name of the split.
      positions: its examples (N,) in order.
      sizes: bytes of the example at each position.
      shard_bytes: approximate bytes of a shard.
    """
    number = round(int(sizes[positions].sum()) / shard_bytes)
    number = min(max(1, number), MOST_SHARDS, len(positions))
    bounds = [len(positions) * k // number for k in range(number + 1)]
    for k, (low, high) in enumerate(itertools.pairwise(bounds)):
        name = f"{path.name}-{split}.array_record-{k:05d}-of-{number:05d}"
        mine = positions[low:high]
        yield Planned(path.with_name(name), split, mine, int(sizes[mine].sum()))


def join_names(file: pathlib.Path, packed: Sequence[tuple[Planned, Outcome]]) -> dict[str, Any]:
    """Writes the names of a split's examples to a file; returns their number and the digest."""
    with storage.naming(file), file.open("wb") as names:
        for one, _ in packed:
            names.write(names_file(one.path).read_bytes())
    examples = sum(outcome.examples for _, outcome in packed)
    return {"examples": examples, "names_sha256": storage.sha256(file)}


def png(pixels: np.ndarray) -> bytes:
    """A PNG of uint8 RGB pixels."""
    bgr = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    return cv2.imencode(".png", bgr)[1].tobytes()


def shrink(pixels: np.ndarray, side: int) -> bytes:
    """A JPEG of uint8 RGB pixels, resized by area to a longer side of `side`."""
    factor = side / max(pixels.shape[:2])
    height, width = (max(1, round(length * factor)) for length in pixels.shape[:2])
    small = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
    bgr = cv2.cvtColor(small, cv2.COLOR_RGB2BGR)
    return cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes()


def write_records(path: pathlib.Path, records: Iterator[bytes]) -> None:
    """Writes an array_record file that gets its name once complete and synced to disk."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with disk_errors(path):
            writer = array_record_module.ArrayRecordWriter(str(part), OPTIONS)
        try:
            for record in records:
                with disk_errors(path):
                    writer.write(record)
        finally:
            with disk_errors(path):
                writer.close()
        with disk_errors(path):
            storage.sync(part)
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)


class disk_errors:  # noqa: N801 (read as a statement: with disk_errors(path))
    """Turns disk errors while `path` is written into one line."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # array_record has no error type of its own.
        if isinstance(error, OSError) or type(error) is RuntimeError:
            full = getattr(error, "errno", None) in NO_ROOM
            full = full or any(text in str(error) for text in ("No space left", "too large"))
            reason = getattr(error, "strerror", None) or str(error).partition(";")[0]
            remedy = "; free some space and run the same command again to resume" if full else ""
            kind_ = PrepareError if full else DataError
            raise kind_(f"{self._path.parent}: cannot write: {reason}{remedy}") from None


def read_info(folder: epath.PathLike) -> Any:
    """The TFDS info of a prepared dataset; raises DataError if it is damaged."""
    try:
        return tfds_metadata.builder_of_folder(folder).info
    except DataError:
        raise
    except Exception as error:  # JSON, protobuf and TFDS raise many types
        raise DataError(f"{folder}: its metadata cannot be read_info: {reason(error)}") from None


def shard_files(info: Any) -> Iterator[tuple[epath.Path, int]]:
    """Yields the files of a dataset, split by split, each with the number of its records."""
    for split in info.splits.values():
        paths = split.filename_template.sharded_filepaths(len(split.shard_lengths))
        yield from zip(paths, split.shard_lengths, strict=True)


def write_info(
    folder: pathlib.Path,
    name: str,
    version: str,
    classes: tuple[str, ...],
    splits: Mapping[str, Sequence[tuple[int, int]]],
) -> None:
    """Writes the TFDS metadata; `splits` lists (examples, bytes) of each shard."""
    template = tfds.core.ShardedFileTemplate(
        data_dir=epath.Path(folder), dataset_name=name, filetype_suffix="array_record"
    )
    infos = [
        tfds.core.SplitInfo(
            name=split,
            shard_lengths=[examples for examples, _ in shards],
            num_bytes=sum(size for _, size in shards),
            filename_template=template.replace(split=split),
        )
        for split, shards in splits.items()
    ]
    tfds.folder_dataset.write_metadata(
        data_dir=folder,
        version=version,
        features=features(classes),
        split_infos=infos,
        filename_template=template,
        supervised_keys=("image", "label"),
        description="Packed by vit_jax prepare; vit_jax.json says from what.",
        check_data=False,
    )
