"""Opens the images of a run, a split or a task; the two sources that need no files of the user."""

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from vit_jax import config
from vit_jax.config import ConfigError, checks, components
from vit_jax.data import class_matching, csv_source, decoding, folder_check, split_roles
from vit_jax.data.csv_source import CsvImages
from vit_jax.data.example_lists import open_listed
from vit_jax.data.folders import Folder, local_root, shown
from vit_jax.data.source import DataError, Record, Selection, Source, read_labels
from vit_jax.data.splits import Split
from vit_jax.data.tar_source import Tables, Tars, list_paths
from vit_jax.data.tasks import Task
from vit_jax.runtime.logs import warn_of_assumptions
from vit_jax.utils import storage
from vit_jax.utils.digests import digest

if TYPE_CHECKING:
    from vit_jax.data.tfds_source import Tfds

FILES = {"folder": Folder, "csv": CsvImages, "tar": Tars, "arrow": Tars, "parquet": Tables}
DIGITS_FILE = pathlib.Path(__file__).with_name("digits.npz")


def open_source(
    data: config.Data,
    split: str,
    *,
    num_classes: int | None = None,
    labels: bool = True,
    train: bool = False,
    key: str | None = None,
    head: Sequence[str] | None = None,
) -> Source:
    """The source that `data.source` names, cut to `split`.

    Without `labels`, which an objective may not need, images need no class: a folder may hold them
    directly, a list or a table no labels, and `classes` is empty. What digits, synthetic data and
    plug-ins know stays.

    `num_classes` is the width of the head if the user fixed it: synthetic data draws that many
    classes (else 10), other data must not have more. `train` or `key` says which option `split`
    came from, for messages. `head` has the names of the outputs of an existing head: then classes
    and labels are those outputs, matched by name. Raises ConfigError or DataError.
    """
    key = key or ("data.train_split" if train else "data.eval_split")
    labels = labels or data.classes is not None  # which chooses images by their classes
    if head is not None:
        # Other data are matched with the head by name, whatever their number of classes.
        num_classes = None if data.source != "synthetic" else len(head)

    excluded = read_excluded(data, labels=labels)

    def open_(split: str) -> Source:
        if data.source == "digits":
            return Digits(split, key)
        if isinstance(data, config.Synthetic):
            return Synthetic(data, split, key, num_classes or 10)
        if data.source in FILES:
            return FILES[data.source](data, split, key, labels=labels, exclude=excluded)
        if data.source not in components.built_in("source"):
            made = components.make(data, "data.source", data, split, train=train)
            with components.calling("data.source", data.source):
                check_plugged_in(made, data, labels=labels)
                return PluggedIn(made, data, labels=labels or len(made.classes) > 0)
        from vit_jax.data.tfds_source import Tfds  # imports TFDS, which takes half a second

        return Tfds(data, split, key, labels=labels)

    # Of training images only: an evaluation always measures its whole split.
    listed = train and data.examples is not None
    source = open_listed(data, split, open_) if listed else open_(split)
    if data.classes is not None:
        source = Subset(source, data.classes, key)
    if head is not None and data.targets:
        return source  # whoever has a head has put it in their order (`LoadedModel.for_columns`)
    if head is not None and data.source == "synthetic":
        return class_matching.Relabeled(source, head, range(len(source.classes)))
    if head is not None:
        keep, several = "" if data.multilabel else "data.classes", data.multilabel
        where = f"{key}={split}"
        return class_matching.relabel(source, head, where, keep=keep, several=several)
    if data.targets and num_classes not in (None, len(data.targets)):
        raise ConfigError(
            f"model.num_classes={num_classes}: the head has an output for each of data.targets, "
            f"{len(data.targets)}; set none"
        )
    if num_classes is not None and num_classes < len(source.classes):
        raise ConfigError(
            f"model.num_classes={num_classes}: the data has {len(source.classes)} classes; "
            f"at least {len(source.classes)}, or none"
        )
    if data.multilabel and num_classes not in (None, len(source.classes)):
        raise ConfigError(
            f"model.num_classes={num_classes}: data.multilabel needs as many as the data has, "
            f"{len(source.classes)}, or none"
        )
    return source


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSplits:
    """The images of a run."""

    train: Source  # the training split
    evaluation: Source  # the split that is evaluated while training
    test: Source | None  # the split that is measured once at the end, or None
    classes: tuple[str, ...]  # names of the classes, the same in all three
    files: str  # a line about images in files; empty for other data


def open_splits(cfg: config.Config) -> RunSplits:
    """Opens the splits of a run; raises ConfigError or DataError.

    Images in files are checked, by their first bytes; none is decoded.
    """
    data, final = cfg.data, split_roles.final(cfg.data)
    split_roles.check_splits(data, labels=cfg.needs_labels)
    evaluation = open_split(cfg, data.eval_split)
    classes = tuple(evaluation.classes)
    cfg = config.with_classes(cfg, len(classes))
    _check_classes(cfg, classes)

    def opened(split: str, key: str) -> Source:
        source = open_source(
            data,
            split,
            num_classes=cfg.model.num_classes,
            labels=cfg.needs_labels,
            train=key == "train_split",
            key=f"data.{key}",
        )
        if tuple(source.classes) != classes:
            wrong, other = f"data.{key}={split}", data.train_split
            if key == "train_split":  # the rarer split is the likelier mistake
                wrong = f"data.eval_split={data.eval_split}"
            raise ConfigError(f"{wrong}: its classes differ from those of {other}")
        return source

    train = opened(data.train_split, "train_split")
    test = opened(final.split, "test_split") if final is not None and cfg.measured else None
    files = folder_check.check_files(data, train, evaluation, test) or ""
    return RunSplits(train=train, evaluation=evaluation, test=test, classes=classes, files=files)


def _check_classes(cfg: config.Config, classes: Sequence[str]) -> None:
    """Says which classes look alike; raises ConfigError for a class by itself."""
    data = cfg.data
    if not cfg.needs_labels or data.targets:
        return
    by = "data.train_split" if data.classes is None else "data.classes"
    where = f"{by}={config.show(data.train_split if data.classes is None else data.classes)}"
    if cfg.model.num_classes == 1 and not data.multilabel:
        raise ConfigError(f"{where}: leaves one class; a head needs at least 2")
    warn_of_assumptions(where, class_matching.alike(classes))


def open_split(cfg: config.Config, split: str, head: Sequence[str] | None = None) -> Source:
    """Opens a split such as `test[:100]`, without augmentation.

    With `head`, the outputs of a head that exists, classes are these, matched by name.
    """
    checks.check_numbers(cfg)
    return open_source(
        cfg.data,
        split,
        num_classes=cfg.model.num_classes,
        labels=cfg.needs_labels,
        train=False,
        head=head,
    )


def open_unmatched(
    cfg: config.Config, split: str, *, labels: bool = True, train: bool = False
) -> Source:
    """Opens a split with the classes of its data, however many outputs the head has."""
    # Synthetic images are drawn for the classes of the model.
    drawn = cfg.model.num_classes if cfg.data.source == "synthetic" else None
    return open_source(cfg.data, split, num_classes=drawn, labels=labels, train=train)


def open_task(task: Task, split: str, data_dir: str | None = None) -> "Tfds":
    """A split of a task that is prepared below TFDS's data_dir; raises like `open_source`.

    Its attributes `dataset` and `version` are arguments of `example_lists.write_list`.
    """
    from vit_jax.data.tfds_source import Tfds

    data = config.Tfds(name=task.dataset.name, root=data_dir, labels=task.labels)
    return Tfds(data, split, task.name)


def read_excluded(data: config.Data, *, labels: bool = True) -> dict[str, tuple[str, ...]]:
    """The paths below root of `data.exclude`: the first column of a CSV file with a header.

    An image of several lists may be left out of some alone: each path has the names of these
    splits, none for all. Raises DataError for another file, or one of which no path is there.
    """
    if data.exclude is None:
        return {}
    key, root = f"data.exclude={data.exclude}", local_root(data)
    path = storage.given_path("data.exclude", data.exclude, remote=False)
    try:
        paths = csv_source.read_paths(path)
    except DataError as error:
        raise DataError(f"data.exclude={error}") from None
    lists = list(csv_source.list_splits(root)) if data.source == "csv" else []
    for split in {split for only in paths.values() for split in only if lists}:
        if split not in lists:
            raise DataError(
                f"{key}: split {shown(split)}: no such list in data.root={data.root}"
                f"{config.suggest(split, lists)}"
            )
    # Rows and members are no files: their paths are those of the listing.
    if data.source in config.PACKED:
        missing = sorted(paths.keys() - set(list_paths(data, labels=labels)))
    else:
        # lexists: what is left out may be a dangling link. A folder is no image.
        missing = sorted(p for p in paths if not os.path.lexists(root / p) or (root / p).is_dir())
    if missing and len(missing) == len(paths):
        raise DataError(
            f"{key}: none of its images are in data.root={data.root}, such as {shown(missing[0])}; "
            "paths are relative to it; data.exclude=none leaves nothing out"
        )
    if missing:
        some = f"{len(missing):,} of its {len(paths):,} images are not there, such as "
        warn_of_assumptions(key, [f"{some}{shown(missing[0])}"])
    return paths


def check_plugged_in(source: Source, data: config.Data, *, labels: bool) -> None:
    """Raises DataError for a plug-in's source whose first example is invalid."""
    text = data.source
    if not len(source):
        raise DataError(f"data.source={text}: has no examples")
    try:
        image, label = source[0]
    except (decoding.BadImage, OSError):
        return  # as an image that is damaged: data.max_bad_examples
    if not isinstance(image, bytes) and not (
        getattr(image, "dtype", None) in (np.uint8, np.uint16) and image.ndim in (2, 3)
    ):
        shape, dtype = np.shape(image), getattr(image, "dtype", type(image).__name__)
        raise DataError(
            f"data.source={text}: its first image is {dtype} {shape}; must be an encoded file "
            "(bytes) or uint8 or uint16 (H, W, C)"
        )
    if not labels and not source.classes:
        return
    # All labels are known: the extremes tell whether any is out of range.
    if (known := getattr(source, "labels", None)) is not None and not data.multilabel:
        for extreme in (np.min(known), np.max(known)):
            _check_label(extreme.item(), source, data, "one of its labels is")
    _check_label(label, source, data, "its first label is")


def _check_label(label: object, source: Source, data: config.Data, what: str) -> None:
    """Raises DataError, which begins with `what`, for a label that is no class of a plug-in."""
    several: Any = label if data.multilabel and isinstance(label, tuple) else (label,)
    with contextlib.suppress(TypeError):  # of another type than a number
        if all(0 <= one < len(source.classes) and int(one) == one for one in several):
            return
    raise DataError(
        f"data.source={data.source}: {what} {label!r}; must be a number below "
        f"{len(source.classes)}, the number of its classes"
        + (", or a tuple of them" if data.multilabel else "")
    )


class PluggedIn:
    """A plug-in's source; its errors name it, but for those of an image that cannot be read.

    With `labels`, raises DataError for one that is no class: otherwise -1, by which other programs
    mean that there is none, would be the last class.
    """

    def __init__(self, source: Source, data: config.Data, *, labels: bool = True) -> None:
        self.source, self.classes, self._data = source, source.classes, data
        self._labels = labels

    def __getattr__(self, name: str) -> Any:
        """What else the source has, such as `labels` or `file_name`."""
        if name == "source":  # which is not there while this is unpickled
            raise AttributeError(name)
        return getattr(self.source, name)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Record:
        # An unreadable image is no mistake of the plug-in: data.max_bad_examples counts it.
        try:
            image, label = self.source[index]
        except OSError:
            raise
        except Exception:
            with self._calling():
                raise
        if self._labels:
            _check_label(label, self, self._data, f"the label of {self.name(index)} is")
        return Record(image, label)

    def name(self, index: int) -> str:
        """The source's name of the example."""
        with self._calling():
            return self.source.name(index)

    def fingerprint(self) -> str:
        """That of the source."""
        with self._calling():
            return self.source.fingerprint()

    def _calling(self) -> contextlib.AbstractContextManager[None]:
        return components.calling("data.source", self._data.source)


class Digits:
    """The handwritten digits that ship with this package: 8 x 8 gray, 10 classes, 1437 + 360.

    UCI "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, 1998; CC BY 4.0): its
    1,797 test images, by 13 writers, as scikit-learn 1.9.1 carries them and in that order. Every
    fifth, from the first on, is `test`, the others are `train`; so both have all writers. Ink
    counts 0 to 16 are spread over 0 to 255.
    """

    SPLITS: ClassVar = {"train": np.flatnonzero(np.arange(1797) % 5), "test": np.arange(0, 1797, 5)}

    def __init__(self, split: str, key: str) -> None:
        requested = Split.parse(split, key)
        if requested.name not in self.SPLITS:
            raise ConfigError(
                f"{key}={split}: no such split{config.suggest(requested.name, list(self.SPLITS))}"
            )
        rows = self.SPLITS[requested.name]
        part = requested.select(len(rows), key)
        rows = rows[part.start : part.stop]
        with np.load(DIGITS_FILE) as file:
            ink, labels = file["images"], file["labels"]
        self._images = np.round(ink[rows, :, :, None] * (255 / 16)).astype(np.uint8)
        self._labels = labels[rows]
        self._name, self._first = requested.name, part.start
        self.classes = tuple(str(digit) for digit in range(10))

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Record:
        return Record(self._images[index], int(self._labels[index]))

    def name(self, index: int) -> str:
        """The split and the position in it."""
        return f"digits {self._name}[{self._first + index}]"

    def fingerprint(self) -> str:
        """Covers pixels and labels."""
        return digest(b"digits", self._images.tobytes(), self._labels.tobytes())


class Synthetic:
    """Random pixels of any shape, for benchmarks and tests: `data.num_examples` in every split.

    The label is the index mod `num_classes`. A class is a pattern of 4 x 4 blocks (levels 64 to
    191, drawn once per class); an example is its pattern plus noise of -64 to 63 levels a pixel,
    drawn per (split name, index). A model that learns one split generalizes to the others.

    With `data.multilabel`, examples have no class (only noise), one class, and two classes (the
    patterns averaged) in turn. With `data.targets`, there are ten patterns, and number k of an
    example is that of its pattern plus k.
    """

    def __init__(self, data: config.Synthetic, split: str, key: str, num_classes: int) -> None:
        requested = Split.parse(split, key)
        self._range = requested.select(data.num_examples, key)
        self._name = requested.name
        # A digest has 16 hex digits: the 64 bits of half a Philox key.
        self._stream = int(digest(requested.name.encode()), 16)
        self._shape = (*data.image_size, data.channels)
        self._multilabel, self._patterns = data.multilabel, 10 if data.targets else num_classes
        self._numbers = data.targets
        self.classes = data.targets or tuple(f"class {k}" for k in range(num_classes))

    def __len__(self) -> int:
        return len(self._range)

    def __getitem__(self, index: int) -> Record:
        number = self._range[index]
        label = self._labels(number)
        height, width, channels = self._shape
        patterns = [_random(0, k).integers(64, 192, (4, 4, channels), np.uint8) for k in label]
        blocks = np.mean(patterns or [np.full((4, 4, channels), 128)], axis=0).astype(np.uint8)
        noise = _random(self._stream, number).integers(0, 128, self._shape, np.uint8)
        rows, columns = np.arange(height) * 4 // height, np.arange(width) * 4 // width
        # In uint8 without overflow: 64 to 191, less 64, plus 0 to 127.
        pixels = blocks[rows][:, columns] - np.uint8(64) + noise
        if self._numbers:
            return Record(pixels, tuple(float(label[0] + k) for k in range(len(self._numbers))))
        return Record(pixels, label if self._multilabel else label[0])

    def _labels(self, number: int) -> tuple[int, ...]:
        if not self._multilabel:
            return (number % self._patterns,)
        first, count = number // 3 % self._patterns, number % 3
        # Another partner in each round, so that all pairs occur.
        second = (first + 1 + number // 3 // self._patterns) % self._patterns
        return tuple(sorted({first, second})) if count == 2 else (first,)[:count]

    def name(self, index: int) -> str:
        """The split and the position in it."""
        return f"synthetic {self._name}[{self._range[index]}]"

    def fingerprint(self) -> str:
        """Covers the split, the shape and the number of classes."""
        facts = (self._name, self._range, self._shape, len(self.classes))
        facts += ("multilabel",) if self._multilabel else ()
        facts += self._numbers
        return digest(b"synthetic", repr(facts).encode())


def _random(stream: int, number: int) -> np.random.Generator:
    # A stream of its own for each example, so the order in which examples are read does not matter.
    return np.random.Generator(np.random.Philox(key=np.array([stream, number], np.uint64)))


class Subset(Selection):
    """The examples of some classes, in the order of the source; a label is an index into `classes`.

    Reads every example once at construction, for its label, unless the source knows all.
    """

    def __init__(self, source: Source, classes: Sequence[str], key: str) -> None:
        """Takes the source of the split that the option `key` names; raises ConfigError."""
        shown = f"data.classes={','.join(classes)}"
        for name in classes:
            if name not in source.classes:
                raise ConfigError(
                    f"{shown}: the data has no class {name}{config.suggest(name, source.classes)}"
                )
        if len(set(classes)) < max(len(classes), 1):
            raise ConfigError(f"{shown}: must name some classes, each once; none keeps all")
        labels = read_labels(source)
        numbers = np.full(len(source.classes), -1)
        numbers[[source.classes.index(name) for name in classes]] = np.arange(len(classes))
        self._labels = numbers[labels]
        super().__init__(source, np.flatnonzero(self._labels >= 0))
        self.classes = tuple(classes)
        if not len(self):
            raise ConfigError(f"{shown}: no example of {key} is of these classes")

    def __getitem__(self, index: int) -> Record:
        return Record(super().__getitem__(index).image, int(self._labels[self._positions[index]]))

    def fingerprint(self) -> str:
        """Covers the source's fingerprint and the classes."""
        return digest(self.source.fingerprint().encode(), repr(self.classes).encode())
