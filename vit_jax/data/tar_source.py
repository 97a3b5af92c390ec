"""Images in tars, Parquet files and Arrow files as sources, read where they are."""

import functools
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

from vit_jax import config
from vit_jax.data import folders, splits
from vit_jax.data.prepare import archives, assignment, image_listing, parquet, parquet_pages
from vit_jax.data.source import DataError, Record
from vit_jax.data.splits import Split
from vit_jax.runtime.logs import log
from vit_jax.utils import storage
from vit_jax.utils.digests import digest

FORMAT = "4"  # of a listing
PACKED = (".tar.gz", ".tgz", ".zip")  # archives that are not read in a folder
MOST_OPEN = 4  # tars of a thread; 16 threads read each split, and a process may have 1,024 files


class Tars:
    """Images of the tars, and of the image folders beside them, below `data.root`, or of one tar.

    A tar is a webdataset's shard, or holds class folders; the images of Arrow files are their rows.
    Paths, classes and splits are those that `vit_jax prepare --from=ROOT` makes of them. The order
    is that of `folders.Folder`, so tars of an image folder are trained on as the folder itself, and
    images of `exclude`, paths below root, are left out last as there. Without `labels` there are
    no classes: all images of a split count, at any depth.

    Attributes:
      labels: the labels of all examples (N,), int32.
      top: `data.root`.
      skipped: images in no class folder, of formats that are not read, or whose path comes again,
        and rows without a label, of all splits.
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
        """Raises DataError for tars that cannot be read, and ConfigError for a wrong slice."""
        root, requested = folders.local_root(data), Split.parse(split, key)
        listing, found = _arranged(data, labels=labels)
        self._label = _label(data, labels=labels)
        if data.holdout and len(found.order) > 1 and not found.held_out:
            there = ", ".join(found.order)
            raise DataError(
                f"data.holdout={data.holdout:g}: data.root={root} has splits, {there}; set 0"
            )
        if (there := splits.find_folder(requested.name, found.order)) is None:
            listed = ", ".join(map(folders.shown, found.order))
            alone = "; to hold out a tenth of it, set data.holdout=0.1" * (len(found.order) == 1)
            rows = f"{listing.empty_rows:,} rows have no image{' or no label' * labels}; "
            raise DataError(
                f"{key}={split}: no such split in data.root={root}; "
                f"{rows * bool(listing.empty_rows)}splits there: {listed}{alone}"
            )
        folders.warn_of_substitute(key, requested.name, there)
        chosen = found.order[there]  # by hash: a slice is a random sample
        if requested.low or requested.high:
            part = requested.select(len(chosen), key)
            chosen = chosen[part.start : part.stop]
        paths = [listing.path(at) for at in chosen.tolist()]
        left = folders.remaining(paths, exclude, data, f"{key}={split}")
        order = sorted(left, key=lambda at: (found.labels[chosen[at]], paths[at]))
        self.classes = found.classes
        self.labels = found.labels[chosen[order]]
        self._files, self._containers = listing.rows[chosen[order]], listing.containers
        self.top = root
        self.skipped = found.skipped(listing)
        self.skipped.ends += listing.unread
        self._paths = folders.FileNames(root, [paths[at] for at in order])
        self._readers = threading.local()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Record:
        return Record(self._bytes(index), int(self.labels[index]))

    def start(self, index: int) -> bytes:
        """The first 32 bytes of an image, or more; raises like reading it."""
        return self._bytes(index, 32)

    def _entry(self, index: int) -> archives.FileEntry:
        container, offset, size = self._files[index].tolist()
        return archives.FileEntry(
            self._paths.below(index), self._containers[container], offset, size
        )

    def _bytes(self, index: int, most: int | None = None) -> bytes:
        found = self._entry(index)
        if most is not None and found.offset >= 0:  # a member of a zip, or a file, is read whole
            found = found._replace(size=min(found.size, most))
        if (read := getattr(self._readers, "read", None)) is None:
            # One for each thread, as a reader closes tars when it has many of them open.
            read = self._readers.read = archives.Reader(MOST_OPEN)
        return read(found)

    def __getstate__(self) -> dict[str, object]:
        # Readers hold open files, which cannot be pickled: each process opens its own.
        return {name: value for name, value in vars(self).items() if name != "_readers"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, _readers=threading.local())

    def name(self, index: int) -> str:
        """The path below root, a tar being a folder there."""
        return self._paths[index]

    def fingerprint(self) -> str:
        """Covers classes, paths, labels and sizes."""
        return digest(
            "/".join(self.classes).encode(errors="surrogateescape"),
            self._paths.block,
            self._paths.ends.tobytes(),
            self.labels.astype("<i4").tobytes(),
            self._files[:, 2].astype("<i8").tobytes(),
        )


class Tables(Tars):
    """Rows of the Parquet files below `data.root`, or of one, of an image and its label.

    Paths are those of `vit_jax prepare` but for a suffix, which only an image itself says; so
    slices and a holdout are other random samples.
    """

    @functools.cached_property
    def _pages(self) -> parquet_pages.Reader:
        return parquet_pages.Reader(self._label)

    def _bytes(self, index: int, most: int | None = None) -> bytes:
        return self._pages(self._entry(index))

    def fingerprint(self) -> str:
        """Covers also where pages begin, which their sizes decide; an entry's is its row there."""
        return digest(super().fingerprint().encode(), self._files[:, 1].astype("<i8").tobytes())


def list_splits(data: config.Data, *, labels: bool) -> tuple[str, ...]:
    """The names of the splits; raises DataError."""
    if not data.root:
        return ()
    return tuple(_arranged(data, labels=labels)[1].order)


def list_paths(data: config.Data, *, labels: bool) -> Iterator[str]:
    """The paths below root of the images of all splits; raises DataError."""
    listing, _ = _arranged(data, labels=labels)
    return map(listing.path, range(len(listing)))


def _arranged(
    data: config.Data, *, labels: bool
) -> tuple[image_listing.Listing, assignment.Assignment]:
    label = _label(data, labels=labels)
    return _arranged_once(folders.local_root(data), data.holdout, data.cache, data.source, label)


def _label(data: config.Data, *, labels: bool) -> str | None:
    """The column of labels, as `parquet.find_columns` takes it."""
    return (data.labels or None) if labels else parquet.UNLABELED


@functools.cache  # a process reads what it found at its start
def _arranged_once(
    root: Path, holdout: float, cache: str | None, kind: str, label: str | None
) -> tuple[image_listing.Listing, assignment.Assignment]:
    """Their listing is kept in the folder `cache` until a file changes.

    There is one for each root and column of labels: a command that looks for labels in data without
    them would else replace it, and the next one would list all files again.
    """
    named = f"data.root={root}"
    if not root.exists():
        raise DataError(f"{named}: no such folder or file")
    files = [root] if root.is_file() else [root / path for path, _ in folders.walk(root, named)]
    tables = {
        one: [path for path in files if parquet.table_kind(path.name) == one]
        for one in parquet.KINDS
    }
    for other in parquet.KINDS:
        # They would be left out unseen.
        if other != kind and tables[other]:
            option = (
                "data.root to a folder of one kind" if tables.get(kind) else f"data.source={other}"
            )
            raise DataError(f"{named}: has {other.capitalize()} files; set {option}")
    packed = [path for path in files if path.name.lower().endswith(PACKED) and path != root]
    if packed and kind == "tar":
        raise DataError(
            f"{named}: {packed[0]} is no plain tar, so its images would be left out; unpack it, or "
            "move it away"
        )
    if kind in parquet.KINDS:
        files = tables[kind]
        if not files:
            raise DataError(f"{named}: has no file that ends in .{kind}")
    facts = [f"{FORMAT} {kind} {label}"]
    with storage.errors_as(DataError, named):
        for path in files:
            # Size and time of change stand for the contents, which take long to read.
            status = path.stat()
            facts.append(f"{path.relative_to(root)} {status.st_size} {status.st_mtime_ns}")
    # The arrangement is made anew: it takes little beside reading tars, and depends on options.
    column = "" if label is None else f"\n{label}"
    version, place = _digest("\n".join(facts)), _digest(f"{root.absolute()}{column}")
    caches = storage.cache_folder("data.cache", cache or "~/.cache/vit_jax")
    kept = caches / "listings" / f"{place}.npz"
    if (listing := image_listing.Listing.load(kept, version)) is None:
        if kind in parquet.KINDS:
            files = [one.absolute() for one in files]
            listing = image_listing.scan_tables(files, kind, label, named)
        else:
            unlabeled = label if label == parquet.UNLABELED else None
            listing = image_listing.scan([root.absolute()], label=unlabeled, key="data.root")
        try:
            listing.save(kept, version)
            log.info("%s: listed %s images; kept in %s", named, f"{len(listing):,}", kept)
        except OSError as error:
            # A cache that cannot be written costs time, not the run.
            log.warning("%s: is listed in every run: %s: %s", named, kept, error.strerror)
    labeled = label != parquet.UNLABELED
    return listing, assignment.arrange(listing, "train", named, holdout, labeled=labeled)


def _digest(text: str) -> str:
    return digest(text.encode(errors="surrogateescape"))
