"""A TensorFlow Datasets dataset as a source, read from array_record without TensorFlow."""

import difflib
import pathlib
import re
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from vit_jax import config
from vit_jax.config import ConfigError
from vit_jax.data.examples import DataError, Record, digest
from vit_jax.data.images import BadImage


class Tfds:
    """Any prepared TFDS dataset with an image and a class label; images stay encoded.

    `data.name` is `name`, `name/config` or `name:version`; `data.root` is TFDS's data_dir (none:
    its default). `split` is anything TFDS reads, such as `train[:99%]` or `train+validation`. Image
    and label are the dataset's supervised pair, else its only uint8 image and only class label.
    Other features are not decoded.
    """

    def __init__(self, data: config.Data, split: str, key: str) -> None:
        builder = _builder(data)
        info: Any = builder.info  # TFDS annotates features too loosely to be checked
        try:
            chosen = info.splits[split]
        except (ValueError, KeyError) as error:
            name, known = split.partition("[")[0], list(info.splits)
            unknown = f"no such split{config.suggest(name, known)}"
            reason = _first_line(error) if name in known else unknown
            raise ConfigError(f"{key}={split}: {reason}") from None
        if not chosen.num_examples:
            raise ConfigError(f"{key}={split}: selects no example of {info.full_name}")
        self._image, self._label = _keys(data, info)
        image, label = info.features[self._image], info.features[self._label]
        self._features = tfds.features.FeaturesDict({self._image: image, self._label: label})
        raw: Any = builder.as_data_source(
            split, deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES
        )
        self._records = raw.data_source
        self._title = f"{info.full_name} {split}"
        self._facts = [self._title, list(label.names)]
        self._facts += sorted([s.name, s.shard_lengths, s.num_bytes] for s in info.splits.values())
        self.classes = tuple(label.names)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Record:
        try:
            example: Any = self._features.deserialize_example_np(
                self._records[index], decoders={self._image: tfds.decode.SkipDecoding()}
            )
        except Exception as error:  # array_record has no error type of its own for a bad record
            raise BadImage(f"cannot be read: {_first_line(error)}") from None
        label = int(example[self._label])
        if not 0 <= label < len(self.classes):
            raise DataError(
                f"{self.name(index)}: label {label} is no class; choose a labelled split"
            )
        return Record(example[self._image], label)

    def name(self, index: int) -> str:
        """Returns dataset, version, split and the position in it."""
        return f"{self._title} example {index}"

    def fingerprint(self) -> str:
        """Covers name, version, split, classes, and shard lengths and bytes of all splits."""
        return digest(b"tfds", repr(self._facts).encode())


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _builder(data: config.Data) -> Any:
    """Returns the builder of a dataset that is prepared in a format with random access."""
    assert data.name
    try:
        builder = tfds.builder(data.name, data_dir=data.root)
    except tfds.core.DatasetNotFoundError:
        raise ConfigError(f"data.name={data.name}: {_unknown(data)}") from None
    except (ValueError, AssertionError) as error:
        raise ConfigError(f"data.name={data.name}: {_first_line(error)}") from None
    prepared = (builder.data_path / "dataset_info.json").exists()
    format = builder.info.file_format
    if prepared and format in (tfds.core.FileFormat.ARRAY_RECORD, tfds.core.FileFormat.PARQUET):
        return builder
    state = f"prepared as {format and format.value}" if prepared else "not prepared"
    raise DataError(
        f"data.name={data.name}: {state} in {builder.data_path}; prepare it for random access "
        f'(this step may need TensorFlow): python -c "import tensorflow_datasets as tfds; '
        f"tfds.builder('{data.name}', data_dir={data.root!r}, file_format='array_record')"
        f'.download_and_prepare()"'
    )


def _unknown(data: config.Data) -> str:
    name = re.split("[:/]", data.name or "")[0]
    known = tfds.list_builders(with_community_datasets=False)
    if data.root and (root := pathlib.Path(data.root)).is_dir():
        known += [folder.name for folder in root.iterdir()]
    if name in known:
        return f"no such version or config of {name}"
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return "TFDS has no such dataset" + (f"; did you mean {near[0]}?" if near else "")


def _keys(data: config.Data, info: Any) -> tuple[str, str]:
    """Returns the names of the image and the label feature."""
    features = info.features
    images = [
        name
        for name, feature in features.items()
        if isinstance(feature, tfds.features.Image) and feature.np_dtype == np.uint8
    ]
    labels = [name for name, f in features.items() if isinstance(f, tfds.features.ClassLabel)]
    pair = info.supervised_keys
    if pair and len(pair) == 2 and pair[0] in images and pair[1] in labels:
        return pair
    if len(images) == len(labels) == 1:
        return images[0], labels[0]
    raise DataError(
        f"data.name={data.name}: needs one image and one class label; its features: "
        f"{', '.join(sorted(features))}"
    )
