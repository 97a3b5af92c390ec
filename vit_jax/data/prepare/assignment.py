"""Assigns images to classes and splits and orders them, from their paths only."""

import dataclasses
import hashlib
import os
from collections.abc import Iterator, Sequence

import numpy as np

from vit_jax.data import splits
from vit_jax.data.folders import SUFFIXES
from vit_jax.data.prepare.image_listing import Listing
from vit_jax.data.source import DataError

TRAIN = splits.TRAIN
EVALUATION = (*splits.VALIDATION, *splits.TEST)
HELD_OUT = "validation"  # the split made if there is none to evaluate on


@dataclasses.dataclass(frozen=True)
class Assignment:
    """The classes, and the images of every split in their final order.

    Images are ordered by the first 64 bits of the SHA-256 of their path below the split,
    `CLASS/...`. Any range is a random sample, and the same one that `data.source=folder` selects.
    """

    classes: tuple[str, ...]
    order: dict[str, np.ndarray]  # split: positions in the listing
    labels: np.ndarray  # by position in the listing
    below: int  # bytes of a path before its split or class: the common parent folders
    ignored: tuple[str, ...]  # images outside of class folders, then images with a repeated path
    repeated: int = 0  # how many the latter are
    held_out: bool = False  # whether HELD_OUT was cut from the training split


def arrange(listing: Listing, unsplit: str, named: str, holdout: float = 0.0) -> Assignment:
    """Assigns the images of a listing by `SPLIT/CLASS/...`, if all top folders are called splits.

    Otherwise by `CLASS/...`, with all images in the split `unsplit`. Common parent
    folders are ignored. `named` are the sources, for messages. Raises DataError for fewer than two
    classes.

    If there is only a training split and `holdout` > 0, that fraction of each class becomes the
    split HELD_OUT: the images that `data.holdout` selects in an image folder, by hash; at least one
    of each class with two or more images, and never all.
    """
    if not len(listing):
        raise DataError(f"{named}: has no image; images end in {', '.join(SUFFIXES)}")
    below, split = _depth(listing, named)
    found: dict[str, dict[str, int]] = {}
    splits = np.zeros(len(listing), np.int16)
    numbers: dict[str, int] = {}
    members = np.zeros(len(listing), np.int32)
    names: dict[str, int] = {}
    hashes = np.zeros(len(listing), np.uint64)
    loose = []
    for index, path in enumerate(_paths(listing, below)):
        at, inside = (path.partition("/")[::2]) if split else (unsplit, path)
        name, slash, _ = inside.partition("/")
        if not slash:
            loose.append(index)
            splits[index] = -1
            continue
        splits[index] = numbers.setdefault(at, len(numbers))
        members[index] = names.setdefault(name, len(names))
        found.setdefault(at, {})[name] = 1
        digest = hashlib.sha256(os.fsencode(inside)).digest()
        hashes[index] = int.from_bytes(digest[:8], "big")
    classes = _classes({at: set(members) for at, members in found.items()}, named)
    place = {name: number for number, name in enumerate(classes)}
    table = np.array([place[name] for name in names], np.int32)
    order, repeated = {}, []
    for at, number in sorted(numbers.items()):
        mine = np.flatnonzero(splits == number)
        mine = mine[np.argsort(hashes[mine], kind="stable")]
        again = _repeated(listing, mine, hashes[mine])
        repeated += mine[again].tolist()
        order[at] = np.delete(mine, again)
    labels = table[members]
    held_out = bool(holdout) and len(order) == 1 and min(order).lower() in TRAIN
    if held_out:
        held_out = _hold_out(order, min(order), holdout, labels, hashes)
    return Assignment(
        classes,
        order,
        labels,
        below,
        tuple(listing.path(index) for index in [*loose, *repeated]),
        len(repeated),
        held_out,
    )


def _hold_out(
    order: dict[str, np.ndarray],
    train: str,
    holdout: float,
    labels: np.ndarray,
    hashes: np.ndarray,
) -> bool:
    """Moves a fraction of each class from `order[train]` to HELD_OUT; returns whether any moved."""
    held = np.zeros(len(order[train]), bool)
    classes = labels[order[train]]
    by_class = np.argsort(classes, kind="stable")  # stable: ordered by hash within a class
    for places in np.split(by_class, np.flatnonzero(np.diff(classes[by_class])) + 1):
        # As a Python integer: a float of 2**64 would round.
        below = sum(int(one) < holdout * 2**64 for one in hashes[order[train][places]])
        count = min(max(below, 1), len(places) - 1)
        held[places[:count]] = True
    if held.any():
        order[HELD_OUT] = order[train][held]
        order[train] = order[train][~held]
    return bool(held.any())


def _paths(listing: Listing, below: int) -> Iterator[str]:
    for index in range(len(listing)):
        yield os.fsdecode(listing.raw_path(index)[below:])


def _depth(listing: Listing, named: str) -> tuple[int, bool]:
    """The length in bytes of the common parent folders, and whether splits follow.

    Ignores images next to the split or class folders.
    """
    # All levels are counted at once: a pass over all paths for each of 2,000 would take minutes.
    first = listing.path(0).split("/")
    common = fewest = len(first)
    for path in _paths(listing, 0):
        parts = path.split("/")
        fewest = min(fewest, len(parts))
        while parts[:common] != first[:common]:
            common -= 1
    level = next((k for k in range(common) if fewest <= k + 2 or splits.is_split(first[k])), common)
    below = len(os.fsencode("".join(f"{part}/" for part in first[:level])))
    tops: set[str] = set()
    deep = False  # nested folders
    for path in _paths(listing, below):
        parts = path.split("/", 2)
        deep = deep or len(parts) == 3
        if len(parts) > 1:
            tops.add(parts[0])
    split = bool(tops) and all(map(splits.is_split, tops))
    if split and not deep and len(tops) > 1:
        raise DataError(
            f"{named}: images lie in {', '.join(sorted(tops))} without class folders; "
            "expected SPLIT/CLASS/IMAGE"
        )
    return below, split and deep


def _classes(found: dict[str, set[str]], named: str) -> tuple[str, ...]:
    """The class names of the training split, or else of all splits."""
    if not found:
        raise DataError(f"{named}: its images are in no folders; expected CLASS/IMAGE")
    train = [at for at in found if at.lower() in TRAIN]
    classes = found[train[0]] if train else set().union(*found.values())
    if len(classes) < 2:
        raise DataError(
            f"{named}: one class folder alone, {min(classes)}; expected CLASS/IMAGE, 2 at least"
        )
    for at, here in found.items():
        if unknown := sorted(here - classes):
            shown = ", ".join(unknown[:10]) + (", ..." if len(unknown) > 10 else "")
            raise DataError(
                f"{named}: class folders of {at} that are missing in {train[0]}: {shown}"
            )
    for name in classes:
        if not name.isprintable() or name != name.strip():
            raise DataError(f"{named}: class folder {name!r}: no name for a class; rename it")
    return tuple(sorted(classes))


def _repeated(listing: Listing, order: np.ndarray, hashes: np.ndarray) -> Sequence[int]:
    """The positions in `order` of images whose path occurs again later, which wins."""
    same = np.flatnonzero(hashes[1:] == hashes[:-1])
    return [
        int(at)
        for at in same
        if listing.raw_path(int(order[at])) == listing.raw_path(int(order[at + 1]))
    ]
