"""Builds a dataset from a recipe: shards in TFDS's order with its metadata, resumable."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.core import splits as splits_lib

from vit_jax.data.decoding import BadImage
from vit_jax.data.prepare import archives, download, shards, staging
from vit_jax.data.prepare import request as lines
from vit_jax.data.prepare.official import array_sets, image_sets, scene_sets
from vit_jax.data.prepare.official.recipe import Contents, Example, Recipe
from vit_jax.data.prepare.official.source_files import NeedsUnpackingError, SourceFiles
from vit_jax.data.prepare.request import Request
from vit_jax.data.prepare.shards import SHARD_BYTES, ShardResult
from vit_jax.data.source import DataError
from vit_jax.data.tasks import Task
from vit_jax.utils.messages import size_text

FORM = 1  # incremented when the same files would be packed to different bytes
UNPACKED = "unpacked"
UNPACKED_LIMIT = 2**26  # bytes of a compressed file that a dry run unpacks to count its images
ORDER = "TFDS's: MD5 of the split's name and the example's key"

# What TFDS raises for a value that is none of its feature's.
INVALID = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

RECIPES: dict[str, Recipe] = {
    recipe.dataset.tfds: recipe
    for recipe in (*image_sets.RECIPES, *array_sets.RECIPES, *scene_sets.RECIPES)
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A dataset to build from the user's folders and files."""

    name: str  # on the command line, for messages
    recipe: Recipe
    builder: Any  # of TFDS, for array_record in the target data_dir
    sources: Sequence[Path]
    partial: bool = False  # even if images are missing
    workers: int = 1
    shard_bytes: int = SHARD_BYTES


def prepare(name: str, task: Task, request: Request) -> Iterator[str]:
    """Packs official archives and yields lines for the user.

    The archives are those given, those in TFDS's folder for them, or downloaded ones.
    """
    request.refuse_packing(name)
    data_dir, recipe = request.directory(), RECIPES[task.dataset.tfds]
    one = download.builder(recipe.builder, str(data_dir))
    folder = Path(one.data_path)
    if download.is_prepared(name, one):
        if not request.dry_run:  # what a command leaves that is killed at its very end
            shutil.rmtree(staging.hidden(folder), ignore_errors=True)
        facts = staging.read_facts(folder)
        # A copy that TFDS prepared has no such file.
        counts = _examples(facts) if facts else {}
        official = facts and facts.get("official")
        if isinstance(official, dict) and counts != official and not request.partial:
            raise DataError(
                f"{name}: is prepared in part, in {folder}: {_counts(counts, official)}; to "
                f"prepare all of it, remove that: rm -r {folder}"
            )
        yield f"{name}: is prepared already, in {folder}"
        return
    sources, downloads = request.paths(), {}
    if not sources and request.dry_run:
        sources = download.manual_archives(one, name, recipe, data_dir)
        downloads = {} if sources else download.sizes_of_downloads(one, recipe.downloads)
    elif not sources:
        sources = download.archives(one, name, recipe, data_dir)
    job = Job(
        name=name,
        recipe=recipe,
        builder=one,
        sources=sources,
        partial=request.partial,
        workers=request.workers,
    )
    if request.dry_run:
        yield from _plan_lines(job, folder, downloads)
        return
    facts = build(job)
    yield f"{name}: {_counts(_examples(facts), recipe.dataset.images)}"
    yield f"{name}: prepared, in {folder}"


def _plan_lines(job: Job, folder: Path, downloads: Mapping[str, int]) -> Iterator[str]:
    """Yields the lines of a dry run.

    Counts the images unless that takes unpacking large files; small ones are unpacked to a
    temporary folder. `downloads` has the sizes of files that TFDS would download first.
    """
    name, recipe = job.name, job.recipe
    if downloads:
        yield lines.downloads(name, downloads)
        yield from lines.expected(name, recipe.dataset.images)
        yield from lines.writes(name, folder, f"about {size_text(sum(downloads.values()))}")
        return
    given = [size for source in job.sources for size in lines.file_sizes(source)]
    yield lines.reads(name, job.sources, f"{len(given):,} files", sum(given))
    try:
        with tempfile.TemporaryDirectory() as scratch:
            contents = find_examples(job, Path(scratch), UNPACKED_LIMIT)
            sizes = {split: example_sizes(each) for split, each in contents.splits.items()}
    except NeedsUnpackingError as error:
        yield f"{name}: would unpack {error} next to the target; the images are counted only then"
        yield from lines.expected(name, recipe.dataset.images)
        contents = f"at least {size_text(sum(given))}"
        yield from lines.writes(name, folder, contents, sum(given))
        return
    for split, each in sizes.items():
        size = size_text(int(each.sum()))
        yield f"{name}: {split}: {len(each):,} of {recipe.dataset.images[split]:,} images, {size}"
    needed = sum(int(each.sum()) for each in sizes.values())
    yield from lines.writes(name, folder, f"about {size_text(needed)}", needed)


def build(job: Job) -> dict[str, Any]:
    """Builds a dataset and returns the contents of its `vit_jax.json`.

    Raises DataError for files that are not the official ones, and for missing images unless the
    job is `partial`.
    """
    folder = Path(job.builder.data_path)
    return staging.write_dataset(job.name, folder, functools.partial(_plan, job), job.workers)


def _plan(job: Job, part: Path) -> staging.PackingWork:
    contents = find_examples(job, part / UNPACKED)
    path = part / staging.WHOLE / job.builder.name
    total = hashlib.sha256()  # of everything that determines the contents of the shards
    facts = [FORM, job.builder.info.full_name, job.shard_bytes]
    total.update(json.dumps([*facts, {k: list(v) for k, v in contents.names.items()}]).encode())
    planned = []
    for split, examples in contents.splits.items():
        positions, sizes = order(split, examples), example_sizes(examples)
        for position in positions.tolist():
            name, _, features, key = examples[position]
            total.update(repr((split, name, features, key)).encode())
        total.update(sizes[positions].astype("<i8").tobytes())
        planned += shards.divide(path, split, positions, sizes, job.shard_bytes)
    return staging.PackingWork(
        fingerprint=total.hexdigest(),
        shards=planned,
        entries=lambda one: [contents.splits[one.split][at] for at in one.positions.tolist()],
        encoder=functools.partial(ExampleEncoder, job.recipe.dataset.tfds),
        finish=functools.partial(_finish, job, contents),
    )


def order(split: str, examples: Sequence[Example]) -> np.ndarray:
    """Positions (N,) in TFDS's order of the examples of a split.

    TFDS orders by the MD5 of the split's name and the key (`tfds.core.hashing`), so `train[:800]`
    selects the same images as in a copy made by TFDS. Raises DataError for a repeated key.
    """
    salted = hashlib.md5(split.encode(), usedforsecurity=False)
    # Big-endian halves, which sort as the number of 128 bits that TFDS sorts by.
    hashes = np.zeros((len(examples), 2), ">u8")
    for index, example in enumerate(examples):
        key = example.name if example.key is None else example.key
        one = salted.copy()
        # As TFDS hashes a text, so that keys with paths are the same on Windows.
        one.update(str(key).replace("\\", "/").encode())
        hashes[index] = np.frombuffer(one.digest(), ">u8")
    found = np.lexsort((hashes[:, 1], hashes[:, 0]))
    again = np.flatnonzero((hashes[found[1:]] == hashes[found[:-1]]).all(axis=1))
    if again.size:
        twice = examples[int(found[again[0]])]
        raise DataError(f"{split}: {twice.name} occurs twice; give each image once")
    return found


def example_sizes(examples: Sequence[Example]) -> np.ndarray:
    """The bytes of every example (N,), int64."""
    return np.fromiter((example.size for example in examples), np.int64, len(examples))


def find_examples(job: Job, scratch: Path, limit: int | None = None) -> Contents:
    """The examples in the sources, after checking their number.

    Compressed files are unpacked to `scratch`; with a `limit`, one that unpacks to more bytes
    raises NeedsUnpackingError. Raises DataError if images are missing, unless the job is `partial`.
    """
    recipe, official = job.recipe, job.recipe.dataset.images
    files = SourceFiles(job.sources, recipe.patterns, scratch, recipe.unpacked, limit)
    with contextlib.closing(files):
        contents = recipe.find(files)
    there = {split: len(contents.splits.get(split, ())) for split in official}
    where = f"{job.name}: --from={files.named}: "
    if not any(there.values()):
        raise DataError(
            f"{where}contains no image of {recipe.files}; to pack your own images, choose another "
            "name"
        )
    for split, number in there.items():
        if number > official[split]:
            raise DataError(
                f"{where}{split} has {number:,} images, more than the official {official[split]:,}"
            )
    if there != dict(official) and not job.partial:
        raise DataError(
            f"{where}{_counts(there, official)}; it requires {recipe.files}; to pack the "
            "available images, add --partial"
        )
    splits = {split: contents.splits[split] for split, number in there.items() if number}
    return contents._replace(splits=splits)


def _examples(facts: Mapping[str, Any]) -> dict[str, int]:
    return {split: about["examples"] for split, about in facts["splits"].items()}


def _counts(there: Mapping[str, int], official: Mapping[str, int]) -> str:
    return ", ".join(
        f"{split}: {there.get(split, 0):,} of {number:,} images"
        for split, number in official.items()
    )


def _finish(job: Job, contents: Contents, whole: Path, packed: staging.Packed) -> dict[str, Any]:
    """Writes the builder's TFDS metadata, with the actual splits, and returns the facts."""
    info = job.builder.info
    # TFDS reads the names of CIFAR's classes from the archive, too; the builder alone lacks them.
    for feature, names in contents.names.items():
        info.features[feature].names = list(names)
    facts, splits = {}, []
    for split in contents.splits:
        members = [each for each in packed if each[0].split == split]
        facts[split] = shards.join_names(whole / f"{split}.txt", members)
        lengths = [outcome.examples for _, outcome in members]
        size = sum(outcome.bytes for _, outcome in members)
        splits.append(tfds.core.SplitInfo(name=split, shard_lengths=lengths, num_bytes=size))
    # Of what was written: a partial dataset has fewer images than the builder states.
    info.set_splits(splits_lib.SplitDict(splits))
    info.write_to_directory(whole)
    return {
        "name": info.full_name,
        "official": dict(job.recipe.dataset.images),
        "splits": facts,
        "order": ORDER,
        "shards": {shard.path.name: outcome.sha256 for shard, outcome in packed},
    }


class ExampleEncoder:
    """Encodes the examples of a dataset by its recipe."""

    def __init__(self, dataset: str) -> None:
        self._recipe = RECIPES[dataset]
        self.features: Any = tfds.builder(self._recipe.builder).info.features
        self._read = archives.Reader()

    def __call__(self, example: Example, outcome: ShardResult) -> tuple[str, dict[str, Any]]:
        """The encoded example; raises DataError if its files are missing or invalid."""
        try:
            data = [self._read(file) for file in example.files]
            values = example.features | self._recipe.encode(data, example.features)
            return example.name, self.features.encode_example(values)
        except (BadImage, *INVALID) as error:
            reason = str(error).strip().rpartition("\n")[2][:200]
            raise DataError(f"{example.name}: {reason}; download it again") from None

    def close(self) -> None:
        """Closes the files that were read from."""
        self._read.close()
