"""Findings about images that would spoil a run, and the list of images to leave out."""

import collections
import dataclasses
from typing import NamedTuple

import numpy as np

from vit_jax.data.source import UNKNOWN
from vit_jax.evaluation import probe
from vit_jax.inference.doctor import COSINE, KINDS, LEFT_OUT, duplicates
from vit_jax.inference.doctor.listing import Listing
from vit_jax.inference.doctor.reading import Images
from vit_jax.runtime.progress import Bar
from vit_jax.training import sharding
from vit_jax.utils import messages

NEIGHBORS = 10  # whose mean distance says how unlike others an image is
FENCE = 3.0  # interquartile ranges above the upper quartile: Tukey's outer fence
REFERENCES = 20_000  # images that all are compared with, drawn from more
ROWS = 1024  # compared at a time
LEAST_ACCURACY = 0.7  # of the probe; below, its label errors are called guesses
MOST_CLASSES = 1000  # of the probe, whose probabilities take 4 bytes a class and image
LONG = 3.0  # times the short side
SHORT = 32  # pixels


class Finding(NamedTuple):
    """What is wrong with an image, by its path below the folder: one of KINDS, and why."""

    image: str
    kind: str
    reason: str


@dataclasses.dataclass(kw_only=True)
class Examination:
    """All that was found.

    Attributes:
      checkpoint: whose features were compared.
      leave_out: kinds that the fix list has.
      cosine: the least of the features of near duplicates.
      findings: by kind, in the order of KINDS, worst first, each with the index of its image.
      groups: indices of images that show the same picture, the one to keep first; largest group
        first.
      suggested: the class that each image with a likely wrong label seems to be of, and its
        probability, by index.
      accuracy: of the cross-validated probe, or None.
      judged: (M,) indices of the images whose labels were checked.
      probabilities: (M, K) of their classes, by heads trained without the image.
      notes: what was assumed, and what could not be checked.
    """

    listing: Listing
    images: Images
    checkpoint: str
    leave_out: tuple[str, ...]
    cosine: float
    findings: dict[str, list[tuple[int, Finding]]] = dataclasses.field(
        default_factory=lambda: {kind: [] for kind in KINDS}
    )
    groups: list[list[int]] = dataclasses.field(default_factory=list)
    suggested: dict[int, tuple[str, float]] = dataclasses.field(default_factory=dict)
    accuracy: float | None = None
    judged: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    probabilities: np.ndarray = dataclasses.field(
        default_factory=lambda: np.zeros((0, 0), np.float32)
    )
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def left_out(self) -> dict[str, str]:
        """The paths of the fix list, sorted, each with its reasons."""
        reasons: dict[str, list[str]] = {}
        for kind in KINDS:
            for _, finding in self.findings[kind] if kind in self.leave_out else ():
                reasons.setdefault(finding.image, []).append(f"{kind}: {finding.reason}")
        return {path: "; ".join(reasons[path]) for path in sorted(reasons)}

    @property
    def kept_elsewhere(self) -> dict[str, list[str]]:
        """The images of the fix list that another list keeps, with the splits they leave."""
        listing = self.listing
        out = {at for kind in self.leave_out for at, _ in self.findings[kind]}
        kept = {path for at, path in enumerate(listing.paths) if at not in out}
        found: dict[str, list[str]] = {}
        for at in sorted(out, key=lambda at: listing.split[at]):
            if listing.paths[at] in kept:
                found.setdefault(listing.paths[at], []).append(listing.splits[listing.split[at]])
        return found


def examine(
    listing: Listing,
    images: Images,
    checkpoint: str,
    leave_out: tuple[str, ...] = LEFT_OUT,
    cosine: float = COSINE,
) -> Examination:
    """Finds every kind of problem in images that were read."""
    found = Examination(
        listing=listing, images=images, checkpoint=checkpoint, leave_out=leave_out, cosine=cosine
    )
    roots = duplicates.group_duplicates(images.prints, images.features, cosine)
    # Unreadable images have prints of zeros, by which they would be copies of each other.
    roots[~images.readable] = np.flatnonzero(~images.readable)
    _add_copies(found, roots)
    _add_files(found)
    # One image of each picture: copies would be each other's neighbors, and judge each other.
    single = np.flatnonzero(images.readable & (roots == np.arange(len(roots))))
    _add_outliers(found, single)
    conflicts = {number for number, _ in found.findings["conflict"]}
    # Nothing says which label of a conflict is right, so these would teach the probe wrong ones.
    _add_labels(found, single[~np.isin(single, list(conflicts))])
    if found.accuracy is not None and found.accuracy < LEAST_ACCURACY:
        found.notes.append(
            f"a probe of these features is right on {found.accuracy:.0%} of the images: label "
            "errors are guesses; a larger checkpoint tells classes apart better"
        )
    return found


def _add(found: Examination, number: int, kind: str, reason: str) -> None:
    finding = Finding(found.listing.paths[number], kind, reason)
    found.findings[kind].append((number, finding))


def _add_files(found: Examination) -> None:
    """Broken files, and files of unusual size, shape or mode."""
    for number, error in sorted(found.images.errors.items()):
        _add(found, number, "broken", error)
    # Empty texts are modes that are not known.
    usual = collections.Counter(filter(None, found.images.modes)).most_common(1)
    sizes = found.images.sizes
    for number in np.flatnonzero(found.images.readable).tolist():
        height, width = sizes[number].tolist()
        if min(height, width) < SHORT:
            _add(found, number, "tiny", f"{width} x {height} pixels")
        if max(height, width) > LONG * min(height, width):
            _add(found, number, "aspect", f"{width} x {height} pixels")
        mode = found.images.modes[number]
        if mode and mode != usual[0][0]:
            _add(found, number, "mode", f"{mode}; most are {usual[0][0]}")


def _add_copies(found: Examination, roots: np.ndarray) -> None:
    """Copies of the first image of their group."""
    listing, images = found.listing, found.images
    pixels = images.sizes.prod(axis=1)
    order = np.argsort(roots, kind="stable")
    # Sorted by root, a group is a run of equal ones.
    starts = np.flatnonzero(np.diff(roots[order], prepend=-1))
    groups = [part.tolist() for part in np.split(order, starts[1:]) if len(part) > 1]
    for group in groups:
        # Those of the last split stay, so that a test set keeps its images; then the largest.
        group.sort(key=lambda i: (-listing.split[i], -pixels[i], listing.paths[i]))
    groups.sort(key=len, reverse=True)
    found.groups = groups
    for best, *others in groups:
        for number in others:
            same = images.prints["exact"][number] == images.prints["exact"][best]
            reason = f"{'equal pixels to' if same else 'near duplicate of'} {_named(found, best)}"
            if listing.split[number] != listing.split[best]:
                _add(found, number, "leak", reason)
            # Of another class it is a conflict; an image without a class has none.
            elif len({*listing.label[[number, best]].tolist(), UNKNOWN}) < 3:
                _add(found, number, "copy", reason)
        _add_conflicts(found, [best, *others])


def _add_conflicts(found: Examination, group: list[int]) -> None:
    """Adds all images of a group with different classes: nothing says which class is right."""
    label = found.listing.label
    # Reversed, so that of each class the first image, the best, stays.
    classes = {int(label[number]): number for number in reversed(group)}
    classes.pop(UNKNOWN, None)
    if len(classes) < 2:
        return
    for number in group:
        other = next(at for one, at in classes.items() if one != label[number])
        _add(found, number, "conflict", f"same picture as {_named(found, other)}")


def _add_outliers(found: Examination, single: np.ndarray) -> None:
    if len(single) <= 2 * NEIGHBORS:
        found.notes.append(f"outliers need more than {2 * NEIGHBORS} different pictures")
        return
    distances = neighbor_distances(found.images.features[single])
    low, high = np.quantile(distances, (0.25, 0.75))
    fence = high + FENCE * (high - low)
    for place in np.argsort(-distances, kind="stable"):
        if distances[place] <= fence:
            break
        reason = f"distance {distances[place]:.2f}, of most below {fence:.2f}"
        _add(found, int(single[place]), "outlier", reason)


def _add_labels(found: Examination, single: np.ndarray) -> None:
    listing, label = found.listing, found.listing.label
    single = single[label[single] >= 0]
    # Each fold of the probe needs an image of every class.
    counts = np.bincount(label[single], minlength=len(listing.classes))
    judged = np.flatnonzero(counts >= probe.PARTS)
    problem = ""
    if not listing.classes:
        problem = "labels, such as a folder for each class"
    elif listing.several:
        problem = "one class for each image"
    elif not 2 <= len(judged) <= MOST_CLASSES:
        conflicts = found.findings["conflict"]
        copied = "; images with copies in another class do not count" if conflicts else ""
        problem = (
            f"2 to {MOST_CLASSES:,} classes of at least {probe.PARTS} different pictures, and "
            f"there are {len(judged):,}{copied}"
        )
    if problem:
        found.notes.append(f"wrong labels were not looked for: that needs {problem}")
        return
    if few := [listing.classes[at] for at in np.flatnonzero(counts < probe.PARTS)]:
        found.notes.append(
            f"labels of {few[0]}{messages.more(few)} are not checked: fewer than "
            f"{probe.PARTS} different pictures"
        )
    single = single[np.isin(label[single], judged)]
    # Numbered anew without gaps, as the probe expects; `judged` is sorted.
    labels = np.searchsorted(judged, label[single])
    with Bar("checking labels", probe.PARTS) as progress:
        probabilities = probe.cross_validate(
            found.images.features[single],
            labels,
            len(judged),
            sharding.create_mesh(1),
            say=progress.update,
        )
    likely, errors = find_label_errors(labels, probabilities)
    # Worst first: those whose own class is least probable.
    own = probabilities[np.arange(len(labels)), labels]
    for place in np.flatnonzero(errors)[np.argsort(own[errors], kind="stable")].tolist():
        number, name = int(single[place]), listing.classes[judged[likely[place]]]
        share = float(probabilities[place, likely[place]])
        found.suggested[number] = name, share
        inside = listing.classes[label[number]]
        _add(found, number, "label", f"is in {inside}, looks like {name} ({share:.0%})")
    found.accuracy = float((probabilities.argmax(axis=1) == labels).mean())
    found.judged, found.probabilities = single, probabilities


def _named(found: Examination, number: int) -> str:
    listing = found.listing
    split = listing.splits[listing.split[number]]
    inside = listing.paths[number].startswith(f"{split}/")
    where = "" if inside or len(listing.splits) == 1 else f" ({split})"
    return f"{messages.printable(listing.paths[number])}{where}"


def find_label_errors(
    labels: np.ndarray, probabilities: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The classes that images confidently belong to, and which labels are likely errors.

    Confident learning (Northcutt, Jiang, Chuang 2021, arXiv 1911.00068): the threshold of a class
    is the mean probability of it among the images that have its label. An image belongs to the
    class of largest probability among those that reach their thresholds. Its label is an error if
    that is another class (the off-diagonal entries of the confident joint), and the label is not
    the most probable class. Every class has an image with its label (N,); probabilities (N, K) are
    predicted without the image's own label.

    Returns classes (N,), the label where no threshold is reached, and errors (N,) bool.
    """
    rows = np.arange(len(labels))
    own = probabilities[rows, labels]
    counts = np.bincount(labels, minlength=probabilities.shape[1])
    thresholds = np.bincount(labels, own, minlength=len(counts)) / counts
    # -1 is below every probability.
    confident = np.where(probabilities >= thresholds, probabilities, -1.0)
    found = np.where(confident.max(axis=1) < 0, labels, confident.argmax(axis=1))
    return found, (found != labels) & (probabilities.argmax(axis=1) != labels)


def neighbor_distances(features: np.ndarray) -> np.ndarray:
    """The mean of 1 - cosine to the NEIGHBORS nearest others, (N,) float32.

    Of more than REFERENCES images, neighbors are sought among so many, drawn by a fixed seed.
    Features are (N, D) float32 rows of length 1.
    """
    count = len(features)
    drawn = np.arange(count)
    if count > REFERENCES:
        drawn = np.sort(np.random.default_rng(0).choice(count, REFERENCES, replace=False))
    # Where an image is among the references: there it is its own nearest, which must not count.
    column = np.full(count, -1)
    column[drawn] = np.arange(len(drawn))
    references, found = features[drawn], np.empty(count, np.float32)
    # In parts, which bounds the matrix of cosines to 82 MB.
    for start in range(0, count, ROWS):
        rows = np.arange(start, min(start + ROWS, count))
        cosines = features[rows] @ references.T
        own = column[rows] >= 0
        cosines[np.flatnonzero(own), column[rows[own]]] = -np.inf
        # Their order does not matter, so a partition will do.
        nearest = np.partition(cosines, -NEIGHBORS, axis=1)[:, -NEIGHBORS:]
        found[rows] = 1 - nearest.mean(axis=1)
    return found
