"""A folder of images as a source: `root/split/class/...`, or `root/class/...` with a holdout.

Without labels: `root/split/...`, or `root/...` with a holdout.
"""

import collections
import dataclasses
import hashlib
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePath, PurePosixPath

import numpy as np

from vit_jax import config
from vit_jax.config import ConfigError
from vit_jax.data import bucket, class_matching, decoding, splits
from vit_jax.data.source import UNKNOWN, WITHOUT_LABELS, DataError, Record
from vit_jax.data.splits import Split
from vit_jax.runtime.logs import log, warn_of_assumptions
from vit_jax.utils import messages, storage
from vit_jax.utils.digests import digest

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")  # of `decoding`

DEEPEST = 100  # folders within folders: `walk` recurses, and Python stops at 1,000 calls


# Unsupported image formats: OpenCV has no decoder, or none that reports the size before allocating
# the pixels.
UNREAD = (
    *(".heic", ".heif", ".avif", ".jp2", ".j2k", ".jxl", ".jfif", ".svg", ".psd"),
    *(".dng", ".cr2", ".nef", ".arw", ".ppm", ".pgm", ".tga", ".exr", ".hdr", ".ico"),
)
MOST_KINDS = 4  # of suffixes listed


@dataclasses.dataclass
class Skipped:
    """Counts made while a folder is listed."""

    # Number of unsupported files by lower-case suffix.
    ends: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    # Number of images outside of class folders, or of those of splits without labels.
    loose: int = 0
    first_loose: str = ""  # path of one of these
    hidden: int = 0  # number of files and folders whose name begins with a dot
    rows: int = 0  # number of rows of tables without a label or an image
    repeated: int = 0  # number of images of tars whose path comes again, of which the last counts
    labeled: bool = True  # whether images and rows need labels

    def note(self, name: str) -> None:
        """Counts an unsupported file."""
        self.ends[PurePath(name).suffix.lower() or "without a suffix"] += 1

    def note_loose(self, path: str) -> None:
        """Counts an image outside of class folders."""
        self.loose += 1
        self.first_loose = self.first_loose or path

    def add(self, other: "Skipped") -> None:
        """Adds the counts of another folder."""
        self.ends += other.ends
        self.loose += other.loose
        self.first_loose = self.first_loose or other.first_loose
        self.hidden += other.hidden
        self.rows += other.rows
        self.repeated += other.repeated
        self.labeled = other.labeled

    def describe(self) -> str:
        """`3 .tif (a format that is not read; save as .png), 1 hidden`; empty for none."""
        unread = {end: count for end, count in self.ends.items() if end in UNREAD}
        others = {end: count for end, count in self.ends.items() if end not in UNREAD}
        parts = []
        if unread:
            parts.append(f"{_listed(unread)} (a format that is not read; save as .png)")
        if self.loose:
            folder = "class folder" if self.labeled else "folder of a split"
            images = f"{self.loose:,} image{'s' * (self.loose > 1)}"
            parts.append(f"{images} in no {folder} ({shown(self.first_loose)})")
        if others:
            parts.append(f"{_listed(others)} (no image)")
        if self.hidden:
            parts.append(f"{self.hidden:,} hidden")
        if self.rows:
            rows = f"{self.rows:,} row{'s' * (self.rows > 1)}"
            what = "an image or a label (null, empty or -1)" if self.labeled else "an image"
            parts.append(f"{rows} without {what}")
        if self.repeated:
            images = f"{self.repeated:,} image{'s' * (self.repeated > 1)}"
            parts.append(f"{images} whose path comes again")
        return ", ".join(parts)


def shown(path: str) -> str:
    """The end of a path for a message, with unprintable characters escaped."""
    text = path.encode(errors="backslashreplace").decode()
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= 80 else f"...{text[-77:]}"


def _listed(ends: dict[str, int]) -> str:
    """`12 .tif, 3 .heic`, the most first."""
    ranked = sorted(ends.items(), key=lambda item: (-item[1], item[0]))
    parts = [f"{count:,} {shown(end)[:20]}" for end, count in ranked[:MOST_KINDS]]
    if more := sum(count for _, count in ranked[MOST_KINDS:]):
        parts.append(f"{more:,} of other kinds")
    return ", ".join(parts)


class FileNames:
    """Paths below a folder, as one block: unpickling a list of a million strings is slow."""

    STATED = 1000  # files whose size is part of a fingerprint

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        # Names of files need not be UTF-8; Python holds their other bytes as surrogates.
        encoded = [name.encode(errors="surrogateescape") for name in names]
        self._root, self.block = root, b"".join(encoded)
        # Little-endian on any machine, as the bytes are part of fingerprints.
        self.ends = np.cumsum([0, *map(len, encoded)], dtype="<i8")

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, index: int) -> str:
        return f"{self._root}/{self.below(index)}"  # nine times as fast as with a Path

    def below(self, index: int) -> str:
        """The path below the folder."""
        return os.fsdecode(self.block[self.ends[index] : self.ends[index + 1]])

    def sizes(self) -> bytes:
        """The bytes of 1,000 files spread evenly; raises DataError if one is missing."""
        sizes = []
        # All sizes would take a million round trips to network storage.
        for index in np.unique(np.linspace(0, len(self) - 1, self.STATED).astype(np.int64)):
            with storage.errors_as(DataError, self[index]):
                sizes.append(Path(self[index]).stat().st_size)
        return np.array(sizes, "<i8").tobytes()


class Folder:
    """Image files below a folder per class, at any depth.

    Without `data.holdout`, the splits are `root/SPLIT/CLASS/**`. The classes are the sorted folders
    of `data.train_split`. A class folder of another split that is not among them is an error; a
    missing one is not.

    With `data.holdout` > 0, all files are in `root/CLASS/**`. A file belongs to `data.eval_split`
    if the first 64 bits of the SHA-256 of its path below root (`CLASS/...`, with `/`) are less than
    holdout x 2^64, else to `data.train_split`: about that fraction of each class, independent of
    other files. If that would leave one side of a class with two or more files empty, the file with
    the smallest hash goes to evaluation, or the one with the largest to training.

    Without `labels` there are no classes: images are all files at any depth below a split's folder,
    or below root with `data.holdout`. Where no other split is asked for, a root without a folder
    that is called like a split is the training split.

    Examples are ordered by (class, path). A slice such as `train[:80%]` takes files in the order of
    the hash, so it is a random sample, and `train[80%:]` is the rest. Files of `exclude`, paths
    below root, are left out last, so that the others stay on their sides.

    Attributes:
      top: the parent of the class folders.
      labels: the labels of all examples (N), int32.
      skipped: counts of files that are not used.
    """

    def __init__(
        self,
        data: config.Data,
        split: str,
        key: str,
        *,
        labels: bool = True,
        exclude: Collection[str] = (),
    ) -> None:
        root, requested = local_root(data), Split.parse(split, key)
        train = Split.parse(data.train_split, "data.train_split")
        if not root.is_dir():
            what = "not a folder" if root.exists() else "no such folder"
            raise DataError(f"data.root={root}: {what}")
        layout = "CLASS/IMAGE" if labels else "IMAGE"
        whole = data.holdout or (not labels and _is_train_split(root, data))
        self.top = root if whole else _split_folder(root, requested.name, key, layout)
        self.skipped = Skipped()
        if labels:
            class_top = root
            if not data.holdout:
                class_top = _split_folder(root, train.name, "data.train_split", layout)
            self.classes = tuple(_folders(class_top))
            # A holdout takes the folders of root for classes.
            if data.holdout and (named := splits.find_splits(self.classes)):
                raise DataError(
                    f"data.holdout={data.holdout:g}: data.root={root} has splits, "
                    f"{', '.join(sorted(named))}, which would be taken as classes; "
                    "set data.holdout=0"
                )
            _check_names(self.classes, class_top)
            files = _list(root, self.top, class_top, self.classes, self.skipped)
        else:
            self.classes = ()
            found = image_files(self.top, "data.root", skipped=self.skipped)
            files = [(UNKNOWN, path) for path in found]
            if not files:
                raise DataError(f"data.root={root}: {_nothing(self.top, self.skipped)}")
        if data.holdout:
            if labels:
                parts = (path.split("/", 2) for _, path in files if path.count("/") > 1)
                inside = {(name, within) for name, within, _ in parts}
                warn_of_assumptions(f"data.root={root}", splits.within_classes(inside))
            files = _side(files, data, requested.name, split, key)
        if requested.low or requested.high:
            part = requested.select(len(files), key)
            # By hash for the cut, then back in the order of (class, path).
            files = sorted(sorted(files, key=_hash)[part.start : part.stop])
        # `exclude` has paths below root, `files` those below the folder of the split.
        below = "" if self.top == root else f"{requested.name}/"
        left = remaining([below + name for _, name in files], exclude, data, f"{key}={split}")
        files = [files[at] for at in left]
        self._files = FileNames(self.top, [name for _, name in files])
        self.labels = np.array([label for label, _ in files], np.int32)
        self.labels.flags.writeable = False

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Record:
        return Record(decoding.read_file(self.name(index)), int(self.labels[index]))

    def name(self, index: int) -> str:
        """The path of the file."""
        return self._files[index]

    def fingerprint(self) -> str:
        """Covers classes, relative paths, labels, and the sizes of 1,000 files spread evenly."""
        return digest(
            # No name of a folder has a slash, so different classes never join to the same text.
            os.fsencode("/".join(self.classes)),
            self._files.block,
            self._files.ends.tobytes(),
            self.labels.astype("<i4").tobytes(),
            self._files.sizes(),
        )


def local_root(data: config.Data) -> Path:
    """The folder of `data.root`, or the local copy of a bucket address; raises a UserError."""
    root = data.root or ""
    if not bucket.is_bucket(root):
        return Path(root)
    return bucket.local_copy(root, data.cache, data.cache_size, bucket.ROOT)


def remaining(
    paths: Sequence[str], exclude: Collection[str], data: config.Data, split: str
) -> Sequence[int]:
    """The positions of paths below root that are not excluded; says how many are.

    Raises DataError if none is left.
    """
    left = [at for at, path in enumerate(paths) if path not in exclude]
    key = f"data.exclude={data.exclude}"
    if not left:
        raise DataError(f"{key}: leaves no image of {split}")
    if len(left) < len(paths):
        count = len(paths) - len(left)
        log.info("%s: %s of %s images of %s left out", key, f"{count:,}", f"{len(paths):,}", split)
    return left


File = tuple[int, str]  # the label, and the path below the top folder, with /


Above = tuple[tuple[int, int], ...]  # device and inode of the parent folders


def walk(
    folder: Path, key: str, prefix: str = "", above: Above = (), skipped: Skipped | None = None
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yields the files below a folder by name; follows links, except in cycles.

    Yields the path below the folder, after `prefix`, and the directory entry; counts hidden files.
    Raises DataError, which starts with `key`, for an unreadable folder.
    """
    with storage.errors_as(DataError, f"{key}: cannot read folder {folder}"):
        status = folder.stat()
    here = (status.st_dev, status.st_ino)
    # Only the parents count: two links to one folder are no cycle.
    if here in above:
        return
    if len(above) == DEEPEST:
        raise DataError(f"{key}: {folder}: folders are nested more than {DEEPEST} levels deep")
    for entry in _scan(folder, key, skipped):
        if _is_dir(entry):
            inside = f"{prefix}{entry.name}/"
            yield from walk(Path(entry.path), key, inside, (*above, here), skipped)
        else:
            yield prefix + entry.name, entry


def image_files(
    folder: Path, key: str, prefix: str = "", skipped: Skipped | None = None
) -> list[str]:
    """The paths of the image files that `walk` finds, sorted; counts the others."""
    found = []
    for path, _ in walk(folder, key, prefix, skipped=skipped):
        if path.lower().endswith(SUFFIXES):
            found.append(path)
        elif skipped is not None:
            skipped.note(path)
    return sorted(found)


def all_images(folder: Path, key: str, named: str) -> tuple[list[str], str]:
    """The paths of all image files below a folder, and what it holds beside them, in words.

    Raises ConfigError, which starts with `named`, if there is none, and DataError, with `key`, for
    an unreadable folder.
    """
    skipped = Skipped()
    found, held = image_files(folder, key, skipped=skipped), skipped.describe()
    if not found:
        held = held and f"; it contains {held}"
        raise ConfigError(f"{named}: holds no {', '.join(SUFFIXES)} files{held}")
    return found, held


def _scan(
    folder: Path, key: str = "data.root", skipped: Skipped | None = None
) -> list[os.DirEntry[str]]:
    """The entries of a folder that are not hidden, sorted by name; counts the others."""
    with (
        storage.errors_as(DataError, f"{key}: cannot read folder {folder}"),
        os.scandir(folder) as entries,
    ):
        found = list(entries)
    # scandir has no order of its own, and a run must not depend on that of a disk.
    kept = sorted((e for e in found if e.name[0] != "."), key=lambda e: e.name)
    if skipped is not None:
        skipped.hidden += len(found) - len(kept)
    return kept


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _folders(folder: Path) -> list[str]:
    return [entry.name for entry in _scan(folder) if _is_dir(entry)]


def _check_names(classes: tuple[str, ...], folder: Path) -> None:
    """Raises DataError for names that reports or terminals cannot show unchanged."""
    for name in classes:
        shown = messages.printable(name)
        if shown == name:
            continue
        reason, remedy = "has a character that cannot be shown", "rename it"
        if any("\udc80" <= character <= "\udcff" for character in name):
            reason, remedy = "is not UTF-8", f"first: convmv -r -f latin1 -t utf8 --notest {folder}"
        raise DataError(f"data.root={folder}: class folder {shown}: {reason}; {remedy}")


def splits_there(data: config.Data) -> config.Data:
    """The config with its split names replaced by names of existing folders.

    Finds `train/` with `val/`, `valid/` or `validation/` automatically; see `splits.find_folder`.
    Other names stay unchanged: opening them reports the error.
    """
    if data.source != "folder" or data.root is None or data.holdout:
        return data
    try:
        there = _folders(local_root(data))
    except DataError:
        return data
    named = {key: getattr(data, key) for key in ("train_split", "eval_split", "test_split")}
    found = {key: text and splits.in_folder(text, there) for key, text in named.items()}
    return dataclasses.replace(data, **found) if found != named else data


def list_splits(data: config.Data) -> tuple[str, ...]:
    """The names of possible split folders; raises DataError if the root is missing."""
    return tuple(_folders(local_root(data))) if data.root else ()


def count_images(folder: Path) -> int:
    """The number of images right in a folder."""
    return sum(e.name.lower().endswith(SUFFIXES) and not _is_dir(e) for e in _scan(folder))


def _nothing(folder: Path, skipped: Skipped) -> str:
    """The message for a folder without images, with a summary of its contents."""
    held = skipped.describe()
    return (
        f"no image in folder {folder}; images end in {', '.join(SUFFIXES)}"
        f"{held and f'; it contains {held}'}"
    )


def _refuse_packed(root: Path) -> None:
    """Raises DataError for a folder of tables or archives, in it or one below."""
    # Tables often lie one folder below, such as in data/.
    for folder in (root, *(root / name for name in _folders(root))):
        for entry in _scan(folder):
            if entry.name.lower().endswith((".parquet", ".arrow", ".tar")):
                kind = PurePath(entry.name).suffix.lower()[1:]
                raise DataError(
                    f"data.root={root}: {shown(entry.name)} is no folder of images; "
                    f"data.source={kind} reads it"
                )


def _is_train_split(root: Path, data: config.Data) -> bool:
    """Whether all of root is the one split of a run: its own name and its folders' say so."""
    names = {Split.parse(split, "").name for split in (data.train_split, data.eval_split)}
    if data.test_split is not None or not names <= {*splits.TRAIN} or len(names) > 1:
        return False
    _refuse_packed(root)
    return not any(map(splits.is_split, _folders(root)))


def _split_folder(root: Path, name: str, key: str, inside: str) -> Path:
    there = _folders(root)
    if name in there:
        return root / name
    _refuse_packed(root)
    if not there:
        flat = "; if its images have no splits, set data.holdout=0.1" if inside == "IMAGE" else ""
        raise DataError(f"data.root={root}: has no folders; expected {name}/{inside}{flat}")
    listed = ", ".join(map(shown, there[:10])) + (", ..." if len(there) > 10 else "")
    raise DataError(
        f"{key}={name}: no such folder in data.root={root}; folders there: {listed}; "
        f"{remedy(key, there, labels=inside != 'IMAGE')}"
    )


def warn_of_substitute(key: str, wanted: str, found: str) -> None:
    """Says that a validation split is read where `test` was asked for; a folder is renamed so."""
    if wanted.lower() in splits.TEST and found.lower() not in splits.TEST:
        warn_of_assumptions(f"{key}={wanted}", [f"there is none; {found} is read in its place"])


def remedy(key: str, there: list[str], *, labels: bool = True) -> str:
    """The remedy if the requested split is not among the folders, or lists, of a root."""
    named = [name for name in there if splits.is_split(name)]
    train = splits.find_folder("train", there)
    if not named:
        return f"if {'these are classes' if labels else 'they are no splits'}, set data.holdout=0.1"
    others = [name for name in named if name != train]
    if key == "data.train_split" and train is not None:
        return f"set {key}={train}"
    if key == "data.eval_split" and others:
        return f"set {key}={' or '.join(others)}"
    if key == "data.eval_split" and train is not None:
        return (
            f"to keep a tenth of {train} for it, set data.train_split='{train}[:90%]' and "
            f"{key}='{train}[90%:]'"
        )
    return f"set {key} to one of them"


def _list(
    root: Path, top: Path, class_top: Path, classes: tuple[str, ...], skipped: Skipped
) -> list[File]:
    """All image files below the class folders of `top`, in order of (class, path)."""
    if len(classes) < 2:
        _refuse_packed(root)
        raise DataError(
            f"data.root={root}: {len(classes)} class folder{'s' * (not classes)} in {class_top}; "
            f"at least 2 are needed, each with the images of one class{WITHOUT_LABELS}"
        )
    there = []
    for entry in _scan(top, skipped=skipped):
        if _is_dir(entry):
            there.append(entry.name)
        elif entry.name.lower().endswith(SUFFIXES):
            skipped.note_loose(entry.name if top == root else f"{top.name}/{entry.name}")
        else:
            skipped.note(entry.name)
    unknown = sorted(set(there) - set(classes))
    if unknown:
        raise DataError(
            f"data.root={root}: class folders of {top.name} that are missing in {class_top.name}: "
            f"{', '.join(unknown[:10])}{', ...' if len(unknown) > 10 else ''}"
            f"{class_matching.other_form(unknown, classes)}"
        )
    labels = {name: label for label, name in enumerate(classes)}
    files: list[File] = []
    for name in there:
        # Counted for this class alone, for the message if it has no image.
        others = Skipped()
        found = image_files(top / name, "data.root", f"{name}/", others)
        if not found:
            nothing = _nothing(top / name, others).replace("in folder", "in class folder", 1)
            raise DataError(f"data.root={root}: {nothing}")
        skipped.add(others)
        files += [(labels[name], path) for path in found]
    return files


def hash64(path: str) -> int:
    """64 bits that depend on the path below the root only."""
    encoded = path.encode(errors="surrogateescape")  # a fifth of the time of os.fsencode
    return int.from_bytes(hashlib.sha256(encoded).digest()[:8], "big")


def _hash(file: File) -> int:
    return hash64(file[1])


def held_out(
    labels: Sequence[int] | np.ndarray, hashes: Sequence[int] | np.ndarray, holdout: float
) -> np.ndarray:
    """Which images (N,) a holdout keeps for evaluation: about that share of each class, by hash.

    A class of two images or more has some on both sides.
    """
    classes, held = np.asarray(labels), np.zeros(len(labels), bool)
    # lexsort sorts by its last key first: by class, then by hash.
    ranked = np.lexsort((np.asarray(hashes, np.uint64), classes))
    for members in np.split(ranked, np.flatnonzero(np.diff(classes[ranked])) + 1):
        # As Python integers: a float of 2**64 would round.
        below = sum(int(hashes[at]) < holdout * 2**64 for at in members)
        # In a small class the hash may put every file on one side.
        held[members[: min(max(below, 1), len(members) - 1)]] = True
    return held


def _side(files: list[File], data: config.Data, name: str, split: str, key: str) -> list[File]:
    """The files on the side `name` of the holdout."""
    evaluation = Split.parse(data.eval_split, "data.eval_split").name
    train = Split.parse(data.train_split, "data.train_split").name
    # Parts of the training side, such as train[:90%] and train[90%:], are two.
    if splits.overlap(data.eval_split, data.train_split):
        raise ConfigError(
            f"data.eval_split={data.eval_split}: the same split as data.train_split; "
            f"data.holdout={data.holdout:g} needs two names"
        )
    if name not in (evaluation, train):
        raise ConfigError(
            f"{key}={split}: no such split{config.suggest(name, [train, evaluation])}"
        )
    held = held_out([label for label, _ in files], list(map(_hash, files)), data.holdout)
    kept = [files[at] for at in np.flatnonzero(held == (name != train))]
    if not kept:
        few = "there is" if files[0][0] == UNKNOWN else "every class has"
        raise DataError(f"data.holdout={data.holdout:g}: {few} one image; none is left")
    return kept


class Loose:
    """All image files below a folder, in the order of their paths; hidden ones are skipped.

    `name` is a path below the folder, with `/`. The label of a file is the class of its outermost
    folder below a split that is called by one, as `class_matching` finds it, else UNKNOWN.
    """

    def __init__(self, root: Path, classes: Sequence[str], key: str) -> None:
        """Lists the files; raises ConfigError or DataError, which start with `key`."""
        if not root.is_dir():
            what = "not a folder" if root.exists() else "no such folder"
            raise ConfigError(f"{key}={bucket.shown(root)}: {what}")
        self._root, self.classes = root, tuple(classes)
        named = f"{key}={bucket.shown(root)}"
        self._paths, left_out = all_images(root, key, named)
        if left_out:
            warn_of_assumptions(named, [f"{len(self._paths)} images; not used: {left_out}"])
        parents = [PurePosixPath(path).parent.parts for path in self._paths]
        split = splits.find_splits({parts[0] for parts in parents if parts})
        inside = [parts[not split.isdisjoint(parts[:1]) :] for parts in parents]
        names = sorted({name for parts in inside for name in parts})
        found = class_matching.find_outputs(self.classes, names, in_order=False)
        warn_of_assumptions(named, found.notes)
        outputs = {n: k for n, k in zip(names, found.outputs, strict=True) if k is not None}
        # As in training, folders inside of a class are of that class, whatever their names.
        self._labels = [
            next((outputs[name] for name in parts if name in outputs), UNKNOWN) for parts in inside
        ]

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Record:
        return Record(decoding.read_file(self._root / self._paths[index]), self._labels[index])

    def name(self, index: int) -> str:
        """The path of the file below the folder."""
        return self._paths[index]

    def fingerprint(self) -> str:
        """Covers the classes and the paths."""
        # Paths have slashes, but no NUL.
        return digest(os.fsencode("\0".join((*self.classes, *self._paths))))
