"""Builds a dataset from a recipe: shards in TFDS's order with its metadata, resumable."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.core import splits as splits_lib

from vit_jax.data.decoding import BadImage
from vit_jax.data.prepare import image_listing, shards, staging
from vit_jax.data.prepare.official import array_sets, cifar, image_sets, imagenet, scene_sets
from vit_jax.data.prepare.official.archives import Archives
from vit_jax.data.prepare.official.recipe import Contents, Example, Examples, Location, Recipe, Span
from vit_jax.data.prepare.shards import SHARD_BYTES, Outcome, Planned
from vit_jax.data.source import DataError

Path = pathlib.Path

FORM = 1  # incremented when the same files would be packed to different bytes
UNPACKED = "unpacked"
ORDER = "TFDS's: MD5 of the split's name and the example's key"


RECIPES: dict[str, Recipe] = {
    one.dataset.tfds: one
    for one in (
        imagenet.RECIPE,
        *cifar.RECIPES,
        *image_sets.RECIPES,
        *array_sets.RECIPES,
        *scene_sets.RECIPES,
    )
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A build job.

    Attributes:
      name: name on the command line, for messages.
      recipe: recipe of the dataset.
      builder: its TFDS builder, for array_record in the target data_dir.
      sources: the user's folders and files.
      partial: build even if images are missing.
      workers: processes.
      shard_bytes: approximate bytes of examples per shard.
    """

    name: str
    recipe: Recipe
    builder: Any
    sources: Sequence[Path]
    partial: bool = False
    workers: int = 1
    shard_bytes: int = SHARD_BYTES

    @property
    def folder(self) -> Path:
        """The folder of the complete dataset."""
        return Path(self.builder.data_path)


class Shard(NamedTuple):
    """The examples of a shard in order, and the file they go to."""

    path: pathlib.Path
    examples: list[Example]


def build(job: Job) -> dict[str, Any]:
    """Builds a dataset and returns the contents of its `vit_jax.json`.

    Raises DataError for files that are not the official ones, and for missing images unless the
    job is `partial`.
    """
    return staging.write_dataset(job.name, job.folder, functools.partial(_plan, job), job.workers)


def _plan(job: Job, part: Path) -> staging.Work:
    contents = find_examples(job, part / UNPACKED)
    orders = {name: order(name, one) for name, one in contents.splits.items()}
    path = part / staging.WHOLE / job.builder.name
    return staging.Work(
        fingerprint=_fingerprint(job, contents, orders),
        planned=[
            planned
            for split, one in orders.items()
            for planned in shards.divide(
                path, split, one, contents.splits[split].sizes(), job.shard_bytes
            )
        ],
        shard=functools.partial(_shard, contents),
        packer=functools.partial(Packer, job.recipe.dataset.tfds),
        finish=functools.partial(_finish, job, contents),
    )


def held(folder: Path) -> dict[str, Any] | None:
    """The facts of a dataset built by this module, or None."""
    try:
        facts = json.loads((folder / staging.FACTS).read_text())
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) and "official" in facts else None


def counts(facts: Mapping[str, Any]) -> str:
    """Describes how many of the official images each split contains."""
    there = {split: about["examples"] for split, about in facts["splits"].items()}
    return _counts(there, facts["official"])


def is_partial(facts: Mapping[str, Any]) -> bool:
    """Whether images are missing."""
    there = {split: about["examples"] for split, about in facts["splits"].items()}
    return there != facts["official"]


def order(split: str, examples: Examples) -> np.ndarray:
    """Positions (N,) in TFDS's order of the examples of a split.

    TFDS orders by the MD5 of the split's name and the key (`tfds.core.hashing`), so `train[:800]`
    selects the same images as in a copy made by TFDS. Raises DataError for a repeated key.
    """
    salted = hashlib.md5(split.encode(), usedforsecurity=False)
    hashes = np.zeros((len(examples), 2), ">u8")
    for index, key in enumerate(examples.keys()):
        one = salted.copy()
        one.update(str(key).replace("\\", "/").encode())
        hashes[index] = np.frombuffer(one.digest(), ">u8")
    found = np.lexsort((hashes[:, 1], hashes[:, 0]))
    again = np.flatnonzero((hashes[found[1:]] == hashes[found[:-1]]).all(axis=1))
    if again.size:
        twice = examples[int(found[again[0]])]
        raise DataError(f"{split}: {twice.name} occurs twice; give each image once")
    return found


def find_examples(job: Job, scratch: Path, limit: int | None = None) -> Contents:
    """The examples in the sources, after checking their number.

    Compressed files are unpacked to `scratch`; with a `limit`, one that unpacks to more bytes
    raises NeedsUnpackingError. Raises DataError if images are missing, unless the job is `partial`.
    """
    recipe = job.recipe
    archives = Archives(job.sources, recipe.archives, scratch, recipe.unpacked, limit)
    with contextlib.closing(archives):
        contents = recipe.find(archives)
    there = {split: len(contents.splits.get(split, ())) for split in recipe.splits}
    if not any(there.values()):
        raise DataError(
            f"{job.name}: --from={archives.named}: contains no image of {recipe.files}; to pack "
            "your own images, choose another name"
        )
    for split, number in there.items():
        if number > recipe.splits[split]:
            raise DataError(
                f"{job.name}: --from={archives.named}: {split} has {number:,} images, more than "
                f"the official {recipe.splits[split]:,}"
            )
    if there != dict(recipe.splits) and not job.partial:
        raise DataError(
            f"{job.name}: --from={archives.named}: {_counts(there, recipe.splits)}; it requires "
            f"{recipe.files}; to pack the available images, add --partial"
        )
    splits = {split: contents.splits[split] for split, number in there.items() if number}
    return contents._replace(splits=splits)


def _counts(there: Mapping[str, int], official: Mapping[str, int]) -> str:
    return ", ".join(
        f"{split}: {there.get(split, 0):,} of {number:,} images"
        for split, number in official.items()
    )


def _fingerprint(job: Job, contents: Contents, orders: Mapping[str, np.ndarray]) -> str:
    """A digest of everything that determines the contents of the shards."""
    total = hashlib.sha256()
    facts = [FORM, job.builder.info.full_name, job.shard_bytes]
    total.update(json.dumps([*facts, {k: list(v) for k, v in contents.names.items()}]).encode())
    for split, positions in orders.items():
        examples = contents.splits[split]
        for position in positions.tolist():
            one = examples[position]
            total.update(repr((split, one.key, one.values)).encode())
        total.update(examples.sizes()[positions].astype("<i8").tobytes())
    return total.hexdigest()


def _shard(contents: Contents, one: Planned) -> Shard:
    """A shard with its examples."""
    examples = contents.splits[one.split]
    return Shard(one.path, [examples[at] for at in one.positions.tolist()])


def _finish(job: Job, contents: Contents, whole: Path, packed: staging.Packed) -> dict[str, Any]:
    """Writes the builder's TFDS metadata, with the actual splits, and returns the facts."""
    info = job.builder.info
    for feature, names in contents.names.items():
        info.features[feature].names = list(names)
    facts, splits = {}, []
    for split in contents.splits:
        mine = [each for each in packed if each[0].split == split]
        facts[split] = shards.join_names(whole / f"{split}.txt", mine)
        lengths = [outcome.examples for _, outcome in mine]
        size = sum(outcome.bytes for _, outcome in mine)
        splits.append(tfds.core.SplitInfo(name=split, shard_lengths=lengths, num_bytes=size))
    info.set_splits(splits_lib.SplitDict(splits))
    info.write_to_directory(whole)
    return {
        "name": info.full_name,
        "official": dict(job.recipe.splits),
        "splits": facts,
        "order": ORDER,
        "shards": {one.path.name: outcome.sha256 for one, outcome in packed},
    }


class Packer:
    """Packs shards of a dataset, one after another; every process has one."""

    def __init__(self, dataset: str, each: Callable[[], None]) -> None:
        self._recipe, self._each = RECIPES[dataset], each
        self._features: Any = tfds.builder(self._recipe.builder).info.features
        self._write = shards.Writer(self._features)
        self._files = image_listing.Reader()
        self._open: dict[str, int] = {}

    def __call__(self, shard: Shard) -> Outcome:
        """Writes a shard, then its outcome; calls `each` for every example.

        Raises PrepareError if the disk is full, and DataError if a source is missing or an example
        is invalid.
        """
        return self._write(shard.path, self._examples(shard), Outcome())

    def _examples(self, shard: Shard) -> Iterator[shards.Named]:
        for example in shard.examples:
            self._each()
            try:
                data = [self._read(location) for location in example.locations]
                values = self._features.encode_example(self._recipe.encode(data, example.values))
            except (BadImage, ValueError) as error:  # of TFDS, for a value out of its range
                reason = str(error).strip().rpartition("\n")[2][:200]
                raise DataError(f"{example.name}: {reason}; download it again") from None
            yield example.name, values

    def _read(self, location: Location) -> bytes:
        if not isinstance(location, Span):
            return self._files(location)
        if location.file not in self._open:
            self._open[location.file] = os.open(location.file, os.O_RDONLY)
        data = os.pread(self._open[location.file], location.size, location.offset)
        if len(data) != location.size:
            raise DataError(f"{location.file}: changed while it was packed")
        return data
