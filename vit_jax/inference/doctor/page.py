"""The page of an examination: numbers, classes, and pictures of each kind of finding."""

import numpy as np

from vit_jax import config
from vit_jax.data import bucket, decoding
from vit_jax.inference.doctor import KINDS, duplicates
from vit_jax.inference.doctor import examination as e
from vit_jax.pages.document import (
    Block,
    Document,
    Gallery,
    Numbers,
    PageSection,
    Paragraph,
    Picture,
    Sample,
    Table,
)
from vit_jax.utils import messages

SIDE = 112  # pixels of a picture
SHOWN = 24  # pictures of a kind
GROUPS, MEMBERS = 12, 6  # of copies
CLASSES = 40  # rows of the table
IMBALANCED = 3.0  # ratio of the largest to the smallest class from which it is reported


def summarize(found: e.Examination) -> list[str]:
    """The most important findings: leaks, conflicts, imbalance."""
    listing, lines = found.listing, []
    count = len(listing.paths)
    pictures = count - sum(len(group) - 1 for group in found.groups) - len(found.images.errors)
    if pictures < count - len(found.images.errors):
        shown = "one picture" if pictures == 1 else f"{pictures:,} different pictures"
        lines.append(
            f"{count - len(found.images.errors):,} readable images show {shown}; the "
            f"largest group of copies has {len(found.groups[0]):,}"
        )
    for split, (shared, total) in leaks(found).items():
        lines.append(
            f"{shared:,} of {total:,} images of {split} ({shared / total:.0%}) are in another "
            "split too: accuracy on them is memorization"
        )
    if conflicts := len(found.findings["conflict"]):
        lines.append(f"{conflicts:,} images have copies in another class: no model can be right")
    if listing.several:
        return lines  # neither sampling nor weights are for them
    # Those of the first split, which is trained on: the others are often balanced.
    trained = listing.label[(listing.split == 0) & (listing.label >= 0)]
    counts = np.bincount(trained, minlength=len(listing.classes))
    where = f" in {listing.splits[0]}" if len(listing.splits) > 1 else ""
    # At least one image: a split without labels is not imbalanced.
    if len(counts) > 1 and counts.max() >= max(IMBALANCED * counts.min(), 1):
        # Neither option helps a class without images.
        most, least = (listing.classes[at] for at in (counts.argmax(), counts.argmin()))
        lines.append(
            f"{most} has {counts.max():,} images{where}, {least} {counts.min():,}"
            + (": try data.sampling=balanced or train.class_weights=balanced" * bool(counts.all()))
        )
    return lines


def leaks(found: e.Examination) -> dict[str, tuple[int, int]]:
    """For each split but the first, its images with a copy in an earlier split, and its images."""
    split, names = found.listing.split, found.listing.splits
    shared = np.zeros(len(names), np.int64)
    for group in found.groups:
        first = split[group].min()
        shared += np.bincount(split[group][split[group] > first], minlength=len(names))
    totals = np.bincount(split, minlength=len(names))
    pairs = zip(names, shared.tolist(), totals.tolist(), strict=True)
    return {name: (some, total) for name, some, total in pairs if some}


def assumptions(found: e.Examination) -> list[str]:
    """The thresholds and methods behind the findings."""
    judged = "" if found.accuracy is None else f"; it is right on {found.accuracy:.1%}"
    splits = found.listing.splits
    return [
        f"folder: {found.listing.layout}; splits: {', '.join(splits)}; not used: "
        f"{found.listing.unused or 'nothing'}",
        f"features: {found.checkpoint}, {found.images.features.shape[1]} of an image",
        "copies: equal pixels, or perceptual hashes (64 signs of a cosine transform) that differ "
        f"in at most {duplicates.BITS} bits, gray pixels that correlate by "
        f"{duplicates.CORRELATION} and features with a cosine of {found.cosine:g}; mirrored and "
        "rotated copies are not found",
        "labels: a linear probe of the features, each image judged by a head trained on the other "
        f"four fifths{judged}; errors by confident learning (Northcutt et al. 2021): the "
        "probability of another class reaches that of its own images",
        f"outliers: mean distance (1 - cosine) to the {e.NEIGHBORS} nearest beyond the upper "
        f"quartile by {e.FENCE:g} times the distance between quartiles; of more than "
        f"{e.REFERENCES:,} images, neighbors among so many",
        f"files: tiny below {e.SHORT} pixels, long from {e.LONG:g} to 1",
        f"the fix list has {', '.join(found.leave_out) or 'nothing'}; of copies the largest of "
        "the last split stays, of copies in several classes none",
    ]


def document(found: e.Examination, data: config.Data) -> Document:
    """The page, its pictures read again."""
    listing, draw = found.listing, _Pictures(found, data)
    numbers = [
        (f"{len(listing.paths):,}", "images", listing.layout),
        (f"{len(listing.classes):,}", "classes", ""),
        (f"{len(found.groups):,}", "groups of copies", ""),
        (f"{len(found.left_out):,}", "to leave out", "with --fix-list"),
    ]
    rows = describe(found)
    blocks: list[Block] = [Numbers(items=numbers)]
    blocks += [Paragraph(text=line) for line in (*summarize(found), *found.notes)]
    blocks.append(
        Table(header=("finding", "images", "in the list", "what it is"), rows=rows)
        if rows
        else Paragraph(text="Nothing was found.")
    )
    sections = [PageSection(title="Summary", blocks=blocks)]
    if found.groups:
        sections.append(PageSection(title="Copies", blocks=draw.groups()))
    for kind, title in (
        ("label", "Likely label errors"),
        ("outlier", "Outliers"),
        ("tiny", "Tiny images"),
        ("aspect", "Long and tall images"),
        ("mode", "Other kinds of pixels"),
    ):
        if found.findings[kind]:
            sections.append(PageSection(title=title, blocks=[draw.gallery(kind)]))
    if broken := found.findings["broken"]:
        table = Table(
            header=("image", "reason"),
            rows=[(messages.printable(one.image), one.reason) for _, one in broken[:CLASSES]],
            caption=_shown(min(len(broken), CLASSES), len(broken), _rest(found, "broken")),
        )
        sections.append(PageSection(title="Broken files", blocks=[table]))
    if listing.classes:
        sections.append(PageSection(title="Classes", blocks=[_classes(found)]))
    how = [Paragraph(text=line, note=True) for line in assumptions(found)]
    sections.append(PageSection(title="How this was found", blocks=how))
    name = messages.printable(bucket.shown(listing.root))
    lead = "What would spoil a run: copies, leaks, wrong labels, outliers, broken files."
    return Document(title=f"Doctor: {name}", lead=lead, sections=sections)


def describe(found: e.Examination) -> list[tuple[str, str, str, str]]:
    """Rows of findings: kind, images, how many of them the fix list has, description."""
    return [
        (kind, f"{len(rows):,}", f"{len(rows) * (kind in found.leave_out):,}", KINDS[kind])
        for kind, rows in found.findings.items()
        if rows
    ]


def _shown(shown: int, count: int, rest: str = "") -> str:
    """How many of all are shown; `rest` says where the others are."""
    return "" if shown == count else f"{shown:,} of {count:,}{rest}"


def _rest(found: e.Examination, kind: str) -> str:
    listed = kind in found.leave_out
    return f"; {'the fix list and --json have all' if listed else '--json has all'}"


def _classes(found: e.Examination) -> Table:
    """Images of each class in each split, the rarest classes first."""
    listing = found.listing
    counts = np.zeros((len(listing.classes), len(listing.splits)), np.int64)
    known = listing.label >= 0
    # `counts[...] += 1` would count a repeated pair once.
    np.add.at(counts, (listing.label[known], listing.split[known]), 1)
    order = np.argsort(counts.sum(axis=1), kind="stable")[:CLASSES]
    rows = [(listing.classes[at], *(f"{n:,}" for n in counts[at])) for at in order]
    header = ("class", *listing.splits)
    return Table(header=header, rows=rows, caption=_shown(len(rows), len(listing.classes)))


class _Pictures:
    def __init__(self, found: e.Examination, data: config.Data) -> None:
        self._found, self._data = found, data

    def groups(self) -> list[Block]:
        """A gallery for each of the largest groups, those in several classes or splits first."""
        found, listing = self._found, self._found.listing
        worst = {number for kind in ("conflict", "leak") for number, _ in found.findings[kind]}
        # False sorts first; the sort is stable, so the largest come first among equals.
        groups = sorted(found.groups, key=lambda group: worst.isdisjoint(group))
        blocks: list[Block] = []
        for group in groups[:GROUPS]:
            splits = sorted({listing.splits[listing.split[at]] for at in group})
            classes = sorted({self._class(at) for at in group})
            caption = f"{len(group):,} times, in {', '.join(splits)}"
            caption += f"; classes {', '.join(classes)}" if len(classes) > 1 else ""
            pictures = [self._picture(at, self._class(at)) for at in group[:MEMBERS]]
            blocks.append(Gallery(samples=pictures, caption=caption))
        rest = _shown(min(len(groups), GROUPS), len(groups), _rest(found, "copy"))
        return [*blocks, *([Paragraph(text=f"Groups: {rest}", note=True)] if rest else [])]

    def gallery(self, kind: str) -> Gallery:
        """The first findings of a kind."""
        rows = self._found.findings[kind]
        samples = [self._sample(at, one) for at, one in rows[:SHOWN]]
        return Gallery(
            samples=samples, caption=_shown(len(samples), len(rows), _rest(self._found, kind))
        )

    def _sample(self, number: int, finding: e.Finding) -> Sample | Picture:
        if number in self._found.suggested and finding.kind == "label":
            return Sample(
                name=messages.printable(finding.image),
                png=self._png(number),
                truth=self._class(number),
                top=[self._found.suggested[number]],
                right=False,
            )
        return self._picture(number, finding.reason)

    def _picture(self, number: int, caption: str) -> Picture:
        name = messages.printable(self._found.listing.paths[number])
        return Picture(png=self._png(number), path=name, caption=caption)

    def _class(self, number: int) -> str:
        label = self._found.listing.label[number]
        return self._found.listing.classes[label] if label >= 0 else "no class"

    def _png(self, number: int) -> bytes:
        listing, data = self._found.listing, self._data
        try:
            encoded = decoding.read_file(listing.root / listing.paths[number])
            return decoding.thumbnail(encoded, SIDE, data)
        except (OSError, decoding.BadImage):  # changed since it was read
            blank = np.zeros((1, 1, data.channels), np.uint8)
            return decoding.thumbnail(blank, SIDE, data)
