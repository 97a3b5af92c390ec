"""Packs folders, tars and zips of images into a data set; resumes after any interruption."""

import dataclasses
import functools
import hashlib
import json
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vit_jax.data.folders import Skipped
from vit_jax.data.prepare import (
    assignment,
    dataset_info,
    dedup,
    image_listing,
    processes,
    shards,
    staging,
)
from vit_jax.data.prepare.shards import SHARD_BYTES, Outcome, Planned, Settings, Shard
from vit_jax.data.prepare.staging import PLAN, WHOLE
from vit_jax.data.source import DataError
from vit_jax.utils import storage

Path = pathlib.Path

VERSION = "1.0.0"
FACTS, PRINTS = "vit_jax.json", "prints.npz"
FORM = 1  # raised when the same images would be packed to other bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Packing:
    """A packing job.

    Attributes:
      sources: folders, tars and zips.
      name: name of the data set.
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
        """The folder of the complete data set."""
        return self.data_dir / self.name / VERSION

    @property
    def part(self) -> Path:
        """The folder used until the data set is complete."""
        return staging.folder(self.folder)


def pack(packing: Packing) -> dict[str, Any]:
    """Packs a data set and returns the contents of its `vit_jax.json`.

    Keeps the shards that an earlier attempt with the same images and settings finished; the result
    is identical to an uninterrupted run, byte for byte.
    """
    with staging.alone(packing.part):
        listing, plan = _look(packing)
        settings = Settings(
            classes=plan.classes,
            below=plan.below,
            max_side=packing.max_side,
            max_pixels=packing.max_pixels,
            prints=packing.part / PRINTS if packing.prints else None,
            distance=packing.distance,
        )
        prints = packing.prints
        save: Callable[[], None] | None = None
        if prints is not None:
            save = functools.partial(prints.save, packing.part / PRINTS)
        staging.begin(packing.part, _fingerprint(packing, listing, plan), save)
        packed = processes.finish(
            packing.name,
            list(plan_shards(packing, listing, plan)),
            functools.partial(_check_room, packing, listing),
            functools.partial(_shard, listing, plan),
            functools.partial(shards.Packer, settings),
            packing.workers,
        )
        facts = _facts(packing, plan, listing, packed)
        _finish(packing, plan, facts, packed)
    shutil.rmtree(packing.part, ignore_errors=True)
    return facts


def check_same(packing: Packing, *, keep_part: bool = False) -> int:
    """Returns the number of packed images; raises DataError if they have other settings.

    Also removes leftovers of a command that was killed at its very end, unless `keep_part`.
    """
    if not keep_part:
        shutil.rmtree(packing.part, ignore_errors=True)
    try:
        facts = json.loads((packing.folder / FACTS).read_text())
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
    """Returns the fingerprints of an earlier attempt, which are slow to compute; else None."""
    if (packing.part / PLAN).exists() and (packing.part / PRINTS).exists():
        return dedup.Prints.load(packing.part / PRINTS)
    return None


def _look(packing: Packing) -> tuple[image_listing.Listing, assignment.Layout]:
    """Inspects the sources; if they cannot be packed, removes the folder made for them."""
    with staging.nothing_left(packing.part):
        return inspect_sources(packing)


def inspect_sources(packing: Packing) -> tuple[image_listing.Listing, assignment.Layout]:
    """Returns the images in the sources, and their split, class and order; writes nothing."""
    named = ", ".join(map(str, packing.sources))
    listing = image_listing.scan(packing.sources)
    layout = assignment.arrange(listing, packing.unsplit, f"--from={named}", packing.holdout)
    return listing, layout


def _fingerprint(packing: Packing, listing: image_listing.Listing, plan: assignment.Layout) -> str:
    """Returns a digest of everything that determines the contents of the shards."""
    total = hashlib.sha256()
    facts = [FORM, packing.name, packing.max_side, packing.max_pixels, packing.shard_bytes]
    total.update(json.dumps([*facts, list(packing.against), list(plan.classes)]).encode())
    for split, order in plan.order.items():
        total.update(split.encode())
        for position in order.tolist():
            total.update(listing.raw_path(position))
        total.update(listing.sizes()[order].astype("<i8").tobytes())
        total.update(plan.labels[order].astype("<i4").tobytes())
    if packing.prints is not None:
        total.update(packing.prints.exact.tobytes() + bytes([packing.distance]))
    return total.hexdigest()


def plan_shards(
    packing: Packing, listing: image_listing.Listing, plan: assignment.Layout
) -> Iterator[Planned]:
    """Yields the shards of every split, with the positions of their images in the listing."""
    for split, order in plan.order.items():
        if not re.fullmatch(r"\w+", split):
            raise DataError(f"--from: folder {split}: no name for a split; letters, digits and _")
        size = int(listing.sizes()[order].sum())
        path = packing.part / WHOLE / packing.name
        yield from shards.divide(path, split, order, size, packing.shard_bytes)


def _shard(listing: image_listing.Listing, plan: assignment.Layout, one: Planned) -> Shard:
    """Returns a shard with the places of its images."""
    return Shard(
        one.path,
        [listing.found(position) for position in one.positions.tolist()],
        plan.labels[one.positions].tolist(),
        one.split.lower() in assignment.EVALUATION and not plan.held_out,
    )


def _check_room(packing: Packing, listing: image_listing.Listing, missing: list[Planned]) -> None:
    if packing.max_side is not None:
        return  # the size of resized images is unknown
    needed = sum(int(listing.sizes()[one.positions].sum()) for one in missing)
    remedy = "free some space, choose another --data-dir, or shrink images with --max-side=512"
    staging.check_free(packing.part, needed, remedy)


def _facts(
    packing: Packing,
    plan: assignment.Layout,
    listing: image_listing.Listing,
    packed: list[tuple[Planned, Outcome]],
) -> dict[str, Any]:
    """Returns the facts about a packed data set, independent of interruptions."""
    outcomes = [outcome for _, outcome in packed]
    splits = {}
    for split in plan.order:
        mine = [each for each in packed if each[0].split == split]
        splits[split] = shards.join_names(packing.part / WHOLE / f"{split}.txt", mine)
        if not splits[split]["examples"]:
            bad = next((row for _, outcome in mine for row in outcome.bad), None)
            first = f"; the first: {bad[0]}: {bad[1]}" if bad else ""
            raise DataError(f"--from: none of the images of split {split} can be packed{first}")
    return {
        "name": packing.name,
        "splits": splits,
        "classes": len(plan.classes),
        "order": "first 64 bits of SHA-256 of CLASS/...",
        "max_side": packing.max_side,
        "jpeg_quality": shards.QUALITY if packing.max_side else None,
        "resized": sum(outcome.resized for outcome in outcomes),
        "dedup_against": list(packing.against),
        "dedup_distance": packing.distance if packing.against else None,
        "duplicates": [row for outcome in outcomes for row in outcome.duplicates],
        "corrupt": [row for outcome in outcomes for row in outcome.bad],
        "holdout": packing.holdout if plan.held_out else None,
        "ignored": len(listing.ignored) + len(plan.ignored),
        "ignored_why": why_ignored(listing, plan),
        "ignored_first": sorted([*plan.ignored, *listing.ignored])[:100],
        "shards": {one.path.name: outcome.sha256 for one, outcome in packed},
    }


def why_ignored(listing: image_listing.Listing, plan: assignment.Layout) -> str:
    """Returns the kinds of skipped files with their numbers."""
    skipped = Skipped()
    for path in listing.ignored:
        skipped.note(path)
    for path in plan.ignored[: len(plan.ignored) - plan.repeated]:
        skipped.note_loose(path)
    again = f"{plan.repeated:,} whose path comes again" if plan.repeated else ""
    return ", ".join(filter(None, [skipped.describe(), again]))


def _finish(
    packing: Packing,
    plan: assignment.Layout,
    facts: dict[str, Any],
    packed: list[tuple[Planned, Outcome]],
) -> None:
    """Writes the metadata and gives the folder its final name."""
    whole = packing.part / WHOLE
    with shards.disk_errors(packing.folder):
        dataset_info.write(whole, packing.name, VERSION, plan.classes, _split_infos(plan, packed))
        storage.write_atomically(whole / FACTS, json.dumps(facts, indent=1) + "\n")
        staging.publish(whole, packing.folder)


def _split_infos(
    plan: assignment.Layout, packed: list[tuple[Planned, Outcome]]
) -> dict[str, list[tuple[int, int]]]:
    """Returns the number of examples and bytes of every shard by split."""
    infos: dict[str, list[tuple[int, int]]] = {split: [] for split in plan.order}
    for one, outcome in packed:
        infos[one.split].append((outcome.examples, outcome.bytes))
    return infos
