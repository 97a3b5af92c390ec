"""Packs the user's folders, tars and zips of images; resumes after any interruption."""

import dataclasses
import functools
import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import tensorflow_datasets as tfds
from etils import epath

from vit_jax import config
from vit_jax.data import decoding, splits, tasks
from vit_jax.data.datasets import IMAGENET21K
from vit_jax.data.decoding import BadImage
from vit_jax.data.prepare import archives, assignment, dedup, image_listing, shards, staging
from vit_jax.data.prepare import request as lines
from vit_jax.data.prepare.assignment import Assignment
from vit_jax.data.prepare.image_listing import Listing
from vit_jax.data.prepare.parquet import UNLABELED
from vit_jax.data.prepare.request import Request
from vit_jax.data.prepare.shards import MAX_PIXELS, SHARD_BYTES, Shard, ShardResult
from vit_jax.data.source import DataError
from vit_jax.data.splits import Split
from vit_jax.data.tasks import Task
from vit_jax.utils import storage
from vit_jax.utils.messages import size_text

VERSION = "1.0.0"
PRINTS, ROWS = "prints.npy", "rows"
FORM = 3  # version of the packed bytes: raise it when the same images give others
HOLDOUT = 0.1  # fraction of each class for validation, in datasets of the user's own
QUALITY = 95  # JPEG quality of resized images
KEPT = (b"\xff\xd8", b"\x89PNG", b"RIFF")  # stored without decoding: JPEG, PNG, WebP


@dataclasses.dataclass(frozen=True, kw_only=True)
class Packing:
    """A dataset to pack from folders, tars and zips."""

    sources: Sequence[Path]
    name: str
    data_dir: Path
    unsplit: str = "train"  # split of images outside of split folders
    label: str | None = None  # column of labels of Parquet files; UNLABELED: images have none
    holdout: float = 0.0  # of each class, to a validation split if there is none
    max_side: int | None = None  # of an image; larger ones are resized and encoded again
    prints: np.ndarray | None = None  # records of `dedup.stack` of images to leave out
    against: Sequence[str] = ()  # tasks that these belong to
    distance: int = dedup.THRESHOLD
    workers: int = 1
    shard_bytes: int = SHARD_BYTES

    @property
    def labeled(self) -> bool:
        """Whether images have labels."""
        return self.label != UNLABELED

    @property
    def folder(self) -> Path:
        """The folder of the complete dataset."""
        return self.data_dir / self.name / VERSION

    @property
    def part(self) -> Path:
        """The folder used until the dataset is complete."""
        return staging.hidden(self.folder)


def prepare(name: str, task: Task | None, request: Request) -> Iterator[str]:
    """Packs the images of a request and yields lines for the user."""
    request.refuse_partial(name)
    known = task.dataset.tfds if task else name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", known):
        raise config.ConfigError(f"{name}: not a dataset name; use small letters, digits and _")
    # TFDS would look for its own versions in the folder of this name.
    if task is None and known in tfds.list_builders(with_community_datasets=False):
        raise DataError(
            f"{name}: TFDS has a dataset of this name, with other versions; choose another"
        )
    if task is not None and not request.labels:
        raise config.ConfigError(f"--no-labels: is for images of your own, and {name} has classes")
    if request.label is not None and not request.labels:
        raise config.ConfigError(f"--label={request.label}: contradicts --no-labels; give one")
    flag = "--dedup-against="
    excluded = [task for pattern in request.against for task in tasks.select(pattern, flag)]
    # Images outside of split folders may be test images: ObjectNet, for one, has no others.
    packing = Packing(
        sources=(),  # looked for where they are needed: those in a bucket have to be copied
        name=known,
        data_dir=request.directory(),
        unsplit=Split.parse(task.train or task.test, "train").name if task else "train",
        label=request.label if request.labels else UNLABELED,
        holdout=0.0 if task else HOLDOUT if request.holdout is None else request.holdout,
        max_side=request.max_side,
        against=sorted({task.name for task in excluded}),
        distance=request.distance,
        workers=request.workers,
    )
    if packing.folder.exists():
        held = check_same(packing, keep_part=request.dry_run)
        yield (
            f"{name}: is packed already, {held:,} images in {packing.folder}; to pack others, "
            f"remove it: rm -r {packing.folder}"
        )
        return
    packing = dataclasses.replace(packing, sources=request.paths())
    if request.dry_run:
        yield from _plan_lines(name, packing, excluded, request.data_dir)
        return
    if excluded:
        for source in packing.sources:  # before minutes are spent on the test images
            if not source.exists():
                raise DataError(f"--from={source}: no such file or folder")
        prints = kept_prints(packing)
        if prints is None:
            prints = dedup.collect_prints(excluded, request.data_dir, request.workers)
        packing = dataclasses.replace(packing, prints=prints)
    facts = pack(packing)
    if request.holdout and not facts["holdout"]:
        yield f"{name}: --holdout={request.holdout:g}: not used, as splits are given"
    yield from _report_lines(name, packing, facts)
    if task and task.dataset is IMAGENET21K and facts["classes"] != IMAGENET21K.classes:
        yield (
            f"{name}: has {facts['classes']:,} classes, not the {IMAGENET21K.classes:,} of the "
            "paper's models, whose heads do not fit"
        )


def _plan_lines(
    name: str, packing: Packing, against: Sequence[Task], data_dir: str | None
) -> Iterator[str]:
    """Yields the lines of a dry run; lists the sources without unpacking any.

    Raises DataError like the packing itself: for unusable sources, a full disk, a missing task.
    """
    listing, assigned = list_images(packing)
    planned, sizes = plan_shards(packing, listing, assigned), listing.sizes()
    yield lines.reads(name, packing.sources, f"{len(listing):,} images", int(sizes.sum()))
    for source in dedup.open_test_sets(against, data_dir):
        title = source.name(0).rpartition(" example")[0]
        yield f"{name}: would read {len(source):,} images: {title}, to leave out duplicates"
    for split, order in assigned.order.items():
        size = size_text(int(sizes[order].sum()))
        classes = _classes_text(len(assigned.classes))
        yield f"{name}: {split}: {len(order):,} images {classes}, {size}"
    if why := _why_ignored(listing, assigned):
        yield f"{name}: would skip {why}"
    missing = [shard for shard in planned if shards.find_outcome(shard.path) is None]
    needed = sum(shard.size for shard in missing)
    contents = f"{len(planned):,} shards, "
    if packing.max_side is None:
        contents += f"about {size_text(int(sizes.sum()))}"
    else:  # the size of a shrunk image is known only afterwards
        needed = 0
        contents += f"images shrunk to {packing.max_side} pixels"
    yield from lines.writes(name, packing.folder, contents, needed, len(planned) - len(missing))


def _report_lines(name: str, packing: Packing, facts: Mapping[str, Any]) -> Iterator[str]:
    for split, about in facts["splits"].items():
        yield f"{name}: {split}: {about['examples']:,} images {_classes_text(facts['classes'])}"
    report = packing.folder / staging.FACTS
    for number, what in (
        (facts["resized"], f"were larger than {packing.max_side} pixels and are resized"),
        (len(facts["corrupt"]), f"cannot be read and are left out; {report} names them"),
        (
            len(facts["duplicates"]),
            f"are test images of other tasks and are left out; {report} has the pairs",
        ),
        (facts["ignored"], f"are left out: {facts['ignored_why']}"),
    ):
        if number:
            yield f"{name}: {number:,} files {what}"
    command = _training_command(packing, facts["splits"])
    yield f"{name}: in {packing.folder}; to train on it: {command}"


def _classes_text(number: int) -> str:
    return f"of {number:,} classes" if number else "without labels"


def _training_command(packing: Packing, names: Collection[str]) -> str:
    flags = [("name", packing.name), ("root", str(packing.data_dir))]
    evaluation = splits.for_evaluation(names)
    train = splits.find_folder("train", names) or next(
        (split for split in sorted(names) if split != evaluation), evaluation
    )
    if evaluation is None or evaluation == train:  # its order is by hash: any part is a sample
        flags += [("train_split", f"{train}[:90%]"), ("eval_split", f"{train}[90%:]")]
    else:
        flags += [("train_split", train)] if train != "train" else []
        flags += [("eval_split", evaluation)]
    words = (f"--config.data.{key}={value}" for key, value in flags)
    unlabeled = () if packing.labeled else ("--config.objective.name=mae",)
    return shlex.join(["vit_jax", "train", "tfds", *words, *unlabeled])


def pack(packing: Packing) -> dict[str, Any]:
    """Packs a dataset and returns the contents of its `vit_jax.json`."""
    plan = functools.partial(_plan, packing)
    return staging.write_dataset(packing.name, packing.folder, plan, packing.workers)


def _plan(packing: Packing, part: Path) -> staging.PackingWork:
    with shards.disk_errors(part):
        listing, assigned = list_images(packing, part / ROWS)
    prints, saved = packing.prints, part / PRINTS

    def entries(shard: Shard) -> list[ImageEntry]:
        # A validation split that was held out here is cleaned like the images it comes from.
        is_test = shard.split.lower() in assignment.EVALUATION and not assigned.held_out
        labels = assigned.labels[shard.positions].tolist()
        return [
            (listing[position], label, is_test)
            for position, label in zip(shard.positions.tolist(), labels, strict=True)
        ]

    def keep_prints() -> None:
        if prints is not None:
            with storage.naming(saved):
                np.save(saved, prints)

    remedy = "free some space, choose another --data-dir, or shrink images with --max-side=512"
    return staging.PackingWork(
        fingerprint=_fingerprint(packing, listing, assigned),
        shards=plan_shards(packing, listing, assigned),
        entries=entries,
        encoder=functools.partial(
            ImageEncoder,
            classes=assigned.classes,
            below=assigned.below,
            max_side=packing.max_side,
            # By file: each process maps it, where pickles would copy it.
            prints=None if prints is None else saved,
            distance=packing.distance,
        ),
        finish=functools.partial(_finish, packing, assigned, listing),
        remedy=remedy if packing.max_side is None else None,  # sizes of resized images are unknown
        first=keep_prints,
    )


def check_same(packing: Packing, *, keep_part: bool = False) -> int:
    """The number of packed images; raises DataError if they have other settings.

    Also removes leftovers of a command that was killed at its very end, unless `keep_part`.
    """
    if not keep_part:
        shutil.rmtree(packing.part, ignore_errors=True)
    facts = staging.read_facts(packing.folder)
    if facts is None:
        raise DataError(
            f"{packing.folder}: exists, but was not packed by this command; remove it"
        ) from None
    again = f"to pack it again, remove it: rm -r {packing.folder}"
    if (facts.get("label") == UNLABELED) == packing.labeled:
        how = "without" if packing.labeled else "with"
        raise DataError(f"{packing.folder}: was packed {how} labels; {again}")
    held = facts.get("holdout")  # None: it had splits
    for key, value in (
        ("label", packing.label),
        ("holdout", held if held is None else packing.holdout),
        ("max_side", packing.max_side),
        ("dedup_against", list(packing.against)),
        ("dedup_distance", packing.distance if packing.against else None),
    ):
        if facts.get(key) != value:
            raise DataError(
                f"{packing.folder}: was packed with {key} {facts.get(key)}, not {value}; {again}"
            )
    return sum(split["examples"] for split in facts["splits"].values())


def kept_prints(packing: Packing) -> np.ndarray | None:
    """The fingerprints of an earlier attempt, which are slow to compute; else None."""
    if (packing.part / staging.PLAN).exists() and (packing.part / PRINTS).exists():
        return np.load(packing.part / PRINTS, mmap_mode="r")
    return None


def list_images(packing: Packing, copy: Path | None = None) -> tuple[Listing, Assignment]:
    """The images in the sources, and their split, class and order.

    Writes nothing but `copy`, the images of tables; without it, those cannot be read.
    """
    named = ", ".join(map(str, packing.sources))
    listing = image_listing.scan(packing.sources, label=packing.label, copy=copy)
    assigned = assignment.arrange(
        listing, packing.unsplit, f"--from={named}", packing.holdout, labeled=packing.labeled
    )
    return listing, assigned


def _fingerprint(packing: Packing, listing: Listing, assigned: Assignment) -> str:
    """A digest of everything that determines the contents of the shards."""
    total = hashlib.sha256()
    facts = [FORM, packing.name, packing.max_side, MAX_PIXELS, packing.shard_bytes]
    total.update(json.dumps([*facts, list(packing.against), list(assigned.classes)]).encode())
    for split, order in assigned.order.items():
        total.update(split.encode())
        for position in order.tolist():
            total.update(listing.raw_path(position))
        total.update(listing.sizes()[order].astype("<i8").tobytes())
        total.update(assigned.labels[order].astype("<i4").tobytes())
    if packing.prints is not None:
        # The distance fits a byte: hashes have 64 bits.
        total.update(packing.prints["exact"].tobytes() + bytes([packing.distance]))
    return total.hexdigest()


def plan_shards(packing: Packing, listing: Listing, assigned: Assignment) -> list[Shard]:
    """The shards of every split, with the positions of their images in the listing."""
    path = packing.part / staging.WHOLE / packing.name
    planned = []
    for split, order in assigned.order.items():
        if not re.fullmatch(r"\w+", split):
            raise DataError(f"--from: folder {split}: not a split name; use letters, digits and _")
        planned += shards.divide(path, split, order, listing.sizes(), packing.shard_bytes)
    return planned


# An image, its label, and whether it belongs to a test set, which keeps its duplicates.
ImageEntry = tuple[archives.FileEntry, int, bool]


class ImageEncoder:
    """Makes examples of images: decodes each, leaves out bad ones and duplicates, resizes.

    Takes what `Assignment` and `Packing` say, but for a file of `prints`.
    """

    def __init__(
        self,
        *,
        classes: Sequence[str],
        below: int,
        max_side: int | None,
        prints: Path | None,
        distance: int,
    ) -> None:
        self.features = features(classes)
        self._below, self._max_side = below, max_side
        records = np.load(prints, mmap_mode="r") if prints else None  # shared by processes
        self._index = None if records is None else dedup.FingerprintIndex(records, distance)
        self._read = archives.Reader()

    def __call__(
        self, entry: ImageEntry, outcome: ShardResult
    ) -> tuple[str, dict[str, Any]] | None:
        """The example of an image; raises DataError if its source has changed."""
        found, label, is_test = entry
        raw = os.fsencode(found.path)[self._below :]
        # The names of a split's examples are stored one per line.
        name = raw.decode(errors="backslashreplace").replace("\n", "\\n")
        try:
            encoded = self._read(found)
            pixels = decoding.decode_image(encoded, channels=3, max_pixels=MAX_PIXELS)
        except BadImage as error:
            outcome.bad.append((name, str(error)))
            return None
        # Before resizing: the fingerprints of test images come from unresized pixels, too.
        if self._index is not None and not is_test:
            match = self._index.find(pixels)
            if match is not None:
                outcome.duplicates.append((name, match.name, match.distance))
                return None
        longest = max(pixels.shape[:2])
        side = self._max_side or longest
        large = longest > side
        if large or not encoded.startswith(KEPT):  # TFDS cannot read BMP, and reads a GIF's frames
            if decoding.has_16_bits(encoded):
                pixels = decoding.decode_image(encoded, channels=3, max_pixels=MAX_PIXELS, depth=16)
            encoded = _shrink(pixels, side) if large else decoding.encode(pixels)
            outcome.resized += large
        # TFDS writes the features that a dataset has, and without classes it has no label.
        return name, {"image": encoded, "label": np.int64(label), "file_name": name.encode()}


def _shrink(pixels: np.ndarray, side: int) -> bytes:
    """RGB pixels `H W 3`, resized by area to a longer side of `side`: a JPEG, of uint16 a PNG."""
    factor = side / max(pixels.shape[:2])
    height, width = (max(1, round(length * factor)) for length in pixels.shape[:2])
    small = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
    if small.dtype == np.uint16:
        return decoding.encode(small)
    return decoding.encode(small, ".jpg", cv2.IMWRITE_JPEG_QUALITY, QUALITY)


def features(classes: Sequence[str]) -> Any:
    """The TFDS features of a packed dataset; without classes there is no label."""
    label = {"label": tfds.features.ClassLabel(names=list(classes))} if classes else {}
    return tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=(None, None, 3)),
            **label,
            "file_name": tfds.features.Text(),
        }
    )


def _finish(
    packing: Packing,
    assigned: Assignment,
    listing: Listing,
    whole: Path,
    packed: staging.Packed,
) -> dict[str, Any]:
    """Writes the metadata and returns the facts, which do not depend on interruptions."""
    outcomes = [outcome for _, outcome in packed]
    ignored = [*listing.ignored, *assigned.ignored, *assigned.repeated]
    unsplit = [name.lower() in splits.TRAIN for name in assigned.order] == [True]
    about, sizes = {}, {}
    for split in assigned.order:
        members = [each for each in packed if each[0].split == split]
        about[split] = shards.join_names(whole / f"{split}.txt", members)
        sizes[split] = [(outcome.examples, outcome.bytes) for _, outcome in members]
        if not about[split]["examples"]:
            bad = next((row for _, outcome in members for row in outcome.bad), None)
            first = f"; the first: {bad[0]}: {bad[1]}" if bad else ""
            raise DataError(f"--from: none of the images of split {split} can be packed{first}")
    write_info(whole, packing.name, VERSION, assigned.classes, sizes)
    return {
        "name": packing.name,
        "splits": about,
        "classes": len(assigned.classes),
        "order": f"first 64 bits of SHA-256 of {'CLASS/...' if packing.labeled else 'the path'}",
        "max_side": packing.max_side,
        "jpeg_quality": QUALITY if packing.max_side else None,
        "resized": sum(outcome.resized for outcome in outcomes),
        "dedup_against": list(packing.against),
        "dedup_distance": packing.distance if packing.against else None,
        "duplicates": [row for outcome in outcomes for row in outcome.duplicates],
        "corrupt": [row for outcome in outcomes for row in outcome.bad],
        "label": packing.label,
        "holdout": packing.holdout if assigned.held_out or unsplit else None,
        "ignored": len(ignored) + listing.empty_rows,
        "ignored_why": _why_ignored(listing, assigned),
        "ignored_first": sorted(ignored)[:100],
        "shards": {shard.path.name: outcome.sha256 for shard, outcome in packed},
    }


def write_info(
    folder: Path,
    name: str,
    version: str,
    classes: Sequence[str],
    sizes: Mapping[str, Sequence[tuple[int, int]]],
) -> None:
    """Writes the TFDS metadata; `sizes` has the (examples, bytes) of each shard by split."""
    template = tfds.core.ShardedFileTemplate(
        data_dir=epath.Path(folder), dataset_name=name, filetype_suffix="array_record"
    )
    infos = [
        tfds.core.SplitInfo(
            name=split,
            shard_lengths=[examples for examples, _ in files],
            num_bytes=sum(size for _, size in files),
            filename_template=template.replace(split=split),
        )
        for split, files in sizes.items()
    ]
    tfds.folder_dataset.write_metadata(
        data_dir=folder,
        version=version,
        features=features(classes),
        split_infos=infos,
        filename_template=template,
        supervised_keys=("image", "label") if classes else None,
        description="Packed by vit_jax prepare; vit_jax.json says from what.",
        # TFDS's check reads an example by `as_dataset`, which requires TensorFlow.
        check_data=False,
    )


def _why_ignored(listing: Listing, assigned: Assignment) -> str:
    skipped = assigned.skipped(listing)
    for path in listing.ignored:
        skipped.note(path)
    return skipped.describe()
