"""A TensorFlow Datasets dataset as a source, read from array_record without TensorFlow."""

import difflib
import operator
import pathlib
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from vit_jax import config
from vit_jax.config import ConfigError
from vit_jax.data import availability, decoding, tfds_metadata
from vit_jax.data.decoding import BadImage
from vit_jax.data.labels import RULES, LabelRule
from vit_jax.data.source import UNKNOWN, WITHOUT_LABELS, DataError, Record
from vit_jax.utils import storage
from vit_jax.utils.digests import digest

FILE_NAME = "file_name"  # the feature that has it


class Tfds:
    """Any prepared TFDS dataset with an image and a class label; images stay encoded.

    `data.name` is `name`, `name/config`, `name:version` or a version pattern, `name:3.*.*`, which
    selects the newest prepared version; `data.root` is TFDS's data_dir (none: its default).
    `split` has TFDS's syntax, such as `train[:99%]` or `train[:800]+validation[:200]`.

    `data.labels` selects the label: a rule of `labels.RULES`, or a class label by name. By default,
    image and label are the dataset's supervised pair, else its only uint8 image and only class
    label; without `labels` its image alone. Other features are not decoded. Crops the border of
    `Dataset.border` pixels.
    """

    def __init__(self, data: config.Data, split: str, key: str, *, labels: bool = True) -> None:
        with storage.readable_errors(f"data.root={data.root}", DataError):
            builder = _builder(data)
        info: Any = builder.info  # TFDS annotates features too loosely to be checked
        try:
            selected = info.splits[split]
        except (ValueError, KeyError) as error:
            parts = (part.partition("[")[0] for part in split.split("+"))
            known = list(info.splits)
            unknown = [f"no such split{config.suggest(n, known)}" for n in parts if n not in known]
            reason = (unknown or [_first_line(error)])[0]
            raise ConfigError(f"{key}={split}: {reason}") from None
        if not selected.num_examples:
            raise ConfigError(f"{key}={split}: selects no example of {info.full_name}")
        self._rule = rule = _rule(data, info) if labels else _unlabeled(data, info)
        self._features = _subset(info.features, (rule.image, *rule.features))
        self._files = _subset(info.features, [FILE_NAME]) if FILE_NAME in info.features else None
        self._max_pixels = data.max_pixels
        # Raw records: `__getitem__` parses the few features that are needed, and keeps images
        # encoded.
        raw: Any = builder.as_data_source(split)
        self._records = raw.data_source
        self.dataset, _, self.version = info.full_name.rpartition("/")
        self._title = f"{info.full_name} {split}"
        self._facts = [self._title, list(rule.classes), *([data.labels] if data.labels else [])]
        # Sizes of shards stand for their contents, which would take an epoch to read.
        self._facts += sorted([s.name, s.shard_lengths, s.num_bytes] for s in info.splits.values())
        known = availability.known_dataset(self.dataset)
        self._border = known.border if known is not None else 0
        self._facts += [f"border {self._border}"] if self._border else []
        self.classes = rule.classes

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Record:
        rule = self._rule
        try:
            example: Any = self._features.deserialize_example_np(
                self._records[index], decoders={rule.image: tfds.decode.SkipDecoding()}
            )
        except Exception as error:  # array_record has no error type for bad records
            raise BadImage(f"cannot be read: {_first_line(error)}") from None
        label = int(rule.label(example))
        # TFDS has the label -1 for images without one.
        if rule.classes and not 0 <= label < len(self.classes):
            raise DataError(
                f"{self.name(index)}: label {label} is not a class; choose a labeled split"
            )
        image = example[rule.image]
        if rule.pixels is not None:
            image = rule.pixels(
                decoding.decode_image(image, channels=1, max_pixels=self._max_pixels)
            )
        if self._border:
            image = decoding.load_image(image, channels=3, max_pixels=self._max_pixels)
            image = decoding.without_border(image, self._border)
        return Record(image, label)

    def name(self, index: int) -> str:
        """Dataset, version, split and the position in it."""
        return f"{self._title} example {index}"

    def file_name(self, index: int) -> str:
        """The file name of the image if stored, else the id."""
        if self._files is None:
            return self.name(index)
        return self._files.deserialize_example_np(self._records[index])[FILE_NAME].decode()

    def fingerprint(self) -> str:
        """Covers name, version, split, classes, and shard lengths and bytes of all splits."""
        return digest(b"tfds", repr(self._facts).encode())


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _builder(data: config.Data) -> Any:
    """The builder of a dataset prepared in a random-access format."""
    assert data.name
    try:
        builder = tfds_metadata.builder(data.name, data.root)
    except tfds.core.DatasetNotFoundError:
        if availability.prepare_command(data.name, data.root) is not None:
            where = availability.directory(data.root)
            raise DataError(
                f"data.name={data.name}: not in {where}; run `{_command(data)}`"
            ) from None
        raise ConfigError(f"data.name={data.name}: {_unknown(data)}") from None
    except (ValueError, AssertionError) as error:
        raise ConfigError(f"data.name={data.name}: {_first_line(error)}") from None
    except config.UserError:
        raise
    except Exception as error:  # JSON, protobuf and TFDS raise many types
        if "://" in (data.root or ""):
            raise  # `remote.one_line` says it
        raise DataError(
            f"data.name={data.name}: cannot be opened: {type(error).__name__}: {_first_line(error)}"
        ) from None
    # TFDS makes a builder, with the default format, also for a dataset that is not there.
    prepared = (builder.data_path / availability.INFO).exists()
    format = builder.info.file_format
    if prepared and format and format.value in availability.READABLE:
        return builder
    if prepared:
        copy = availability.conversion_command(data.name, builder.data_path)
        raise DataError(
            f"data.name={data.name}: prepared as {format and format.value} in {builder.data_path}, "
            f"which has no random access; run `{copy}`"
        )
    raise DataError(
        f"data.name={data.name}: not prepared in {builder.data_path}; run `{_command(data)}`"
    )


def _command(data: config.Data) -> str:
    where = f" --data-dir={data.root}" if data.root else ""
    return (
        availability.prepare_command(data.name or "", data.root)
        or f"vit_jax prepare {data.name}{where}"
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


def _rule(data: config.Data, info: Any) -> LabelRule:
    labels = features(info, tfds.features.ClassLabel)
    if data.labels in RULES:
        rule = RULES[data.labels]
        missing = [p for p in (rule.image, *rule.features) if not _has(info.features, p)]
        if missing:
            raise ConfigError(
                f"data.labels={data.labels}: needs {missing[0]}, which {info.full_name} does not "
                f"have; its features: {', '.join(sorted(info.features))}"
            )
        return rule
    if data.labels is not None and data.labels not in labels:
        hint = config.suggest(data.labels, [*RULES, *labels])
        raise ConfigError(
            f"data.labels={data.labels}: no rule, and no class label of {info.full_name}{hint}"
        )
    image, label = _keys(data, info)
    names = tuple(info.features[label].names)
    return LabelRule((label,), operator.itemgetter(label), names, image)


def _unlabeled(data: config.Data, info: Any) -> LabelRule:
    """The rule of a dataset whose labels are not needed, and which may have none."""
    pictures = _pictures(info)
    first = (info.supervised_keys or ("",))[0]
    if len(pictures) != 1 and first not in pictures:
        raise DataError(
            f"data.name={data.name}: needs one image; its features: "
            f"{', '.join(sorted(info.features))}"
        )
    image = first if first in pictures else pictures[0]
    pixels = RULES[data.labels].pixels if data.labels in RULES else None
    return LabelRule((), _no_label, (), image, pixels)


def _no_label(record: object) -> int:
    return UNKNOWN


def _pictures(info: Any) -> list[str]:
    found = features(info, tfds.features.Image)
    # Depth maps are Image features, too, of another type.
    return [name for name, feature in found.items() if feature.np_dtype == np.uint8]


def _has(features: Any, path: str) -> bool:
    name, _, member = path.partition("/")
    return name in features and (not member or member in getattr(features[name], "feature", ()))


def _subset(features: Any, paths: Iterable[str]) -> Any:
    """Some features of a dataset; `objects/size` is one member of a sequence."""
    subset: dict[str, Any] = {}
    for path in paths:
        name, _, member = path.partition("/")
        if member:
            subset.setdefault(name, {})[member] = features[name].feature[member]
        else:
            subset[name] = features[name]
    return tfds.features.FeaturesDict(
        {
            name: tfds.features.Sequence(feature) if isinstance(feature, dict) else feature
            for name, feature in subset.items()
        }
    )


def features(info: Any, kind: type[tfds.features.FeatureConnector]) -> dict[str, Any]:
    """The features of one type, such as Image, by name."""
    return {name: feature for name, feature in info.features.items() if isinstance(feature, kind)}


def _keys(data: config.Data, info: Any) -> tuple[str, str]:
    pictures = _pictures(info)
    labels = [data.labels] if data.labels else list(features(info, tfds.features.ClassLabel))
    pair = info.supervised_keys
    if pair and len(pair) == 2 and pair[0] in pictures and (data.labels or pair[1] in labels):
        return pair[0], data.labels or pair[1]
    if len(pictures) == len(labels) == 1:
        return pictures[0], labels[0]
    unlabeled = len(pictures) == 1 and not labels
    remedy = WITHOUT_LABELS * unlabeled
    raise DataError(
        f"data.name={data.name}: needs one image and one class label; its features: "
        f"{', '.join(sorted(info.features))}{remedy}"
    )
