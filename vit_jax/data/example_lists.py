"""Lists of the images of a split by hash, so that reruns and other machines get the same ones.

A split such as `train[:800]+validation[:200]` selects different images if a dataset was prepared in
another order or version. `write_list` records the images; with the file in `data.examples`,
training finds these images anywhere in the dataset, or reports the missing ones.
"""

import collections
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from etils import epath

from vit_jax import config
from vit_jax.config import ConfigError
from vit_jax.data import decoding
from vit_jax.data.source import DataError, Record, Selection, Source
from vit_jax.runtime import logs
from vit_jax.utils import limits, storage
from vit_jax.utils.digests import digest

PNG = b"\x89PNG"
MAX_PIXELS = config.Data().max_pixels
HASH = re.compile("[0-9a-f]{16}")

Path = str | os.PathLike[str]


class ExampleList(NamedTuple):
    """The contents of a file written by `write_list`."""

    task: str  # the task it was written for, as `vit_jax prepare` calls it
    dataset: str  # TFDS's name, such as `clevr` or `eurosat/rgb`
    version: str
    split: str  # the split, in the syntax of `data.train_split`
    examples: tuple[str, ...]  # `identity` of every image, in order

    @property
    def sha256(self) -> str:
        """The digest over all examples: 64 hex digits."""
        return hashlib.sha256("\n".join(self.examples).encode()).hexdigest()


def list_path(data_dir: Path, task: str) -> epath.Path:
    """The path of a task's list, below TFDS's data_dir."""
    return epath.Path(data_dir) / "examples" / f"{task}.json"


def write_list(
    source: Source, path: Path, *, task: str, dataset: str, version: str, split: str
) -> str:
    """Writes the list of all images of a source, which is `split` of a dataset.

    Returns its digest. Raises `decoding.BadImage` or OSError for an image that cannot be read.
    """
    examples = tuple(identity(source[index]) for index in range(len(source)))
    listing = ExampleList(task, dataset, version, split, examples)
    facts = listing._asdict() | {"images": len(examples), "sha256": listing.sha256}
    # The hashes come last, so that the file stays readable.
    facts["examples"] = facts.pop("examples")
    file = storage.as_path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    storage.write_atomically(file, json.dumps(facts, indent=1) + "\n")
    return listing.sha256


def read_list(path: Path) -> ExampleList:
    """Reads a file written by `write_list`; raises DataError for any other or damaged file."""
    key = f"data.examples={path}"
    try:
        with (
            storage.errors_as(DataError, f"{key}: cannot be read"),
            storage.readable_errors(key, DataError),
        ):
            data = limits.read_file(epath.Path(path), limits.EXAMPLES)
        facts = limits.load_json(data)
        words = (str(facts[name]) for name in ("task", "dataset", "version", "split"))
        listing = ExampleList(*words, examples=tuple(facts["examples"]))
        digest_of_all = facts["sha256"]
        sound = all(HASH.fullmatch(example) for example in listing.examples)
    except limits.LimitError as error:
        raise DataError(f"{key}: {error}") from None
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{key}: is not a list of examples; `vit_jax prepare` writes one") from None
    if not sound or not listing.examples or listing.sha256 != digest_of_all:
        raise DataError(f"{key}: is damaged: its examples are not those it has the digest of")
    return listing


def identity(record: Record) -> str:
    """16 hex digits of SHA-256 over an image and its label.

    Hashes the pixels of PNG images and arrays, because encoders differ, and the file bytes of JPEG
    and other formats, because decoders differ.
    """
    image, label = record
    if isinstance(image, bytes) and not image.startswith(PNG):
        return digest(image, str(label).encode())
    pixels = decoding.load_image(image, channels=3, max_pixels=MAX_PIXELS)
    return digest(repr(pixels.shape).encode(), pixels.tobytes(), str(label).encode())


def open_listed(data: config.Data, split: str, open_: Callable[[str], Source]) -> "Listed":
    """The images that `data.examples` lists; `open_` opens a split of the dataset.

    Tries the split as written first. If it contains other images, searches all images of the splits
    it names. Raises ConfigError if the list belongs to other data than the config's, DataError if
    images are missing.
    """
    key = f"data.examples={data.examples}"
    listing = read_list(data.examples or "")
    name = (data.name or "").partition(":")[0]
    for configured, listed, option in (
        (name, listing.dataset, "data.name"),
        (split, listing.split, "data.train_split"),
    ):
        if configured != listed:
            raise ConfigError(f"{key}: lists {listed}, but {option} is {configured or 'none'}")
    try:
        source = open_(split)
        # This reads every image once; a split that only has the right length may hold others.
        if tuple(_identities(source)) == listing.examples:
            return Listed(source, listing, range(len(source)))
    except ConfigError:  # a slice beyond the end of this version of the dataset
        pass
    # A slice is made of other images after another preparation: search all of its splits.
    whole = open_("+".join(dict.fromkeys(p.partition("[")[0] for p in split.split("+"))))
    positions = _find_examples(listing.examples, whole)
    missing = [number for number, at in enumerate(positions) if at is None]
    if missing:
        again = f"`vit_jax prepare {listing.task}`"
        raise DataError(
            f"{key}: {len(missing)} of its {len(positions)} images are not there, beginning with "
            f"number {missing[0]}; prepare {listing.dataset}:{listing.version}, of which it was "
            f"written, or write a new list with {again}"
        )
    logs.log.warning(
        "%s: the split %s is other images here; those listed were found by hash", key, split
    )
    return Listed(whole, listing, [at for at in positions if at is not None])


class Listed(Selection):
    """The images of a list, in its order, from anywhere in the source."""

    def __init__(self, source: Source, listing: ExampleList, positions: Sequence[int]) -> None:
        super().__init__(source, positions)
        self._sha256 = listing.sha256

    def fingerprint(self) -> str:
        """Covers images, labels and order, by the digest of the list; and the classes."""
        return digest(self._sha256.encode(), repr(self.classes).encode())


def _identities(source: Source) -> Iterator[str]:
    """Yields the identity of every example; unreadable ones get no hash."""
    for index in range(len(source)):
        try:
            yield identity(source[index])
        except (decoding.BadImage, DataError, OSError):
            # No digest is empty, so nothing matches this.
            yield ""


def _find_examples(examples: Sequence[str], source: Source) -> list[int | None]:
    """The position of every example; equal examples are used in turn."""
    wanted = set(examples)
    places: dict[str, collections.deque[int]] = collections.defaultdict(collections.deque)
    for position, one in enumerate(_identities(source)):
        if one in wanted:
            places[one].append(position)
    return [places[one].popleft() if places[one] else None for one in examples]
