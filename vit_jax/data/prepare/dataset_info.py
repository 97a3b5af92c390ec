"""Reads and writes the TFDS metadata of a data set."""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow_datasets as tfds
from etils import epath

from vit_jax.data import tfds_metadata
from vit_jax.data.prepare.shards import features
from vit_jax.data.source import DataError
from vit_jax.utils.storage import reason


def read(folder: epath.PathLike) -> Any:
    """Returns the TFDS info of a prepared data set; raises DataError if it is damaged."""
    try:
        return tfds_metadata.builder_of_folder(folder).info
    except DataError:
        raise
    except Exception as error:  # JSON, protobuf and TFDS raise many types
        raise DataError(f"{folder}: its metadata cannot be read: {reason(error)}") from None


def shards(info: Any) -> Iterator[tuple[epath.Path, int]]:
    """Yields the files of a data set, split by split, each with the number of its records."""
    for split in info.splits.values():
        paths = split.filename_template.sharded_filepaths(len(split.shard_lengths))
        yield from zip(paths, split.shard_lengths, strict=True)


def write(
    folder: pathlib.Path,
    name: str,
    version: str,
    classes: tuple[str, ...],
    splits: Mapping[str, Sequence[tuple[int, int]]],
) -> None:
    """Writes the metadata of a folder of shards; `splits` lists (examples, bytes) of each shard."""
    template = tfds.core.ShardedFileTemplate(
        data_dir=epath.Path(folder), dataset_name=name, filetype_suffix="array_record"
    )
    infos = [
        tfds.core.SplitInfo(
            name=split,
            shard_lengths=[examples for examples, _ in shards_],
            num_bytes=sum(size for _, size in shards_),
            filename_template=template.replace(split=split),
        )
        for split, shards_ in splits.items()
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
