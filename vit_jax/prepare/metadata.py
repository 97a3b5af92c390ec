"""What TFDS wants to know of a data set, so that it reads it as one of its own."""

import pathlib
from collections.abc import Mapping, Sequence

import tensorflow_datasets as tfds
from etils import epath

from vit_jax.prepare import shards


def write(
    folder: pathlib.Path,
    name: str,
    version: str,
    classes: tuple[str, ...],
    splits: Mapping[str, Sequence[tuple[int, int]]],
) -> None:
    """Writes features, class names and splits of a folder of shards: (examples, bytes) of each."""
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
        features=shards.features(classes),
        split_infos=infos,
        filename_template=template,
        supervised_keys=("image", "label"),
        description="Packed by vit_jax prepare; vit_jax.json says from what.",
        check_data=False,
    )
