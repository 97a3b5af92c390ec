"""Packs the examples of a recipe into shards of TFDS records."""

import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow_datasets as tfds

from vit_jax.data.decoding import BadImage
from vit_jax.data.prepare import image_listing, shards
from vit_jax.data.prepare.official import recipes
from vit_jax.data.prepare.official.recipe import Example, Place, Span
from vit_jax.data.prepare.shards import Outcome
from vit_jax.data.source import DataError


class Shard(NamedTuple):
    """The examples of a shard in order, and the file they go to."""

    path: pathlib.Path
    examples: list[Example]


class Packer:
    """Packs shards of a data set, one after another; every process has one."""

    def __init__(self, dataset: str, each: Callable[[], None]) -> None:
        self._recipe, self._each = recipes.RECIPES[dataset], each
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
                data = [self._read(place) for place in example.places]
                values = self._features.encode_example(self._recipe.encode(data, example.values))
            except (BadImage, ValueError) as error:  # of TFDS, for a value out of its range
                reason = str(error).strip().rpartition("\n")[2][:200]
                raise DataError(f"{example.name}: {reason}; download it again") from None
            yield example.name, values

    def _read(self, place: Place) -> bytes:
        if not isinstance(place, Span):
            return self._files(place)
        if place.file not in self._open:
            self._open[place.file] = os.open(place.file, os.O_RDONLY)
        data = os.pread(self._open[place.file], place.size, place.offset)
        if len(data) != place.size:
            raise DataError(f"{place.file}: changed while it was packed")
        return data
