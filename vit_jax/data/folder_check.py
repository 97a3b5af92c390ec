"""Checks the images of a folder, CSV list or tars before a run: used, skipped and broken ones.

Reads the first bytes of each file: otherwise a dangling link, an empty file, a pipe or a video
named `x.jpg` could end the run after hours.
"""

import codecs
import concurrent.futures
import itertools
import os
import stat
import time
from collections.abc import Iterable, Iterator

import numpy as np

from vit_jax import config
from vit_jax.data import folders, image_headers, split_roles, splits, tiff
from vit_jax.data.csv_source import CsvImages
from vit_jax.data.decoding import BadImage
from vit_jax.data.folders import Folder, Skipped, shown
from vit_jax.data.source import DataError, Source
from vit_jax.data.tar_source import Tars
from vit_jax.runtime.logs import warn_of_assumptions

Files = Folder | CsvImages | Tars

SECONDS = 20.0  # per split; on slow storage, training checks the remaining files
THREADS, CHUNK = 16, 1024  # network storage handles many requests at a time
# On a local disk, one thread checks a file in 5 us of CPU (measured).
QUICK = 2e-4  # seconds a file below which threads only wait for each other
MOST_NAMED = 3
MOST_FOLDERS = 10
COMMON = (
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
)  # of most images: told apart in a tenth of the time
# What else is found under the name of an image: photos of phones, failed downloads.
BRANDS = {b"avif": "an AVIF image", b"avis": "an AVIF image"} | dict.fromkeys(
    (b"heic", b"heix", b"hevc", b"mif1", b"msf1", b"heim", b"heis"), "a HEIC image"
)
CONTAINERS = (
    (b"\0\0\0\x0cJXL ", "a JPEG XL image"),
    (b"\0\0\0\x0cjP  ", "a JPEG 2000 image"),
    (b"II+\0", "a BigTIFF"),
    (b"MM\0+", "a BigTIFF"),
    (b"\xff\x0a", "a JPEG XL image"),
    (b"<", "a page or SVG"),
    (b"{", "JSON"),
    (b"version https://git-lfs", "a pointer of Git LFS, whose file was not fetched"),
    (b"8BPS", "a Photoshop file"),
    (b"%PDF", "a PDF"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"\x1f\x8b", "a gzip archive"),
)


def check_files(
    data: config.Data, train: Source, evaluation: Source | None, test: Source | None
) -> str | None:
    """A line about images in files, given the opened splits; None for other data.

    Raises DataError if a split has more unreadable files than `data.max_bad_examples`.
    """
    sources = {data.train_split: train, data.eval_split: evaluation, data.test_split: test}
    opened = [(str(split), source) for split, source in sources.items() if source is not None]
    lists = [(split, source, found) for split, source in opened if (found := _files(source))]
    if not lists:
        return None
    parts, notes = [], []
    for split, source, files in lists:
        bad, checked = unreadable(files)
        _refuse(data, split, bad, checked, len(files))
        parts.append(f"{split} {_described(source)}")
        if bad:
            notes.append(f"of {split} {_named(bad)}")
        if checked < len(files):
            notes.append(f"of {split} {checked:,} files were checked within {SECONDS:.0f} s")
    notes += _shared([(split, files) for split, _, files in lists])
    line = f"data.root={shown(str(data.root))}: {', '.join(parts)}"
    others = _other_splits(data, [split for split, _, _ in lists], lists[0][2])
    skipped = [left_out([source for _, source, _ in lists]), others]
    if any(skipped):
        notes.insert(0, f"not used: {', '.join(filter(None, skipped))}")
    # Others hold what is no image too, and count none.
    elif data.source in ("folder", "csv") and not _chosen(data, [split for split, _, _ in lists]):
        notes.insert(0, "all files are used")
    return "; ".join([line, *notes])


def _chosen(data: config.Data, opened: Iterable[str]) -> bool:
    """Whether options leave some images of the splits out, or may."""
    return bool(data.classes or data.exclude) or any("[" in split for split in opened)


def left_out(sources: Iterable[Source]) -> str:
    """The files and rows of folders and tables that are not used, counted; empty if all are."""
    skipped = Skipped()
    folders = [files for files in map(_files, sources) if isinstance(files, Folder | Tars)]
    # Both sides of a holdout share one folder, and all splits of tars and tables.
    for one in {folder.top: folder.skipped for folder in folders}.values():
        skipped.add(one)
    return skipped.describe()


def _other_splits(data: config.Data, opened: Iterable[str], files: Files) -> str:
    """The folders, lists and splits beside those opened, and images beside folders."""
    if data.holdout or (isinstance(files, Folder) and files.top == folders.local_root(data)):
        return ""
    kind = {"folder": "folder", "csv": "list"}.get(data.source, "split")
    there = split_roles.list_splits(data, labels=bool(files.classes))
    if kind == "list":  # beside other tables, such as one of `data.exclude`
        there = tuple(filter(splits.is_split, there))
    names = [part.name for split in opened for part in splits.parts(split)]
    used = {splits.find_folder(name, there) for name in names}
    others = [shown(name) for name in there if name not in used]
    named = ", ".join(others[:MOST_FOLDERS]) + ", ..." * (len(others) > MOST_FOLDERS)
    parts = [f"the {kind}{'s' * (len(others) > 1)} {named}"] if others else []
    if kind == "folder" and (loose := folders.count_images(folders.local_root(data))):
        parts.append(f"{loose:,} image{'s' * (loose > 1)} in no folder")
    return ", ".join(parts)


def warn_of_left_out(data: config.Data, *sources: Source) -> None:
    """Says what is left out of sources that no run has checked."""
    if skipped := left_out(sources):
        warn_of_assumptions(f"data.root={shown(str(data.root))}", [f"not used: {skipped}"])


def _shared(opened: list[tuple[str, Files]]) -> list[str]:
    """A note for each two splits that have images in common, by their paths."""
    notes = []
    for (first, one), (second, other) in itertools.combinations(opened, 2):
        names = {text.partition("[")[0] for text in (first, second)}
        # Lists name any image. Where slices of one split certainly overlap, `split_roles` says so;
        # bounds in percent and in images are compared only here.
        if splits.overlap(first, second) or (len(names) > 1 and not isinstance(one, CsvImages)):
            continue
        there = set(_paths(other))
        if common := [path for path in _paths(one) if path in there]:
            notes.append(f"of {second} {len(common):,} are in {first} too: {shown(common[0])}")
    return notes


def _paths(files: Files) -> Iterator[str]:
    """The paths of the images, each in one spelling."""
    if isinstance(files, CsvImages):
        return files.paths()
    return map(files.name, range(len(files)))


def unreadable(files: Files) -> tuple[list[tuple[str, str]], int]:
    """The unreadable files, each with the reason, and the number of files checked."""
    end = time.monotonic() + SECONDS
    bad: list[tuple[str, str]] = []
    checked = 0
    numbers, threads, size = iter(range(len(files))), 1, max(CHUNK // THREADS, 1)
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        while chunk := list(itertools.islice(numbers, size * threads)):
            started = time.monotonic()
            parts = [chunk[at : at + size] for at in range(0, len(chunk), size)]
            for found in (map if threads == 1 else pool.map)(
                lambda part: list(_unreadable_among(files, part)), parts
            ):
                bad += found
            checked += len(chunk)
            now = time.monotonic()
            if now > end:
                break
            # The first chunk is small: it measures whether the storage is worth threads.
            quick = now - started < QUICK * len(chunk)
            threads, size = (1 if quick else THREADS), CHUNK
    return bad, checked


def _unreadable_among(files: Files, numbers: list[int]) -> Iterator[tuple[str, str]]:
    for number in numbers:
        path = files.name(number)
        try:
            start = files.start(number) if isinstance(files, Tars) else _start(path)
        except BadImage as error:
            yield path, str(error)
            continue
        if not start.startswith(COMMON):
            if not start:
                yield path, "is empty" if isinstance(files, Tars) else _why_nothing(path)
            elif found := foreign_format(start):
                yield path, f"is {found}, whatever its suffix says"


def _start(path: str) -> bytes:
    """The first bytes of a file, at most 32; empty if it cannot be read."""
    try:
        # A file object takes twice as long, and a pipe without O_NONBLOCK forever.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            return os.read(file, 32)
        finally:
            os.close(file)
    except OSError:
        return b""


def _why_nothing(path: str) -> str:
    try:
        status = os.stat(path)  # noqa: PTH116 (the path is text)
        if not stat.S_ISREG(status.st_mode):
            return "is not a regular file"
        if not status.st_size:
            return "is empty"
        os.close(os.open(path, os.O_RDONLY))
    except FileNotFoundError:
        return "is a dangling link" if os.path.islink(path) else "does not exist"  # noqa: PTH114
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "cannot be read"


def foreign_format(start: bytes) -> str | None:
    """The format of an unsupported file, by its first 32 bytes; None for an image."""
    if start.startswith(tiff.MAGIC) or image_headers.read_header(start)[0] is not None:
        return None
    # A container of the ISO base media format, whose brand follows.
    if start[4:8] == b"ftyp":
        return BRANDS.get(start[8:12], "a video or HEIF file")
    text = start.removeprefix(codecs.BOM_UTF8).lstrip()
    named = (name for magic, name in CONTAINERS if text.startswith(magic))
    return next(named, "no image of a format that is read here")


def _refuse(
    data: config.Data, split: str, bad: list[tuple[str, str]], checked: int, total: int
) -> None:
    if len(bad) <= data.max_bad_examples:
        return
    among = f"{checked:,} of {total:,}" if checked < total else f"{total:,}"
    raise DataError(
        f"data.root={shown(str(data.root))}: of {among} images of {split} {_named(bad)}; fix or "
        f"remove them, or allow them with data.max_bad_examples={len(bad)}"
    )


def _named(bad: list[tuple[str, str]]) -> str:
    """`4 cannot be read: a.jpg is empty, b.jpg is a dangling link, ...`."""
    first = ", ".join(f"{shown(path)} {reason}" for path, reason in bad[:MOST_NAMED])
    return f"{len(bad):,} cannot be used: {first}{', ...' if len(bad) > MOST_NAMED else ''}"


def _described(source: Source) -> str:
    """`7,390 images of 37 classes (180 to 200 each)`."""
    text = f"{len(source):,} images"
    if isinstance(source, CsvImages) and source.targets is not None:
        return text
    text += f" of {len(source.classes):,} classes" if source.classes else " without labels"
    if not isinstance(source, Files) or not source.classes:
        return text
    labels = source.named if isinstance(source, CsvImages) else source.labels
    counts = np.bincount(labels, minlength=len(source.classes))
    least, most = int(counts.min()), int(counts.max())
    each = f"{least:,} each" if least == most else f"{least:,} to {most:,} each"
    without = np.flatnonzero(counts == 0).tolist()
    if without:
        each += f", none of {shown(source.classes[without[0]])}"
        more = len(without) - 1
        each += f" and {more:,} other{'s' * (more > 1)}" if more else ""
    return f"{text} ({each})"


def _files(source: Source) -> Files | None:
    """The files behind a source or its subset."""
    while not isinstance(source, Files):
        inner = getattr(source, "source", None)
        if inner is None:
            return None
        source = inner
    return source
