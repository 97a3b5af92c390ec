"""Which image is of which class and split, and in what order: decided by paths alone."""

import dataclasses
import hashlib
import os
from collections.abc import Iterator, Sequence

import numpy as np

from vit_jax.data.examples import DataError
from vit_jax.prepare.inputs import Listing

TRAIN = ("train", "training")
EVALUATION = ("val", "valid", "validation", "test", "testing", "minival", "dev")


@dataclasses.dataclass(frozen=True)
class Layout:
    """The classes, and the images of every split in their final order.

    The order is that of the first 64 bits of the SHA-256 of the path below the split, `CLASS/...`:
    any part of it is a random sample, and the same that `data.source=folder` takes for such a part.
    """

    classes: tuple[str, ...]
    order: dict[str, np.ndarray]  # split: positions in the listing
    labels: np.ndarray  # by position in the listing
    below: int  # bytes of a path before its split or class: folders that all have in common
    ignored: tuple[str, ...]  # paths of images in no class folder, or of a repeated name


def arrange(listing: Listing, unsplit: str, named: str) -> Layout:
    """Returns the layout of a listing: `SPLIT/CLASS/...` where all top folders are splits' names.

    Otherwise it is `CLASS/...`, all in the split `unsplit`. Folders around all of it are left out.
    `named` are the sources, for messages. Raises DataError where there are fewer than two classes.
    """
    if not len(listing):
        raise DataError(f"{named}: has no image; images end in .jpg, .jpeg, .png or .webp")
    below, split = _depth(listing)
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
    classes = _classes({at: set(of) for at, of in found.items()}, named)
    place = {name: number for number, name in enumerate(classes)}
    table = np.array([place[name] for name in names], np.int32)
    order, repeated = {}, []
    for at, number in sorted(numbers.items()):
        mine = np.flatnonzero(splits == number)
        mine = mine[np.argsort(hashes[mine], kind="stable")]
        again = _repeated(listing, mine, hashes[mine])
        repeated += mine[again].tolist()
        order[at] = np.delete(mine, again)
    return Layout(
        classes,
        order,
        table[members],
        below,
        tuple(listing.path(index) for index in [*loose, *repeated]),
    )


def _paths(listing: Listing, below: int) -> Iterator[str]:
    for index in range(len(listing)):
        yield os.fsdecode(listing.raw_path(index)[below:])


def _depth(listing: Listing) -> tuple[int, bool]:
    """Returns the bytes of the folders that all paths begin with, and whether splits come next."""
    below = 0
    while True:
        tops: set[str] = set()
        deep = True  # whether there are folders within the top folders, everywhere
        for path in _paths(listing, below):
            parts = path.split("/", 2)
            tops.add(parts[0] if len(parts) > 1 else "")
            deep = deep and len(parts) == 3
        if deep and all(top.lower() in (*TRAIN, *EVALUATION) for top in tops):
            return below, True
        if not deep or len(tops) != 1:
            return below, False
        below += len(os.fsencode(tops.pop())) + 1


def _classes(found: dict[str, set[str]], named: str) -> tuple[str, ...]:
    """Returns the class names: those of the training split, or else of all."""
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
                f"{named}: class folders of {at} that {train[0]} does not have: {shown}"
            )
    for name in classes:
        if not name.isprintable() or name != name.strip():
            raise DataError(f"{named}: class folder {name!r}: no name for a class; rename it")
    return tuple(sorted(classes))


def _repeated(listing: Listing, order: np.ndarray, hashes: np.ndarray) -> Sequence[int]:
    """Returns the places in `order` of images whose path comes again later; that one counts."""
    same = np.flatnonzero(hashes[1:] == hashes[:-1])
    return [
        int(at)
        for at in same
        if listing.raw_path(int(order[at])) == listing.raw_path(int(order[at + 1]))
    ]
