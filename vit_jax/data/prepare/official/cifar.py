"""CIFAR-10 and CIFAR-100: the binary archives, and the Python ones, whose pickles are not executed.

A record of the binary files is the label, or the coarse label and then the fine one, and the red,
green and blue values of 32 x 32 pixels, a byte each. What a pickle has is made into such records.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax.data import datasets
from vit_jax.data.datasets import Dataset
from vit_jax.data.decoding import BadImage
from vit_jax.data.prepare.image_listing import FileEntry
from vit_jax.data.prepare.official import pickles
from vit_jax.data.prepare.official.archives import Archives
from vit_jax.data.prepare.official.recipe import (
    Contents,
    Example,
    ExampleList,
    Recipe,
    Span,
    as_png,
)
from vit_jax.data.source import DataError

SIDE = 32
PIXELS = 3 * SIDE * SIDE
UNPACKED = PICKLE = 2**28  # bytes; CIFAR-100's training images are 155 MB as a pickle


class Label(NamedTuple):
    """A label: its feature, its list in a pickle, and the files that name its classes.

    `names` is the file of the binary archive, `meta` the list in the pickle of the Python one.
    `number` of classes; 0: as many as the dataset has.
    """

    feature: str
    values: str
    names: str
    meta: str
    number: int = 0


class CifarFiles(NamedTuple):
    """The files of one of the two, and its labels in the order of a binary record.

    A file is called `NAME.bin` in the binary archive and `NAME` in the Python one, where `meta` is
    the pickle with the names of the classes.
    """

    dataset: Dataset
    splits: Mapping[str, tuple[str, ...]]
    labels: tuple[Label, ...]
    meta: str


CIFAR10 = CifarFiles(
    datasets.CIFAR10,
    {
        "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
        "test": ("test_batch",),
    },
    (Label("label", "labels", "batches.meta.txt", "label_names"),),
    "batches.meta",
)
CIFAR100 = CifarFiles(
    datasets.CIFAR100,
    {"train": ("train",), "test": ("test",)},
    (
        Label("coarse_label", "coarse_labels", "coarse_label_names.txt", "coarse_label_names", 20),
        Label("label", "fine_labels", "fine_label_names.txt", "fine_label_names"),
    ),
    "meta",
)


def find_cifar(layout: CifarFiles, archives: Archives) -> Contents:
    """Finds the images of both splits in their order, and the names of the classes."""
    stems = [stem for files in layout.splits.values() for stem in files]
    wanted = {layout.meta, *stems, *(f"{stem}.bin" for stem in stems)}
    wanted |= {label.names for label in layout.labels}
    files = archives.by_name(wanted)
    if not any(stem in files or f"{stem}.bin" in files for stem in stems):
        return Contents({})
    splits = {}
    for split, names in layout.splits.items():
        examples: list[Example] = []
        for stem in names:
            spans = _spans(layout, archives, files, stem)
            for span in spans:
                name = f"{split}_{len(examples):05d}"
                examples.append(Example(len(examples), name, (span,), (name,)))
        splits[split] = ExampleList(examples)
    return Contents(splits, _names(layout, archives, files))


def encode_cifar(
    layout: CifarFiles, data: Sequence[bytes], values: tuple[Any, ...]
) -> dict[str, Any]:
    """Makes an example of a binary record."""
    record = np.frombuffer(data[0], np.uint8)
    labels, pixels = np.split(record, [len(layout.labels)])
    found: dict[str, Any] = {"id": values[0]}
    for label, value in zip(layout.labels, labels.tolist(), strict=True):
        number = label.number or layout.dataset.classes
        if value >= number:
            raise BadImage(f"has {label.feature} {value}, of {number} classes")
        found[label.feature] = value
    channels = pixels.reshape(3, SIDE, SIDE)
    return found | {"image": as_png(np.ascontiguousarray(channels.transpose(1, 2, 0)))}


def _recipe(layout: CifarFiles, number: int) -> Recipe:
    binary, python = f"cifar-{number}-binary.tar.gz", f"cifar-{number}-python.tar.gz"
    return Recipe(
        dataset=layout.dataset,
        files=f"{binary} or {python} from www.cs.toronto.edu/~kriz/cifar.html",
        archives=tuple(f"cifar-{number}-{kind}*.tar*" for kind in ("binary", "python")),
        unpacked=UNPACKED,
        find=functools.partial(find_cifar, layout),
        encode=functools.partial(encode_cifar, layout),
        downloads=(binary,),
    )


def _spans(
    layout: CifarFiles, archives: Archives, files: Mapping[str, FileEntry], stem: str
) -> Iterator[Span]:
    """Yields the records of a file; the binary archive takes precedence."""
    size = len(layout.labels) + PIXELS
    if binary := files.get(f"{stem}.bin"):
        path, start = archives.plain(binary)
        total = binary.size
    elif pickle := files.get(stem):
        named = f"records of {pickle.path}, {pickle.size} bytes, of {pickle.container}"
        path = archives.spill(named, lambda: _records(layout, archives, pickle))
        start, total = 0, path.stat().st_size
    else:
        return
    if total % size:
        raise DataError(f"{stem}.bin: has {total:,} bytes, not a multiple of {size:,}")
    for offset in range(start, start + total, size):
        yield Span(str(path), offset, size)


def _records(layout: CifarFiles, archives: Archives, pickle: FileEntry) -> Iterator[bytes]:
    """Yields the records of a pickle."""
    values = pickles.load_dictionary(archives.read(pickle, PICKLE), pickle.path)
    try:
        labels = [np.array(values[label.values], np.uint8) for label in layout.labels]
        pixels = np.array(values["data"], np.uint8)
        if pixels.shape != (len(labels[0]), PIXELS) or len({len(one) for one in labels}) != 1:
            raise ValueError(f"{pixels.shape} values")
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{pickle.path}: is not a batch of CIFAR images: {error}") from None
    yield np.column_stack([*labels, pixels]).tobytes()


def _names(
    layout: CifarFiles, archives: Archives, files: Mapping[str, FileEntry]
) -> dict[str, Sequence[str]]:
    """The class names by feature."""
    if layout.meta in files:
        meta = pickles.load_dictionary(archives.read(files[layout.meta]), layout.meta)
    else:
        meta = {}
    found: dict[str, Sequence[str]] = {}
    for label in layout.labels:
        if label.names in files:
            names = archives.text(files[label.names]).split()
        else:
            names = meta.get(label.meta)
        number = label.number or layout.dataset.classes
        if not isinstance(names, list) or len(set(map(str, names))) != number:
            raise DataError(
                f"{archives.named}: lacks the {number} class names, in {label.names} or "
                f"{layout.meta}"
            )
        found[label.feature] = [str(name) for name in names]
    return found


RECIPES = (_recipe(CIFAR10, 10), _recipe(CIFAR100, 100))
