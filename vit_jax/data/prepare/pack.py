"""Packs folders, tars and zips of images into a dataset; resumes after any interruption."""

import dataclasses
import functools
import hashlib
import json
import pathlib
import re
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

from vit_jax.data.folders import Skipped
from vit_jax.data.prepare import assignment, dedup, image_listing, shards, staging
from vit_jax.data.prepare.shards import SHARD_BYTES, Planned, Settings, Shard
from vit_jax.data.source import DataError

Path = pathlib.Path

VERSION = "1.0.0"
PRINTS = "prints.npz"
FORM = 1  # raised when the same images would be packed to other bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Packing:
    """A packing job.

    Attributes:
      sources: folders, tars and zips.
      name: name of the dataset.
      data_dir: parent of its folder.
      unsplit: split for images outside of split folders.
      holdout: fraction of each class that becomes a validation split if there is none.
      max_side: longest side of an image, or None.
      max_pixels: largest image to decode.
      prints: fingerprints of images to leave out, or None.
      against: tasks that these images belong to.
      distance: largest Hamming distance of a near duplicate's hash.
      workers: processes.
      shard_bytes: approximate bytes of images per shard.
    """

    sources: Sequence[Path]
    name: str
    data_dir: Path
    unsplit: str = "train"
    holdout: float = 0.0
    max_side: int | None = None
    max_pixels: int
    prints: dedup.Prints | None = None
    against: Sequence[str] = ()
    distance: int = dedup.THRESHOLD
    workers: int = 1
    shard_bytes: int = SHARD_BYTES

    @property
    def folder(self) -> Path:
        """The folder of the complete dataset."""
        return self.data_dir / self.name / VERSION

    @property
    def part(self) -> Path:
        """The folder used until the dataset is complete."""
        return staging.hidden(self.folder)


def pack(packing: Packing) -> dict[str, Any]:
    """Packs a dataset and returns the contents of its `vit_jax.json`."""
    return staging.write_dataset(
        packing.name, packing.folder, functools.partial(_plan, packing), packing.workers
    )


def _plan(packing: Packing, part: Path) -> staging.Work:
    listing, assigned = inspect_sources(packing)
    settings = Settings(
        classes=assigned.classes,
        below=assigned.below,
        max_side=packing.max_side,
        max_pixels=packing.max_pixels,
        prints=part / PRINTS if packing.prints else None,
        distance=packing.distance,
    )
    remedy = "free some space, choose another --data-dir, or shrink images with --max-side=512"
    prints = packing.prints
    return staging.Work(
        fingerprint=_fingerprint(packing, listing, assigned),
        planned=list(plan_shards(packing, listing, assigned)),
        shard=functools.partial(_shard, listing, assigned),
        packer=functools.partial(shards.Packer, settings),
        finish=functools.partial(_finish, packing, assigned, listing),
        remedy=remedy if packing.max_side is None else None,  # sizes of resized images are unknown
        first=(lambda: None) if prints is None else functools.partial(prints.save, part / PRINTS),
    )


def check_same(packing: Packing, *, keep_part: bool = False) -> int:
    """The number of packed images; raises DataError if they have other settings.

    Also removes leftovers of a command that was killed at its very end, unless `keep_part`.
    """
    if not keep_part:
        shutil.rmtree(packing.part, ignore_errors=True)
    try:
        facts = json.loads((packing.folder / staging.FACTS).read_text())
        images = sum(split["examples"] for split in facts["splits"].values())
    except (OSError, ValueError, KeyError, RecursionError):
        raise DataError(
            f"{packing.folder}: exists, but was not packed by this command; remove it"
        ) from None
    held = facts.get("holdout")  # None: it had splits, or is from before there was a holdout
    for key, value in (
        ("holdout", held if held is None else packing.holdout),
        ("max_side", packing.max_side),
        ("dedup_against", list(packing.against)),
        ("dedup_distance", packing.distance if packing.against else None),
    ):
        if facts.get(key) != value:
            raise DataError(
                f"{packing.folder}: was packed with {key} {facts.get(key)}, not {value}; to pack "
                f"it again, remove it: rm -r {packing.folder}"
            )
    return images


def check_sources(packing: Packing) -> None:
    """Raises DataError for a missing source."""
    for source in packing.sources:
        if not source.exists():
            raise DataError(f"--from={source}: no such file or folder")


def kept_prints(packing: Packing) -> dedup.Prints | None:
    """The fingerprints of an earlier attempt, which are slow to compute; else None."""
    if (packing.part / staging.PLAN).exists() and (packing.part / PRINTS).exists():
        return dedup.Prints.load(packing.part / PRINTS)
    return None


def inspect_sources(packing: Packing) -> tuple[image_listing.Listing, assignment.Assignment]:
    """The images in the sources, and their split, class and order; writes nothing."""
    named = ", ".join(map(str, packing.sources))
    listing = image_listing.scan(packing.sources)
    assigned = assignment.arrange(listing, packing.unsplit, f"--from={named}", packing.holdout)
    return listing, assigned


def _fingerprint(
    packing: Packing, listing: image_listing.Listing, assigned: assignment.Assignment
) -> str:
    """A digest of everything that determines the contents of the shards."""
    total = hashlib.sha256()
    facts = [FORM, packing.name, packing.max_side, packing.max_pixels, packing.shard_bytes]
    total.update(json.dumps([*facts, list(packing.against), list(assigned.classes)]).encode())
    for split, order in assigned.order.items():
        total.update(split.encode())
        for position in order.tolist():
            total.update(listing.raw_path(position))
        total.update(listing.sizes()[order].astype("<i8").tobytes())
        total.update(assigned.labels[order].astype("<i4").tobytes())
    if packing.prints is not None:
        total.update(packing.prints.exact.tobytes() + bytes([packing.distance]))
    return total.hexdigest()


def plan_shards(
    packing: Packing, listing: image_listing.Listing, assigned: assignment.Assignment
) -> Iterator[Planned]:
    """Yields the shards of every split, with the positions of their images in the listing."""
    for split, order in assigned.order.items():
        if not re.fullmatch(r"\w+", split):
            raise DataError(f"--from: folder {split}: no name for a split; letters, digits and _")
        path = packing.part / staging.WHOLE / packing.name
        yield from shards.divide(path, split, order, listing.sizes(), packing.shard_bytes)


def _shard(listing: image_listing.Listing, assigned: assignment.Assignment, one: Planned) -> Shard:
    """A shard with the places of its images."""
    return Shard(
        one.path,
        [listing.found(position) for position in one.positions.tolist()],
        assigned.labels[one.positions].tolist(),
        one.split.lower() in assignment.EVALUATION and not assigned.held_out,
    )


def _finish(
    packing: Packing,
    assigned: assignment.Assignment,
    listing: image_listing.Listing,
    whole: Path,
    packed: staging.Packed,
) -> dict[str, Any]:
    """Writes the metadata and returns the facts, which do not depend on interruptions."""
    outcomes = [outcome for _, outcome in packed]
    splits, infos = {}, {}
    for split in assigned.order:
        mine = [each for each in packed if each[0].split == split]
        splits[split] = shards.join_names(whole / f"{split}.txt", mine)
        infos[split] = [(outcome.examples, outcome.bytes) for _, outcome in mine]
        if not splits[split]["examples"]:
            bad = next((row for _, outcome in mine for row in outcome.bad), None)
            first = f"; the first: {bad[0]}: {bad[1]}" if bad else ""
            raise DataError(f"--from: none of the images of split {split} can be packed{first}")
    shards.write_info(whole, packing.name, VERSION, assigned.classes, infos)
    return {
        "name": packing.name,
        "splits": splits,
        "classes": len(assigned.classes),
        "order": "first 64 bits of SHA-256 of CLASS/...",
        "max_side": packing.max_side,
        "jpeg_quality": shards.QUALITY if packing.max_side else None,
        "resized": sum(outcome.resized for outcome in outcomes),
        "dedup_against": list(packing.against),
        "dedup_distance": packing.distance if packing.against else None,
        "duplicates": [row for outcome in outcomes for row in outcome.duplicates],
        "corrupt": [row for outcome in outcomes for row in outcome.bad],
        "holdout": packing.holdout if assigned.held_out else None,
        "ignored": len(listing.ignored) + len(assigned.ignored),
        "ignored_why": why_ignored(listing, assigned),
        "ignored_first": sorted([*assigned.ignored, *listing.ignored])[:100],
        "shards": {one.path.name: outcome.sha256 for one, outcome in packed},
    }


def why_ignored(listing: image_listing.Listing, assigned: assignment.Assignment) -> str:
    """The kinds of skipped files with their numbers."""
    skipped = Skipped()
    for path in listing.ignored:
        skipped.note(path)
    for path in assigned.ignored[: len(assigned.ignored) - assigned.repeated]:
        skipped.note_loose(path)
    again = f"{assigned.repeated:,} whose path comes again" if assigned.repeated else ""
    return ", ".join(filter(None, [skipped.describe(), again]))
