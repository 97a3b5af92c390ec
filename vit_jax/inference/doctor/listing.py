"""The images of a folder with their splits and classes, whatever its layout."""

import dataclasses
import pathlib

import numpy as np

from vit_jax.config import ConfigError
from vit_jax.data import bucket, csv_source, folders, splits
from vit_jax.data.source import UNKNOWN
from vit_jax.utils import messages

HELD_OUT = ("train", "validation")  # the splits of a folder that has none


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listing:
    """Image files, none of them opened yet.

    Attributes:
      root: the folder.
      layout: what it is, in words.
      paths: of the images (N), below `root`, with `/`.
      splits: names; one alone if nothing is held out.
      split: (N,) int64, indices into `splits`.
      classes: names, of images of several classes joined by `;`.
      label: (N,) int64, indices into `classes`, or UNKNOWN.
      several: whether some image has several classes, or none in a list.
      unused: what else there is, in words.
    """

    root: pathlib.Path
    layout: str
    paths: list[str]
    splits: tuple[str, ...]
    split: np.ndarray
    classes: tuple[str, ...]
    label: np.ndarray
    several: bool
    unused: str


def list_images(root: pathlib.Path, holdout: float, *, labels: bool) -> Listing:
    """Lists a folder of CSV lists, of split folders, of class folders, or of images.

    Images of a folder without splits belong to those that `data.holdout` would make. Without
    `labels`, names of folders other than splits mean nothing. Raises ConfigError or DataError.
    """
    if not root.is_dir():
        what = "not a folder" if root.exists() else "no such folder"
        raise ConfigError(f"{bucket.shown(root)}: {what}")
    # Other CSV files may be in the folder of images, such as one that this command wrote.
    lists = {n: path for n, path in csv_source.list_splits(root).items() if splits.is_split(n)}
    if lists:
        rows = [
            (row.image, name, ";".join(sorted(row.classes)), len(row.classes) != 1)
            for name, path in lists.items()
            for row in csv_source.read_table(path, labels=labels)[1]
        ]
        several = labels and any(odd for *_, odd in rows)
        found = [(path, split, name if labels else None) for path, split, name, _ in rows]
        return _listing(root, f"lists: {', '.join(f'{n}.csv' for n in lists)}", found, several)
    paths, unused = folders.all_images(root, *[bucket.shown(root)] * 2)
    parts = [pathlib.PurePosixPath(path).parts for path in paths]
    if known := splits.find_splits({one[0] for one in parts if len(one) > 1}):
        inside = [(path, one) for path, one in zip(paths, parts, strict=True) if one[0] in known]
        outside = len(paths) - len(inside)
        unused += f"{', ' * bool(unused)}{outside:,} images in no split" if outside else ""
        named = [
            (path, one[0], one[1] if labels and len(one) > 2 else None) for path, one in inside
        ]
        return _listing(root, "one folder per split", named, False, unused)
    classes = [one[0] if labels and len(one) > 1 else None for one in parts]
    held = np.zeros(len(paths), bool)
    if holdout:
        # Files outside of class folders have None, and are held out in the same share.
        numbers = {name: at for at, name in enumerate(dict.fromkeys(classes))}
        hashes = list(map(folders.hash64, paths))
        held = folders.held_out([numbers[name] for name in classes], hashes, holdout)
    layout = "one folder per class" if any(classes) else "images without classes"
    # False is index 0, train.
    sides = [HELD_OUT[apart] for apart in held.tolist()]
    named = list(zip(paths, sides, classes, strict=True))
    return _listing(root, layout, named, False, unused)


def _listing(
    root: pathlib.Path,
    layout: str,
    found: list[tuple[str, str, str | None]],
    several: bool,
    unused: str = "",
) -> Listing:
    """Numbers splits and classes; `found` has (path, split, class or None)."""
    splits_ = tuple(sorted({split for _, split, _ in found}, key=lambda name: (_rank(name), name)))
    classes = tuple(sorted({name for *_, name in found if name is not None}))
    numbers: dict[str | None, int] = {name: at for at, name in enumerate(classes)}
    numbers[None] = UNKNOWN
    return Listing(
        root=root,
        layout=layout,
        paths=[path for path, _, _ in found],
        splits=splits_,
        split=np.array([splits_.index(split) for _, split, _ in found], np.int64),
        classes=tuple(map(messages.printable, classes)),
        label=np.array([numbers[name] for *_, name in found], np.int64),
        several=several,
        unused=unused,
    )


def _rank(split: str) -> int:
    """Training images first, test images last."""
    for rank, names in enumerate((splits.TRAIN, splits.VALIDATION, splits.TEST), start=1):
        if split.lower() in names:
            return rank
    return 0
