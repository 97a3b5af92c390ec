"""A folder of images as a source: `root/split/class/...`, or `root/class/...` with a holdout."""

import contextlib
import hashlib
import io
import os
import pathlib
from collections.abc import Iterator

import numpy as np

from vit_jax import config
from vit_jax.config import ConfigError
from vit_jax.data.examples import DataError, Record, Split, digest

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")

Path = pathlib.Path


class Folder:
    """Image files below a folder per class, at any depth; hidden files and folders are skipped.

    Without `data.holdout`, `root/SPLIT/CLASS/**` holds the splits. The classes are the folders of
    `data.train_split`, sorted, and every split is labelled by that list: a class folder that is not
    in it is an error; a class without a folder in another split is none.

    With `data.holdout` > 0, `root/CLASS/**` holds everything. A file belongs to `data.eval_split`
    where the first 64 bits of the SHA-256 of its path below root (`CLASS/...`, with `/`) are less
    than holdout x 2^64, else to `data.train_split`: about that share of each class, whatever files
    come or go besides. Of a class of two files or more that would leave one side empty, the file
    with the least hash goes to evaluation, or that with the greatest to training.

    Examples are in the order of (class, path). A slice such as `train[:80%]` takes files in the
    order of that hash, so it is a random sample, and `train[80%:]` is the rest of it.
    """

    def __init__(self, data: config.Data, split: str, key: str) -> None:
        root, chosen = Path(data.root or ""), Split.parse(split, key)
        train = Split.parse(data.train_split, "data.train_split")
        if not root.is_dir():
            what = "not a folder" if root.exists() else "no such folder"
            raise DataError(f"data.root={root}: {what}")
        if data.holdout:
            self._top = class_top = root
        else:
            self._top = _split_folder(root, chosen.name, key)
            class_top = _split_folder(root, train.name, "data.train_split")
        self.classes = tuple(_folders(class_top))
        files = _list(root, self._top, class_top, self.classes)
        if data.holdout:
            files = _side(files, data, chosen.name, split, key)
        if chosen.low or chosen.high:
            part = chosen.select(len(files), key)
            files = sorted(sorted(files, key=_hash)[part.start : part.stop])
        # One block of bytes, since processes take long to unpickle a list of a million strings.
        names = [os.fsencode(name) for _, name in files]
        self._names = b"".join(names)
        self._ends = np.cumsum([0, *map(len, names)], dtype=np.int64)
        self._labels = np.array([label for label, _ in files], np.int32)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Record:
        with io.FileIO(self.name(index)) as file:
            return Record(file.readall(), int(self._labels[index]))

    def name(self, index: int) -> str:
        """Returns the path of the file."""
        name = self._names[self._ends[index] : self._ends[index + 1]]
        return f"{self._top}/{os.fsdecode(name)}"  # nine times as fast as by a Path

    def fingerprint(self) -> str:
        """Covers classes, relative paths, labels, and the sizes of 1,000 files spread evenly."""
        some = np.unique(np.linspace(0, len(self) - 1, 1000).astype(np.int64))
        return digest(
            os.fsencode("/".join(self.classes)),
            self._names,
            self._ends.astype("<i8").tobytes(),
            self._labels.astype("<i4").tobytes(),
            np.array([Path(self.name(i)).stat().st_size for i in some], "<i8").tobytes(),
        )


File = tuple[int, str]  # the label, and the path below the top folder, with /


Above = tuple[tuple[int, int], ...]  # device and inode of the folders on the way to one


def walk(
    folder: Path, key: str, prefix: str = "", above: Above = ()
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yields the files below a folder by name, through links, but not in circles.

    Each is its path below the folder, after `prefix`, and its entry; hidden ones are skipped.
    Raises DataError that begins with `key` for a folder that cannot be read.
    """
    with _readable(folder, key):
        status = folder.stat()
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    for entry in _scan(folder, key):
        if entry.is_dir():
            yield from walk(Path(entry.path), key, f"{prefix}{entry.name}/", (*above, here))
        else:
            yield prefix + entry.name, entry


def _scan(folder: Path, key: str = "data.root") -> list[os.DirEntry[str]]:
    """Returns the entries of a folder that are not hidden, sorted by name."""
    with _readable(folder, key), os.scandir(folder) as entries:
        return sorted((e for e in entries if e.name[0] != "."), key=lambda e: e.name)


@contextlib.contextmanager
def _readable(folder: Path, key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"{key}: cannot read folder {folder}: {error.strerror}") from None


def _folders(folder: Path) -> list[str]:
    return [entry.name for entry in _scan(folder) if entry.is_dir()]


def splits(data: config.Data) -> tuple[str, ...]:
    """Returns the names of the folders that may be splits; raises DataError for no such root."""
    return tuple(_folders(Path(data.root))) if data.root else ()


def _split_folder(root: Path, name: str, key: str) -> Path:
    if (root / name).is_dir():
        return root / name
    there = _folders(root)
    if not there:
        raise DataError(f"data.root={root}: has no folders; expected {name}/CLASS/IMAGE")
    shown = ", ".join(there[:10]) + (", ..." if len(there) > 10 else "")
    raise DataError(
        f"{key}={name}: no such folder in data.root={root}; folders there: {shown}; if these are "
        f"classes, set data.holdout=0.1"
    )


def _list(root: Path, top: Path, class_top: Path, classes: tuple[str, ...]) -> list[File]:
    """Returns all image files below the class folders of `top`, in order of (class, path)."""
    if len(classes) < 2:
        raise DataError(
            f"data.root={root}: {len(classes)} class folders in {class_top}; at least 2 are needed"
        )
    there = _folders(top)
    unknown = sorted(set(there) - set(classes))
    if unknown:
        raise DataError(
            f"data.root={root}: class folders of {top.name} that {class_top.name} does not have: "
            f"{', '.join(unknown[:10])}{', ...' if len(unknown) > 10 else ''}"
        )
    labels = {name: label for label, name in enumerate(classes)}
    files: list[File] = []
    for name in there:
        paths = (path for path, _ in walk(top / name, "data.root", f"{name}/"))
        found = sorted(path for path in paths if path.lower().endswith(SUFFIXES))
        if not found:
            raise DataError(
                f"data.root={root}: no image in class folder {top / name}; "
                f"images end in {', '.join(SUFFIXES)}"
            )
        files += [(labels[name], path) for path in found]
    return files


def _hash(file: File) -> int:
    """Returns 64 bits that depend on the path only."""
    return int.from_bytes(hashlib.sha256(os.fsencode(file[1])).digest()[:8], "big")


def _side(files: list[File], data: config.Data, name: str, split: str, key: str) -> list[File]:
    """Returns the files of the side of the holdout that is called `name`."""
    evaluation = Split.parse(data.eval_split, "data.eval_split").name
    train = Split.parse(data.train_split, "data.train_split").name
    if evaluation == train:
        raise ConfigError(
            f"data.eval_split={data.eval_split}: the same split as data.train_split; "
            f"data.holdout={data.holdout:g} needs two names"
        )
    if name not in (evaluation, train):
        raise ConfigError(
            f"{key}={split}: no such split{config.suggest(name, [train, evaluation])}"
        )
    kept: list[File] = []
    by_class: dict[int, list[File]] = {}
    for file in files:
        by_class.setdefault(file[0], []).append(file)
    for members in by_class.values():
        ranked = sorted(members, key=_hash)
        held = sum(_hash(file) < data.holdout * 2**64 for file in ranked)
        held = min(max(held, 1), len(ranked) - 1) if len(ranked) > 1 else 0
        kept += sorted(ranked[:held] if name == evaluation else ranked[held:])
    if not kept:
        raise DataError(f"data.holdout={data.holdout:g}: every class has one image; none is left")
    return kept
