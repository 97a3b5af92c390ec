"""Assigns images to classes and splits and orders them, from their paths only."""

import array
import collections
import dataclasses
import os
import pathlib
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from vit_jax.data import class_matching, folders, splits
from vit_jax.data.folders import SUFFIXES, Skipped
from vit_jax.data.prepare import parquet
from vit_jax.data.prepare.image_listing import Listing
from vit_jax.data.source import UNKNOWN, DataError
from vit_jax.runtime import logs

EVALUATION = (*splits.VALIDATION, *splits.TEST)
MOST_ENDS = 4  # of names, in a message
HELD_OUT = "validation"  # the split made if there is none to evaluate on


@dataclasses.dataclass(frozen=True)
class Assignment:
    """The classes, and the images of every split in their final order.

    Images are ordered by the first 64 bits of the SHA-256 of their path below the split,
    `CLASS/...`, or without labels any path. Any range is a random sample, and the same one that
    `data.source=folder` selects.
    """

    classes: tuple[str, ...]  # names of the classes; empty without labels
    order: dict[str, np.ndarray]  # positions in the listing by split
    labels: np.ndarray  # int32, by position in the listing; UNKNOWN without labels
    below: int  # bytes of a path before its split or class: the common parent folders
    ignored: tuple[str, ...]  # images outside of class folders
    repeated: tuple[str, ...]  # images whose path comes again, of which the last counts
    held_out: bool  # whether HELD_OUT was cut from the training split

    def skipped(self, listing: Listing) -> Skipped:
        """Counts these images, and the rows of the listing without one."""
        labeled = bool(self.classes)
        found = Skipped(rows=listing.empty_rows, repeated=len(self.repeated), labeled=labeled)
        for path in self.ignored:
            found.note_loose(path)
        return found


def arrange(
    listing: Listing, unsplit: str, named: str, holdout: float = 0.0, *, labeled: bool = True
) -> Assignment:
    """Assigns the images of a listing by `SPLIT/CLASS/...`, if `splits.find_splits` finds splits.

    Otherwise by `CLASS/...`, with all images in the split `unsplit`. Common parent
    folders are ignored. `named` are the sources, for messages. Raises DataError for fewer than two
    classes.

    If there is only a training split and `holdout` > 0, that fraction of each class becomes the
    split HELD_OUT: the images that `data.holdout` selects in an image folder, by hash; at least one
    of each class with two or more images, and never all.

    Unless `labeled`, images lie at any depth, in `SPLIT/...` or anywhere, and folders are no
    classes.
    """
    if not len(listing) and listing.empty_rows:
        what = "both an image, as bytes, and a label" if labeled else "an image, as bytes"
        raise DataError(
            f"{named}: none of its {listing.empty_rows:,} rows has {what}; `datasets` keeps paths "
            "alone of files that were not embedded"
        )
    if not len(listing):
        raise DataError(f"{named}: has no image; images end in {', '.join(SUFFIXES)}")
    below, there = _common_parents(listing, named, labeled=labeled)
    # By split; arrays, because 14 million numbers in lists would take half a gigabyte.
    positions: dict[str, array.array[int]] = collections.defaultdict(lambda: array.array("q"))
    members = collections.defaultdict[str, set[str]](set)  # classes by split
    numbers: dict[str, int] = {}  # of classes, as they come
    labels, hashes = np.zeros(len(listing), np.int32), np.zeros(len(listing), np.uint64)
    ignored, nested = [], set[tuple[str, str]]()
    for index, path in enumerate(_paths(listing, below)):
        split, inside = path.partition("/")[::2] if there else (unsplit, path)
        name, slash, rest = inside.partition("/") if labeled else ("", inside, "")
        if not slash or (there and split not in there):
            ignored.append(listing.path(index))
            continue
        if not there and "/" in rest:
            nested.add((name, rest.partition("/")[0]))
        positions[split].append(index)
        members[split].add(name)
        labels[index] = numbers.setdefault(name, len(numbers))
        hashes[index] = folders.hash64(inside)
    logs.warn_of_assumptions(named, splits.within_classes(nested))
    classes = _class_names(members, named) if labeled else ()
    tars = (pathlib.PurePath(one) for one in listing.containers if one.lower().endswith(".tar"))
    named_so = next((tar for tar in tars if tar.stem in classes), None)
    if named_so is not None and len(listing.containers) > 1:  # one tar alone is no folder
        line = (
            f"a tar is a class of its name, such as {named_so.name}, whatever folders it holds; "
            "one of class folders is called as its split is: train.tar"
        )
        logs.warn_of_assumptions(named, [line])
    if classes and listing.sharing:
        ends = ", ".join(f"{n:,} .{end}" for end, n in listing.sharing.most_common(MOST_ENDS))
        line = f"examples of a tar have several images each ({ends}), all of them of its label"
        logs.warn_of_assumptions(named, [line])
    final = {name: number for number, name in enumerate(classes)}
    # From numbers in the order of coming to those of sorted names.
    labels = np.array([final.get(name, UNKNOWN) for name in numbers], np.int32)[labels]
    order, repeated = {}, list[str]()
    for split in sorted(positions):
        found = np.array(positions[split], np.int64)
        # Stable: images of one path keep the order of the listing.
        found = found[np.argsort(hashes[found], kind="stable")]
        # Of images with the same path, the last one wins, as a tar that is unpacked has it.
        raw = listing.raw_path
        same = np.flatnonzero(hashes[found[1:]] == hashes[found[:-1]])
        again = [at for at in same.tolist() if raw(found[at]) == raw(found[at + 1])]
        for at in again:
            _check_one_tar(listing, found[at], found[at + 1], named)
        repeated += [listing.path(found[at]) for at in again]
        order[split] = np.delete(found, again)
    held_out = False
    if holdout and len(order) == 1 and min(order).lower() in splits.TRAIN:
        train = order[min(order)]
        held = folders.held_out(labels[train], hashes[train], holdout)
        held_out = bool(held.any())
        if held_out:
            order = {min(order): train[~held], HELD_OUT: train[held]}
    return Assignment(classes, order, labels, below, tuple(ignored), tuple(repeated), held_out)


def _check_one_tar(listing: Listing, index: int, other: int, named: str) -> None:
    """Raises DataError for images of one path in two tars of one name, which is part of the path.

    One of them would be lost. Where a tar holds a path again, the last one counts, as unpacked.
    """
    name = listing.path(index).rpartition("/")[2]
    one, two = listing[index].container, listing[other].container
    stem, same = (pathlib.PurePath(path).stem for path in (one, two))
    if one != two and stem == same and name.startswith(f"{stem}-"):
        raise DataError(parquet.same_name(named, one, two))


def _paths(listing: Listing, below: int) -> Iterator[str]:
    for index in range(len(listing)):
        yield os.fsdecode(listing.raw_path(index)[below:])


def _common_parents(listing: Listing, named: str, *, labeled: bool) -> tuple[int, set[str]]:
    """The length in bytes of the common parent folders, and the splits that follow.

    Ignores images next to the split or class folders. Unless `labeled`, only parents of splits
    count, so that the hash of a path is that of `data.source=folder`.
    """
    # All levels are counted at once: a pass over all paths for each of 2,000 would take minutes.
    first = listing.path(0).split("/")
    common = fewest = len(first)
    for path in _paths(listing, 0):
        parts = path.split("/")
        fewest = min(fewest, len(parts))
        while parts[:common] != first[:common]:
            common -= 1
    kept = 2 if labeled else 1  # a class and an image, or an image
    # A split is no common parent, even where all images lie in one.
    level = next(
        (k for k in range(common) if fewest <= k + kept or splits.is_split(first[k])), common
    )
    below = len(os.fsencode("".join(f"{part}/" for part in first[:level])))
    tops = collections.defaultdict[str, set[str]](set)  # and the folders in them
    for path in _paths(listing, below):
        top, *inside = path.split("/", 2)
        if inside:
            tops[top].update(inside[:-1])
    there = splits.find_splits(tops)
    if not labeled:
        return (below, there) if there else (0, there)
    # Of tables and tars with labels, files that name no split have their classes beside `train`.
    there = there or {
        top for top in filter(splits.is_split, tops) if not tops[top].isdisjoint(tops)
    }
    nested = any(tops.values())
    if there == set(tops) and not nested and len(tops) > 1:
        raise DataError(
            f"{named}: images lie in {', '.join(sorted(tops))} without class folders; "
            f"expected SPLIT/CLASS/IMAGE{parquet.without_labels(named)}"
        )
    return below, there if nested else set()


def _class_names(members: Mapping[str, Collection[str]], named: str) -> tuple[str, ...]:
    """The class names of the training split, or else of all splits."""
    if not members:
        raise DataError(
            f"{named}: its images are in no folders; expected CLASS/IMAGE"
            f"{parquet.without_labels(named)}"
        )
    train = next((split for split in members if split.lower() in splits.TRAIN), None)
    # A test split may lack a class, but one that only it has cannot be learned.
    classes = set(members[train]) if train else set().union(*members.values())
    if len(classes) < 2:
        raise DataError(
            f"{named}: one class folder alone, {min(classes)}; expected CLASS/IMAGE, 2 at least"
            f"{parquet.without_labels(named)}"
        )
    for split, found in members.items():
        if unknown := sorted(set(found) - classes):
            shown = ", ".join(unknown[:10]) + (", ..." if len(unknown) > 10 else "")
            raise DataError(
                f"{named}: class folders of {split} that are missing in {train}: {shown}"
                f"{class_matching.other_form(unknown, tuple(classes))}"
            )
    for name in classes:
        # TFDS stores the names one per line, and strips them as it reads them.
        if not name.isprintable() or name != name.strip():
            raise DataError(f"{named}: class folder {name!r}: not a class name; rename it")
    return tuple(sorted(classes))
